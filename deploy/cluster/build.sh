#!/usr/bin/env bash
# Builds what a one-node Kubernetes is made of, from Go modules: Kubernetes 1.36, etcd 3.7, containerd 2.4, Helm 4.3,
# CoreDNS 1.15, Jaeger 2.13. Usage: build.sh FOLDER. What is there already is kept, so a cache of FOLDER makes it quick.
# Cold it takes some fifteen minutes on two cores. Needs Go 1.26 and a C compiler; installs nothing outside FOLDER and
# Go's own caches (GOCACHE and GOMODCACHE may name others).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
bin=$(cd "$1" && pwd)
if ! command -v go > /dev/null 2>&1; then
    echo "error: Go is not installed" >&2
    echo "hint: install Go 1.26 or newer (https://go.dev/dl) and run this again" >&2
    exit 69
fi
export GOWORK=off GOFLAGS='' GOBIN=$bin CGO_ENABLED=1

# missing PROGRAM: whether it must be built, saying so.
missing() {
    [ ! -x "$bin/$1" ] || return 1
    echo "building $1"
}

version=v1.36.3
package=k8s.io/component-base/version
if missing kube; then
    go build -C "$here/kube" -o "$bin/kube" \
        -ldflags "-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=36" .
fi
for name in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
    ln -sf kube "$bin/$name"
done
if missing etcd; then
    go build -C "$here/etcd" -o "$bin/etcd" go.etcd.io/etcd/server/v3
fi
containerd=github.com/containerd/containerd/v2/cmd
if missing containerd || missing ctr || missing containerd-shim-runc-v2; then
    go install $containerd/containerd@v2.4.2 $containerd/ctr@v2.4.2 $containerd/containerd-shim-runc-v2@v2.4.2
fi
if missing helm; then
    go install helm.sh/helm/v4/cmd/helm@v4.3.1
fi
if missing coredns; then
    go install github.com/coredns/coredns@v1.15.0
fi
if missing jaeger; then
    # v2.13 is the module's tag v1.76.0; its go.mod has a replace line, which `go install` refuses.
    module=$(go mod download -json github.com/jaegertracing/jaeger@v1.76.0 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
    go build -C "$module" -o "$bin/jaeger" ./cmd/jaeger
fi
