//! A small network for the traffic tests: a pod, its node, and a server, each a network namespace, joined by veth pairs.
//!
//! Used by `dns_probe.rs`, `dns_peers.rs` and `dns_path`, parts also by `conntrack`. The pod sits behind the node as it does on a
//! cluster: the node forwards, and may translate or drop. Names hold the test's process id, everything goes when the lab
//! is dropped. Does not: judge; that is the tests'.

#![allow(dead_code, reason = "each of the tests uses a part of it")]

pub mod client;
pub mod exchange;
pub mod oracle;
pub mod path;
pub mod query;
pub mod random;
pub mod recorded;
pub mod results;
pub mod server;
pub mod tshark;
pub mod watch;

pub use sandglass_lab::skip::has;

use sandglass_lab::netns::{self, ip};

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

static MACHINE: Mutex<()> = Mutex::new(());

pub const POD: &str = "10.153.1.2";
pub const SERVER: &str = "10.153.2.53";
pub const ELSEWHERE: &str = "10.153.2.54";
pub const POD_V6: &str = "fd00:153:1::2";
pub const SERVER_V6: &str = "fd00:153:2::53";
/// No interface has this address; the node may translate it.
pub const SERVICE: &str = "10.153.96.10";

/// The three namespaces.
pub struct Lab {
    number: u32,
    _alone: MutexGuard<'static, ()>,
}

impl Lab {
    /// A lab, or `None` with a `SKIPPED` line when this machine cannot have one.
    pub fn start(test: &str) -> Option<Lab> {
        Lab::make(test, true)
    }

    /// A lab whose pod and server no link joins: a [`path::Path`] does.
    pub fn apart(test: &str) -> Option<Lab> {
        Lab::make(test, false)
    }

    fn make(test: &str, linked: bool) -> Option<Lab> {
        let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED {test}: needs root");
            return None;
        }
        if !["ip", "nft", "getent"].iter().all(|program| has(test, program)) {
            return None;
        }
        let lab = Lab {
            number: std::process::id(),
            _alone: alone,
        };
        let built = lab
            .namespaces()
            .and_then(|()| if linked { lab.links() } else { Ok(()) });
        if let Err(reason) = built {
            eprintln!("SKIPPED {test}: no network namespaces can be made: {reason}");
            return None;
        }
        lab.resolv_conf(&format!("nameserver {SERVER}\n"));
        Some(lab)
    }

    pub fn pod(&self) -> String {
        format!("sgl{}p", self.number)
    }

    pub fn node(&self) -> String {
        format!("sgl{}n", self.number)
    }

    pub fn server(&self) -> String {
        format!("sgl{}s", self.number)
    }

    fn namespaces(&self) -> Result<(), String> {
        self.tear_down();
        for namespace in &[self.pod(), self.node(), self.server()] {
            netns::add(namespace)?;
        }
        Ok(())
    }

    fn links(&self) -> Result<(), String> {
        let (pod, node, server) = (self.pod(), self.node(), self.server());
        for (one, other, name) in [(&pod, &node, "pod"), (&server, &node, "srv")] {
            let link = [
                "-n", one, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", other,
            ];
            ip(&link)?;
            ip(&["-n", one, "link", "set", "eth0", "up"])?;
            ip(&["-n", other, "link", "set", name, "up"])?;
        }
        for (namespace, device, address) in [
            (&pod, "eth0", format!("{POD}/24")),
            (&pod, "eth0", format!("{POD_V6}/64")),
            (&node, "pod", "10.153.1.1/24".to_owned()),
            (&node, "pod", "fd00:153:1::1/64".to_owned()),
            (&node, "srv", "10.153.2.1/24".to_owned()),
            (&node, "srv", "fd00:153:2::1/64".to_owned()),
            (&server, "eth0", format!("{SERVER}/24")),
            (&server, "eth0", format!("{ELSEWHERE}/24")),
            (&server, "eth0", format!("{SERVER_V6}/64")),
        ] {
            let mut add = vec!["-n", namespace, "addr", "add", &address, "dev", device];
            if address.contains("fd00") {
                add.push("nodad");
            }
            ip(&add)?;
        }
        for (namespace, gateway, gateway_v6) in [
            (&pod, "10.153.1.1", "fd00:153:1::1"),
            (&server, "10.153.2.1", "fd00:153:2::1"),
        ] {
            ip(&["-n", namespace, "route", "add", "default", "via", gateway])?;
            ip(&["-n", namespace, "-6", "route", "add", "default", "via", gateway_v6])?;
        }
        for setting in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            let write = format!("echo 1 > /proc/sys/{setting}");
            self.within(&node, &["sh", "-c", &write]).map(|_| ())?;
        }
        Ok(())
    }

    /// Runs a program in a namespace and waits for it; an error when it fails.
    pub fn within(&self, namespace: &str, program: &[&str]) -> Result<Output, String> {
        netns::succeeded(&mut self.command(namespace, program))
    }

    /// A program to be run in a namespace.
    pub fn command(&self, namespace: &str, program: &[&str]) -> Command {
        netns::command(namespace, program)
    }

    /// What `ip netns exec` shows the pod's programs as their `/etc/resolv.conf`.
    pub fn resolv_conf(&self, text: &str) {
        let directory = self.etc();
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("resolv.conf"), text).unwrap();
    }

    fn etc(&self) -> PathBuf {
        PathBuf::from(format!("/etc/netns/{}", self.pod()))
    }

    /// Replaces the node's packet rules.
    pub fn rules(&self, rules: &str) {
        let script = format!("flush ruleset\n{rules}");
        self.within(&self.node(), &["nft", &script]).unwrap();
    }

    /// What a runtime does before a pod sends anything, as far as the agent needs it to attribute the namespace: a
    /// plugin's ADD. Returns the sandbox's id.
    pub fn announce_pod(&self) -> String {
        let sandbox = format!("{}{:060x}", watch::SANDBOX, self.number);
        let directory = tempfile::tempdir().unwrap();
        let plugin = directory.path().join("bridge");
        fs::write(&plugin, "#!/bin/sh\nexit 0\n").unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        let pod = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=7b1c1f0e-0000-4000-8000-000000000001";
        let status = Command::new(plugin)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", &sandbox)
            .env("CNI_NETNS", format!("/var/run/netns/{}", self.pod()))
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .env(
                "CNI_ARGS",
                format!("IgnoreUnknown=1;{pod};K8S_POD_INFRA_CONTAINER_ID={sandbox}"),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
        sandbox
    }

    /// Inode of a namespace.
    pub fn inode(&self, namespace: &str) -> u64 {
        fs::metadata(format!("/run/netns/{namespace}")).unwrap().ino()
    }

    fn tear_down(&self) {
        for namespace in [self.pod(), self.node(), self.server()] {
            let _ = ip(&["netns", "del", &namespace]);
        }
        let _ = fs::remove_dir_all(self.etc());
        // Others' stay, and with them the directory.
        let _ = fs::remove_dir("/etc/netns");
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.tear_down();
    }
}

/// Runs `work` on a thread of its own that lives in a namespace; sockets it makes stay there.
pub fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    netns::within(format!("/run/netns/{namespace}").as_ref(), work).unwrap()
}
