//! From a command's flags to the configuration: the file below them, each key with its origin.

use crate::cli::ConfigArgs;
use crate::config::{Config, Layers};
use crate::failure::Failure;
use crate::sinks::otlp::config::Settings;

/// The layers and the configuration that the flags select.
pub fn configuration(args: &ConfigArgs) -> Result<(Layers, Config), Failure> {
    configuration_of(args, file_text(args)?.as_deref())
}

/// The text of the configuration file, if the flags name one.
pub fn file_text(args: &ConfigArgs) -> Result<Option<String>, Failure> {
    Ok(args.config.as_deref().map(Layers::read).transpose()?)
}

/// As [`configuration`], with the text that the file had.
pub fn configuration_of(args: &ConfigArgs, text: Option<&str>) -> Result<(Layers, Config), Failure> {
    let mut layers = Layers::default();
    if let (Some(path), Some(text)) = (&args.config, text) {
        layers.text(text, path)?;
    }
    for (flag, key, value) in [
        ("--listen", "http.address", &args.listen),
        ("--page-listen", "page.address", &args.page_listen),
        ("--node-name", "node_name", &args.node_name),
        ("--otlp-endpoint", "otlp.endpoint", &args.otlp_endpoint),
        ("--otlp-protocol", "otlp.protocol", &args.otlp_protocol),
        ("--cri-endpoint", "cri.endpoint", &args.cri_endpoint),
    ] {
        if let Some(value) = value {
            layers.flag(flag, key, value)?;
        }
    }
    for pair in &args.set {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(Failure::usage(
                format!("--set {pair:?} has no value"),
                "write --set KEY=VALUE",
            ));
        };
        layers.flag("--set", key, value)?;
    }
    let config = layers.resolve()?;
    Ok((layers, config))
}

/// The OTLP settings among the flags. They override the environment.
pub fn otlp_flags(args: &ConfigArgs) -> Settings {
    Settings {
        endpoint: args.otlp_endpoint.clone(),
        protocol: args.otlp_protocol.clone(),
        ..Settings::default()
    }
}
