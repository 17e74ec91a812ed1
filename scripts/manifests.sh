#!/usr/bin/env bash
# Renders the plain manifests from the chart. Usage: scripts/manifests.sh [FOLDER] (default: deploy/manifests).
# A test renders them into another folder and compares. SANDGLASS_HELM names a Helm that is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-deploy/manifests}
helm=${SANDGLASS_HELM:-$(scripts/peer.sh helm)}
mkdir -p "$folder"

# The images are named in the reserved domain .invalid: a user who applies a manifest puts a registry there.
# render FILE WHAT ARGUMENTS..: nothing of Helm stays in it, and no hook.
render() {
    local file=$1 what=$2
    shift 2
    {
        echo "# $what Rendered from deploy/helm/sandglass by scripts/manifests.sh: change the chart, not this file."
        "$helm" template sandglass deploy/helm/sandglass --namespace sandglass --no-hooks --kube-version 1.31.0 \
            --set namespace.create=true --set image.repository=registry.invalid/sandglass \
            --set windows.image.repository=registry.invalid/sandglass-windows "$@" 2> /dev/null |
            sed -e '/^# Source:/d' -e '/helm\.sh\/chart:/d' -e '/app\.kubernetes\.io\/managed-by:/d' | cat -s
    } > "$folder/$file"
}

render linux.yaml "sandglass on every Linux node: kubectl apply -f linux.yaml."
render windows.yaml "sandglass on every Windows node: kubectl apply -f windows.yaml." --set linux.enabled=false --set windows.enabled=true
