#!/usr/bin/env bash
# Fetches what the test `kernels` boots into the cache (scripts/places.sh kernels): the newest cloud kernel of each series that this Debian
# knows, those of an old and of the newest Debian, the generic 6.1 and the 6.12 with PREEMPT_RT, busybox, and AppArmor's
# parser.
# Usage: scripts/kernels.sh [DEB...]: unpacks these kernel packages as well, for kernels of other releases.
# Nothing is installed, and root is not needed. Without apt it does nothing: the test is skipped, by name.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/places.sh
. scripts/private-apt.sh
PLACE=$(kernels_place)
readonly PLACE

# unpack DEB: into a directory of the kernel's name; but for drivers of hardware, which a package of another flavour than cloud has
# 300 MB of. veth is one of net's.
unpack() {
    local name
    name=$(basename "$1")
    name=${name#linux-*-}
    mkdir -p "$PLACE/${name%%_*}"
    dpkg-deb --fsys-tarfile "$1" | tar --extract --directory "$PLACE/${name%%_*}" --exclude '*/kernel/drivers/[!n]*' --exclude '*/kernel/sound'
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
# AppArmor's parser and what profiles include: profiles are loaded in the machine.
if [ ! -d "$PLACE/apparmor" ] && package=$(download apparmor); then
    dpkg-deb --extract "$package" "$PLACE/apparmor.new"
    mv "$PLACE/apparmor.new" "$PLACE/apparmor"
fi
known=$(apt-cache pkgnames linux-image- | sort --version-sort || true)
# newest SERIES FLAVOUR: the newest kernel of the series that apt knows, unless it is in the cache. FLAVOUR: -cloud, -rt, or nothing for
# Debian's generic kernel.
newest() {
    local kernel package
    kernel=$(grep -xE "linux-image-${1//./\\.}\.[0-9][0-9.+~-]*(deb[0-9]+|bpo[0-9.]*)?$2-amd64" <<< "$known" | tail -n 1 || true)
    if [ -z "$kernel" ]; then
        echo "apt knows no kernel $1$2"
    elif [ ! -d "$PLACE/${kernel#linux-image-}" ]; then
        echo "fetching $kernel, to boot it in QEMU"
        package=$(download "$kernel") || { echo "cannot download $kernel" && return 0; }
        unpack "$package"
    fi
}
# Debian's kernels for clouds: small, and without an initramfs of their own they boot in seconds.
for series in $(grep -E '^linux-image-[0-9].*[0-9]-cloud-amd64$' <<< "$known" | grep -oE '[0-9]+\.[0-9]+' | sort --unique); do
    newest "$series" -cloud
done
newest 6.1 ""
newest 6.12 -rt

# Debian's other releases.
# other RELEASE SERIES PREFIX..: the newest kernel of the series, from the packages that begin so. Newer releases have the image and
# the modules in two packages.
other() {
    local release=$1 series=$2 apt=$PLACE/apt-$1 kernel prefix package
    shift 2
    [ -z "$(find "$PLACE" -maxdepth 1 -name "$series.*-cloud-amd64")" ] || return 0
    if [ ! -e "$DEBIAN_KEYS" ]; then
        echo "cannot fetch a kernel $series: no keys of Debian"
        return 0
    fi
    private_apt "$apt" amd64 "$release"
    echo "looking for a kernel $series in Debian $release, to boot it in QEMU"
    export APT_CONFIG=$apt/apt.conf
    if ! apt-get update --quiet --quiet > /dev/null 2>&1; then
        echo "cannot reach Debian $release"
    else
        kernel=$(apt-cache pkgnames "$1" | grep -E "^$1${series//./\\.}\.?[0-9.+~a-z-]*-cloud-amd64$" | sort --version-sort | tail -n 1 || true)
        [ -n "$kernel" ] || echo "Debian $release has no cloud kernel $series"
        for prefix in ${kernel:+"$@"}; do
            if ! package=$(download "$prefix${kernel#"$1"}"); then
                echo "cannot download $prefix${kernel#"$1"}"
                rm -rf "${PLACE:?}/${kernel#"$1"}"
                break
            fi
            unpack "$package"
        done
    fi
    unset APT_CONFIG
    # The lists of a release are large, and needed once.
    rm -rf "$apt"
}
other bullseye 5.10 linux-image-
other sid 7 linux-modules- linux-binary-
