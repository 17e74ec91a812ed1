//! The kernel's messages about netlink requests, as this machine's kernel gives them and `ip` prints them.

use std::process::{Command, Stdio};

use sandglass_lab::skip::{has, skipped};
use sandglass_model::{Body, Event, Trace, phases, registry};

use crate::waits::trace_of;
use crate::watch::{Watch, plugin, wait_for};

/// `ip` prints the kernel's message as it got it: it is the one on its span, and explains the plugin's failure. What the test itself
/// sends is no plugin's.
#[test]
fn the_kernels_message_is_on_the_span_of_the_command() {
    let test = "the_kernels_message_is_on_the_span_of_the_command";
    if !has(test, "ip") {
        return;
    }
    let Some(watch) = Watch::start(test) else {
        return;
    };
    let status = watch
        .health
        .probes()
        .into_iter()
        .find(|probe| probe.probe == "netlink")
        .unwrap();
    if !status.attached {
        skipped(test, &status.consequence);
        return;
    }
    let printed = watch.directory.path().join("printed");
    let request = "ip link add sglock0 type nosuchkind";
    let body = format!(
        "export PATH=/usr/sbin:/sbin:$PATH\n{request} 2>{}\nexit 1",
        printed.display()
    );
    let script = watch.script("macvlan", &body);
    let unrelated = Command::new("sh")
        .args(["-c", request])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(!unrelated.success());
    wait_for(plugin(&script, "extack").spawn().unwrap());
    let printed = std::fs::read_to_string(printed).unwrap();
    let message = printed
        .strip_prefix("Error: ")
        .unwrap()
        .trim_end()
        .trim_end_matches('.');
    let events = watch.finish();
    let is_it = |event: &&Event| matches!(&event.body, Body::NetlinkRemarked(remark) if remark.message.trim_end_matches('.') == message);
    // Once: that of the test itself is in none.
    assert_eq!(events.iter().filter(is_it).count(), 1);
    let trace = trace_of(events, "extack");
    let command = trace
        .spans
        .iter()
        .find(|span| registry::name(span) == "command ip")
        .unwrap();
    assert_eq!(command.process().unwrap().netlink.trim_end_matches('.'), message);
    let verdict = verdict(&trace);
    assert!(verdict.contains(&format!("the kernel: {message}")), "{verdict}");
}

fn verdict(trace: &Trace) -> String {
    phases::verdict(trace, trace.root().end.unwrap())
}
