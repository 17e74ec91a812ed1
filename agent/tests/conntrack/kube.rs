//! The real kube-proxy, with an API server and etcd of its own, all inside the node's namespace: its rules, not a copy.
//!
//! The programs are looked for in the directory that `SANDGLASS_KUBE_BIN` names. Does not: run a kubelet, or any pod.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::cluster::{PORT, SERVICE};
use crate::namespaces::Namespace;

/// What runs. Dropping it ends it.
pub struct Kube<'n> {
    node: &'n Namespace,
    bin: PathBuf,
    directory: TempDir,
    children: Vec<Child>,
}

impl<'n> Kube<'n> {
    /// Where the programs are; `None`, with a `SKIPPED` line, where they are not.
    pub fn programs(test: &str) -> Option<PathBuf> {
        let bin = std::env::var_os("SANDGLASS_KUBE_BIN").map(PathBuf::from);
        let has_all = |bin: &PathBuf| PROGRAMS.iter().all(|program| bin.join(program).exists());
        let found = bin.filter(has_all);
        if found.is_none() {
            eprintln!(
                "SKIPPED {test}: SANDGLASS_KUBE_BIN names no directory with {}",
                PROGRAMS.join(", ")
            );
        }
        found
    }

    /// Starts kube-proxy in this mode, and waits until it has made rules for one service with three endpoints.
    pub fn start(node: &'n Namespace, bin: &Path, mode: &str) -> Kube<'n> {
        let mut kube = Kube {
            node,
            bin: bin.to_owned(),
            directory: tempfile::tempdir().unwrap(),
            children: Vec::new(),
        };
        kube.write("tokens.csv", "secret,admin,1,system:masters\n");
        kube.write("kubeconfig", KUBECONFIG);
        kube.write("objects.yaml", &objects());
        kube.write("proxy.yaml", &proxy(mode));
        node.run(&format!(
            "cd {}; openssl genrsa -out sa.key 2048 2>/dev/null",
            kube.path()
        ));
        kube.spawn("etcd --data-dir etcd --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync");
        kube.spawn("kube-apiserver --etcd-servers http://127.0.0.1:2379 --bind-address 127.0.0.1 --advertise-address 10.77.1.2 --secure-port 6443 --cert-dir pki --token-auth-file tokens.csv --authorization-mode AlwaysAllow --service-account-key-file sa.key --service-account-signing-key-file sa.key --service-account-issuer https://kubernetes.default.svc --service-cluster-ip-range 10.96.0.0/24 --endpoint-reconciler-type none");
        kube.wait_for("the API server", "kubectl get --raw /readyz");
        kube.wait_for("the objects", "kubectl apply -f objects.yaml");
        kube.wait_for(
            "the node's address",
            r#"kubectl patch node n1 --subresource=status -p '{"status":{"addresses":[{"type":"InternalIP","address":"10.77.1.2"}]}}'"#,
        );
        kube.spawn("kube-proxy --config proxy.yaml");
        let rules = match mode {
            "nftables" => format!("nft list ruleset | grep -q '{SERVICE} . tcp . {PORT} : goto'"),
            _ => format!("iptables-save -t nat | grep -q 'KUBE-SERVICES -d {SERVICE}/32'"),
        };
        kube.wait_for("the rules", &rules);
        kube
    }

    fn path(&self) -> String {
        self.directory.path().display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    fn command(&self, command: &str) -> Command {
        let script = format!(
            "cd {}; export PATH={}:$PATH KUBECONFIG=kubeconfig HOME=.; {command}",
            self.path(),
            self.bin.display()
        );
        self.node.command(&script)
    }

    fn spawn(&mut self, command: &str) {
        let program = command.split(' ').next().unwrap();
        let log = std::fs::File::create(self.directory.path().join(format!("{program}.log"))).unwrap();
        let mut command = self.command(&format!("exec {command}"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.children.push(command.spawn().unwrap());
    }

    fn wait_for(&self, what: &str, command: &str) {
        let deadline = Instant::now() + Duration::from_secs(90);
        loop {
            let output = self.command(command).output().unwrap();
            if output.status.success() {
                return;
            }
            let printed = String::from_utf8_lossy(&output.stderr);
            let logs = || self.node.run(&format!("cd {}; tail -n 5 *.log", self.path()));
            assert!(Instant::now() < deadline, "{what}: {printed}\n{}", logs());
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

impl Drop for Kube<'_> {
    fn drop(&mut self) {
        // kube-proxy first: it would complain about the others.
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn objects() -> String {
    let endpoints: Vec<String> = (2..5)
        .map(|host| format!("- {{addresses: [10.77.2.{host}], conditions: {{ready: true}}}}"))
        .collect();
    format!(
        "apiVersion: v1
kind: Node
metadata: {{name: n1}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: default}}
spec: {{clusterIP: {SERVICE}, ports: [{{name: web, port: {PORT}, protocol: TCP}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: default, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: web, port: {PORT}, protocol: TCP}}]
endpoints:
{}
",
        endpoints.join("\n")
    )
}

fn proxy(mode: &str) -> String {
    // All that comes to a service from outside of clusterCIDR is masqueraded, the pod of the test included.
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {mode}
clientConnection: {{kubeconfig: kubeconfig}}
clusterCIDR: 10.244.0.0/24
hostnameOverride: n1
metricsBindAddress: 127.0.0.1:10249
healthzBindAddress: 127.0.0.1:10256
conntrack: {{maxPerCore: 0}}
"
    )
}

const PROGRAMS: [&str; 4] = ["etcd", "kube-apiserver", "kube-proxy", "kubectl"];
const KUBECONFIG: &str = "apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: \"https://127.0.0.1:6443\", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: secret}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
";
