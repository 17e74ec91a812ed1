//! Which plugin invocations are one operation.

use sandglass_model::cni::{CniError, NetConf};
use sandglass_model::event::PluginIo;
use sandglass_model::{Detail, ProcessKey};

use crate::scene::{Scene, add, assert_text, cni, del};

fn netconf(process: ProcessKey, network: &str) -> PluginIo {
    PluginIo {
        process,
        netconf: Some(NetConf {
            network: network.to_owned(),
            plugin: "bridge".to_owned(),
            version: "1.0.0".to_owned(),
            chained: false,
        }),
        error: None,
        addresses: Vec::new(),
    }
}

#[test]
fn plugins_of_a_chain_are_one_operation_that_ends_with_the_last() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.ran("bridge", &add("sb", "eth0"), 0, 20);
    scene.ran("portmap", &add("sb", "eth0"), 22, 30);
    scene.at(529).tick();
    assert_text(
        &scene.play().text(),
        "
open:
sandbox             +0 ns  529 ms+  [sb, cnitool, running]
  sandbox.create    +0 ns  529 ms+  [running]
    cni ADD         +0 ns  529 ms+  [eth0, running]
      plugin bridge +0 ns  20.0 ms
      plugin portmap +22.0 ms 8.00 ms
",
    );
    scene.at(530).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox             +0 ns  30.0 ms  [sb, cnitool]
  sandbox.create    +0 ns  30.0 ms
    cni ADD         +0 ns  30.0 ms  [eth0]
      plugin bridge +0 ns  20.0 ms
      plugin portmap +22.0 ms 8.00 ms
",
    );
}

#[test]
fn two_interfaces_in_parallel_are_siblings() {
    let mut scene = Scene::by_runtime("cnitool");
    let eth0 = scene.at(0).plugin("bridge", &add("sb", "eth0"));
    let lo = scene.at(1).plugin("loopback", &add("sb", "lo"));
    scene.at(3).exit(lo, 0);
    scene.at(9).exit(eth0, 0);
    scene.ran("portmap", &add("sb", "eth0"), 10, 12);
    scene.at(2_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox              +0 ns    12.0 ms [sb, cnitool]
  sandbox.create     +0 ns    12.0 ms
    cni ADD          +0 ns    12.0 ms [eth0]
      plugin bridge  +0 ns    9.00 ms
      plugin portmap +10.0 ms 2.00 ms
    cni ADD          +1.00 ms 2.00 ms [lo]
      plugin loopback +1.00 ms 2.00 ms
",
    );
}

#[test]
fn concurrent_operations_of_different_sandboxes_never_mix() {
    let mut scene = Scene::by_runtime("cnitool");
    let a = scene.at(0).plugin("bridge", &add("a", "eth0"));
    let b = scene.at(1).plugin("bridge", &add("b", "eth0"));
    scene.at(5).exit(b, 0);
    let a_next = scene.at(6).exit(a, 0).at(7).plugin("portmap", &add("a", "eth0"));
    let b_next = scene.at(8).plugin("portmap", &add("b", "eth0"));
    scene.at(9).exit(a_next, 0).at(10).exit(b_next, 0).at(2_000).tick();
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "
sandbox              +0 ns    9.00 ms [a, cnitool]
  sandbox.create     +0 ns    9.00 ms
    cni ADD          +0 ns    9.00 ms [eth0]
      plugin bridge  +0 ns    6.00 ms
      plugin portmap +7.00 ms 2.00 ms
sandbox              +0 ns    9.00 ms [b, cnitool]
  sandbox.create     +0 ns    9.00 ms
    cni ADD          +0 ns    9.00 ms [eth0]
      plugin bridge  +0 ns    4.00 ms
      plugin portmap +7.00 ms 2.00 ms
",
    );
    assert_ne!(played.closed[0].id, played.closed[1].id);
}

