//! The node's state for the message of a failed test: pods, events, logs, routes of calls.
//!
//! The node is taken down at the end of the run, so this and the logs that `test.sh` keeps are all that can be looked at.
//! Every command has an end. Does not: fail, change anything.

use std::process::{Command, Output};

use super::node::Node;

/// Longest time of one command, so that a dead API server costs no more than a minute or two.
const SECONDS: u32 = 10;

/// Writes the state of the node to standard error.
pub fn tell(node: &Node) {
    let kinds = "pods,jobs,daemonsets,deployments,services,endpointslices";
    let kubectl = |what: &str, last: usize| {
        let arguments = what.split(' ');
        show(
            &format!("kubectl {what}"),
            last,
            node.command("kubectl", SECONDS).args(arguments).output(),
        );
    };
    kubectl(&format!("get {kinds} --all-namespaces --output=wide"), 80);
    kubectl("get events --all-namespaces --sort-by=.metadata.creationTimestamp", 60);
    for namespace in ["work", super::NAMESPACE] {
        kubectl(&format!("describe jobs,pods --namespace={namespace}"), 150);
        kubectl(
            &format!("logs --namespace={namespace} --selector=!none --all-containers --prefix --tail=20"),
            60,
        );
    }
    let system = |what: &str, last: usize| {
        let mut command = Command::new("timeout");
        command.arg(SECONDS.to_string()).args(what.split(' '));
        show(what, last, command.output());
    };
    system("iptables-save -t nat", 60);
    system("conntrack -L -d 10.96.0.0/24", 40);
    system("ip -brief address", 20);
    system("cat /proc/loadavg /proc/pressure/cpu", 3);
    for program in [
        "kubelet",
        "containerd",
        "kube-proxy",
        "coredns",
        "kube-controller-manager",
        "kube-scheduler",
    ] {
        let log = node.path(&format!("log/{program}.log"));
        system(&format!("tail -n 30 {}", log.display()), 30);
    }
}

/// The last lines of a command's output.
fn show(what: &str, last: usize, output: std::io::Result<Output>) {
    eprintln!("--- {what}");
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = text.lines().collect();
            for line in &lines[lines.len().saturating_sub(last)..] {
                eprintln!("{}", line.chars().take(400).collect::<String>());
            }
        }
        Err(error) => eprintln!("{error}"),
    }
}
