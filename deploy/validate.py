"""Judges rendered manifests: strictly by Kubernetes' schemas of many versions, and by the Prometheus operator's CRDs.

Usage: validate.py FOLDER CRDS. FOLDER holds NAME.FROM-TO.yaml, each for Kubernetes 1.FROM up to 1.TO; CRDS is a folder of
CRDs, or `-`. Prints one line for each problem, then `checked: N documents, M judgements`. Exit 1 when there are problems.
Used by agent/tests/deploy.rs. Does not: render, or know what the manifests are for (the test's own rules do).
"""

import json
import pathlib
import sys

import jsonschema
import kubernetes_validate
import yaml


class Unique(yaml.CSafeLoader):
    """A key that stands twice is an error, as it is for the API server's strict decoding."""


def mapping(loader, node, deep=False):
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = {str(key) for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.constructor.ConstructorError(None, None, f"key {', '.join(sorted(twice))} stands twice", node.start_mark)
    return yaml.CSafeLoader.construct_mapping(loader, node, deep)


Unique.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, lambda loader, node: mapping(loader, node, True))
# A lone `=` has a meaning in YAML 1.1 that is not used; CRDs list it among operators.
yaml.CSafeLoader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: loader.construct_scalar(node))


def main():
    folder, crds = pathlib.Path(sys.argv[1]), sys.argv[2]
    schemas = {} if crds == "-" else dict(custom(pathlib.Path(crds)))
    problems, documents, judged = [], set(), set()
    for file in sorted(folder.glob("*.yaml")):
        first, last = map(int, file.name.split(".")[-2].split("-"))
        try:
            found = [one for one in yaml.load_all(file.read_text(), Loader=Unique) if one]
        except yaml.YAMLError as error:
            problems.append(f"{file.name}: {error}")
            continue
        names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in found]
        problems += [f"{file.name}: {name} stands twice" for name in set(names) if names.count(name) > 1]
        for one in found:
            documents.add(json.dumps(one, sort_keys=True))
            problems += judge(file.name, one, range(first, last + 1), schemas, judged)
    print("\n".join(problems), end="\n" if problems else "")
    print(f"checked: {len(documents)} documents, {len(judged)} judgements")
    return 1 if problems else 0


def judge(file, one, versions, schemas, judged):
    """The same document is judged once for each version."""
    what, text = f"{file}: {one['kind']} {one['metadata']['name']}", json.dumps(one, sort_keys=True)
    if one["apiVersion"].startswith("monitoring.coreos.com/"):
        schema = schemas.get((one["apiVersion"], one["kind"]))
        if schema is None or (text, "crd") in judged:
            return
        judged.add((text, "crd"))
        for error in jsonschema.Draft7Validator(schema).iter_errors(one):
            yield f"{what}: {error.json_path}: {error.message}"
        return
    if one["apiVersion"].startswith("security.openshift.io/"):
        # OpenShift publishes no schema apart from its API server; the test's own rules hold for it.
        return
    for minor in versions:
        if (text, minor) in judged:
            continue
        judged.add((text, minor))
        try:
            kubernetes_validate.validate(one, f"1.{minor}", strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            yield f"{what}: Kubernetes 1.{minor}: {' '.join(str(error).split())[:400]}"


def custom(folder):
    for file in folder.glob("*.yaml"):
        crd = yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
        for version in crd["spec"]["versions"]:
            schema = strict(version["schema"]["openAPIV3Schema"])
            # The API server judges these by its own schema.
            schema["properties"]["metadata"] = {"type": "object"}
            yield (f"{crd['spec']['group']}/{version['name']}", crd["spec"]["names"]["kind"]), schema


def strict(schema):
    """A structural schema as JSON schema that refuses unknown fields."""
    if not isinstance(schema, dict):
        return schema
    result = {key: value for key, value in schema.items() if not key.startswith("x-kubernetes-") and key != "format"}
    for key in ("items", "additionalProperties", "not"):
        if key in result:
            result[key] = strict(result[key])
    for key in ("allOf", "anyOf", "oneOf"):
        if key in result:
            # Inside these, fields are constrained, not declared.
            result[key] = [part for part in result[key]]
    if "properties" in result:
        result["properties"] = {name: strict(value) for name, value in result["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            result.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return result


if __name__ == "__main__":
    sys.exit(main())
