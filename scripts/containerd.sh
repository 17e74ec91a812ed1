#!/usr/bin/env bash
# Builds containerd 2 with its shim and ctr from its Go module into target/peers, for the tests that trace it beside the
# distribution's. Usage: scripts/containerd.sh. Prints the directory; says why and exits 69 where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v2.4.2
directory=$PWD/target/peers/containerd-$version
if [ ! -x "$directory/ctr" ]; then
    if ! command -v go > /dev/null 2>&1; then
        echo "Go is not installed" >&2
        exit 69
    fi
    mkdir -p "$directory"
    module=github.com/containerd/containerd/v2/cmd
    # ctr last: a build that was interrupted is done again.
    for program in containerd containerd-shim-runc-v2 ctr; do
        GOWORK=off GOFLAGS='' GOBIN=$directory go install "$module/$program@$version" >&2
    done
fi
echo "$directory"
