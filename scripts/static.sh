#!/usr/bin/env bash
# Builds the agent as one static binary, and prints only its path.
# Usage: scripts/static.sh amd64|arm64 [PROFILE] (default: release). scripts/image.sh puts the release into an image; scripts/test.sh
# has the profile foreign, which takes a fraction of the time, for the machines of arm64 that the test `kernels` boots.
# Does not: strip, or make an image.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin
. scripts/places.sh

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
    echo "hint: apt-get install clang gcc-aarch64-linux-gnu libc6-dev-arm64-cross" >&2
    exit 69
}

arch=${1:-} profile=${2:-release}
case $arch in
amd64) triple=x86_64-unknown-linux-musl ;;
arm64) triple=aarch64-unknown-linux-musl ;;
*)
    echo "error: unknown architecture '$arch'" >&2
    echo "hint: amd64 or arm64" >&2
    exit 64
    ;;
esac
if command -v rustup > /dev/null 2>&1 && ! rustup target list --installed | grep -qx "$triple"; then
    echo "installing the Rust target $triple" >&2
    rustup target add "$triple" >&2
fi
cc=$(compiler "$arch")
variable=${triple//-/_}
export "CC_$variable=$cc"
[ "$arch" = amd64 ] || export "CARGO_TARGET_$(tr '[:lower:]' '[:upper:]' <<< "$variable")_LINKER=$cc"
# What nodes run is compiled without lints in between (.ci/run).
unset RUSTC_WORKSPACE_WRAPPER
cargo build --profile "$profile" --locked --package sandglass --target "$triple" >&2
# Cargo's folder of the profile dev has an older name.
[ "$profile" != dev ] || profile=debug
echo "$(target_place)/$triple/$profile/sandglass"
