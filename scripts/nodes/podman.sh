#!/usr/bin/env bash
# Runs the agent's image by podman as a DaemonSet of the chart would: the same capabilities, namespaces and paths, and an SELinux type.
# Usage: podman.sh IMAGE TYPE CRI_SOCKET [ARGUMENT..]. Its exit code is the agent's. The container is called sandglass-TYPE.
# podman gives no type of its own to a container with the node's process ids unless one is named (podman's pull request 6832), so that
# container_t is named too. seccomp is off: what is refused is SELinux' doing then.
# Used by .github/workflows/nodes.yml.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,/^set /s/^# //p' "$0" >&2
    exit 64
fi
image=$1
type=$2
socket=$3
shift 3
mounts=()
for folder in /etc/cni/net.d /opt/cni/bin /var/lib/cni /etc/crio /sys/fs/cgroup "$(dirname "$socket")"; do
    [ ! -d "$folder" ] || mounts+=(--volume "$folder:$folder:ro")
done
exec podman run --rm --name "sandglass-$type" --network host --pid host --user 0:0 --read-only \
    --cap-drop all --cap-add bpf,perfmon,sys_ptrace,net_admin \
    --security-opt no-new-privileges --security-opt seccomp=unconfined --security-opt "label=type:$type" \
    "${mounts[@]}" "$image" run --cri-endpoint "unix://$socket" "$@"
