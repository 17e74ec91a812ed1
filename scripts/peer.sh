#!/usr/bin/env bash
# Builds a peer from its Go module into target/peers, once, for the tests and the demo that meet the real one.
# Usage: scripts/peer.sh NAME. Prints the path of the binary, or of the folder where there are several; says why and exits
# 69 where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

# Name, module, version, way to build, programs; the last of several is built last, so that a build that was interrupted
# is done again. `folder`: in the module's own folder, against its own go.sum. Jaeger v2.13 is the tag v1.76.0; its go.mod
# has a replace line, which `go install` refuses.
table="
cnitool     github.com/containernetworking/cni   v1.3.0   install  cnitool
containerd  github.com/containerd/containerd/v2  v2.4.2   install  cmd/containerd cmd/containerd-shim-runc-v2 cmd/ctr
coredns     github.com/coredns/coredns           v1.15.0  folder   .
helm        helm.sh/helm/v4                      v4.3.1   install  cmd/helm
jaeger      github.com/jaegertracing/jaeger      v1.76.0  folder   cmd/jaeger
"
if ! read -r name module version way programs < <(grep "^${1:-} " <<< "$table"); then
    echo "usage: scripts/peer.sh $(awk 'NF { printf "%s%s", bar, $1; bar = "|" }' <<< "$table")" >&2
    exit 64
fi
place=$PWD/target/peers/$name
last=$place
if [[ $programs = *" "* ]]; then
    place+=-$version
    last=$place/${programs##*/}
fi
mkdir -p target/peers
# Tests run beside each other and want it at the same time.
exec 9< target/peers
flock 9
if [ ! -x "$last" ]; then
    if ! command -v go > /dev/null 2>&1; then
        echo "Go is not installed" >&2
        exit 69
    fi
    mkdir -p "$(dirname "$last")"
    export GOWORK=off GOFLAGS=
    case $way in
        folder)
            folder=$(go mod download -json "$module@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
            go build -C "$folder" -o "$place" "./$programs" >&2
            ;;
        install)
            for program in $programs; do
                GOBIN=$(dirname "$last") go install "$module/$program@$version" >&2
            done
            ;;
    esac
fi
echo "$place"
