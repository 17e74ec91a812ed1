#!/usr/bin/env python3
"""Writes an OCI image archive from one static binary, without a container engine.

Usage: oci.py --binary FILE --arch amd64|arm64 --name NAME --version VERSION --out ARCHIVE
Used by `make image` and by the cluster tests. The same binary gives the same bytes on every machine: no times, no
owners, no compression. Does not: push, sign, or put anything into the image but the binary.
"""

import argparse
import hashlib
import io
import json
import struct
import sys
import tarfile

MACHINES = {"amd64": 62, "arm64": 183}
PT_INTERP = 3


def main():
    arguments = parse()
    with open(arguments.binary, "rb") as file:
        binary = file.read()
    problem = refuse(binary, arguments.arch)
    if problem:
        sys.exit(f"error: {arguments.binary} {problem}\nhint: build it for the target {target(arguments.arch)}")
    archive = image(binary, arguments)
    with open(arguments.out, "wb") as file:
        file.write(archive)
    print(f"{arguments.out}: {arguments.name} ({arguments.arch}), {len(archive) / 1e6:.1f} MB, sha256 {digest(archive)}")


def parse():
    parser = argparse.ArgumentParser(description="OCI image archive from one static binary")
    for name in ("binary", "name", "version", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--arch", required=True, choices=sorted(MACHINES))
    parser.add_argument("--entrypoint", default="sandglass", help="name of the binary in the image")
    return parser.parse_args()


def target(arch):
    return {"amd64": "x86_64", "arm64": "aarch64"}[arch] + "-unknown-linux-musl"


def refuse(binary, arch):
    """Says what is wrong with the binary for an image that holds nothing else; None when it is right."""
    if len(binary) < 64 or binary[:6] != b"\x7fELF\x02\x01":
        return "is no 64-bit little-endian ELF file"
    machine = struct.unpack_from("<H", binary, 18)[0]
    if machine != MACHINES[arch]:
        return f"is for ELF machine {machine}, not {arch}"
    offset, = struct.unpack_from("<Q", binary, 32)
    size, count = struct.unpack_from("<HH", binary, 54)
    kinds = {struct.unpack_from("<I", binary, offset + n * size)[0] for n in range(count)}
    return "needs a dynamic loader, which is not in the image" if PT_INTERP in kinds else None


def image(binary, arguments):
    layer = tar([(arguments.entrypoint, binary, 0o755)])
    config = blob({
        "architecture": arguments.arch,
        "os": "linux",
        "config": {
            "Entrypoint": [f"/{arguments.entrypoint}"],
            "WorkingDir": "/",
            # Capabilities and uid 0 are the pod's to ask for.
            "User": "65532:65532",
            "Labels": {
                "org.opencontainers.image.title": arguments.entrypoint,
                "org.opencontainers.image.version": arguments.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
                "org.opencontainers.image.source": "https://github.com/sandglass-dev/sandglass",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest(layer)}"]},
    })
    manifest = blob({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": describe("application/vnd.oci.image.config.v1+json", config),
        "layers": [describe("application/vnd.oci.image.layer.v1.tar", layer)],
    })
    entry = describe("application/vnd.oci.image.manifest.v1+json", manifest)
    entry["platform"] = {"architecture": arguments.arch, "os": "linux"}
    entry["annotations"] = {
        "io.containerd.image.name": arguments.name,
        "org.opencontainers.image.ref.name": arguments.name.rpartition(":")[2],
    }
    index = blob({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]})
    blobs = [(f"blobs/sha256/{digest(content)}", content, 0o644) for content in (config, manifest, layer)]
    return tar([("oci-layout", blob({"imageLayoutVersion": "1.0.0"}), 0o644), ("index.json", index, 0o644), *blobs])


def tar(files):
    """Times and owners are zero, so that only the content counts."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content, mode in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def blob(value):
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def describe(media_type, content):
    return {"mediaType": media_type, "digest": f"sha256:{digest(content)}", "size": len(content)}


def digest(content):
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main()
