//! Starts a container in a sandbox, through the CRI calls that the agent itself never makes.
//!
//! Used by the tests of the agent's doctor, whose subject is statistics. Field numbers are those of CRI v1
//! (kubernetes/cri-api, `pkg/apis/runtime/v1/api.proto`). Does not: stop it (it ends with its sandbox).

use std::time::Duration;

use prost::Message;
use sandglass::cri::messages::{ContainerMetadata, PodSandboxConfig};
use sandglass::cri::{Cri, CriError, Repeat};

use crate::image;

/// Starts a container that computes without end, and gives its id.
///
/// # Errors
/// When the runtime refuses one of both calls or does not answer in time.
pub async fn start_computing(cri: &Cri, sandbox: &str, config: &PodSandboxConfig) -> Result<String, CriError> {
    let create = CreateContainer {
        pod_sandbox_id: sandbox.to_owned(),
        config: Some(ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: "app".to_owned(),
                attempt: 0,
            }),
            image: Some(ImageSpec {
                image: image::NAME.to_owned(),
            }),
            command: vec![format!("/{}", image::COMPUTING)],
            log_path: "app.log".to_owned(),
            // containerd 1.6 reads it without checking that it is there.
            linux: Some(Nothing {}),
        }),
        sandbox_config: Some(config.clone()),
    };
    let made: ContainerId = cri
        .call_within("CreateContainer", &create, Repeat::Never, DEADLINE)
        .await?;
    let _: Nothing = cri
        .call_within("StartContainer", &made, Repeat::Never, DEADLINE)
        .await?;
    Ok(made.container_id)
}

#[derive(Clone, PartialEq, Message)]
struct CreateContainer {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<PodSandboxConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    command: Vec<String>,
    #[prost(string, tag = "11")]
    log_path: String,
    #[prost(message, optional, tag = "15")]
    linux: Option<Nothing>,
}

#[derive(Clone, PartialEq, Message)]
struct ImageSpec {
    #[prost(string, tag = "1")]
    image: String,
}

/// Answer of CreateContainer, request of StartContainer.
#[derive(Clone, PartialEq, Message)]
struct ContainerId {
    #[prost(string, tag = "1")]
    container_id: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Nothing {}

const DEADLINE: Duration = Duration::from_secs(60);
