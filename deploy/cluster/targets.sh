#!/usr/bin/env bash
# Writes the targets of Prometheus: every pod with prometheus.io/scrape annotations, as its Kubernetes discovery would
# find it; Debian's Prometheus is built without that. Usage: targets.sh BIN FOLDER.
set -euo pipefail
export KUBECONFIG=$2/admin.kubeconfig
"$1/kubectl" get pods --all-namespaces --output json | python3 -c '
import json, sys
targets = []
for pod in json.load(sys.stdin)["items"]:
    wanted = pod["metadata"].get("annotations", {})
    if wanted.get("prometheus.io/scrape") == "true" and "podIP" in pod["status"]:
        targets.append({
            "targets": ["%s:%s" % (pod["status"]["podIP"], wanted["prometheus.io/port"])],
            "labels": {"__metrics_path__": wanted["prometheus.io/path"], "node": pod["spec"]["nodeName"]},
        })
json.dump(targets, sys.stdout)
' > "$2/targets.json.new"
mv "$2/targets.json.new" "$2/targets.json"
