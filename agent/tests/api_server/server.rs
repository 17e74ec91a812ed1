//! A Kubernetes API server with an etcd of its own, on the loopback address, and Helm and kubectl that speak to it.
//!
//! Its programs are those of the cluster (`deploy/cluster/build.sh`). No controller, no scheduler, no kubelet: it judges and stores
//! objects, and nothing runs. Does not: know the chart.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use sandglass_lab::built;
use sandglass_lab::ports::free;
use serde_json::Value;
use tempfile::TempDir;

/// What runs. Dropping it ends it.
pub struct Server {
    bin: PathBuf,
    folder: TempDir,
    port: u16,
    children: Vec<Child>,
}

/// What a program printed, and whether it succeeded.
pub struct Ran {
    pub succeeded: bool,
    pub printed: String,
    pub complained: String,
}

/// The one of this process: tests that run at the same time share it, and the last of them ends it.
static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());

impl Server {
    /// Starts it, or takes that of another test; `None`, with a `SKIPPED` line, where its programs are not built.
    pub fn start(test: &str) -> Option<Arc<Server>> {
        let bin = built::place("cluster");
        let missing = PROGRAMS.iter().find(|program| !bin.join(program).exists());
        if let Some(missing) = missing {
            eprintln!("SKIPPED {test}: no {missing} in the cache; deploy/cluster/build.sh builds it");
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Server::new(bin));
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    fn new(bin: PathBuf) -> Server {
        let [port, clients, peers] = free([0, 0, 0]).unwrap();
        let mut server = Server {
            bin,
            folder: tempfile::tempdir().unwrap(),
            port,
            children: Vec::new(),
        };
        let at = |name: &str| server.folder.path().join(name);
        fs::write(at("tokens.csv"), format!("{TOKEN},admin,1,system:masters\n")).unwrap();
        fs::write(at("kubeconfig"), kubeconfig(port)).unwrap();
        let key = Command::new("openssl")
            .args(["genrsa", "-out"])
            .arg(at("sa.key"))
            .arg("2048")
            .output();
        assert!(key.unwrap().status.success(), "openssl genrsa");
        server.spawn(&format!(
            "etcd --data-dir etcd --listen-client-urls http://127.0.0.1:{clients} --advertise-client-urls http://127.0.0.1:{clients} \
             --listen-peer-urls http://127.0.0.1:{peers} --unsafe-no-fsync"
        ));
        // Without a controller no namespace has a service account, which that plugin would have each pod name.
        server.spawn(&format!(
            "kube-apiserver --etcd-servers http://127.0.0.1:{clients} --bind-address 127.0.0.1 --secure-port {port} --cert-dir pki \
             --token-auth-file tokens.csv --authorization-mode RBAC --service-account-key-file sa.key \
             --service-account-signing-key-file sa.key --service-account-issuer https://kubernetes.default.svc \
             --service-cluster-ip-range 10.96.0.0/24 --endpoint-reconciler-type none --allow-privileged=true \
             --disable-admission-plugins ServiceAccount"
        ));
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let ready = server.kubectl(&["get", "--raw", "/readyz"], "");
            if ready.succeeded {
                return server;
            }
            let log = || fs::read_to_string(server.folder.path().join("kube-apiserver.log")).unwrap_or_default();
            assert!(
                Instant::now() < deadline,
                "the API server: {}\n{}",
                ready.complained,
                log()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn spawn(&mut self, command: &str) {
        let mut words = command.split_whitespace();
        let program = words.next().unwrap();
        let log = File::create(self.folder.path().join(format!("{program}.log"))).unwrap();
        let child = Command::new(self.bin.join(program))
            .args(words)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.children.push(child.unwrap());
    }

    /// Where it listens, on the loopback address, with TLS.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The certificate that it made for itself.
    #[allow(dead_code, reason = "each test binary uses its own part")]
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("pki/apiserver.crt")
    }

    /// Runs kubectl with `input`.
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Ran {
        self.run("kubectl", arguments, input)
    }

    /// Runs helm.
    pub fn helm(&self, arguments: &[&str]) -> Ran {
        self.run("helm", arguments, "")
    }

    /// Makes a namespace with these labels.
    pub fn namespace(&self, name: &str, labels: &[String]) {
        self.kubectl(&["create", "namespace", name], "")
            .expect("create namespace");
        if !labels.is_empty() {
            let labels = labels.iter().map(String::as_str);
            let arguments: Vec<&str> = ["label", "namespace", name].into_iter().chain(labels).collect();
            self.kubectl(&arguments, "").expect("label namespace");
        }
    }

    /// Objects of a namespace.
    pub fn objects(&self, kinds: &str, namespace: &str) -> Vec<Value> {
        let listed = self.kubectl(&["get", kinds, "--namespace", namespace, "--output", "json"], "");
        let listed: Value = serde_json::from_str(&listed.expect("get")).unwrap();
        listed["items"].as_array().unwrap().clone()
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Ran {
        let folder = self.folder.path();
        let mut child = Command::new(self.bin.join(program))
            .args(arguments)
            .env_clear()
            .env("HOME", folder)
            .env("KUBECONFIG", folder.join("kubeconfig"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may end before it has read all.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        Ran {
            succeeded: output.status.success(),
            printed: String::from_utf8_lossy(&output.stdout).into_owned(),
            complained: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    /// What it printed; panics where it failed.
    pub fn expect(self, what: &str) -> String {
        assert!(self.succeeded, "{what}: {}{}", self.printed, self.complained);
        self.printed
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The API server first: it would complain about etcd.
        for child in self.children.iter_mut().rev() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn kubeconfig(port: u16) -> String {
    format!(
        "apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: \"https://127.0.0.1:{port}\", insecure-skip-tls-verify: true}}}}]
users: [{{name: u, user: {{token: {TOKEN}}}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"
    )
}

/// A path of the tree, from its root.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Of a user who may do anything.
pub const TOKEN: &str = "secret";
const PROGRAMS: [&str; 4] = ["etcd", "helm", "kube-apiserver", "kubectl"];
