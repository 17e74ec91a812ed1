//! A real shim: the CNI project's `dhcp` plugin, whose daemon requests a lease of dnsmasq in namespaces of the test; recorded by the
//! real agent.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sandglass_lab::netns::Namespace;
use sandglass_lab::pressure::Pressure;
use sandglass_lab::skip::{has, skipped};
use sandglass_model::{phases, registry};

use crate::daemons::is_seen;
use crate::recorder::Recorder;
use crate::waits::trace_of;
use crate::watch::{converse, plugin};

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_lease_is_a_request_to_the_daemon() {
    const TEST: &str = "a_lease_is_a_request_to_the_daemon";
    let dhcp = Path::new("/usr/lib/cni/dhcp");
    if !dhcp.exists() {
        skipped(TEST, "no CNI plugins in /usr/lib/cni");
        return;
    }
    if !has(TEST, "dnsmasq") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(recorder) = Recorder::start(TEST, directory.path(), &[]) else {
        return;
    };
    if !recorder.has("requests_followed") {
        skipped(TEST, "the kernel reports no messages (sock_send_length, Linux 6.3)");
        return;
    }
    let directory = directory.path();
    // The sandbox begins with its namespace.
    let (Some(server), Some(pod)) = (Namespace::make(TEST), Namespace::make(TEST)) else {
        return;
    };
    server.link(&pod, 93);
    pod.run("ip addr flush dev v93b");
    // It pings an address for three seconds before it offers it.
    let serve = format!(
        "exec dnsmasq --keep-in-foreground --conf-file=/dev/null --user=root --port=0 --interface=v93a --bind-interfaces \
         --dhcp-range=10.77.93.10,10.77.93.50,1h --dhcp-leasefile={0}/leases --pid-file={0}/dnsmasq.pid --log-facility=-",
        directory.display()
    );
    let _server = Running(server.command(&serve).stderr(Stdio::null()).spawn().unwrap());
    let socket = directory.join("dhcp.sock");
    let pid_file = directory.join("dhcp.pid");
    let daemon = Command::new(dhcp)
        .args(["daemon", "-socketpath"])
        .arg(&socket)
        .arg("-pidfile")
        .arg(&pid_file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let daemon = Running(daemon);
    // dnsmasq writes its process id when it serves.
    let is_up = || UnixStream::connect(&socket).is_ok() && directory.join("dnsmasq.pid").exists();
    for _ in 0..200 {
        if is_up() {
            break;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    let stdin = format!(
        r#"{{"cniVersion":"0.4.0","name":"lan","type":"macvlan","ipam":{{"type":"dhcp","daemonSocketPath":"{}"}}}}"#,
        socket.display()
    );
    let mut call = plugin(dhcp, "lease");
    call.env("CNI_NETNS", pod.path())
        .env("CNI_IFNAME", "v93b")
        .env("CNI_PATH", "/usr/lib/cni")
        .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0");
    let pressure = Pressure::now();
    let (_, answer) = converse(call, &stdin);
    assert!(answer.contains("10.77.93."), "{answer}");
    let trace = trace_of(recorder.finish("lease"), "lease");
    let plugin = trace
        .spans
        .iter()
        .find(|span| span.detail.as_plugin().is_some())
        .unwrap();
    let spans = trace
        .spans
        .iter()
        .filter_map(|span| Some((span, span.detail.as_daemon()?)));
    let longest = spans.max_by_key(|(span, _)| span.duration_ns(span.start)).unwrap();
    eprintln!(
        "{TEST}: {}",
        sandglass_model::text::tree(&trace, trace.root().end.unwrap())
    );
    assert_eq!(registry::name(longest.0), "daemon dhcp");
    assert_eq!(longest.1.pid, daemon.0.id());
    is_seen(TEST, longest.1, &pressure);
    assert!(!longest.1.unanswered);
    // It is what the plugin waited for: a Go program's begin and end are some milliseconds.
    let (request, whole) = (longest.0.duration_ns(longest.0.start), plugin.duration_ns(plugin.start));
    assert!(request * 2 > whole, "{request} of {whole}");
    let verdict = phases::verdict(&trace, trace.root().end.unwrap());
    assert!(verdict.starts_with("plugin dhcp waited"), "{verdict}");
}
