#!/usr/bin/env bash
# Ends what up.sh started, by its pid files, and removes FOLDER. Usage: down.sh BIN FOLDER.
set -u
bin=$(cd "$1" && pwd) || exit 1
[ -d "$2" ] || exit 0
dir=$(cd "$2" && pwd)
cd "$dir" || exit 1
export PATH=$bin:$PATH:/usr/sbin:/sbin KUBECONFIG=$dir/admin.kubeconfig

# stop NAME..: all at once.
stop() {
    local name
    for name in "$@"; do
        stop_one "$name" &
    done
    wait
}
stop_one() {
    local pid
    pid=$(cat "run/$1.pid" 2> /dev/null) || return 0
    # A pid may belong to another process since.
    runs "$1" "$pid" || return 0
    kill "$pid"
    for _ in $(seq 50); do
        sleep 0.1
        runs "$1" "$pid" || return 0
    done
    kill -9 "$pid"
}
# One that has ended and is not waited for yet has no arguments (proc_pid_cmdline(5)).
runs() { grep -qa "$1" "/proc/$2/cmdline" 2> /dev/null; }

tasks() { timeout 20 ctr -a "$dir/run/containerd.sock" -n k8s.io "$@" 2> /dev/null; }

if [ -f admin.kubeconfig ]; then
    timeout 45 kubectl delete daemonset,deployment,job,pod --all --all-namespaces --grace-period=1 --timeout=30s > /dev/null 2>&1
fi
stop prometheus kube-scheduler kube-controller-manager kubelet coredns kube-proxy
# The API server goes before etcd, or it hangs.
stop kube-apiserver
stop etcd
timeout 30 kube-proxy --cleanup --config kube-proxy.yaml > /dev/null 2>&1
# Where a plugin refuses a DEL, sandboxes and their network namespaces stay.
namespaces=$(for container in $(tasks containers ls -q); do
    tasks containers info "$container" | sed -n 's#.*"path": "\(/[a-z/]*/netns/cni-[0-9a-f-]*\)".*#\1#p'
done | sort -u)
for task in $(tasks tasks ls -q); do
    tasks tasks rm -f "$task" > /dev/null
done
for namespace in $namespaces; do
    umount "$namespace" 2> /dev/null
    rm -f "$namespace"
done
stop containerd jaeger
grep -F "$dir/" /proc/mounts | cut -d' ' -f2 | sort -r | xargs -r umount 2> /dev/null
# Chains of kubelet and kube-proxy, which neither takes away itself.
remove_chains() {
    local table chain
    for table in filter nat mangle; do
        "$1" -w 5 -t $table -S | sed -n '/ -j KUBE-/s/^-A/-D/p' | xargs -r -L 1 "$1" -w 5 -t $table
        for flag in -F -X; do
            for chain in $("$1" -w 5 -t $table -S | sed -n 's/^-N \(KUBE-.*\)/\1/p'); do
                "$1" -w 5 -t $table $flag "$chain"
            done
        done
    done
}
if [ -f no-chains-before ]; then
    remove_chains iptables 2> /dev/null
    remove_chains ip6tables 2> /dev/null
fi
for bridge in sgcp0 sgcp1 sgcp2 sgcp3 sgcnode; do
    ip link del $bridge 2> /dev/null
done
cd / || exit 1
umount "$dir" 2> /dev/null
rm -rf "$dir"
