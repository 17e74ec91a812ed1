//! The client against a runtime made for the purpose. A real containerd is in `agent/demo/tests/runtime.rs`.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::messages::{NamespaceMode, NamespaceOption, PodSandboxMetadata, PodSandboxState, RuntimeStatus};
use super::super::stats::{CpuUsage, LinuxPodSandboxStats, UInt64Value};
use super::super::*;
use super::{Runtime, ScriptedResponse};
use crate::failure::Advice as _;

const SECOND: Duration = Duration::from_secs(1);

fn version() -> ScriptedResponse {
    ScriptedResponse::of(&VersionResponse {
        runtime_name: "scripted".to_owned(),
        runtime_version: "1.2.3".to_owned(),
        ..VersionResponse::default()
    })
}

#[tokio::test]
async fn answers_are_read() {
    let runtime = Runtime::start();
    runtime.on("Version", version());
    runtime.on(
        "ListPodSandbox",
        ScriptedResponse::of(&ListPodSandboxResponse {
            items: vec![PodSandbox {
                id: "abc".to_owned(),
                state: PodSandboxState::SandboxNotready as i32,
                labels: [("app".to_owned(), "cart".to_owned())].into(),
                ..PodSandbox::default()
            }],
        }),
    );
    let cri = Cri::connect(&runtime.endpoint(), 10 * SECOND).await.unwrap();
    assert_eq!(cri.version().await.unwrap().runtime_name, "scripted");
    let sandboxes = cri.list_pod_sandbox().await.unwrap();
    assert_eq!(sandboxes[0].id, "abc");
    assert_eq!(sandboxes[0].state(), PodSandboxState::SandboxNotready);
    assert_eq!(sandboxes[0].labels["app"], "cart");
}

#[tokio::test]
async fn unknown_fields_and_empty_answers_are_fine() {
    let runtime = Runtime::start();
    let mut message = vec![0x12, 1, b'x'];
    // Field 999, a string, and field 1000, a number: from some later version of the interface.
    message.extend([0xba, 0x3e, 2, b'h', b'i', 0xc0, 0x3e, 7]);
    runtime.on("Version", ScriptedResponse::Message(message));
    runtime.on("Status", ScriptedResponse::Body(Vec::new()));
    let cri = Cri::connect(&runtime.endpoint(), 10 * SECOND).await.unwrap();
    assert_eq!(cri.version().await.unwrap().runtime_name, "x");
    assert_eq!(cri.status(false).await.unwrap().status, None::<RuntimeStatus>);
}

#[tokio::test]
async fn a_refusal_keeps_its_status_and_message() {
    let runtime = Runtime::start();
    runtime.on("PodSandboxStatus", ScriptedResponse::Status(5, "no such sandbox"));
    let cri = Cri::connect(&runtime.endpoint(), 10 * SECOND).await.unwrap();
    let error = cri.pod_sandbox_status("abc", false).await.unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
    assert!(format!("{error:?}").contains("no such sandbox"));
    assert!(error.hint().contains("the runtime itself"));
    let error = cri.list_containers().await.unwrap_err();
    assert!(error.is_unimplemented());
    assert!(error.hint().contains("disabled"));
}

#[tokio::test]
async fn garbage_is_an_error_and_the_next_call_works() {
    let runtime = Runtime::start();
    let cri = Cri::connect(&runtime.endpoint(), 10 * SECOND).await.unwrap();
    for garbage in [
        ScriptedResponse::Body(b"\x00\xff\xff\xff\xff".to_vec()),
        ScriptedResponse::Body(b"hello".to_vec()),
        ScriptedResponse::Body(b"\x01\0\0\0\0".to_vec()),
        ScriptedResponse::Message(vec![0xff; 40]),
        ScriptedResponse::Http(404),
    ] {
        runtime.on("Version", garbage);
        let error = cri.version().await.unwrap_err();
        assert!(
            matches!(error, CriError::Call { .. } | CriError::Decode { .. }),
            "{error:?}"
        );
    }
    runtime.on("Version", version());
    assert_eq!(cri.version().await.unwrap().runtime_version, "1.2.3");
}

#[tokio::test]
async fn an_oversized_answer_is_refused() {
    let runtime = Runtime::start();
    runtime.on("Version", ScriptedResponse::Message(vec![0; grpc::MAX_ANSWER + 1]));
    let cri = Cri::connect(&runtime.endpoint(), 10 * SECOND).await.unwrap();
    assert!(matches!(cri.version().await, Err(CriError::Call { .. })));
}

#[tokio::test]
async fn a_slow_runtime_meets_the_deadline() {
    let runtime = Runtime::start();
    runtime.on("Version", ScriptedResponse::Slow(30 * SECOND, Vec::new()));
    let cri = Cri::connect(&runtime.endpoint(), 2 * SECOND).await.unwrap();
    let begin = Instant::now();
    assert!(matches!(cri.version().await, Err(CriError::Deadline { .. })));
    assert!(begin.elapsed() < 20 * SECOND);
    runtime.on("Version", version());
    assert!(cri.version().await.is_ok());
}

