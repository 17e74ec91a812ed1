#!/usr/bin/env bash
# Runs all tests of the workspace. Prints every result, names what was skipped, and ends with one line that counts.
# Arguments go to cargo test. A test that cannot run here prints `SKIPPED <name>: <reason>`; it counts as skipped only.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Peers that are Go programs, not packages. Without Go the tests that need them are skipped, by name.
peer() {
    local variable=$1 name=$2 what=$3 place
    [ -z "${!variable:-}" ] || return 0
    echo "building $what, once"
    if place=$(scripts/peer.sh "$name" 2> "$log"); then
        export "$variable=$place"
    else
        echo "without it: $(tail -n 1 "$log")"
    fi
}
peer SANDGLASS_JAEGER jaeger "Jaeger, a trace back end to read our traces back from (some minutes)"
peer SANDGLASS_COREDNS coredns "CoreDNS, the DNS server of clusters (two minutes)"
peer SANDGLASS_CONTAINERD_2 containerd "containerd 2, a second runtime to trace (a minute)"
peer SANDGLASS_CNI_LOADERS cniloaders "the runtimes' loaders of CNI configuration, go-cni and ocicni (a minute)"
peer SANDGLASS_CNITOOL cnitool "cnitool, a caller of CNI that is no Kubernetes (seconds)"

scripts/kernels.sh

# kube-proxy's own rules, where `make test-cluster` has built it.
. scripts/places.sh
cluster=$(cluster_place)
if [ -x "$cluster/kube" ]; then
    export SANDGLASS_KUBE_BIN=$cluster
fi

scripts/lanes.py "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

scripts/count.sh "$log" "$status"
