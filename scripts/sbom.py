#!/usr/bin/env python3
"""Makes a bill of materials reproducible: cargo-cyclonedx writes a random serial number, the time, and paths of the machine.

Usage: sbom.py BOM TREE > OUT. BOM is what cargo-cyclonedx wrote for the manifests below TREE. Prints CycloneDX JSON with
the time of SOURCE_DATE_EPOCH, a serial number that follows from the content, and no path. Used by scripts/release.sh.
Does not: add or remove a component.
"""

import datetime
import json
import os
import pathlib
import sys
import uuid


def main():
    tree = str(pathlib.Path(sys.argv[2]).resolve())
    bom = json.loads(pathlib.Path(sys.argv[1]).read_text())
    bom.pop("serialNumber", None)
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    bom["metadata"]["timestamp"] = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    bom = without(bom, tree)
    bom["components"].sort(key=lambda one: one["bom-ref"])
    bom["dependencies"].sort(key=lambda one: one["ref"])
    text = json.dumps(bom, sort_keys=True)
    bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"
    text = json.dumps(bom, indent=2, sort_keys=True)
    if tree in text:
        sys.exit(f"error: {sys.argv[1]} names {tree} in a place that this script does not know")
    print(text)


def without(value, tree):
    """The same with paths below the tree relative to it."""
    if isinstance(value, dict):
        return {key: without(inner, tree) for key, inner in value.items()}
    if isinstance(value, list):
        return [without(inner, tree) for inner in value]
    if isinstance(value, str):
        return value.replace(f"file://{tree}/", "file:///sandglass/").replace(tree, "/sandglass")
    return value


if __name__ == "__main__":
    main()
