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

# A pure-Rust static link needs no C library; ring's C and assembly need a compiler that can make objects for the target.
compiler() {
    local name
    case $1 in
    amd64) name=("${CC_x86_64_unknown_linux_musl:-}" musl-gcc clang-19 clang-18 clang-17 clang-16 clang-15 clang-14 clang gcc) ;;
    arm64) name=("${CC_aarch64_unknown_linux_musl:-}" aarch64-linux-musl-gcc aarch64-linux-gnu-gcc) ;;
    esac
    for name in "${name[@]}"; do
        if [ -n "$name" ] && command -v "$name" > /dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    echo "error: no C compiler for $1" >&2
    echo "hint: apt-get install clang gcc-aarch64-linux-gnu" >&2
    exit 69
}

build() {
    local arch=$1 triple cc variable
    case $arch in
    amd64) triple=x86_64-unknown-linux-musl ;;
    arm64) triple=aarch64-unknown-linux-musl ;;
    *)
        echo "error: unknown architecture $arch" >&2
        echo "hint: scripts/image.sh [amd64] [arm64]" >&2
        exit 64
        ;;
    esac
    if command -v rustup > /dev/null 2>&1 && ! rustup target list --installed | grep -qx "$triple"; then
        echo "installing the Rust target $triple"
        rustup target add "$triple"
    fi
    cc=$(compiler "$arch")
    variable=${triple//-/_}
    export "CC_$variable=$cc"
    [ "$arch" = amd64 ] || export "CARGO_TARGET_$(tr '[:lower:]' '[:upper:]' <<< "$variable")_LINKER=$cc"
    cargo build --release --locked --package sandglass --target "$triple"
    mkdir -p "$target/image/$arch"
    cp "$target/$triple/release/sandglass" "$target/image/$arch/sandglass"
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
