#!/usr/bin/env bash
# Fetches what the test `kernels` boots into the cache (scripts/places.sh kernels): the newest cloud kernel of each series that this Debian
# knows, and busybox.
# Usage: scripts/kernels.sh [DEB...]: unpacks these kernel packages as well, for kernels of other releases.
# Nothing is installed, and root is not needed. Without apt it does nothing: the test is skipped, by name.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/places.sh
PLACE=$(kernels_place)
readonly PLACE

# unpack DEB: into a directory of the kernel's name.
unpack() {
    local name
    name=$(basename "$1")
    name=${name#linux-*-}
    mkdir -p "$PLACE/${name%%_*}"
    dpkg-deb --extract "$1" "$PLACE/${name%%_*}"
}

# download PACKAGE: where to. A list that names a version no longer there is the usual reason for a failure.
download() {
    local to=$PLACE/downloads
    mkdir -p "$to"
    (cd "$to" && apt-get --option APT::Sandbox::User=root download --quiet "$1" > /dev/null) || return 1
    find "$to" -name "$1_*.deb" | sort --version-sort | tail -n 1
}

for package in "$@"; do
    unpack "$package"
done
mkdir -p "$PLACE"
if ! command -v apt-get > /dev/null 2>&1 || [ "$(uname -m)" != x86_64 ]; then
    echo "without apt, or on another machine than x86_64, other kernels are not fetched"
    exit 0
fi
# busybox: what the machine's shell and tools are.
if [ ! -x "$PLACE/busybox" ]; then
    package=$(download busybox-static) || { echo "cannot download busybox-static" && exit 0; }
    dpkg-deb --fsys-tarfile "$package" | tar --extract --to-stdout --wildcards './*bin/busybox' > "$PLACE/busybox.new"
    chmod +x "$PLACE/busybox.new"
    mv "$PLACE/busybox.new" "$PLACE/busybox"
fi
# Debian's kernels for clouds: small, and without an initramfs of their own they boot in seconds.
known=$(apt-cache pkgnames linux-image- | grep -E '^linux-image-[0-9].*[0-9]-cloud-amd64$' | sort --version-sort || true)
[ -n "$known" ] || echo "apt knows no cloud kernel"
# The newest of each series (6.1, 6.12, ..).
for series in $(grep -oE '[0-9]+\.[0-9]+' <<< "$known" | sort --unique); do
    kernel=$(grep -E "^linux-image-${series//./\\.}[.-]" <<< "$known" | tail -n 1 || true)
    [ -n "$kernel" ] || continue
    if [ ! -d "$PLACE/${kernel#linux-image-}" ]; then
        echo "fetching $kernel, to boot it in QEMU"
        package=$(download "$kernel") || { echo "cannot download $kernel" && continue; }
        unpack "$package"
    fi
done
