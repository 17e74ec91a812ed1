//! Runs the real Helm on the chart. Does not: know what should come out.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A Helm that can be run.
pub struct Helm(PathBuf);

impl Helm {
    /// The one that `SANDGLASS_HELM` names or `scripts/peer.sh` builds, or prints `SKIPPED`.
    pub fn find(test: &str) -> Option<Helm> {
        if let Some(named) = std::env::var_os("SANDGLASS_HELM") {
            return Some(Helm(named.into()));
        }
        let built = output(Command::new(root("scripts/peer.sh")).arg("helm"));
        if built.status.success() {
            return Some(Helm(PathBuf::from(String::from_utf8(built.stdout).unwrap().trim())));
        }
        let why = String::from_utf8_lossy(&built.stderr);
        eprintln!("SKIPPED {test}: no Helm: {}", why.lines().last().unwrap_or_default());
        None
    }

    /// Renders the chart with `--set` of each argument; the error is Helm's message.
    pub fn template(&self, arguments: &[String], version: &str, apis: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.0);
        command.args(["template", "sandglass"]).arg(chart());
        command.args(["--namespace", "sandglass", "--kube-version", version]);
        // Required values; an argument of the same name comes later and wins.
        for required in REPOSITORIES {
            command.args(["--set", required]);
        }
        for argument in arguments {
            command.args(["--set", argument]);
        }
        for api in apis {
            command.args(["--api-versions", api]);
        }
        rendered(&mut command)
    }

    /// Renders the chart with a file of values: numbers in it become floating-point numbers, which those of `--set` do not.
    pub fn template_of_file(&self, values: &Path) -> Result<String, String> {
        let mut command = Command::new(&self.0);
        command.args(["template", "sandglass"]).arg(chart());
        command.args(["--kube-version", "1.36.0"]);
        for required in REPOSITORIES {
            command.args(["--set", required]);
        }
        rendered(command.arg("--values").arg(values))
    }

    /// Lints strictly and packages into `folder`.
    pub fn package(&self, folder: &Path) {
        let linted = output(Command::new(&self.0).args(["lint", "--strict"]).arg(chart()));
        assert!(linted.status.success(), "{}", String::from_utf8_lossy(&linted.stdout));
        let packaged = output(
            Command::new(&self.0)
                .arg("package")
                .arg(chart())
                .arg("--destination")
                .arg(folder),
        );
        assert!(
            packaged.status.success(),
            "{}",
            String::from_utf8_lossy(&packaged.stderr)
        );
    }
}

/// What Helm prints, or its message.
fn rendered(helm: &mut Command) -> Result<String, String> {
    let rendered = output(helm);
    match rendered.status.success() {
        true => Ok(String::from_utf8(rendered.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&rendered.stderr).into_owned()),
    }
}

/// Values that the chart demands: no registry serves the images.
const REPOSITORIES: [&str; 2] = [
    "image.repository=registry.invalid/sandglass",
    "windows.image.repository=registry.invalid/sandglass-windows",
];

/// A path of the tree.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// The chart.
pub fn chart() -> PathBuf {
    root("deploy/helm/sandglass")
}

/// Runs to the end.
pub fn output(command: &mut Command) -> Output {
    command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
