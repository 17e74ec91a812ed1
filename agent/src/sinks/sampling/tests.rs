//! What is sent, with which contexts; exemplars only of what is sent.

use super::*;

use crate::samples;

const BAD: Policy = Policy::Bad {
    good_per_thousand: 10,
    slow_ns: SLOW_NS,
};

fn called(mut trace: Trace, flags: u8, tracestate: &str) -> Arc<Trace> {
    trace.caller = Some(CallerSampling::parse(flags, tracestate));
    Arc::new(trace)
}

#[test]
fn all_sends_all_as_before() {
    let sampling = Sampling::new(Policy::All);
    let chosen = sampling.choose(&Arc::new(samples::usual("n", "p", 1, 0))).unwrap();
    assert_eq!((chosen.flags, chosen.tracestate.as_str()), (SAMPLED, ""));
}

#[test]
fn of_good_traces_a_share_is_sent_by_id_and_of_bad_ones_all() {
    let sampling = Sampling::new(BAD);
    let (mut good, mut bad) = (0, 0);
    for number in 0..5_000 {
        let usual = Arc::new(samples::usual("n", "p", number, 0));
        let chosen = sampling.choose(&usual);
        let random = sampling::randomness(usual.id);
        let Some(chosen) = chosen else {
            assert!(random < sampling::threshold(10));
            continue;
        };
        assert_eq!(chosen.flags, SAMPLED | RANDOM);
        match chosen.bad {
            // Slower than 99 of 100 on this node.
            true => assert_eq!(chosen.tracestate, "ot=th:0"),
            false => {
                assert_eq!(chosen.tracestate, "ot=th:fd70a4");
                assert!(random >= sampling::threshold(10));
            }
        }
        good += usize::from(!chosen.bad);
        if number % 50 == 0 {
            let failed = Arc::new(samples::failed("n", "p", number, 0, None));
            let chosen = sampling.choose(&failed).unwrap();
            assert_eq!((chosen.bad, chosen.tracestate.as_str()), (true, "ot=th:0"));
            bad += 1;
        }
    }
    assert!((20..90).contains(&good) && bad >= 1, "{good} good, {bad} bad");
}

#[test]
fn a_good_trace_within_the_runtimes_is_sent_if_the_runtime_recorded_its_own() {
    let sampling = Sampling::new(BAD);
    let usual = |number| samples::usual("n", "p", number, 0);
    for number in 0..300 {
        assert!(sampling.choose(&called(usual(number), 0, "ot=th:c")).is_none());
        let recorded = called(usual(number), SAMPLED, "vendor=x,ot=th:c;rv:00000000000007");
        let chosen = sampling.choose(&recorded).unwrap();
        assert_eq!(
            (chosen.flags, chosen.tracestate.as_str()),
            (SAMPLED, "ot=th:c;rv:00000000000007")
        );
        assert_eq!(sampling.exemplar(&recorded), Some(recorded.id));
    }
    // Not known with which probability the runtime recorded it.
    let chosen = sampling.choose(&called(usual(1), SAMPLED | RANDOM, "")).unwrap();
    assert_eq!((chosen.flags, chosen.tracestate.as_str()), (SAMPLED | RANDOM, ""));
    // A bad one is sent, with the flag that says so.
    let bad = called(samples::failed("n", "p", 1, 0, None), RANDOM, "ot=th:c");
    let chosen = sampling.choose(&bad).unwrap();
    assert_eq!(
        (chosen.flags, chosen.tracestate.as_str()),
        (SAMPLED | RANDOM, "ot=th:0")
    );
}

#[test]
fn exemplars_lead_only_to_traces_that_are_sent() {
    let sampling = Sampling::new(BAD);
    let (mut shown, mut hidden) = (0, 0);
    for number in 0..2_000 {
        let trace = match number % 5 {
            0 => samples::failed("n", "p", number, 0, None),
            1 => samples::slow("n", "p", number, 0),
            2 => samples::stalled("n", "p", number, 0),
            _ => samples::usual("n", "p", number, 0),
        };
        let trace = match number % 7 {
            0 => called(trace, 0, ""),
            1 => called(trace, SAMPLED, "ot=th:8"),
            _ => Arc::new(trace),
        };
        let mut exemplars = vec![sampling.exemplar(&trace)];
        exemplars.extend(trace.spans.iter().map(|span| {
            let mut ended = EndedSpan::of(&trace, span);
            ended.incomplete = false;
            sampling.exemplar_of_span(&ended)
        }));
        let sent = sampling.choose(&trace).is_some();
        for exemplar in exemplars {
            assert!(sent || exemplar.is_none(), "{number}: {:?}", trace.root());
            shown += usize::from(exemplar.is_some());
            hidden += usize::from(exemplar.is_none());
        }
    }
    assert!(shown > 1_000 && hidden > 1_000, "{shown} {hidden}");
    let id = Some(TraceId(1));
    assert_eq!(sampling.exemplar_of_exchange(id, false, false), None);
    assert_eq!(sampling.exemplar_of_exchange(id, true, false), id);
    assert_eq!(sampling.exemplar_of_exchange(id, false, true), id);
    assert_eq!(sampling.exemplar_of_exchange(None, true, true), None);
    assert_eq!(Sampling::new(Policy::All).exemplar_of_exchange(id, false, false), id);
}

#[test]
fn a_new_policy_holds_from_the_next_trace_on() {
    let sampling = Sampling::new(Policy::All);
    let clone = sampling.clone();
    let none = Policy::Bad {
        good_per_thousand: 0,
        slow_ns: SLOW_NS,
    };
    let usual = Arc::new(samples::usual("n", "p", 1, 0));
    assert!(sampling.choose(&usual).is_some());
    clone.set_policy(none);
    assert!(sampling.choose(&usual).is_none() && sampling.exemplar(&usual).is_none());
    // What was good is slow by another threshold.
    clone.set_policy(Policy::Bad {
        good_per_thousand: 0,
        slow_ns: 1,
    });
    assert!(sampling.choose(&usual).is_some_and(|chosen| chosen.bad));
    clone.set_policy(Policy::All);
    assert!(sampling.choose(&usual).is_some() && sampling.exemplar(&usual).is_some());
}
