//! Reload of the configuration: when the content of its file changes, and on SIGHUP.
//!
//! Used by `run`. The content is compared every [`POLL`], through the path, so that the kubelet's exchange of a ConfigMap's symlink
//! is seen as well as an editor's write, on every system, with nothing to watch and nothing missed. A change counts once it was
//! read twice: a file that is just being written is not half of a configuration.
//! Keys in [`LIVE_KEYS`] take effect at once, the others are named. A file that the agent would not start with is refused as a
//! whole. Does not: reload files that the configuration names (tokens, certificates), or write anything.

use std::path::PathBuf;
use std::time::Duration;

use sandglass_model::SpanId;

use super::flags::{configuration_of, otlp_flags};
use crate::app::live::{Checked, LIVE_KEYS, LiveSettings};
use crate::cli::ConfigArgs;
use crate::config::Layers;
use crate::config_state::ConfigState;
use crate::failure::Failure;
use crate::platform::ReloadRequests;
use crate::wall_clock::wall_ns;

/// The text of the file, or why it cannot be read.
type Content = Result<String, String>;

/// The configuration that the agent started with, and its file.
#[derive(Debug)]
pub struct Reload {
    args: ConfigArgs,
    path: PathBuf,
    /// As the agent started: a key that differs from this needs a restart, unless it is live.
    started: Layers,
    loaded: Layers,
    /// What was loaded or refused last.
    judged: Content,
    /// What was read last, if it is something else.
    unsettled: Option<Content>,
    live: LiveSettings,
    state: ConfigState,
}

/// Records which configuration the agent started with.
pub fn started(layers: &Layers, state: &ConfigState) {
    state.loaded(hash(layers), wall_ns(), Vec::new());
}

/// Receives requests from now on, if there is a file that can change. Of a pipe or a device the content cannot be read again.
pub fn requests(args: &ConfigArgs) -> Option<ReloadRequests> {
    let is_file = args.config.as_ref().is_some_and(|path| path.is_file());
    is_file.then(ReloadRequests::receive)
}

impl Reload {
    /// Of an agent that was started with `layers`, in which the file had the content `text`; `None` without a file.
    pub fn new(
        args: ConfigArgs,
        layers: Layers,
        text: Option<String>,
        live: LiveSettings,
        state: ConfigState,
    ) -> Option<Reload> {
        Some(Reload {
            path: args.config.clone()?,
            judged: Ok(text?),
            args,
            loaded: layers.clone(),
            started: layers,
            unsettled: None,
            live,
            state,
        })
    }

    /// Follows the file; never ends.
    pub async fn follow(mut self, mut requests: ReloadRequests) {
        let mut wait = POLL;
        loop {
            let requested = tokio::select! {
                () = tokio::time::sleep(wait) => false,
                () = requests.next() => true,
            };
            // Away from the threads that serve: a disk that hangs holds up nothing but this.
            let looked = tokio::task::spawn_blocking(move || {
                let settled = self.look(requested);
                (self, settled)
            });
            let Ok((reload, settled)) = looked.await else {
                tracing::error!("the reload of the configuration has panicked: a change needs a restart");
                return std::future::pending().await;
            };
            self = reload;
            wait = if settled { POLL } else { SETTLE };
        }
    }

    /// Reads the file and judges it if it changed, or in any case on request. False while a change was read only once.
    fn look(&mut self, requested: bool) -> bool {
        let content = self.read();
        if !requested {
            if content == self.judged {
                self.unsettled = None;
                return true;
            }
            if self.unsettled.as_ref() != Some(&content) {
                self.unsettled = Some(content);
                return false;
            }
        }
        self.unsettled = None;
        let outcome = match &content {
            Ok(text) => self.load(text).map_err(|failure| failure.to_string()),
            Err(reason) => Err(reason.clone()),
        };
        self.judged = content;
        if let Err(reason) = outcome {
            let (message, hint) = reason.split_once("\nhint: ").unwrap_or((&reason, ""));
            tracing::error!(hint, "the configuration is refused, the one before stays: {message}");
            self.state.refused(format!("{message}; {hint}"));
        }
        true
    }

    fn read(&self) -> Content {
        // A pipe in place of the file would be waited for.
        match std::fs::metadata(&self.path) {
            Ok(metadata) if !metadata.is_file() => Err(format!("{} is no file any more", self.path.display())),
            _ => Layers::read(&self.path).map_err(|error| Failure::from(error).to_string()),
        }
    }

    fn load(&mut self, text: &str) -> Result<(), Failure> {
        let (layers, config) = configuration_of(&self.args, Some(text))?;
        self.live.apply(&Checked::new(&config, &otlp_flags(&self.args))?);
        let mut needs_restart = layers.differing(&self.started);
        needs_restart.retain(|key| !LIVE_KEYS.contains(&key.as_str()));
        let mut changed = layers.differing(&self.loaded);
        changed.retain(|key| LIVE_KEYS.contains(&key.as_str()));
        if needs_restart.is_empty() {
            tracing::info!(changed = changed.join(", "), "the configuration was loaded again");
        } else {
            tracing::warn!(
                changed = changed.join(", "),
                needs_restart = needs_restart.join(", "),
                "the configuration was loaded again, a part of it takes effect at the next start"
            );
        }
        self.state.loaded(hash(&layers), wall_ns(), needs_restart);
        self.loaded = layers;
        Ok(())
    }
}

/// Of the values in force, with or without a file: agents with the same configuration have the same hash. Without secrets, which a
/// short hash could be searched for.
fn hash(layers: &Layers) -> u64 {
    let keys = layers.keys();
    let parts: Vec<&[u8]> = keys
        .iter()
        .flat_map(|(key, value, _)| [key.as_bytes(), value.as_bytes()])
        .collect();
    SpanId::of(&parts).0
}

/// Time between two looks at the file.
const POLL: Duration = Duration::from_secs(2);
/// Time until a change is read again.
const SETTLE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests;
