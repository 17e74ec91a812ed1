//! `sandglass-demo --windows` on any system: the recording that is built in, shown as `sandglass replay` shows it.

use std::process::Command;

#[test]
fn the_windows_demo_shows_what_a_replay_shows() {
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).env_clear().output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let recording = sandglass_lab::file("agent/recordings/windows-agent-powershell/events.etl");
    let replay = run(
        env!("CARGO_BIN_EXE_sandglass-demo-agent"),
        &["replay", recording.to_str().unwrap()],
    );
    assert!(replay.contains("command powershell"), "{replay}");
    let demo = run(env!("CARGO_BIN_EXE_sandglass-demo"), &["--windows", "--once"]);
    assert_eq!(demo, replay);
}
