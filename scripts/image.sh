#!/usr/bin/env bash
# Builds the static release binary and an OCI archive that holds nothing else, without a container engine.
# Usage: scripts/image.sh [amd64] [arm64] (default: amd64). Into image/ of cargo's target directory: ARCH/sandglass and
# sandglass-ARCH.tar.
# IMAGE names the image (default localhost/sandglass:VERSION). Import it with
# `ctr --namespace k8s.io images import`, `docker load`, `podman load` or `skopeo copy oci-archive:...`.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin
. scripts/places.sh
target=$(target_place)
readonly MAX_BYTES=25000000
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
image=${IMAGE:-localhost/sandglass:$version}

build() {
    local arch=$1 binary
    binary=$(scripts/static.sh "$arch")
    mkdir -p "$target/image/$arch"
    cp "$binary" "$target/image/$arch/sandglass"
    python3 deploy/image/oci.py --binary "$target/image/$arch/sandglass" --arch "$arch" --name "$image" --version "$version" \
        --out "$target/image/sandglass-$arch.tar"
    if [ "$(stat -c %s "$target/image/sandglass-$arch.tar")" -gt $MAX_BYTES ]; then
        echo "error: $target/image/sandglass-$arch.tar is larger than $MAX_BYTES bytes" >&2
        exit 1
    fi
}

for arch in "${@:-amd64}"; do
    build "$arch"
done
