#!/usr/bin/env bash
# Builds a small kernel 6.1 of Debian's sources without type information (CONFIG_DEBUG_INFO_BTF) into the cache (scripts/places.sh
# kernels), where the test `kernels` boots it: all that Debian builds have that information.
# It has what the machine's init needs and what probes need but for BTF: the tracepoints, programs and ring buffers of BPF, cgroup v2,
# conntrack. Its sources and busybox come through apt, by Debian's keys; nothing is installed.
# Usage: scripts/kernel-without-btf.sh. It needs make, gcc, flex, bison, bc and libelf's headers (scripts/setup.sh kernel). A kernel of
# the same options that is there already stays.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/places.sh
. scripts/private-apt.sh
PLACE=$(kernels_place)
readonly PLACE SERIES=6.1 RELEASE=bookworm NAME=-without-btf

# On top of `make tinyconfig`, which has nearly nothing.
OPTIONS="
64BIT SMP MODULES PRINTK TTY SERIAL_8250 SERIAL_8250_CONSOLE PCI ACPI RTC_CLASS HIGH_RES_TIMERS KERNEL_GZIP
BLK_DEV_INITRD BINFMT_ELF BINFMT_SCRIPT PROC_FS PROC_SYSCTL SYSFS DEVTMPFS TMPFS SHMEM SECURITY SECURITYFS
MULTIUSER FUTEX EPOLL EVENTFD SIGNALFD TIMERFD INOTIFY_USER FILE_LOCKING POSIX_TIMERS ADVISE_SYSCALLS MEMBARRIER
NAMESPACES NET_NS PID_NS USER_NS UTS_NS IPC_NS SYSVIPC CGROUPS CGROUP_BPF
NET UNIX INET IPV6 NETDEVICES NET_CORE VETH NETFILTER NETFILTER_ADVANCED NF_CONNTRACK NF_CONNTRACK_EVENTS NF_CT_NETLINK NF_NAT
NF_TABLES NF_TABLES_INET NF_TABLES_IPV4 NFT_CT NFT_NAT
BPF_SYSCALL BPF_JIT PERF_EVENTS FTRACE KPROBES KPROBE_EVENTS UPROBE_EVENTS BPF_EVENTS KALLSYMS
"
recipe=$(sha256sum <<< "$OPTIONS" | cut -c 1-16)
for kernel in "$PLACE/$SERIES".*"$NAME"; do
    [ "$(cat "$kernel/recipe" 2> /dev/null)" != "$recipe" ] || exit 0
done
if [ "$(uname -m)" != x86_64 ] || ! command -v apt-get > /dev/null 2>&1 || [ ! -e "$DEBIAN_KEYS" ]; then
    echo "error: a kernel without type information is built on x86_64, of sources that apt fetches and Debian's keys vouch for" >&2
    echo "hint: apt-get install debian-archive-keyring" >&2
    exit 69
fi
missing=
for tool in make gcc flex bison bc; do
    command -v "$tool" > /dev/null 2>&1 || missing+=" $tool"
done
# objtool, without which no kernel of x86_64 is built, reads ELF by it.
[ -e /usr/include/gelf.h ] || missing+=" libelf-dev"
if [ -n "$missing" ]; then
    echo "error: no kernel can be built without$missing" >&2
    echo "hint: scripts/setup.sh kernel" >&2
    exit 69
fi

mkdir -p "$PLACE"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
private_apt "$work/apt" amd64 "$RELEASE"
export APT_CONFIG=$work/apt/apt.conf
apt-get update --quiet --quiet
# download PACKAGE: prints the file. apt has compared it with the checksum in Debian's signed lists.
download() {
    (cd "$work" && apt-get download --quiet "$1" > /dev/null)
    find "$work" -maxdepth 1 -name "$1_*.deb"
}
if [ ! -x "$PLACE/busybox" ]; then
    package=$(download busybox-static)
    dpkg-deb --fsys-tarfile "$package" | tar --extract --to-stdout --wildcards './*bin/busybox' > "$PLACE/busybox.new"
    chmod +x "$PLACE/busybox.new"
    mv "$PLACE/busybox.new" "$PLACE/busybox"
fi
begin=$SECONDS
echo "fetching linux-source-$SERIES of Debian $RELEASE"
package=$(download "linux-source-$SERIES")
echo "fetched in $((SECONDS - begin)) s: $(basename "$package")"
begin=$SECONDS
# Of other architectures and of drivers no code is needed, but what Kconfig reads.
dpkg-deb --fsys-tarfile "$package" | tar --extract --to-stdout --wildcards './usr/src/linux-source-*.tar.xz' |
    tar --extract --xz --directory "$work" --exclude '*/arch/[!x]*/*.[chS]' --exclude '*/arch/xtensa/*.[chS]' --exclude '*/sound/*.[ch]' --exclude '*.rst' \
        --exclude '*/tools/testing/*' --exclude '*/drivers/gpu/*.[ch]' --exclude '*/drivers/media/*.[ch]' --exclude '*/drivers/staging/*.[ch]' \
        --exclude '*/drivers/net/ethernet/*.[ch]' --exclude '*/drivers/net/wireless/*.[ch]' --exclude '*/drivers/scsi/*.[ch]' \
        --exclude '*.dts' --exclude '*.dtsi' --exclude '*.yaml'
source=$(find "$work" -maxdepth 1 -type d -name 'linux-source-*')
echo "unpacked in $((SECONDS - begin)) s"
begin=$SECONDS
# Options of the environment are others' (a sub-make's jobs, a cross compiler).
build() { env -u MAKEFLAGS -u MAKELEVEL -u CROSS_COMPILE -u ARCH make --silent --directory "$source" ARCH=x86_64 LOCALVERSION="$NAME" "$@"; }
build tinyconfig > /dev/null
for option in $OPTIONS; do
    echo "CONFIG_$option=y"
done > "$work/options"
cat "$work/options" >> "$source/.config"
build olddefconfig 2> /dev/null
# What another option excludes, or what this series names otherwise, is missing without a word.
if refused=$(grep --invert-match --line-regexp --fixed-strings --file="$source/.config" "$work/options"); then
    echo "error: Linux $SERIES does not take these options:" $refused >&2
    exit 70
fi
if grep '^CONFIG_DEBUG_INFO_BTF=y' "$source/.config"; then
    echo "error: this kernel would have type information" >&2
    exit 70
fi
build "-j$(nproc)" bzImage
name=$(build kernelrelease)
mkdir "$work/kernel"
cp "$source/arch/x86/boot/bzImage" "$work/kernel/vmlinuz-$name"
cp "$source/.config" "$work/kernel/config-$name"
echo "$recipe" > "$work/kernel/recipe"
rm -rf "$PLACE/$SERIES".*"$NAME"
mv "$work/kernel" "$PLACE/$name"
echo "built in $((SECONDS - begin)) s: $PLACE/$name"
