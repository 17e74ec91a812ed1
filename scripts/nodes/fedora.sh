#!/usr/bin/env bash
# Fedora's cloud image in QEMU, where SELinux enforces Fedora's policy. FOLDER holds all of the machine.
# Usage: fedora.sh start FOLDER              fetches the image, checks it, boots it, and returns when its ssh answers
#        fedora.sh run FOLDER COMMAND..      runs a command there as root; its standard input is the command's
#        fedora.sh put FOLDER FILE..         copies files into /root there
#        fedora.sh fetch FOLDER PATH         copies a folder from there into FOLDER
#        fedora.sh stop FOLDER               ends it
# Needs qemu-system-x86_64, qemu-img, genisoimage, curl and ssh. Used by .github/workflows/nodes.yml and agent/tests/workflows/nodes.rs.
# FEDORA_IMAGES names another place of images; FEDORA_ACCEL another accelerator than kvm. Does not: install anything.
set -euo pipefail

readonly RELEASE=44 COMPOSE=44-1.7
readonly IMAGE=Fedora-Cloud-Base-Generic-$COMPOSE.x86_64.qcow2 SUMS=Fedora-Cloud-$COMPOSE-x86_64-CHECKSUM
readonly IMAGES=${FEDORA_IMAGES:-https://download.fedoraproject.org/pub/fedora/linux/releases/$RELEASE/Cloud/x86_64/images}
# Pinned here, and compared with the list that Fedora publishes beside the image.
readonly SHA256=${FEDORA_SHA256:-28680fe5b371a5a82ebf43a31926e086a168e59949d03969c5093e7071f90b7f}
readonly PORT=2222 BOOT_SECONDS=${FEDORA_BOOT_SECONDS:-300}

if [ $# -lt 2 ]; then
    sed -n '2,/^set /s/^# //p' "$0" >&2
    exit 64
fi
what=$1
folder=$2
shift 2
mkdir -p "$folder"
cd "$folder"

with=(-i key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=5)
# A command of several words is one for the shell there.
there() { ssh "${with[@]}" -p $PORT fedora@127.0.0.1 sudo "$(printf '%q ' "$@")"; }

start() {
    local end
    curl --fail --silent --show-error --location --retry 3 --output "$SUMS" "$IMAGES/$SUMS"
    curl --fail --silent --show-error --location --retry 3 --output "$IMAGE" "$IMAGES/$IMAGE"
    echo "$SHA256  $IMAGE" | sha256sum --check
    sha256sum --check --ignore-missing "$SUMS"
    qemu-img create -q -f qcow2 -F qcow2 -b "$IMAGE" disk.qcow2 20G
    rm -f key key.pub
    ssh-keygen -q -t ed25519 -N '' -f key
    # cloud-init's source NoCloud: a disk of this label.
    printf '#cloud-config\nssh_authorized_keys: ["%s"]\n' "$(cat key.pub)" > user-data
    printf 'instance-id: sandglass\nlocal-hostname: fedora\n' > meta-data
    genisoimage -quiet -output seed.iso -volid cidata -joliet -rock user-data meta-data
    qemu-system-x86_64 -accel "${FEDORA_ACCEL:-kvm}" -cpu max -smp 3 -m 6G -display none -serial file:console.log \
        -drive file=disk.qcow2,if=virtio,format=qcow2 -drive file=seed.iso,if=virtio,format=raw,readonly=on \
        -nic "user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:$PORT-:22" -daemonize -pidfile qemu.pid
    end=$((SECONDS + BOOT_SECONDS))
    until there true 2> ssh.log; do
        if [ "$SECONDS" -ge "$end" ]; then
            echo "error: $IMAGE does not answer within $BOOT_SECONDS s" >&2
            echo "hint: its console is in $folder/console.log: $(tail -n 1 console.log)" >&2
            exit 1
        fi
        sleep 2
    done
    there cloud-init status --wait || true
}

case $what in
start) start ;;
run) there "$@" ;;
put) tar --create --file - --directory "$OLDPWD" "$@" | there tar --extract --file - --directory /root ;;
fetch) there tar --create --file - --directory "$(dirname "$1")" "$(basename "$1")" | tar --extract --file - ;;
stop) kill "$(cat qemu.pid)" ;;
*)
    echo "error: unknown command $what" >&2
    exit 64
    ;;
esac
