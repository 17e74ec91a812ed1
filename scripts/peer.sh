#!/usr/bin/env bash
# Builds a peer from its Go module into the cache (scripts/places.sh), once, for the tests and the demo that meet the real one.
# Usage: scripts/peer.sh [--built] NAME. Prints the path of the binary, or of the folder where there are several; prints
# the reason and exits 69 where it cannot be built. --built prints the path where the peer is built already, and builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/places.sh
build=true
if [ "${1:-}" = --built ]; then
    build=false
    shift
fi

# Name, module, version, way to build, programs; the last of several is built last, so that a build that was interrupted
# is done again. `folder`: in the module's own folder, against its own go.sum. Jaeger v2.13 is the tag v1.76.0; its go.mod
# has a replace line, which `go install` refuses; so has Prometheus'. Of Multus `go install` wants a list of versions, which the
# proxy has only at times; the module has a part of a vendor folder, which is not used. `local`: a program of this tree, in place of a module; each
# .mod file in its folder pins the modules of one build, and the folder's checksum is the version. `tree`: the same with a single
# go.mod. `crio`: as `folder`, and pinns, its program in C that makes namespaces.
table="
actionlint  github.com/rhysd/actionlint          v1.7.12  install  cmd/actionlint
cnitool     github.com/containernetworking/cni   v1.3.0   install  cnitool
collector   agent/lab/collector                  -        tree     .
cniloaders  agent/tests/cni_loaders/peer         -        local    containerd-1.5 containerd-1.6 containerd-1.7 containerd-2.0 containerd-2.4
containerd  github.com/containerd/containerd/v2  v2.4.2   install  cmd/containerd cmd/containerd-shim-runc-v2 cmd/ctr
coredns     github.com/coredns/coredns           v1.15.0  folder   .
crictl      sigs.k8s.io/cri-tools                v1.36.0  install  cmd/crictl
crio        github.com/cri-o/cri-o               v1.34.0  crio     cmd/crio pinns
godaemon    agent/tests/exec_probe/daemons/go    -        tree     .
helm        helm.sh/helm/v4                      v4.3.1   install  cmd/helm
kube-score  github.com/zegl/kube-score           v1.20.0  install  cmd/kube-score
jaeger      github.com/jaegertracing/jaeger      v1.76.0  folder   cmd/jaeger
multus      gopkg.in/k8snetworkplumbingwg/multus-cni.v4 v4.2.2 folder  cmd/multus-shim cmd/multus-daemon
prometheus  github.com/prometheus/prometheus     v0.311.3 folder   cmd/prometheus
"
if ! read -r name module version way programs < <(grep "^${1:-} " <<< "$table"); then
    echo "usage: scripts/peer.sh [--built] $(awk 'NF { printf "%s%s", bar, $1; bar = "|" }' <<< "$table")" >&2
    exit 64
fi
[[ $way != local && $way != tree ]] || version=$(cat "$module"/* | cksum | cut -d' ' -f1)
peers=$(cache_place)/peers
# The version is in the name: clones of other commits share the cache.
folder=$peers/$name-$version
place=$folder/$name
last=$place
if [[ $programs = *" "* ]]; then
    place=$folder
    last=${programs##* }
    last=$folder/${last##*/}
fi
if ! $build; then
    if [ ! -x "$last" ]; then
        echo "$name is not built: scripts/peer.sh $name" >&2
        exit 69
    fi
    echo "$place"
    exit
fi
mkdir -p "$folder"
# Tests that run at the same time may want the same peer. A lock for each: Jaeger's minutes do not hold up the others.
exec 9> "$peers/$name.lock"
flock 9
if [ ! -x "$last" ]; then
    if ! command -v go > /dev/null 2>&1; then
        echo "Go is not installed" >&2
        exit 69
    fi
    export GOWORK=off GOFLAGS=
    case $way in
        local)
            # CRI-O's loader of that time cannot be had for libcni 0.8.
            for program in $programs; do
                tags=
                grep -q ocicni "$module/$program.mod" || tags=nocrio
                go build -C "$module" -mod=readonly -modfile="$program.mod" -tags="$tags" -o "$place/$program" . >&2
            done
            ;;
        folder)
            source=$(go mod download -json "$module@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
            # Prometheus without the clients of every cloud, which find targets.
            for program in $programs; do
                go build -C "$source" -mod=readonly -tags=remove_all_sd -o "$folder/${program##*/}" "./$program" >&2
            done
            ;;
        crio)
            if ! command -v gcc > /dev/null 2>&1; then
                echo "gcc is not installed" >&2
                exit 69
            fi
            source=$(go mod download -json "$module@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
            # Without what needs libraries beside glibc: gpgme, btrfs, device mapper, ostree, seccomp.
            tags=containers_image_openpgp,exclude_graphdriver_btrfs,exclude_graphdriver_devicemapper,containers_image_ostree_stub
            go build -C "$source" -trimpath -tags="$tags" -o "$place/crio" ./cmd/crio >&2
            gcc -std=c99 -Os -o "$place/pinns" "$source"/pinns/src/*.c >&2
            ;;
        tree)
            go build -C "$module" -mod=readonly -o "$place" . >&2
            ;;
        install)
            for program in $programs; do
                GOBIN=$folder go install "$module/$program@$version" >&2
            done
            ;;
    esac
fi
echo "$place"
