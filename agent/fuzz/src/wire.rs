//! What the fuzz target of the other wire records runs. A record that decodes gives an event that can be written and read.

use sandglass::sources::linux::exec::decode::DecodedRecord;
use sandglass::sources::linux::{connect, exec};
use sandglass_model::{Body, Event, recording};
use sandglass_probes::wire::cri::{KIND_SANDBOX_REQUEST, KIND_SANDBOX_RESPONSE};

/// Takes the bytes as a record as they are, and once more with a kind that exists.
pub fn run(data: &[u8]) {
    let event = |event| {
        let line = recording::encode(&event).expect("an event can be written");
        if line.len() <= recording::MAX_LINE {
            assert_eq!(
                recording::decode_event(&line).expect("what was written can be read"),
                event
            );
        }
    };
    if let Ok(decoded) = connect::decode::decode(data) {
        event(Event {
            at: decoded.at,
            body: Body::ConnectSeen(Box::new(decoded.step)),
        });
    }
    let mut assembly = exec::cri::Assembly::default();
    let mut record = data.to_vec();
    for kind in [KIND_SANDBOX_REQUEST, KIND_SANDBOX_RESPONSE] {
        if let Some(first) = record.get_mut(..4) {
            first.copy_from_slice(&kind.to_ne_bytes());
        }
        match exec::decode::decode_any(&record) {
            Ok(DecodedRecord::SandboxRequest(request)) => assembly.add(&request).into_iter().for_each(event),
            Ok(DecodedRecord::SandboxResponse(response)) => event(exec::cri::response(&response)),
            _ => {}
        }
    }
    let mut record = data.to_vec();
    for kind in 0..8_u8 {
        if let Ok(decoded) = exec::decode::decode(&record) {
            if let Some(io) = decoded.io {
                event(Event {
                    at: decoded.event.at,
                    body: Body::PluginIoRead(io),
                });
            }
            event(decoded.event);
        }
        if let Some(first) = record.get_mut(..4) {
            first.copy_from_slice(&[kind, 0, 0, 0]);
        }
    }
}
