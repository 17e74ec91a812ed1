#!/usr/bin/env python3
"""Makes a Windows runner a node: containerd, crictl, the CNI plugin `nat`, and two plugins of this folder.

Usage: node.py EVIDENCE. Needs Docker's HNS network `nat` (`Start-Service docker`) and rustc. Used by the workflow windows.yml.
Each download is checked against a checksum that is pinned here, or that the project publishes beside the file; both are
written into EVIDENCE. A pod gets a plugin by its runtime handler: `crictl runp --runtime HANDLER` (HANDLERS).
Does not: run pods (capture.py does).
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import urllib.request
import zipfile

CONTAINERD = "2.4.2"
CRICTL = "v1.35.0"
NAT = "v0.3.1"
GITHUB = "https://github.com"
# Address of each archive, and its SHA-256: pinned, or the address of the file that the project publishes. That of the plugin
# is the one since February 2025 (microsoft/windows-container-networking issue 115: the archive was replaced then).
ARCHIVES = {
    "containerd": (
        f"{GITHUB}/containerd/containerd/releases/download/v{CONTAINERD}/containerd-{CONTAINERD}-windows-amd64.tar.gz",
        f"{GITHUB}/containerd/containerd/releases/download/v{CONTAINERD}/containerd-{CONTAINERD}-windows-amd64.tar.gz.sha256sum",
    ),
    "crictl": (
        f"{GITHUB}/kubernetes-sigs/cri-tools/releases/download/{CRICTL}/crictl-{CRICTL}-windows-amd64.tar.gz",
        f"{GITHUB}/kubernetes-sigs/cri-tools/releases/download/{CRICTL}/crictl-{CRICTL}-windows-amd64.tar.gz.sha256",
    ),
    "nat": (
        f"{GITHUB}/microsoft/windows-container-networking/releases/download/{NAT}/"
        f"windows-container-networking-cni-amd64-{NAT}.zip",
        "4f36ee6905ada238ca2a9e1bfb8a1fb2912c2d88c4b6e5af4c41a42db70d7d68",
    ),
}
# Runtime handlers that have a CNI configuration of their own, which names the plugin of the same name.
HANDLERS = ["fails", "sleeps"]
FOLDER = pathlib.Path(os.environ.get("ProgramFiles", "/tmp")) / "containerd"


def fetch(url):
    with urllib.request.urlopen(url, timeout=120) as answer:
        return answer.read()


def download(name, evidence):
    """The archive `name` in a file, checked; its checksums go into the evidence."""
    url, expected = ARCHIVES[name]
    content = fetch(url)
    found = hashlib.sha256(content).hexdigest()
    if expected.startswith("https:"):
        expected = fetch(expected).decode().split()[0]
    (evidence / f"{name}.sha256").write_text(f"{found}  {url}\nexpected: {expected}\n")
    print(f"{name}: {len(content)} bytes, SHA-256 {found}")
    if found != expected.lower():
        sys.exit(f"error: {url} has another checksum than {expected}")
    file = evidence.parent / url.rsplit("/", 1)[1]
    file.write_bytes(content)
    return file


def unpack(file, to):
    to.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".zip":
        zipfile.ZipFile(file).extractall(to)
    else:
        with tarfile.open(file) as archive:
            archive.extractall(to, filter="data")


def network(plugin, subnet, gateway):
    """A CNI configuration. `nat` finds its HNS network by the name, which must be that of Docker's."""
    return {
        "cniVersion": "0.3.0",
        "name": "nat",
        "type": plugin,
        "master": "Ethernet",
        "ipam": {"subnet": subnet, "routes": [{"GW": gateway}]},
        "capabilities": {"portMappings": True, "dns": True},
    }


def configure(folder, subnet, gateway):
    """CNI configurations and containerd's; what containerd has by default stays as it is."""
    toml = ["version = 3", ""]
    for plugin, name in [("nat", "conf"), *((handler, f"conf-{handler}") for handler in HANDLERS)]:
        place = folder / "cni" / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "0-nat.conf").write_text(json.dumps(network(plugin, subnet, gateway), indent=2))
        if plugin in HANDLERS:
            toml += [
                f"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{plugin}]",
                "runtime_type = 'io.containerd.runhcs.v1'",
                "container_annotations = ['io.microsoft.container.*']",
                f"cni_conf_dir = '{place}'",
                "",
            ]
    (folder / "config.toml").write_text("\n".join(toml))


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main():
    evidence = pathlib.Path(sys.argv[1]).absolute()
    evidence.mkdir(parents=True, exist_ok=True)
    inspected = output("docker", "network", "inspect", "nat")
    (evidence / "docker-network-nat.json").write_text(inspected)
    addresses = json.loads(inspected)[0]["IPAM"]["Config"][0]

    plugins = FOLDER / "cni" / "bin"
    unpack(download("containerd", evidence), FOLDER)
    unpack(download("crictl", evidence), FOLDER / "bin")
    unpack(download("nat", evidence), plugins)
    here = pathlib.Path(__file__).parent
    for handler in HANDLERS:
        output("rustc", "--edition", "2024", "-o", str(plugins / f"{handler}.exe"), str(here / f"{handler}.rs"))
    configure(FOLDER, addresses["Subnet"], addresses["Gateway"])

    containerd = str(FOLDER / "bin" / "containerd.exe")
    log = evidence / "containerd.log"
    output(containerd, "--register-service", "--log-level", "debug", "--log-file", str(log), "--config", str(FOLDER / "config.toml"))
    output("sc.exe", "start", "containerd")
    print(output(containerd, "--config", str(FOLDER / "config.toml"), "config", "dump"))


if __name__ == "__main__":
    main()
