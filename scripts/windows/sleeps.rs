//! A CNI plugin that waits in PowerShell, as plugins that configure adapters do, and then delegates to the plugin `nat`.
//!
//! One file without dependencies: `rustc sleeps.rs`. Used by the workflow windows.yml, and run by `agent/tests/workflows.rs`.
//! The delegate receives the environment and the configuration unchanged but for `type`; its output and exit code are this
//! plugin's own.

use std::env;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

fn main() -> ExitCode {
    match delegate() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            println!(r#"{{"cniVersion":"0.3.0","code":999,"msg":"sleeps: {error}"}}"#);
            ExitCode::FAILURE
        }
    }
}

fn delegate() -> std::io::Result<u8> {
    let mut configuration = String::new();
    std::io::stdin().read_to_string(&mut configuration)?;
    if env::var("CNI_COMMAND").is_ok_and(|command| command == "ADD") {
        // Without a handle for input PowerShell would wait for the runtime's.
        Command::new("powershell")
            .args(["-NoLogo", "-NoProfile", "-NonInteractive", "-Command", "Start-Sleep -Seconds 3"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()?;
    }
    let configuration = configuration.replace(r#""type": "sleeps""#, r#""type": "nat""#);
    let mut nat = Command::new(nat()).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = nat.stdin.take() {
        input.write_all(configuration.as_bytes())?;
    }
    let status = nat.wait()?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// The plugin `nat`, in the folders of CNI_PATH.
fn nat() -> PathBuf {
    let path = env::var_os("CNI_PATH").unwrap_or_default();
    let name = format!("nat{}", env::consts::EXE_SUFFIX);
    env::split_paths(&path)
        .map(|folder| folder.join(&name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| PathBuf::from(name))
}
