#!/usr/bin/env bash
# Builds Helm from its Go module into target/peers. Prints the path of the binary; says why and exits 69 where it cannot be had.
# SANDGLASS_HELM names one that is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${SANDGLASS_HELM:-}" ]; then
    echo "$SANDGLASS_HELM"
    exit
fi
binary=$PWD/target/peers/helm
# Tests run beside each other and want it at the same time.
mkdir -p target/peers
exec 9> target/peers/helm.lock
flock 9
if [ ! -x "$binary" ]; then
    if ! command -v go > /dev/null 2>&1; then
        echo "Go is not installed" >&2
        exit 69
    fi
    GOWORK=off GOFLAGS='' GOBIN=$PWD/target/peers go install helm.sh/helm/v4/cmd/helm@v4.3.1 >&2
fi
echo "$binary"
