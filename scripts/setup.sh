#!/usr/bin/env bash
# Installs what is missing on Debian and Ubuntu, after a list of it; elsewhere prints what to install.
# Usage: scripts/setup.sh [build] [demo] [test] [observability] [cluster] [kernel]. Quick when nothing is missing. Does not install Rust where apt has no rustup: it prints how.
set -euo pipefail
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin:$HOME/.cargo/bin

readonly RUST_MINOR=95 # rust-version of Cargo.toml
required=() # packages without which nothing works
optional=() # packages whose absence skips tests, by name
why=()      # what each is for, for machines without apt

have() { command -v "$1" > /dev/null 2>&1; }
in_apt() { [ -n "$(apt-cache policy "$1" 2> /dev/null | sed -n 's/^  Candidate: \([0-9].*\)/\1/p')" ]; }
need() {
    required+=("$1")
    why+=("$1: $2")
}

has_clang() {
    local version
    for version in 19 18 17 16 15 14; do
        have "clang-$version" && return
    done
    have clang
}

newest_clang() {
    local version
    for version in 19 18 17 16 15 14; do
        if in_apt "clang-$version"; then
            echo "clang-$version"
            return
        fi
    done
    echo clang
}

has_cni_plugins() {
    local dir
    for dir in /usr/lib/cni /opt/cni/bin /usr/libexec/cni /usr/local/lib/cni; do
        [ -x "$dir/bridge" ] && [ -x "$dir/host-local" ] && [ -x "$dir/portmap" ] && [ -x "$dir/loopback" ] && return
    done
    return 1
}

want_build() {
    has_clang || need "$(newest_clang)" "clang 14 or newer, for the programs in the kernel"
    have cc || need gcc "a C compiler and linker"
    # gcc without the C library's headers cannot link.
    [ ! -e /etc/debian_version ] || [ -e /usr/include/stdio.h ] || need libc6-dev "headers of the C library"
}

want_demo() {
    { have containerd && have ctr && have containerd-shim-runc-v2; } || need containerd "the demo's container runtime"
    have runc || need runc "what containerd starts containers with"
    has_cni_plugins || need containernetworking-plugins "the CNI plugins bridge, host-local, portmap and loopback"
    have ip || need iproute2 "ip"
    have iptables || need iptables "what the plugin portmap calls"
    { have unshare && have mount; } || need util-linux "unshare and mount"
}

