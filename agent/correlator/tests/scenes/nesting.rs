//! What runs below a plugin: delegates, commands, forks, second images, daemons, nested attachments.

use sandglass_model::Detail;
use sandglass_model::event::ExitStatus;

use crate::scene::{Scene, add, assert_text, cni, del, with};

#[test]
fn a_delegate_and_a_command_nest_and_forks_are_transparent() {
    let mut scene = Scene::by_runtime("cnitool");
    let env = add("sb", "eth0");
    let bridge = scene.at(0).plugin("bridge", &env);
    // The same environment, but it lies where plugins lie.
    let ipam = scene.at(1).delegate(bridge, "host-local", &env);
    scene.at(3).exit(ipam, 0);
    let child = scene.at(4).fork(bridge);
    let grandchild = scene.at(5).fork(child);
    let shell = scene.at(6).command(grandchild, "/bin/sh", &["-c", "iptables -w"]);
    let iptables = scene.at(7).command(shell, "/usr/sbin/iptables", &["-w"]);
    scene.at(9).exit(iptables, 0).at(10).exit(shell, 0);
    scene.exit(grandchild, 0).exit(child, 0);
    scene.at(11).exit(bridge, 0).at(1_000).tick();
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "
sandbox                   +0 ns    11.0 ms [sb, cnitool]
  sandbox.create          +0 ns    11.0 ms
    cni ADD               +0 ns    11.0 ms [eth0]
      plugin bridge       +0 ns    11.0 ms
        plugin host-local +1.00 ms 2.00 ms [delegate]
        command sh        +6.00 ms 4.00 ms [-c iptables -w]
          command iptables +7.00 ms 2.00 ms [-w]
",
    );
    let Detail::Command(command) = &played.only().spans[6].detail else {
        panic!("not a command")
    };
    assert_eq!(&*command.plugin, "bridge");
    assert_eq!(played.counters().orphan, 0);
}

#[test]
fn a_child_with_the_inherited_environment_is_a_command_and_with_another_a_delegate() {
    let mut scene = Scene::by_runtime("cnitool");
    let env = with(add("sb", "eth0"), "CNI_PATH", "/opt/cni/bin/:/usr/lib/cni");
    let script = scene.at(0).plugin("slow.sh", &env);
    let sleep = scene.at(1).command(script, "/usr/bin/sleep", &["0.1"]);
    scene.at(2).exit(sleep, 0);
    // A delegate outside the plugin path has an environment of its own.
    let other = scene.at(3).fork(script);
    let own = with(env.clone(), "CNI_ARGS", "own");
    scene.at(4).exec(other, script, "/tmp/helper", &[], &own);
    scene.at(5).exit(other, 0);
    let listed = scene.at(6).fork(script);
    scene.exec(listed, script, "/usr/lib/cni/host-local", &[], &env);
    scene.at(7).exit(listed, 0).at(8).exit(script, 0).at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox                   +0 ns    8.00 ms [sb, cnitool]
  sandbox.create          +0 ns    8.00 ms
    cni ADD               +0 ns    8.00 ms [eth0]
      plugin slow.sh      +0 ns    8.00 ms
        command sleep     +1.00 ms 1.00 ms [0.1]
        plugin helper     +4.00 ms 1.00 ms [delegate]
        plugin host-local +6.00 ms 1.00 ms [delegate]
",
    );
}

#[test]
fn a_plugin_is_one_wherever_it_lies() {
    let mut scene = Scene::by_runtime("cnitool");
    let process = scene.at(0).new_process();
    let caller = scene.caller();
    scene.exec(process, caller, "/home/me/odd plugin", &[], &add("sb", "eth0"));
    scene.at(1).exit(process, 0).at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox                   +0 ns 1.00 ms [sb, cnitool]
  sandbox.create          +0 ns 1.00 ms
    cni ADD               +0 ns 1.00 ms [eth0]
      plugin odd plugin   +0 ns 1.00 ms
",
    );
}

