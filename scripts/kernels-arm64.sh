#!/usr/bin/env bash
# Fetches the kernels of arm64 that the test `kernels` boots into the cache (scripts/places.sh kernels_arm64): Debian's newest cloud
# kernels 6.1 and 6.12, and busybox. Nothing is installed (scripts/private-apt.sh).
# Usage: scripts/kernels-arm64.sh. Then: scripts/image.sh arm64, and the test with SANDGLASS_ARM64_AGENT as the binary's path.
# It needs qemu-system-aarch64 (Debian: qemu-system-arm). Not a part of `make test`: the agent's release build takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/places.sh
. scripts/private-apt.sh
PLACE=$(kernels_arm64_place)
readonly PLACE
if ! command -v apt-get > /dev/null 2>&1 || [ ! -e "$DEBIAN_KEYS" ]; then
    echo "without apt and Debian's keys, kernels of arm64 are not fetched" >&2
    exit 69
fi
mkdir -p "$PLACE"
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
private_apt "$apt" arm64 bookworm trixie
export APT_CONFIG=$apt/apt.conf
apt-get update --quiet --quiet

# download PACKAGE: prints the file.
download() {
    (cd "$apt" && apt-get download --quiet "$1" > /dev/null)
    find "$apt" -maxdepth 1 -name "$1_*.deb"
}

known=$(apt-cache pkgnames linux-image- | grep -E '^linux-image-[0-9].*-cloud-arm64$' | sort --version-sort)
for series in 6.1 6.12; do
    kernel=$(grep -E "^linux-image-${series//./\\.}[.-]" <<< "$known" | tail -n 1)
    name=${kernel#linux-image-}
    [ ! -d "$PLACE/$name" ] || continue
    echo "fetching $kernel"
    # By another name until it is whole.
    dpkg-deb --extract "$(download "$kernel")" "$apt/$name"
    mv "$apt/$name" "$PLACE/$name"
done
if [ ! -x "$PLACE/busybox" ]; then
    dpkg-deb --fsys-tarfile "$(download busybox-static)" | tar --extract --to-stdout --wildcards './*bin/busybox' > "$PLACE/busybox.new"
    chmod +x "$PLACE/busybox.new"
    mv "$PLACE/busybox.new" "$PLACE/busybox"
fi
