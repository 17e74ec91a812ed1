//! Network readiness: what belongs to a sandbox's trace after its creation, and where the trace ends.

use sandglass_correlator::Output;
use sandglass_model::network::ConnectFailure;

use crate::scene::{Played, Scene, assert_text};
use crate::wire::pod_socket;

fn created(played: &Played) -> usize {
    let created = played
        .outputs
        .iter()
        .filter(|output| matches!(output, Output::Created(_)));
    created.count()
}

#[test]
fn the_trace_goes_on_to_the_first_answer_and_the_first_connection() {
    let mut scene = Scene::ready_sandbox();
    let (asks, connects) = (pod_socket(4_000), pod_socket(5_000).tcp().to("10.1.0.1:80"));
    scene.looked_up(&asks, "api.shop.svc", 300, 2_000, "10.1.0.1");
    scene.at(303).connects(&connects);
    scene.at(305).established(&connects);
    scene.then_nothing();
    let played = scene.play().finish();
    assert_eq!(created(&played), 1);
    assert_text(&played.text(), "x");
}

#[test]
fn a_sandbox_that_sends_nothing_ends_where_its_creation_did() {
    let mut scene = Scene::ready_sandbox();
    let silent = scene.then_nothing().play().finish();
    assert_text(&silent.text(), "y");
}

#[test]
fn failed_attempts_before_are_part_of_it() {
    let mut scene = Scene::ready_sandbox();
    let connect = pod_socket(5_000).tcp().to("10.1.0.1:80");
    scene.at(300).connects(&connect);
    scene.at(301).connect_failed(&connect, ConnectFailure::Refused, 0);
    let again = pod_socket(5_001).tcp().to("10.1.0.1:80");
    scene.at(1_300).connects(&again);
    scene.at(1_302).established(&again);
    scene.then_nothing();
    assert_text(
        &scene.play().finish().text(),
        "
sandbox              +0 ns 1.30 s  [shop/cart, sb, containerd, network ready]
  sandbox.create     +0 ns 180 ms  [to runtime start]
    cni ADD          +0 ns 100 ms  [eth0]
      plugin bridge  +0 ns 100 ms
    runtime shim   +110 ms 10.0 ms
    runtime create +130 ms 30.0 ms
    runtime start  +170 ms 10.0 ms
  connect          +300 ms 1.00 ms [to 10.1.0.1:80, cause connect_refused (certain), error connect_refused: connect to 10.1.0.1:80: refused]
  connect          +1.30 s 2.00 ms [to 10.1.0.1:80]
",
    );
}
