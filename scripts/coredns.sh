#!/usr/bin/env bash
# Builds CoreDNS from its Go module into target/peers, for the tests that ask the server that clusters ask.
# Usage: scripts/coredns.sh. Prints the path of the binary; says why and exits 69 where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$PWD/target/peers/coredns
if [ ! -x "$binary" ]; then
    if ! command -v go > /dev/null 2>&1; then
        echo "Go is not installed" >&2
        exit 69
    fi
    mkdir -p target/peers
    export GOWORK=off GOFLAGS=
    # Against its own go.sum, in its own module folder.
    module=$(go mod download -json github.com/coredns/coredns@v1.15.0 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    go build -C "$module" -o "$binary" . >&2
fi
echo "$binary"
