//! The kernel's messages about netlink requests: on the span of their process, and in the verdict on a failure.

use sandglass_model::event::NetlinkRemark;
use sandglass_model::time::MILLISECOND;
use sandglass_model::trace::Status;
use sandglass_model::{Body, ProcessKey, Timestamp, phases, registry};

use crate::scene::{Scene, add};

impl Scene {
    fn remarked(&mut self, process: ProcessKey, message: &str) -> &mut Scene {
        self.event(Body::NetlinkRemarked(Box::new(NetlinkRemark {
            process,
            message: message.into(),
        })))
    }
}

fn ms(ms: u64) -> Timestamp {
    Timestamp(ms * MILLISECOND)
}

/// The kernel's message explains a plugin that failed; that of a command which succeeded is on its span and nowhere else.
#[test]
fn the_kernels_message_explains_a_failed_plugin() {
    let mut scene = Scene::new();
    scene.at(0).networks(&[("net", &["bridge"])]);
    let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
    let probing = scene.at(110).command(plugin, "/usr/sbin/ip", &["link", "show"]);
    scene.at(111).remarked(probing, "Unknown device type");
    scene.at(112).exit(probing, 0);
    let failing = scene.at(120).command(plugin, "/usr/sbin/ip", &["link", "add"]);
    scene.at(121).remarked(failing, "Invalid attribute");
    let subshell = scene.at(122).fork(failing);
    scene.at(123).remarked(subshell, "Veth already exists");
    scene.at(124).exit(subshell, 2);
    scene.at(125).exit(failing, 2);
    scene.at(130).exit(plugin, 1);
    scene.at(131).remarked(plugin, "too late");
    scene.at(60_000).tick();
    let played = scene.play();
    let trace = &played.closed[0];
    let message = |args: &str| {
        let is_it =
            |span: &&sandglass_model::Span| span.process().is_some_and(|process| process.args.join_rest() == args);
        let span = trace.spans.iter().find(is_it).unwrap();
        let attributes = registry::attributes(trace, span);
        let found = attributes
            .into_iter()
            .find(|(key, _)| *key == registry::NETLINK_MESSAGE);
        found.map(|(_, value)| value)
    };
    let text = |text: &str| Some(registry::AttributeValue::Text(text.to_owned()));
    assert_eq!(message("link show"), text("Unknown device type"));
    assert_eq!(message("link add"), text("Veth already exists"));
    assert_eq!(message(""), None);
    let verdict = phases::verdict(trace, ms(60_000));
    assert!(verdict.ends_with("(the kernel: Veth already exists)"), "{verdict}");
    assert!(matches!(trace.root().status, Status::Error { .. }));
}

/// Where only a command that succeeded has a message, it explains nothing.
#[test]
fn the_message_of_a_command_that_succeeded_is_in_no_verdict() {
    let mut scene = Scene::new();
    scene.at(0).networks(&[("net", &["bridge"])]);
    let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
    let probing = scene.at(110).command(plugin, "/usr/sbin/ip", &["link", "show"]);
    scene.at(111).remarked(probing, "Unknown device type");
    scene.at(112).exit(probing, 0);
    scene.at(130).exit(plugin, 1);
    scene.at(60_000).tick();
    let verdict = phases::verdict(&scene.play().closed[0], ms(60_000));
    assert!(!verdict.contains("Unknown device type"), "{verdict}");
}