#[test]
fn the_same_attachment_twice_at_once_is_two_operations() {
    let mut scene = Scene::by_runtime("cnitool");
    let first = scene.at(0).plugin("bridge", &add("sb", "eth0"));
    let second = scene.at(1).plugin("macvlan", &add("sb", "eth0"));
    scene.at(5).exit(first, 0);
    // The second still runs: this continues the first.
    let tuning = scene.at(6).plugin("tuning", &add("sb", "eth0"));
    scene.at(8).exit(second, 0).at(9).exit(tuning, 0).at(2_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox              +0 ns    9.00 ms [sb, cnitool]
  sandbox.create     +0 ns    9.00 ms
    cni ADD          +0 ns    9.00 ms [eth0]
      plugin bridge  +0 ns    5.00 ms
      plugin tuning  +6.00 ms 3.00 ms
    cni ADD          +1.00 ms 7.00 ms [eth0]
      plugin macvlan +1.00 ms 7.00 ms
",
    );
}

#[test]
fn a_plugin_that_already_ran_begins_a_new_operation() {
    let mut scene = Scene::new();
    scene.ran("portmap", &del("sb", "eth0"), 0, 2);
    scene.ran("bridge", &del("sb", "eth0"), 3, 5);
    scene.ran("portmap", &del("sb", "eth0"), 10, 12);
    scene.ran("bridge", &del("sb", "eth0"), 13, 15);
    scene.at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
cni DEL          +0 ns    5.00 ms [sb, eth0]
  plugin portmap +0 ns    2.00 ms
  plugin bridge  +3.00 ms 2.00 ms
cni DEL          +0 ns    5.00 ms [sb, eth0, attempt 2]
  plugin portmap +0 ns    2.00 ms
  plugin bridge  +3.00 ms 2.00 ms
",
    );
}

#[test]
fn verbs_are_distinguished() {
    let mut scene = Scene::new();
    scene.ran("bridge", &cni("CHECK", "sb", "eth0"), 0, 1);
    scene.ran("portmap", &cni("CHECK", "sb", "eth0"), 2, 3);
    scene.ran("bridge", &cni("GC", "", ""), 4, 5);
    scene.ran("bridge", &cni("STATUS", "", ""), 6, 7);
    // libcni fills in placeholders here.
    scene.ran("bridge", &cni("VERSION", "dummy", "dummy"), 8, 9);
    scene.ran("bridge", &cni("FLUSH", "sb", "eth0"), 10, 11);
    scene.at(1_000).tick();
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "
cni GC           +0 ns    1.00 ms
  plugin bridge  +0 ns    1.00 ms
cni STATUS       +0 ns    1.00 ms
  plugin bridge  +0 ns    1.00 ms
cni CHECK        +0 ns    3.00 ms [sb, eth0]
  plugin bridge  +0 ns    1.00 ms
  plugin portmap +2.00 ms 1.00 ms
cni VERSION      +0 ns    1.00 ms
  plugin bridge  +0 ns    1.00 ms
",
    );
    assert_eq!(played.closed.iter().filter(|trace| trace.sandbox.is_some()).count(), 1);
    // The exec that is no plugin's, and its exit.
    assert_eq!(played.counters().orphan, 2);
}

#[test]
fn the_network_is_named_by_the_plugin() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.networks(&[("configured", &["bridge"])]);
    let plugin = scene.at(1).plugin("bridge", &add("sb", "eth0"));
    let mut plugin_io = netconf(plugin, "told");
    scene.at(2).plugin_io(plugin_io.clone());
    plugin_io.netconf = None;
    plugin_io.addresses = vec!["10.0.0.2/24".to_owned()];
    scene.at(3).plugin_io(plugin_io).at(4).exit(plugin, 0).at(1_000).tick();
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "
sandbox             +0 ns 3.00 ms [sb, cnitool]
  sandbox.create    +0 ns 3.00 ms
    cni ADD         +0 ns 3.00 ms [eth0, told, 10.0.0.2/24]
      plugin bridge +0 ns 3.00 ms
",
    );
    let Detail::Plugin(plugin) = &played.only().spans[3].detail else {
        panic!("not a plugin")
    };
    assert_eq!(plugin.spec_version, "1.0.0");
}

