#!/usr/bin/env bash
# Installs cnitool, the CNI project's own caller of plugins, into target/peers, for the tests of callers without
# Kubernetes. Usage: scripts/cnitool.sh. Prints the path of the binary; says why and exits 69 where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$PWD/target/peers/cnitool
if [ ! -x "$binary" ]; then
    if ! command -v go > /dev/null 2>&1; then
        echo "Go is not installed" >&2
        exit 69
    fi
    mkdir -p target/peers
    GOWORK=off GOFLAGS='' GOBIN=$PWD/target/peers go install github.com/containernetworking/cni/cnitool@v1.3.0 >&2
fi
echo "$binary"
