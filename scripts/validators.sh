#!/usr/bin/env bash
# Installs what judges rendered manifests into the cache (scripts/places.sh): Kubernetes' schemas of many versions
# (kubernetes-validate), a policy checker (checkov) and the Prometheus operator's CRDs.
# Prints the folder of the Python environment and that of the CRDs, or `-` where one cannot be had; exits 69 without the
# first. SANDGLASS_VALIDATORS names an environment that is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/places.sh
peers=$(cache_place)/peers
validate=1.37.0
checkov=3.3.30
# The versions are in the name: clones of other commits share the cache.
venv=${SANDGLASS_VALIDATORS:-$peers/validators-$validate-$checkov}
# Tests run beside each other and want it at the same time.
mkdir -p "$peers"
exec 9> "$peers/validators.lock"
flock 9
if [ ! -x "$venv/bin/kubernetes-validate" ] || [ ! -x "$venv/bin/checkov" ]; then
    if ! python3 -m venv "$venv" > /dev/null 2>&1; then
        echo "python3 cannot make a virtual environment" >&2
        exit 69
    fi
    if ! "$venv/bin/pip" install --quiet "kubernetes-validate==$validate" "checkov==$checkov" >&2; then
        echo "kubernetes-validate and checkov cannot be installed" >&2
        exit 69
    fi
fi
crds=-
if command -v go > /dev/null 2>&1; then
    folder=$(cd /tmp && GOWORK=off GOFLAGS='' go mod download -json github.com/prometheus-operator/prometheus-operator@v0.93.0 2> /dev/null |
        sed -n 's/.*"Dir": "\(.*\)".*/\1/p') && crds=$folder/example/prometheus-operator-crd
fi
printf '%s\n%s\n' "$venv" "$crds"
