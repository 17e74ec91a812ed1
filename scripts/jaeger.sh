#!/usr/bin/env bash
# Builds Jaeger from its Go module into target/peers, for the tests that read our traces back from a real back end.
# Usage: scripts/jaeger.sh. Prints the path of the binary; says why and exits 69 where it cannot be had.
# Jaeger v2.13 is the module's tag v1.76.0; its go.mod has a replace line, which `go install` refuses, so it is built
# in its own module folder, against its own go.sum.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=$PWD/target/peers/jaeger
if [ ! -x "$binary" ]; then
    if ! command -v go > /dev/null 2>&1; then
        echo "Go is not installed" >&2
        exit 69
    fi
    mkdir -p target/peers
    export GOWORK=off GOFLAGS=
    module=$(go mod download -json github.com/jaegertracing/jaeger@v1.76.0 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    go build -C "$module" -o "$binary" ./cmd/jaeger >&2
fi
echo "$binary"
