#!/usr/bin/env bash
# Where builds lie. Usage: scripts/places.sh PLACE, which prints one of the places below; other scripts source this file.
# It reads the places from cargo and the environment and creates nothing.
#   target   cargo's target directory, as CARGO_TARGET_DIR or `build.target-dir` set it
#   cache    what is the same for every clone and every commit: peers, kernels, validators, the cluster's programs.
#            SANDGLASS_CACHE, or else sandglass in XDG_CACHE_HOME or ~/.cache. A CI keeps it between runs.
#   cluster  the programs of the one-node Kubernetes (deploy/cluster/build.sh), in the cache by what they are
#            built from (deploy/cluster/recipe.sh).
#            SANDGLASS_CLUSTER_BIN or SANDGLASS_KUBE_BIN names another folder.
#   kernels  the kernels that the test `kernels` boots, in the cache; kernels_arm64: those of arm64
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

target_place() {
    PATH=$PATH:$HOME/.cargo/bin cargo metadata --no-deps --format-version 1 --manifest-path "$repository/Cargo.toml" |
        sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

cache_place() { echo "${SANDGLASS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sandglass}"; }

cluster_place() {
    local named=${SANDGLASS_CLUSTER_BIN:-${SANDGLASS_KUBE_BIN:-}} key
    if [ -n "$named" ]; then
        echo "$named"
        return
    fi
    # Versions, flags and modules, and the versions of the peers that the folder takes; a comment must not rebuild Kubernetes.
    key=$(cd "$repository" && {
        grep -hvE '^[[:space:]]*(#|//|$)' deploy/cluster/recipe.sh deploy/cluster/kube/* deploy/cluster/etcd/*
        grep -E '^(containerd|coredns|helm|jaeger) ' scripts/peer.sh
    } | sha256sum | cut -c 1-12)
    echo "$(cache_place)/cluster-$key"
}

kernels_place() { echo "$(cache_place)/kernels"; }
kernels_arm64_place() { echo "$(cache_place)/kernels-arm64"; }

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    set -euo pipefail
    case ${1:-} in
    target | cache | cluster | kernels | kernels_arm64) "$1_place" ;;
    *)
        echo "usage: scripts/places.sh target|cache|cluster|kernels|kernels_arm64" >&2
        exit 64
        ;;
    esac
fi
