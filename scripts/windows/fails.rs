//! A CNI plugin that refuses every ADD with an error of the CNI specification (v1.1, section "Error"), code 11.
//!
//! One file without dependencies: `rustc fails.rs`. Used by the workflow windows.yml, and run by `agent/tests/workflows.rs`.
//! DEL succeeds, so that the sandbox can be removed.

use std::io::Read;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A plugin that leaves its input unread could end before the runtime has written it.
    let mut configuration = String::new();
    let _ = std::io::stdin().read_to_string(&mut configuration);
    match std::env::var("CNI_COMMAND").unwrap_or_default().as_str() {
        "ADD" => {
            println!(r#"{{"cniVersion":"0.3.0","code":11,"msg":"no policy allows this pod"}}"#);
            ExitCode::FAILURE
        }
        "VERSION" => {
            println!(r#"{{"cniVersion":"0.3.0","supportedVersions":["0.2.0","0.3.0"]}}"#);
            ExitCode::SUCCESS
        }
        _ => ExitCode::SUCCESS,
    }
}
