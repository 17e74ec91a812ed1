#!/usr/bin/env bash
# Fetches what the test `kernels` boots into the cache (scripts/places.sh kernels): the newest cloud kernel of each series that this Debian
# knows, those of an old and of the newest Debian, the generic 6.1 and the 6.12 with PREEMPT_RT, busybox, AppArmor's parser,
# and SELinux' policy.
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
# SELinux' policy of Debian trixie, in which containers have domains: its modules, linked into what the kernel loads. semodule_link and
# semodule_expand run with the C library of their release.
selinux() {
    local apt=$PLACE/apt-selinux new=$PLACE/selinux.new package file
    [ ! -e "$PLACE/selinux/policy" ] || return 0
    if [ ! -e "$DEBIAN_KEYS" ] || ! command -v bunzip2 > /dev/null 2>&1; then
        echo "cannot make SELinux' policy: no keys of Debian, or no bunzip2"
        return 0
    fi
    private_apt "$apt" amd64 trixie
    echo "making SELinux' policy of Debian trixie, to load it in QEMU"
    rm -rf "$new"
    mkdir -p "$new"
    export APT_CONFIG=$apt/apt.conf
    apt-get update --quiet --quiet > /dev/null 2>&1 || true
    for package in selinux-policy-default semodule-utils libsepol2 libc6; do
        file=$(download "$package") && dpkg-deb --extract "$file" "$new" || { echo "cannot download $package of Debian trixie" && break; }
        rm "$file"
    done
    unset APT_CONFIG
    rm -rf "$apt"
    link_policy "$new" && mkdir -p "$PLACE/selinux" && mv "$new/policy" "$PLACE/selinux/policy" || echo "cannot link SELinux' policy"
    rm -rf "$new"
}
# link_policy FOLDER: FOLDER/policy from the packages that were unpacked there. 33 is the policy's version that Linux takes since 5.5
# (POLICYDB_VERSION_COMP_FTRANS, security/selinux/include/security.h).
link_policy() {
    local modules=$1/usr/share/selinux/default libraries=$1/usr/lib/x86_64-linux-gnu names
    local with=("$libraries/ld-linux-x86-64.so.2" --library-path "$libraries")
    bunzip2 "$modules"/*.bz2 || return 1
    names=$(find "$modules" -name '*.pp' ! -name base.pp | sort)
    # shellcheck disable=SC2086
    "${with[@]}" "$1/usr/bin/semodule_link" -o "$1/linked" "$modules/base.pp" $names > /dev/null 2>&1 &&
        "${with[@]}" "$1/usr/bin/semodule_expand" -a -c 33 "$1/linked" "$1/policy" > /dev/null
}
selinux
other bullseye 5.10 linux-image-
other sid 7 linux-modules- linux-binary-
