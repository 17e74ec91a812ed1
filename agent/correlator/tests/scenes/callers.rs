//! Trace ids, and traces that the caller of the runtime began (`TRACEPARENT`, `TRACESTATE`).

use sandglass_model::sampling::CallerSampling;
use sandglass_model::trace::Relation;
use sandglass_model::{SpanId, registry};

use crate::scene::{Scene, add, with};

#[test]
fn the_trace_id_does_not_depend_on_the_namespace_and_is_the_same_every_time() {
    let mut scene = Scene::by_runtime("cnitool");
    let plugin = scene.at(100).plugin("bridge", &add("sb", "eth0"));
    let mut with_netns = scene.clone();
    with_netns.at(101).netns("sb", 50);
    for scene in [&mut scene, &mut with_netns] {
        scene.at(103).exit(plugin, 0).at(1_000).tick();
    }
    let (first, second) = (scene.play(), with_netns.play());
    assert_eq!(first.only().id, second.only().id);
    assert_eq!(scene.play().only(), first.only());
    assert_ne!(first.only().spans[0].start, second.only().spans[0].start);
}

#[test]
fn a_caller_that_traces_is_joined() {
    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let other = "00-11111111111111111111111111111111-2222222222222222-00";
    let mut scene = Scene::by_runtime("cnitool");
    let env = with(add("sb", "eth0"), "TRACEPARENT", caller);
    scene.ran("bridge", &env, 0, 10);
    scene.ran("portmap", &env, 11, 12);
    scene.ran("macvlan", &with(add("sb", "net1"), "TRACEPARENT", other), 20, 30);
    scene.at(1_000).tick();
    let played = scene.play().finish();
    let trace = played.only();
    assert_eq!(trace.id.to_string(), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(trace.remote_parent, Some(SpanId(0xb7ad_6b71_6920_3331)));
    let links: Vec<_> = trace
        .spans
        .iter()
        .flat_map(|span| {
            span.links
                .iter()
                .map(|link| (registry::name(span), link.span, link.relation))
        })
        .collect();
    assert_eq!(
        links,
        [(
            "plugin macvlan".to_owned(),
            SpanId(0x2222_2222_2222_2222),
            Relation::Caller
        )]
    );
}

#[test]
fn what_the_caller_decided_about_its_trace_is_kept() {
    let caller = |flags| format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}");
    for (flags, tracestate, kept) in [
        ("00", "", CallerSampling::default()),
        (
            "03",
            "vendor=a,ot=th:c;rv:6e6d1a75832a2f",
            CallerSampling::parse(3, "ot=th:c;rv:6e6d1a75832a2f"),
        ),
        ("01", "nonsense", CallerSampling::parse(1, "")),
    ] {
        let env = with(add("sb", "eth0"), "TRACEPARENT", &caller(flags));
        let mut scene = Scene::by_runtime("cnitool");
        scene.ran("bridge", &with(env, "TRACESTATE", tracestate), 0, 10);
        scene.at(1_000).tick();
        assert_eq!(scene.play().only().caller, Some(kept), "{flags} {tracestate}");
    }
    let mut scene = Scene::by_runtime("cnitool");
    scene.ran("bridge", &with(add("sb", "eth0"), "TRACESTATE", "ot=th:c"), 0, 10);
    scene.at(1_000).tick();
    assert_eq!(scene.play().only().caller, None, "a state without a parent");
}

#[test]
fn a_bad_traceparent_is_none() {
    for bad in [
        "",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
    ] {
        let mut scene = Scene::by_runtime("cnitool");
        scene.ran("bridge", &with(add("sb", "eth0"), "TRACEPARENT", bad), 0, 10);
        scene.at(1_000).tick();
        assert_eq!(scene.play().only().remote_parent, None, "{bad}");
    }
}