want_test() {
    have ps || need procps "ps"
    have tar || need tar "tar"
    # Manifests and images are judged and made by small Python programs.
    have python3 && python3 -c 'import ensurepip' 2> /dev/null || need python3-venv "python3 with virtual environments"
    # Prometheus brings promtool, the judge of /metrics and of the alert rules.
    have promtool || optional+=(prometheus)
    # The alerts' way to a receiver, and the source of the dashboards.
    have prometheus-alertmanager || optional+=(prometheus-alertmanager)
    have jsonnet || optional+=(jsonnet)
    # Real peers of the DNS and conntrack probes: servers, the oracle of what went over the wire, and that of the flows.
    have dnsmasq || optional+=(dnsmasq-base)
    have unbound || optional+=(unbound)
    have tshark || optional+=(tshark)
    # BPF objects that an agent leaves, and capabilities of files, in tests.
    have bpftool || optional+=(bpftool)
    have setcap || optional+=(libcap2-bin)
    # libFuzzer is C++.
    have c++ || optional+=(g++)
    have conntrack || optional+=(conntrack)
    have nft || optional+=(nftables)
    have podman || optional+=(podman)
    have openssl || optional+=(openssl)
    # A program whose resolver is musl's, and the static image.
    have rustup && rustup target add x86_64-unknown-linux-musl > /dev/null 2>&1 || true
    # The Windows build and something to run it with.
    { have x86_64-w64-mingw32-gcc && { have wine64 || [ -x /usr/lib/wine/wine64 ]; }; } || optional+=(gcc-mingw-w64-x86-64-win32 wine64)
    if have rustup && ! [ -d "$(rustc --print target-libdir --target x86_64-pc-windows-gnu 2> /dev/null)" ]; then
        rustup target add x86_64-pc-windows-gnu || echo "note: without the Rust target x86_64-pc-windows-gnu, tests of the Windows build are skipped by name"
    fi
    # Other kernels, booted without acceleration.
    have qemu-system-x86_64 || optional+=(qemu-system-x86)
    # SELinux' policy is packed with it (scripts/kernels.sh).
    have bunzip2 || optional+=(bzip2)
    # Those of arm64, and the static agent for them.
    have qemu-system-aarch64 || optional+=(qemu-system-arm)
    have aarch64-linux-gnu-gcc || optional+=(gcc-aarch64-linux-gnu)
    # The compiler only recommends the headers, without which it compiles no C of a crate.
    [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || optional+=(libc6-dev-arm64-cross)
    # The judge of scripts in workflows, which actionlint asks too.
    have shellcheck || optional+=(shellcheck)
    # The oracle of waits.
    have perf || optional+=(linux-perf)
    # A second OCI runtime to trace.
    have crun || optional+=(crun)
    { have chromium || have google-chrome || have chrome; } && have chromedriver || optional+=(chromium chromium-driver)
}

# Jaeger is built from its Go module by scripts/peer.sh, which reports when there is no Go.
want_observability() {
    have prometheus || need prometheus "Prometheus, beside the demo (Debian starts a service with it, which the demo does not use)"
}

# Go itself is required by deploy/cluster/build.sh: Debian's is too old.
want_cluster() {
    have openssl || need openssl "the cluster's certificates"
    have python3 || need python3 "deploy/image/oci.py, which writes images"
    have curl || need curl "curl"
    have ss || need iproute2 "ss"
    have bpftool || optional+=(bpftool)
    have prometheus || optional+=(prometheus)
    have prometheus-alertmanager || optional+=(prometheus-alertmanager)
}

# What scripts/kernel-without-btf.sh builds a kernel with.
want_kernel() {
    have make || need make "make"
    have gcc || need gcc "the kernel's compiler"
    have flex || need flex "what the kernel's configuration is read with"
    have bison || need bison "what the kernel's configuration is read with"
    have bc || need bc "what the kernel computes a header with"
    [ -e /usr/include/gelf.h ] || need libelf-dev "what the kernel's objtool reads objects with"
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || need debian-archive-keyring "Debian's keys, for the kernel's sources"
}

check_rust() {
    local version minor
    if ! have cargo; then
        if have apt-cache && in_apt rustup; then
            need rustup "the installer of the Rust toolchain"
            return
        fi
        echo "error: Rust is not installed" >&2
        echo "hint: install 1.$RUST_MINOR or newer as https://rustup.rs says, then run this again" >&2
        exit 69
    fi
    # A rustup without a toolchain answers with an error.
    version=$(cargo --version 2> /dev/null || true)
    minor=$(sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p' <<< "$version")
    if [ -z "$minor" ] || [ "$minor" -lt "$RUST_MINOR" ]; then
        echo "error: Rust 1.$RUST_MINOR or newer is needed, found: ${version:-no toolchain}" >&2
        echo "hint: rustup toolchain install stable && rustup default stable" >&2
        exit 69
    fi
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends "$@"
}

update_lists() {
    echo "refreshing the package lists: apt-get update"
    as_root apt-get update --quiet || echo "warning: apt-get update failed; going on with the lists that are there" >&2
}

refuse() {
    echo "error: $1, so these cannot be installed:" >&2
    printf '    %s\n' "${why[@]}" >&2
    echo "hint: install them (the names are Debian's) and run this again" >&2
    exit 69
}

install_required() {
    have apt-get || refuse "there is no apt-get on this machine"
    [ "$(id -u)" -eq 0 ] || have sudo || refuse "this is not root and there is no sudo"
    echo "these packages are missing and will be installed with apt-get:"
    printf '    %s\n' "${why[@]}"
    case " ${required[*]} " in
    *" containerd "*) echo "    (Debian starts the service containerd with it; the demo does not use that one)" ;;
    esac
    local package
    for package in "${required[@]}"; do
        if ! in_apt "$package"; then
            update_lists
            break
        fi
    done
    # Lists that name versions no longer there are the usual reason for a failure.
    apt_install "${required[@]}" || { update_lists && apt_install "${required[@]}"; }
}

# Ubuntu has Chromium only as a snap, which cannot be driven from here: what apt does not have is skipped.
install_optional() {
    local package wanted=()
    if have apt-get && { [ "$(id -u)" -eq 0 ] || have sudo; }; then
        for package in "${optional[@]}"; do
            if in_apt "$package"; then
                wanted+=("$package")
            else
                echo "note: package $package is not available here; tests that need it are skipped by name"
            fi
        done
        [ "${#wanted[@]}" -gt 0 ] || return 0
        echo "these packages are missing and will be installed with apt-get, for tests: ${wanted[*]}"
        case " ${wanted[*]} " in
        *" prometheus "*) echo "    (Debian starts the service prometheus with it; the tests only use promtool)" ;;
        esac
        case " ${wanted[*]} " in
        *" podman "*) echo "    (with it comes a network in /etc/cni/net.d, 87-podman-bridge.conflist, behind those of a cluster)" ;;
        esac
        apt_install "${wanted[@]}" && return 0
        update_lists
        apt_install "${wanted[@]}" && return 0
    fi
    echo "note: ${optional[*]} could not be installed; tests that need them are skipped by name"
}

for group in "${@:-build}"; do
    case $group in
    build | demo | test | observability | cluster | kernel) "want_$group" ;;
    *)
        echo "error: unknown group $group" >&2
        echo "hint: scripts/setup.sh [build] [demo] [test] [observability] [cluster] [kernel]" >&2
        exit 64
        ;;
    esac
done
check_rust
[ "${#required[@]}" -eq 0 ] || install_required
[ "${#optional[@]}" -eq 0 ] || install_optional
if [ "${#required[@]}" -gt 0 ] && [[ " ${required[*]} " == *" rustup "* ]]; then
    echo "installing the Rust toolchain: rustup default stable"
    rustup default stable
    required=()
    check_rust
fi
