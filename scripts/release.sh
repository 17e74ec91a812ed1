#!/usr/bin/env bash
# Builds everything of a release into DIST (default: dist/ in cargo's target directory): static binaries for Linux (amd64,
# arm64), the Windows executable, OCI archives, the chart, a bill of materials (CycloneDX, from Cargo.lock), checksums.
# Usage: scripts/release.sh. Two runs from the same commit give the same bytes, wherever the tree lies: paths are mapped
# away, times are the commit's. Does not: sign, push or tag; docs/release.md says who does.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:$HOME/.cargo/bin
readonly CYCLONEDX=0.5.9
. scripts/places.sh
target=$(target_place)
dist=${DIST:-$target/dist}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
# The commit's time; without git, the time of the sources' archive is what the packager sets.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

need() {
    command -v "$1" > /dev/null 2>&1 && return
    echo "error: $1 is not installed" >&2
    echo "hint: apt-get install $2" >&2
    exit 69
}
need aarch64-linux-gnu-gcc "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
need x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64-win32
need python3 python3

# Neither the tree's place nor cargo's nor the toolchain's is in what is built.
flags="--remap-path-prefix=$PWD=/sandglass --remap-path-prefix=$target=/target"
flags+=" --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo --remap-path-prefix=$(rustc --print sysroot)=/rust"
export RUSTFLAGS=$flags
# C of dependencies (ring): as above.
export CFLAGS="-ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=/cargo -ffile-prefix-map=$target=/target"

rm -rf "$dist"
mkdir -p "$dist"
scripts/image.sh amd64 arm64
for arch in amd64 arm64; do
    cp "$target/image/$arch/sandglass" "$dist/sandglass-$version-linux-$arch"
    cp "$target/image/sandglass-$arch.tar" "$dist/sandglass-$version-linux-$arch.oci.tar"
done

windows=x86_64-pc-windows-gnu
if command -v rustup > /dev/null 2>&1; then
    rustup target add --quiet "$windows" 2> /dev/null || rustup target add "$windows"
fi
# The linker writes the time into an executable's header otherwise.
RUSTFLAGS="$flags -Clink-arg=-Wl,--no-insert-timestamp" \
    cargo build --release --locked --package sandglass --target "$windows"
cp "$target/$windows/release/sandglass.exe" "$dist/sandglass-$version-windows-amd64.exe"

# `helm package` stamps the time of packing: its files are packed anew, in order, with the commit's time.
helm=${SANDGLASS_HELM:-$(scripts/peer.sh helm)}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$helm" package deploy/helm/sandglass --destination "$scratch" > /dev/null
mkdir "$scratch/chart"
tar --extract --gzip --file "$scratch/sandglass-$version.tgz" --directory "$scratch/chart"
tar --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' \
    --directory "$scratch/chart" sandglass | gzip --no-name --best > "$dist/sandglass-chart-$version.tgz"

# In the cache, with the version in its name: it takes minutes to build, and is the same for every clone.
cyclonedx=$(cache_place)/cyclonedx-$CYCLONEDX
if [ ! -x "$cyclonedx/bin/cargo-cyclonedx" ]; then
    echo "installing cargo-cyclonedx $CYCLONEDX with cargo (some minutes, once)"
    RUSTFLAGS='' CFLAGS='' cargo install --quiet --locked --root "$cyclonedx" "cargo-cyclonedx@$CYCLONEDX"
fi
# It writes beside each manifest, so it works on a copy of the manifests.
git ls-files -z -- '*Cargo.toml' Cargo.lock '*.rs' | tar --create --null --files-from=- | tar --extract --directory "$(mkdir -p "$scratch/tree" && echo "$scratch/tree")"
(cd "$scratch/tree" && RUSTFLAGS='' "$cyclonedx/bin/cargo-cyclonedx" cyclonedx --quiet --format json --spec-version 1.5 \
    --target all --manifest-path agent/Cargo.toml)
python3 scripts/sbom.py "$scratch/tree/agent/sandglass.cdx.json" "$scratch/tree" > "$dist/sandglass-$version.cdx.json"

(cd "$dist" && sha256sum -- * > SHA256SUMS)
cat "$dist/SHA256SUMS"
echo "release $version: $dist"
