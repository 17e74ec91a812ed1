#!/usr/bin/env bash
# Fetches Ubuntu's newest kernel for arm64 with pages of 64 KiB into the cache (scripts/places.sh kernels_arm64), where the test
# `kernels` boots it beside Debian's, which has none. Nothing is installed.
# Usage: scripts/kernel-64k.sh [RELEASE] (default: noble). Used by .github/workflows/ci.yml; it needs curl, gpgv, dpkg-deb and zstd.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/places.sh
readonly ARCHIVE=http://ports.ubuntu.com/ubuntu-ports KEYS=/usr/share/keyrings/ubuntu-archive-keyring.gpg
release=${1:-noble}
PLACE=$(kernels_arm64_place)
if [ ! -e "$KEYS" ]; then
    echo "error: Ubuntu's keys are not here" >&2
    echo "hint: apt-get install ubuntu-keyring" >&2
    exit 69
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The list of packages by its checksum in the signed list of lists (repository format: wiki.debian.org/DebianRepository/Format).
curl --fail --silent --show-error "$ARCHIVE/dists/$release-updates/InRelease" --output "$work/InRelease"
gpgv --quiet --keyring "$KEYS" --output "$work/Release" "$work/InRelease"
list=main/binary-arm64/Packages.xz
curl --fail --silent --show-error "$ARCHIVE/dists/$release-updates/$list" --output "$work/Packages.xz"
checksum=$(sed -n '/^SHA256:/,$p' "$work/Release" | awk -v list="$list" '$3 == list { print $1; exit }')
echo "$checksum  $work/Packages.xz" | sha256sum --check --quiet
xz --decompress "$work/Packages.xz"
name=$(grep -oE '^Package: linux-image-unsigned-[0-9].*-generic-64k$' "$work/Packages" | sed 's/^Package: linux-image-unsigned-//' | sort --version-sort | tail -n 1)
[ ! -d "$PLACE/$name" ] || exit 0
for package in "linux-image-unsigned-$name" "linux-modules-$name"; do
    echo "fetching $package"
    read -r file checksum < <(awk -v package="$package" -v RS= '$0 ~ "^Package: " package "\n" {
        match($0, /\nFilename: [^\n]*/); file = substr($0, RSTART + 11, RLENGTH - 11)
        match($0, /\nSHA256: [^\n]*/); print file, substr($0, RSTART + 9, RLENGTH - 9); exit }' "$work/Packages")
    curl --fail --silent --show-error "$ARCHIVE/$file" --output "$work/package.deb"
    echo "$checksum  $work/package.deb" | sha256sum --check --quiet
    dpkg-deb --extract "$work/package.deb" "$work/tree"
done
# busybox decompresses xz, and no zstd.
find "$work/tree" -name '*.ko.zst' -exec zstd --quiet --decompress --rm {} +
mkdir -p "$PLACE"
mv "$work/tree" "$PLACE/$name"