#[test]
fn the_network_is_guessed_only_when_one_list_fits() {
    let lists: [(&str, &[&str]); 3] = [
        ("one", &["bridge", "portmap"]),
        ("two", &["bridge", "firewall"]),
        ("lo", &["loopback"]),
    ];
    for (plugins, network) in [
        (vec!["bridge"], ""),
        (vec!["bridge", "portmap"], "one"),
        (vec!["bridge", "firewall"], "two"),
        (vec!["bridge", "tuning"], ""),
        (vec!["loopback"], "lo"),
        (vec!["ptp"], ""),
    ] {
        let mut scene = Scene::by_runtime("cnitool");
        scene.networks(&lists);
        for (index, plugin) in plugins.iter().enumerate() {
            let from = 1 + 10 * index as u64;
            scene.ran(plugin, &add("sb", "eth0"), from, from + 5);
        }
        scene.at(2_000).tick();
        let played = scene.play().finish();
        let Detail::Operation(operation) = &played.only().spans[2].detail else {
            panic!("not an operation")
        };
        assert_eq!(operation.network, network, "{plugins:?}");
        let ran: Vec<&str> = operation.plugins.iter().map(AsRef::as_ref).collect();
        assert_eq!(ran, plugins);
    }
}

#[test]
fn a_chain_that_is_complete_does_not_wait() {
    let mut scene = Scene::new();
    scene.networks(&[("pods", &["bridge", "portmap"])]);
    scene.ran("portmap", &del("sb", "eth0"), 1, 2);
    scene.ran("bridge", &del("sb", "eth0"), 3, 4);
    assert_text(
        &scene.play().text(),
        "
cni DEL          +0 ns    3.00 ms [sb, eth0, pods]
  plugin portmap +0 ns    1.00 ms
  plugin bridge  +2.00 ms 1.00 ms
",
    );
}

/// A busy node executes the next plugin late: what the list names is waited for as any next step of the runtime is.
#[test]
fn a_plugin_that_the_list_names_may_come_late() {
    let played = |listed: &[&str]| {
        let mut scene = Scene::by_runtime("cnitool");
        scene.networks(&[("pods", listed)]);
        scene.ran("bridge", &add("sb", "eth0"), 0, 20);
        scene.ran("portmap", &add("sb", "eth0"), 9_000, 9_010);
        scene.at(9_600).tick();
        scene.play().finish()
    };
    assert_text(
        &played(&["bridge", "portmap"]).text(),
        "
sandbox             +0 ns  9.01 s  [sb, cnitool]
  sandbox.create    +0 ns  9.01 s
    cni ADD         +0 ns  9.01 s  [eth0, pods]
      plugin bridge +0 ns  20.0 ms
      plugin portmap +9.00 s 10.0 ms
",
    );
    // What the list does not name begins an operation of its own then.
    assert_eq!(played(&["bridge"]).closed.len(), 2);
}

#[test]
fn a_plugin_that_the_list_names_is_not_waited_for_longer_than_a_runtimes_step() {
    let mut scene = Scene::by_runtime("cnitool");
    scene.networks(&[("pods", &["bridge", "portmap"])]);
    scene.ran("bridge", &add("sb", "eth0"), 0, 20);
    scene.at(10_019).tick();
    assert!(scene.play().closed.is_empty());
    scene.at(10_020).tick();
    assert_eq!(scene.play().closed.len(), 1);
}

#[test]
fn a_list_may_have_one_type_twice() {
    let mut scene = Scene::new();
    scene.networks(&[("pods", &["tuning", "bridge", "tuning"])]);
    scene.ran("tuning", &del("sb", "eth0"), 1, 2);
    scene.ran("bridge", &del("sb", "eth0"), 3, 4);
    scene.ran("tuning", &del("sb", "eth0"), 5, 6);
    assert_eq!(scene.play().only().spans.len(), 4);
}

#[test]
fn a_failed_plugin_ends_its_chain() {
    let mut scene = Scene::new();
    let plugin = scene.at(0).plugin("bridge", &del("sb", "eth0"));
    scene.at(1).plugin_io(PluginIo {
        process: plugin,
        netconf: None,
        error: Some(CniError {
            code: 11,
            msg: "try later".to_owned(),
            details: String::new(),
        }),
        addresses: Vec::new(),
    });
    scene.at(2).exit(plugin, 1);
    scene.ran("portmap", &del("sb", "eth0"), 3, 4);
    scene.at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
cni DEL          +0 ns 2.00 ms [sb, eth0, error cni_try_again_later: try later]
  plugin bridge  +0 ns 2.00 ms [error cni_try_again_later: try later]
cni DEL          +0 ns 1.00 ms [sb, eth0, attempt 2]
  plugin portmap +0 ns 1.00 ms
",
    );
}