#[tokio::test]
async fn a_restarted_runtime_is_found_again() {
    let runtime = Runtime::start();
    runtime.on("Version", version());
    let cri = Cri::connect(&runtime.endpoint(), 10 * SECOND).await.unwrap();
    assert!(cri.version().await.is_ok());
    runtime.stop().await;
    assert!(matches!(cri.version().await, Err(CriError::Connect { .. })));
    runtime.start_again();
    assert!(cri.version().await.is_ok());
    // And without a failed call in between.
    runtime.stop().await;
    runtime.start_again();
    assert!(cri.version().await.is_ok());
}

#[tokio::test]
async fn making_a_sandbox_is_never_repeated() {
    let runtime = Runtime::start();
    runtime.on("RunPodSandbox", ScriptedResponse::Http(503));
    let cri = Cri::connect(&runtime.endpoint(), 10 * SECOND).await.unwrap();
    assert!(
        cri.run_pod_sandbox(PodSandboxConfig::default(), "", SECOND)
            .await
            .is_err()
    );
    assert_eq!(runtime.called("RunPodSandbox"), 1);
    runtime.on("RunPodSandbox", ScriptedResponse::Slow(30 * SECOND, Vec::new()));
    let (error, ()) = tokio::join!(
        cri.run_pod_sandbox(PodSandboxConfig::default(), "", 10 * SECOND),
        async {
            while runtime.called("RunPodSandbox") < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            runtime.stop().await;
            runtime.start_again();
        }
    );
    assert!(error.is_err());
    assert_eq!(runtime.called("RunPodSandbox"), 2);
}

#[tokio::test]
async fn whoever_speaks_no_http2_is_an_error_within_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n\x00\x01\xff garbage").await;
            let _ = stream.read(&mut [0; 64]).await;
        }
    });
    let outcome = match Cri::connect(socket.to_str().unwrap(), SECOND).await {
        Ok(cri) => cri.version().await.map(|_| ()),
        Err(error) => Err(error),
    };
    assert!(outcome.is_err());
    server.abort();
}

#[tokio::test]
async fn a_missing_socket_has_a_hint() {
    let error = Cri::connect("/nonexistent/cri.sock", SECOND).await.unwrap_err();
    assert!(error.to_string().contains("unix:///nonexistent/cri.sock"), "{error}");
    assert!(error.hint().contains("endpoint"));
    let error = Cri::connect("npipe:////./pipe/x", SECOND).await.unwrap_err();
    assert!(matches!(error, CriError::Endpoint(_)));
}

proptest::proptest! {
    /// Whatever a runtime sends, decoding ends with a message or an error.
    #[test]
    fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let _ = VersionResponse::decode(&bytes[..]);
        let _ = StatusResponse::decode(&bytes[..]);
        let _ = ListPodSandboxResponse::decode(&bytes[..]);
        let _ = PodSandboxStatusResponse::decode(&bytes[..]);
        let _ = ListContainersResponse::decode(&bytes[..]);
        let _ = ListPodSandboxStatsResponse::decode(&bytes[..]);
        let _ = ListContainerStatsResponse::decode(&bytes[..]);
    }
}

/// Bytes written out by hand from api.proto, so that a wrong tag in the derives shows.
#[test]
fn field_numbers_are_those_of_the_interface() {
    let config = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "n".to_owned(),
            uid: "u".to_owned(),
            namespace: "s".to_owned(),
            attempt: 3,
        }),
        hostname: "h".to_owned(),
        log_directory: "l".to_owned(),
        labels: [("k".to_owned(), "v".to_owned())].into(),
        linux: Some(messages::LinuxPodSandboxConfig {
            cgroup_parent: "c".to_owned(),
            security_context: Some(messages::LinuxSandboxSecurityContext {
                namespace_options: Some(NamespaceOption {
                    network: NamespaceMode::Pod as i32,
                    pid: NamespaceMode::Container as i32,
                    ipc: NamespaceMode::Node as i32,
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..PodSandboxConfig::default()
    };
    assert_eq!(
        config.encode_to_vec(),
        b"\x0a\x0b\x0a\x01n\x12\x01u\x1a\x01s\x20\x03\x12\x01h\x1a\x01l\x32\x06\x0a\x01k\x12\x01v\x42\x0b\x0a\x01c\x12\x06\x0a\x04\x10\x01\x18\x02"
    );
    let stats = LinuxPodSandboxStats {
        cpu: Some(CpuUsage {
            timestamp: 1,
            usage_core_nano_seconds: Some(UInt64Value { value: 5 }),
            usage_nano_cores: Some(UInt64Value { value: 0 }),
        }),
        ..Default::default()
    };
    assert_eq!(stats.encode_to_vec(), b"\x0a\x08\x08\x01\x12\x02\x08\x05\x1a\x00");
}

#[test]
fn only_a_socket_is_found_by_itself() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(Endpoint::find(root.path()), None);
    let containerd = root.path().join("run/containerd/containerd.sock");
    std::fs::create_dir_all(containerd.parent().unwrap()).unwrap();
    std::fs::write(&containerd, "not a socket").unwrap();
    assert_eq!(Endpoint::find(root.path()), None);
    let crio = root.path().join("run/crio/crio.sock");
    std::fs::create_dir_all(crio.parent().unwrap()).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(&crio).unwrap();
    assert_eq!(Endpoint::find(root.path()), Some(Endpoint::Unix(crio)));
}
