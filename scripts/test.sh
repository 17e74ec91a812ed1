#!/usr/bin/env bash
# Runs all tests of the workspace. Prints every result, names what was skipped, and ends with one line that counts.
# With --build it builds what they need and runs none. Other arguments go to cargo test. A test that cannot run here prints
# `SKIPPED <name>: <reason>`; it counts as skipped only.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin
build=false
if [ "${1:-}" = --build ]; then
    build=true
    shift
fi
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
peer SANDGLASS_COLLECTOR collector "a Collector that routes by trace id, for the example of one (a minute)"
peer SANDGLASS_COREDNS coredns "CoreDNS, the DNS server of clusters (two minutes)"
peer SANDGLASS_CONTAINERD_2 containerd "containerd 2, a second runtime to trace (a minute)"
peer SANDGLASS_CRIO crio "CRI-O, a third runtime to trace (four minutes)"
peer SANDGLASS_CRICTL crictl "crictl, which makes the pods of a runtime without a kubelet (a minute)"
peer SANDGLASS_MULTUS multus "Multus, whose shim asks a daemon (two minutes)"
peer SANDGLASS_GO_DAEMON godaemon "a daemon of a network and its shim, with gRPC (seconds)"
peer SANDGLASS_CNI_LOADERS cniloaders "the runtimes' loaders of CNI configuration, go-cni and ocicni (a minute)"
peer SANDGLASS_CNITOOL cnitool "cnitool, a caller of CNI that is no Kubernetes (seconds)"

scripts/kernels.sh

# The agent for arm64, which the test `kernels` boots there. Arguments select tests: with them it is built by whoever names it.
arm64() {
    local missing=
    command -v qemu-system-aarch64 > /dev/null 2>&1 || missing="qemu-system-aarch64 is not installed"
    command -v aarch64-linux-gnu-gcc > /dev/null 2>&1 || missing="aarch64-linux-gnu-gcc is not installed"
    if [ -n "$missing" ]; then
        echo "no agent for arm64: $missing"
        return
    fi
    if ! { scripts/kernels-arm64.sh && { ! command -v rustup || rustup target add aarch64-unknown-linux-musl; }; } > "$log" 2>&1; then
        echo "no kernels or no Rust target for arm64: $(tail -n 1 "$log")"
        return
    fi
    # An agent that does not compile is no reason to skip: the script ends here.
    if ! SANDGLASS_ARM64_AGENT=$(scripts/static.sh arm64 foreign); then
        echo "the agent for arm64 does not compile"
        echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
    export SANDGLASS_ARM64_AGENT
}
if [ $# -eq 0 ] && [ -z "${SANDGLASS_ARM64_AGENT:-}" ]; then
    begin=$SECONDS
    arm64
    echo "the agent for arm64: $((SECONDS - begin)) s"
fi

# kube-proxy's own rules, where `make test-cluster` has built it.
. scripts/places.sh
cluster=$(cluster_place)
if [ -x "$cluster/kube" ]; then
    export SANDGLASS_KUBE_BIN=$cluster
fi

if $build; then
    # The test binaries, and the programs as they are without their tests: with lints (.ci/run) each has its own.
    cargo build --workspace --all-targets --locked --quiet
    exit
fi
scripts/lanes.py "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

scripts/count.sh "$log" "$status"
