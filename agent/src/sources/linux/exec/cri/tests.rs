use sandglass_probes::wire::RecordHeader;
use sandglass_probes::wire::cri::{
    KIND_SANDBOX_REQUEST, KIND_SANDBOX_RESPONSE, METADATA_MAX, RESPONSE_WITHDRAWN, SANDBOX_ID_MAX,
};

use super::*;

fn header(kind: u32) -> RecordHeader {
    RecordHeader {
        kind,
        pid: 7,
        at_ns: 900,
        start_ns: 10_000_000,
        ring_bytes: 0,
    }
}

/// The records of metadata that arrived in pieces of these lengths.
fn records(metadata: &[u8], lens: &[usize]) -> Vec<SandboxRequestRecord> {
    let mut offset = 0;
    let record = |len: &usize| {
        let mut record = SandboxRequestRecord {
            header: header(KIND_SANDBOX_REQUEST),
            requested_ns: 800,
            stream: 3,
            metadata_len: u32::try_from(metadata.len()).unwrap(),
            offset: u32::try_from(offset).unwrap(),
            len: u32::try_from(*len).unwrap(),
            metadata: [0; METADATA_MAX as usize],
        };
        record.metadata[..*len].copy_from_slice(&metadata[offset..offset + len]);
        offset += len;
        record
    };
    lens.iter().map(record).collect()
}

fn metadata() -> Vec<u8> {
    let metadata = PodSandboxMetadata {
        name: "cart-0".to_owned(),
        uid: "0b6c1e52-9a3f-4f0e-8a52-0d8a4a4e8a11".to_owned(),
        namespace: "shop".to_owned(),
        attempt: 2,
    };
    metadata.encode_to_vec()
}

fn requested(event: Option<Event>) -> SandboxRequest {
    let event = event.unwrap();
    assert_eq!(event.at, Timestamp(800));
    let Body::SandboxRequested(request) = event.body else {
        panic!("{event:?}");
    };
    *request
}

#[test]
fn a_request_is_read_whole_or_in_pieces() {
    let metadata = metadata();
    let len = metadata.len();
    for lens in [vec![len], vec![1, len - 1], vec![10, 20, len - 30], vec![len - 1, 1]] {
        let mut assembly = Assembly::default();
        let mut records = records(&metadata, &lens);
        let last = records.pop().unwrap();
        for record in &records {
            assert_eq!(assembly.add(record), None);
        }
        let request = requested(assembly.add(&last));
        assert_eq!((request.stream, request.attempt, request.runtime.pid), (3, 2, 7));
        assert_eq!((&*request.pod.namespace, &*request.pod.name), ("shop", "cart-0"));
        assert_eq!(request.pod.uid.len(), 36);
        assert!(assembly.0.is_empty());
    }
}

#[test]
fn what_is_no_request_makes_no_event() {
    let mut assembly = Assembly::default();
    // UpdateRuntimeConfigRequest: one text.
    let mut other = vec![0x0a, 13];
    other.extend_from_slice(b"10.244.0.0/24");
    let metadata = metadata();
    let mut wrong = records(&metadata, &[metadata.len()])[0];
    wrong.len = METADATA_MAX + 1;
    let mut gap = records(&metadata, &[10, metadata.len() - 10]);
    gap[1].offset += 1;
    let broken = records(&metadata, &[10])[0];
    assert_eq!(assembly.add(&records(&other, &[other.len()])[0]), None);
    assert_eq!(assembly.add(&wrong), None);
    assert!(gap.iter().all(|record| assembly.add(record).is_none()));
    assert_eq!(
        assembly.add(&SandboxRequestRecord {
            metadata_len: 10,
            ..broken
        }),
        None
    );
    let mut noise = 1_u64;
    for _ in 0..20_000 {
        let mut record = records(&metadata, &[metadata.len()])[0];
        for byte in &mut record.metadata {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (noise >> 56) as u8;
        }
        record.stream = (noise >> 40) as u32;
        record.offset = (noise >> 33) as u32 % 40;
        record.len = (noise >> 20) as u32 % 600;
        let _ = assembly.add(&record);
        assert!(assembly.0.len() <= PARTIAL_MAX);
    }
}

#[test]
fn a_response_has_an_id_that_is_one() {
    let with = |outcome, id: &[u8]| {
        let mut record = SandboxResponseRecord {
            header: header(KIND_SANDBOX_RESPONSE),
            requested_ns: 800,
            stream: 3,
            outcome,
            id_len: u32::try_from(id.len()).unwrap(),
            unused: 0,
            id: [0; SANDBOX_ID_MAX as usize],
        };
        let held = id.len().min(record.id.len());
        record.id[..held].copy_from_slice(&id[..held]);
        let Body::SandboxResponded(response) = response(&record).body else {
            panic!("no response");
        };
        (response.outcome, response.sandbox.map(|id| id.0), response.requested.0)
    };
    let id = "0123456789abcdef".repeat(4);
    assert_eq!(
        with(RESPONSE_MADE, id.as_bytes()),
        (SandboxOutcome::Made, Some(id), 800)
    );
    assert_eq!(with(RESPONSE_FAILED, b"").0, SandboxOutcome::Failed);
    assert_eq!(with(RESPONSE_WITHDRAWN, b"").0, SandboxOutcome::Withdrawn);
    for bad in [&b"a b"[..], b"\xff", &[b'a'; 65]] {
        assert_eq!(with(RESPONSE_MADE, bad).1, None);
    }
}

#[test]
fn sockets_are_found_and_other_files_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, file) = (directory.path().join("cri.sock"), directory.path().join("file"));
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::fs::write(&file, "").unwrap();
    assert_eq!(inode_of(&socket), Some(std::fs::metadata(&socket).unwrap().ino()));
    assert_eq!(inode_of(&file), None);
    assert_eq!(inode_of(&directory.path().join("none")), None);
    drop(listener);
}