#[test]
fn another_interface_below_a_plugin_is_a_nested_operation() {
    let mut scene = Scene::by_runtime("cnitool");
    let multus = scene.at(0).plugin("multus", &add("sb", "eth0"));
    let first = scene.at(1).delegate(multus, "bridge", &add("sb", "eth0"));
    scene.at(3).exit(first, 0);
    let second = scene.at(4).delegate(multus, "macvlan", &add("sb", "net1"));
    let ipam = scene.at(5).delegate(second, "host-local", &add("sb", "net1"));
    scene.at(6).exit(ipam, 0).at(7).exit(second, 0);
    let tuning = scene.at(8).delegate(multus, "tuning", &add("sb", "net1"));
    scene.at(9).exit(tuning, 0);
    let third = scene.at(10).delegate(multus, "macvlan", &add("sb", "net2"));
    scene.at(11).exit(third, 1).at(12).exit(multus, 0).at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox                   +0 ns    12.0 ms [sb, cnitool]
  sandbox.create          +0 ns    12.0 ms
    cni ADD               +0 ns    12.0 ms [eth0]
      plugin multus       +0 ns    12.0 ms
        plugin bridge     +1.00 ms 2.00 ms [delegate]
        cni ADD           +4.00 ms 5.00 ms [net1]
          plugin macvlan  +4.00 ms 3.00 ms [delegate]
            plugin host-local +5.00 ms 1.00 ms [delegate]
          plugin tuning   +8.00 ms 1.00 ms [delegate]
        cni ADD           +10.0 ms 1.00 ms [net2, error exit_code: plugin macvlan exited with code 1]
          plugin macvlan  +10.0 ms 1.00 ms [delegate, error exit_code: plugin macvlan exited with code 1]
",
    );
}

#[test]
fn a_nested_operation_that_is_requested_again_is_the_next_attempt() {
    let mut scene = Scene::new();
    let multus = scene.at(0).plugin("multus", &del("sb", "eth0"));
    for from in [1, 3] {
        let plugin = scene.at(from).delegate(multus, "macvlan", &del("sb", "net1"));
        scene.at(from + 1).exit(plugin, 1);
    }
    scene.at(9).exit(multus, 0).at(1_000).tick();
    let text = scene.play().finish().text();
    assert!(text.contains("[net1, attempt 2, error exit_code"), "{text}");
}

#[test]
fn the_clean_up_of_a_delegate_is_a_delegate_with_its_own_verb() {
    let mut scene = Scene::by_runtime("cnitool");
    let bridge = scene.at(0).plugin("bridge", &add("sb", "eth0"));
    let ipam = scene.at(1).delegate(bridge, "host-local", &del("sb", "eth0"));
    scene.at(2).exit(ipam, 0).at(3).exit(bridge, 0).at(1_000).tick();
    let played = scene.play().finish();
    let Detail::Plugin(plugin) = &played.only().spans[4].detail else {
        panic!("not a plugin")
    };
    assert!(plugin.delegate);
    assert_eq!(plugin.command.as_str(), "DEL");
}

#[test]
fn a_version_probe_of_a_delegate_is_no_operation() {
    let mut scene = Scene::by_runtime("cnitool");
    let multus = scene.at(0).plugin("multus", &add("sb", "eth0"));
    let probe = scene
        .at(1)
        .delegate(multus, "bridge", &cni("VERSION", "dummy", "dummy"));
    scene.at(2).exit(probe, 0).at(3).exit(multus, 0).at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox               +0 ns    3.00 ms [sb, cnitool]
  sandbox.create      +0 ns    3.00 ms
    cni ADD           +0 ns    3.00 ms [eth0]
      plugin multus   +0 ns    3.00 ms
        plugin bridge +1.00 ms 1.00 ms [delegate]
",
    );
}

#[test]
fn a_second_image_goes_on_with_the_span() {
    let mut scene = Scene::by_runtime("cnitool");
    let env = add("sb", "eth0");
    let plugin = scene.at(0).plugin("wrapper", &env);
    let caller = scene.caller();
    scene.at(1).exec(plugin, caller, "/opt/cni/bin/bridge", &[], &env);
    let command = scene.at(2).command(plugin, "/usr/bin/env", &["iptables", "-L"]);
    scene.at(3).exec(command, plugin, "/usr/sbin/iptables", &["-L"], &env);
    scene
        .at(4)
        .exec(command, plugin, "/usr/sbin/xtables-nft-multi", &["-L"], &env);
    scene.at(5).exit(command, 0);
    // `env CNI_IFNAME=.. plugin` ends up as a plugin.
    let called = scene.at(6).command(plugin, "/usr/bin/env", &["host-local"]);
    scene.at(7).exec(called, plugin, "/opt/cni/bin/host-local", &[], &env);
    scene.at(8).exit(called, 0).at(9).exit(plugin, 0).at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox               +0 ns    9.00 ms [sb, cnitool]
  sandbox.create      +0 ns    9.00 ms
    cni ADD           +0 ns    9.00 ms [eth0]
      plugin wrapper  +0 ns    9.00 ms [exec /opt/cni/bin/bridge]
        command xtables-nft-multi +2.00 ms 3.00 ms [-L, exec /usr/bin/env, exec /usr/sbin/iptables]
        plugin host-local +6.00 ms 2.00 ms [delegate, exec /usr/bin/env]
",
    );
}

