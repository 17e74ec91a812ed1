#!/usr/bin/env bash
# Builds what a one-node Kubernetes is made of, from Go modules: Kubernetes 1.36, etcd 3.7, containerd 2.4, Helm 4.3,
# CoreDNS 1.15, Jaeger 2.13. Usage: build.sh FOLDER. What is there already is kept, so a cache of FOLDER makes it quick.
# Cold it takes some fifteen minutes on two idle cores (27 minutes of processor time; 27 minutes also by the clock on two cores
# that were busy with tests and other builds), after `make test` five; then 0.7 GB of programs, and in Go's caches 4.2 GB of
# modules and 7 GB of objects, which nothing needs afterwards. Needs Go 1.26 and a C compiler; installs nothing
# outside FOLDER, the cache (scripts/places.sh) and Go's own caches (GOCACHE and GOMODCACHE may name others).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
bin=$(cd "$1" && pwd)
if ! command -v go > /dev/null 2>&1; then
    echo "error: Go is not installed" >&2
    echo "hint: install Go 1.26 or newer (https://go.dev/dl) and run this again" >&2
    exit 69
fi
. "$here/recipe.sh"

# missing PROGRAM: whether it must be built, with a line about it.
missing() {
    [ ! -x "$bin/$1" ] || return 1
    echo "building $1"
}

if missing kube; then
    go build -C "$here/kube" -o "$bin/kube" -ldflags "$kubernetes_flags" .
fi
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
    ln -sf kube "$bin/$name"
done
if missing etcd; then
    go build -C "$here/etcd" -o "$bin/etcd" "$etcd_package"
fi
# Programs that other tests use too are built by scripts/peer.sh, once: hard links cost nothing on one file system.
# take PROGRAM PATH
take() { cp --force --link "$2" "$bin/$1" 2> /dev/null || cp --force "$2" "$bin/$1"; }
peer=$here/../../scripts/peer.sh
if missing containerd || missing ctr || missing containerd-shim-runc-v2; then
    place=$("$peer" containerd)
    for name in containerd ctr containerd-shim-runc-v2; do
        take $name "$place/$name"
    done
fi
for name in helm coredns jaeger; do
    if missing $name; then
        take $name "$("$peer" $name)"
    fi
done
