#!/usr/bin/env bash
# An apt whose whole state is in a folder of its own: packages of other releases and architectures are looked up and downloaded, and
# nothing of the machine's changes. Sourced by scripts/kernels.sh and scripts/kernels-arm64.sh; needs Debian's keys. Installs nothing.
readonly DEBIAN_KEYS=/usr/share/keyrings/debian-archive-keyring.gpg

# private_apt FOLDER ARCHITECTURE RELEASE..: makes it. APT_CONFIG=FOLDER/apt.conf has apt-get and apt-cache use it.
private_apt() {
    local folder=$1 architecture=$2 release
    shift 2
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial"
    touch "$folder/status"
    for release in "$@"; do
        echo "deb [signed-by=$DEBIAN_KEYS] http://deb.debian.org/debian $release main"
    done > "$folder/sources.list"
    cat > "$folder/apt.conf" << CONF
Dir::State "$folder";
Dir::State::Lists "$folder/lists";
Dir::State::Status "$folder/status";
Dir::Cache "$folder/cache";
Dir::Etc::SourceList "$folder/sources.list";
Dir::Etc::SourceParts "-";
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "root";
Acquire::Languages "none";
CONF
}