#[test]
fn a_daemon_left_behind_ends_with_its_plugin() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("dhcp", &add("sb", "eth0"));
    let daemon = scene.at(1).command(plugin, "/usr/sbin/dhclient", &["eth0"]);
    let forked = scene.at(2).fork(plugin);
    scene.at(5).exit(plugin, 0);
    // Neither spans nor orphans from here.
    let later = scene.at(6).command(daemon, "/bin/sh", &[]);
    let second = scene.at(7).command(forked, "/bin/true", &[]);
    scene.at(8).exit(later, 0).exit(second, 0).exit(forked, 0);
    scene.at(1_000).tick().at(2_000).exit(daemon, 0);
    let played = scene.play().finish();
    assert_text(
        &played.text(),
        "
sandbox               +0 ns    5.00 ms [sb, cnitool]
  sandbox.create      +0 ns    5.00 ms
    cni ADD           +0 ns    5.00 ms [eth0]
      plugin dhcp     +0 ns    5.00 ms
        command dhclient +1.00 ms 4.00 ms [eth0, ran on]
",
    );
    assert_eq!(played.counters().orphan, 0);
    assert_eq!(played.only().spans[4].process().and_then(|process| process.exit), None);
}

#[test]
fn what_a_command_left_behind_belongs_to_the_plugin() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("script", &add("sb", "eth0"));
    let shell = scene.at(1).command(plugin, "/bin/sh", &["-c", "sleep 1 &"]);
    let forked = scene.at(2).fork(shell);
    scene.at(3).exit(shell, 0);
    let sleep = scene.at(4).command(forked, "/bin/sleep", &["1"]);
    scene.at(6).exit(sleep, 0).at(7).exit(plugin, 0).at(1_000).tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox               +0 ns    7.00 ms [sb, cnitool]
  sandbox.create      +0 ns    7.00 ms
    cni ADD           +0 ns    7.00 ms [eth0]
      plugin script   +0 ns    7.00 ms
        command sh    +1.00 ms 2.00 ms [-c sleep 1 &]
        command sleep +4.00 ms 2.00 ms [1]
",
    );
}

#[test]
fn failures_mark_their_own_span_and_parents_have_their_own() {
    let mut scene = Scene::by_runtime("cnitool");
    let env = add("sb", "eth0");
    let plugin = scene.at(0).plugin("bridge", &env);
    let command = scene.at(1).command(plugin, "/sbin/iptables", &[]);
    scene.at(2).exit(command, 4);
    let ipam = scene.at(3).delegate(plugin, "host-local", &env);
    scene
        .at(4)
        .ended(ipam, ExitStatus::Signal(11))
        .at(5)
        .exit(plugin, 0)
        .at(1_000)
        .tick();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox               +0 ns    5.00 ms [sb, cnitool]
  sandbox.create      +0 ns    5.00 ms
    cni ADD           +0 ns    5.00 ms [eth0]
      plugin bridge   +0 ns    5.00 ms
        command iptables +1.00 ms 1.00 ms [error exit_code: command iptables exited with code 4]
        plugin host-local +3.00 ms 1.00 ms [delegate, error signal: plugin host-local was killed by signal 11 (SIGSEGV)]
",
    );
}

/// `iptables -C` fails where a rule does not exist: plugins ask so before they add it.
#[test]
fn a_command_that_answers_by_its_exit_code_has_not_failed() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(0).plugin("portmap", &add("sb", "eth0"));
    for (ms, program, option, code) in [
        (10, "iptables", "-C", 1),
        (20, "ip6tables-nft", "--list-rules", 1),
        (30, "iptables-legacy", "-N", 1),
        // Another program, another question, another code: 2 is a wrong parameter, 4 a lock that was not free.
        (40, "nft", "-C", 1),
        (50, "iptables", "-A", 1),
        (60, "iptables", "-C", 4),
    ] {
        let command = scene
            .at(ms)
            .command(plugin, &format!("/usr/sbin/{program}"), &["-t", "nat", option, "X"]);
        scene.at(ms + 1).exit(command, code);
    }
    scene.at(70).exit(plugin, 0).at(5_000).tick();
    let played = scene.play();
    let commands = played.closed[0]
        .spans
        .iter()
        .filter(|span| span.detail.as_command().is_some());
    let failed: Vec<bool> = commands.map(|span| span.status.is_error()).collect();
    assert_eq!(failed, [false, false, false, true, true, true]);
    assert!(
        played.text().contains("[-t nat -C X, exit code 1]"),
        "{}",
        played.text()
    );
}
