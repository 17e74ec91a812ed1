#!/usr/bin/env bash
# Builds a one-node Kubernetes and the project's image, starts the one, installs the other with the chart, and runs
# agent/tests/cluster.rs against both. Usage: test.sh [--keep | --demo] [TEST..]. Root only.
# --keep leaves the node running; --demo installs, makes pods, prints the addresses and stays until Ctrl-C.
# SANDGLASS_CLUSTER_BIN, or SANDGLASS_KUBE_BIN, names a folder with the built programs (default: in the
# cache, scripts/places.sh); SANDGLASS_CLUSTER_MINUTES is how long the tests may take (default 30). The last line counts the tests.
# Uses besides: Go 1.26, runc, the CNI plugins, iptables, ip, openssl, curl, python3, rustup's musl target.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin
keep=false
demo=false
tests=()
for argument in "$@"; do
    case $argument in
    --keep) keep=true ;;
    --demo) demo=true ;;
    *) tests+=("$argument") ;;
    esac
done
if [ "$(id -u)" -ne 0 ]; then
    echo "error: a node can only be started by root" >&2
    echo "hint: sudo make test-cluster" >&2
    exit 77
fi
. scripts/places.sh
target=$(target_place)
bin=$(cluster_place)
dir=${SANDGLASS_CLUSTER_DIR:-/var/lib/sandglass-cluster}
deploy/cluster/build.sh "$bin"
scripts/image.sh amd64

down() { deploy/cluster/down.sh "$bin" "$dir"; }
down
mkdir -p "$dir/images"
rustc --edition 2024 --target x86_64-unknown-linux-musl -C opt-level=s -C strip=symbols -o "$target/image/pod" deploy/cluster/pod.rs
python3 deploy/image/oci.py --binary "$target/image/pod" --entrypoint pod --arch amd64 --version 1 \
    --name docker.io/sandglass-test/pod:1 --out "$dir/images/pod.tar"
cp "$target/image/sandglass-amd64.tar" "$dir/images/"
# The same image under a second tag, for `helm upgrade`.
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
python3 deploy/image/oci.py --binary "$target/image/amd64/sandglass" --arch amd64 --version next \
    --name localhost/sandglass:next --out "$dir/images/sandglass-next.tar"
# And under the name in the plain manifests, which are applied without a change.
python3 deploy/image/oci.py --binary "$target/image/amd64/sandglass" --arch amd64 --version "$version" \
    --name "registry.invalid/sandglass:$version" --out "$dir/images/sandglass-manifests.tar"

# Whatever ends this script ends the tests and the node with it; after a failure the node's logs stay.
log=$(mktemp)
runner=
finish() {
    local status=$?
    # Who reads what this prints may have ended before: the node has to end all the same.
    trap : INT TERM PIPE
    trap - EXIT
    set +e
    if [ -n "$runner" ]; then
        kill "$runner" 2> /dev/null || true
        wait "$runner" 2> /dev/null || true
    fi
    if [ $status -ne 0 ] && ! $demo && [ -d "$dir/log" ]; then
        rm -rf "$target/cluster/log"
        mkdir -p "$target/cluster"
        cp -r "$dir/log" "$target/cluster/log" || true
        cp "$log" "$target/cluster/log/tests.log" || true
        echo "logs of the node: $target/cluster/log"
    fi
    $keep || down || true
    if [ -s "$log" ]; then
        scripts/count.sh "$log" $status || [ $status -ne 0 ] || status=1
    fi
    rm -f "$log"
    exit $status
}
trap finish EXIT
# Ctrl-C is the demo's own, regular end.
$demo || trap 'exit 130' INT
trap 'exit 143' TERM
begin=$SECONDS
deploy/cluster/up.sh "$bin" "$dir"
echo "the node is ready after $((SECONDS - begin)) s: export KUBECONFIG=$dir/admin.kubeconfig PATH=$bin:\$PATH"

export SANDGLASS_CLUSTER=$dir SANDGLASS_CLUSTER_BIN=$bin SANDGLASS_VERSION=$version
if $demo; then
    deploy/cluster/demo.sh "$bin" "$dir"
    exit
fi
cargo test --locked --package sandglass --test cluster --no-run
# Into a file, not a pipe: what a test leaves running cannot keep the pipe open, and the script with it. The time limit is
# for what no limit of its own ends; it counts as a failure.
status=0
timeout --kill-after=30 "${SANDGLASS_CLUSTER_MINUTES:-30}m" \
    cargo test --locked --package sandglass --test cluster -- --test-threads=1 --nocapture "${tests[@]}" > "$log" 2>&1 < /dev/null &
runner=$!
tail --pid=$runner --lines=+1 --follow "$log" &
wait $runner || status=$?
runner=
wait $! 2> /dev/null || true
[ $status -ne 124 ] || echo "the tests did not end within ${SANDGLASS_CLUSTER_MINUTES:-30} minutes"
exit $status
