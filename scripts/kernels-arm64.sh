#!/usr/bin/env bash
# Fetches what the test `kernels` boots for arm64 into the cache (scripts/places.sh kernels_arm64): Debian's newest cloud kernels 6.1
# and 6.12, the newest 6.12 with pages of 16 KiB, busybox, and the folder `tools` with nft, flock and setpriv and their libraries.
# Nothing is installed (scripts/private-apt.sh).
# Usage: scripts/kernels-arm64.sh. Then the test, with the path that `scripts/static.sh arm64 foreign` prints as SANDGLASS_ARM64_AGENT;
# scripts/test.sh does all of it. It needs qemu-system-aarch64 (Debian: qemu-system-arm).
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
# What the first run fetched serves the next ones, without a network too; who wants newer kernels removes the folder.
if [ -x "$PLACE/tools/bin/setpriv.util-linux" ] && [ -x "$PLACE/busybox" ] && ls -d "$PLACE"/6.1.*-cloud-arm64 "$PLACE"/6.12.*-cloud-arm64 "$PLACE"/6.12.*-arm64-16k > /dev/null 2>&1; then
    exit 0
fi
apt=$(mktemp -d)
trap 'rm -rf "$apt"' EXIT
private_apt "$apt" arm64 bookworm trixie
export APT_CONFIG=$apt/apt.conf
apt-get update --quiet --quiet

# download PACKAGE[/RELEASE]: prints the file.
download() {
    (cd "$apt" && apt-get download --quiet "$1" > /dev/null)
    find "$apt" -maxdepth 1 -name "${1%/*}_*.deb"
}

known=$(apt-cache pkgnames linux-image- | sort --version-sort)
for wanted in 6.1/cloud-arm64 6.12/cloud-arm64 6.12/arm64-16k; do
    series=${wanted%/*}
    kernel=$(grep -E "^linux-image-${series//./\\.}[.-].*[0-9]-${wanted#*/}$" <<< "$known" | tail -n 1)
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
# Programs that need libraries: these lie beside them under the names that the loader looks for.
if [ ! -x "$PLACE/tools/bin/setpriv.util-linux" ]; then
    echo "fetching nft, flock and setpriv of arm64"
    rm -rf "$PLACE/tools"
    for package in libc6 libcap-ng0 libedit2 libbsd0 libmd0 libtinfo6 libgmp10 libjansson4 libmnl0 libnftables1 libnftnl11 libxtables12 nftables util-linux; do
        # Those of the older release: one libc serves all.
        dpkg-deb --extract "$(download "$package/bookworm")" "$apt/tree"
    done
    mkdir -p "$apt/tools/bin" "$apt/tools/lib"
    cp "$apt/tree/usr/sbin/nft" "$apt/tree/usr/bin/flock" "$apt/tools/bin/"
    # busybox has one too, which knows no bounding set.
    cp "$apt/tree/usr/bin/setpriv" "$apt/tools/bin/setpriv.util-linux"
    for folder in "$apt/tree/lib/aarch64-linux-gnu" "$apt/tree/usr/lib/aarch64-linux-gnu"; do
        find "$folder" -maxdepth 1 -name '*.so.*' -exec cp --dereference {} "$apt/tools/lib/" \;
    done
    mv "$apt/tools" "$PLACE/tools"
fi
