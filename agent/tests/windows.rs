//! The Windows build under Wine: the real binary's command line, replay, page and error paths, and the unit tests of
//! every crate it is made of, those of code that is there on Windows only among them.
//!
//! Wine refuses ETW sessions, which is the way of a node without rights. Live sessions are tested on a stage of their own
//! (`sources/windows/live/tests.rs`). Where target, linker or Wine are missing, each test is skipped by name.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Where the Windows build and what it needs are.
struct Windows {
    exe: PathBuf,
    /// Test programs by name: of a crate's units, or of a file in `tests/`.
    tests: BTreeMap<String, PathBuf>,
    wine: PathBuf,
    prefix: PathBuf,
}

static WINDOWS: LazyLock<Result<Windows, String>> = LazyLock::new(build);
/// Wine starts one server a prefix: tests run one program at a time.
static TURN: Mutex<()> = Mutex::new(());

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn build() -> Result<Windows, String> {
    let wine = ["/usr/lib/wine/wine64", "/usr/bin/wine64"].map(PathBuf::from);
    let wine = wine
        .into_iter()
        .find(|path| path.exists())
        .ok_or("wine64 is not installed")?;
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("windows");
    fs::create_dir_all(&place).map_err(|error| error.to_string())?;
    let linker = Command::new(LINKER).arg("--version").output();
    linker.map_err(|_| format!("{LINKER} is not installed"))?;
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .map_err(|error| error.to_string())?;
    if !Path::new(String::from_utf8_lossy(&output.stdout).trim()).exists() {
        return Err(format!("the Rust target {TARGET} is not installed"));
    }
    // All at once: apart, most of what they depend on would be built twice.
    let built = Command::new("cargo")
        .args([
            "test",
            "--no-run",
            "--locked",
            "--profile=foreign",
            "--message-format=json",
            "--target",
            TARGET,
        ])
        .args(CRATES.iter().flat_map(|name| ["--package", name]))
        .args(["--lib", "--test", "golden", "--test", "scenes"])
        .current_dir(root())
        // Procedural macros and build scripts are built there already.
        .env("CARGO_TARGET_DIR", place.parent().unwrap())
        .output()
        .map_err(|error| error.to_string())?;
    // What does not compile is no reason to skip.
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut programs = programs(&String::from_utf8_lossy(&built.stdout));
    let exe = programs.remove("sandglass bin").unwrap();
    let tests: BTreeMap<String, PathBuf> = programs;
    let library = random_numbers(&place);
    for program in tests.values().chain([&exe]) {
        fs::copy(&library, program.with_file_name("bcryptprimitives.dll")).unwrap();
    }
    let prefix = place.join("wine");
    let windows = Windows {
        exe,
        tests,
        wine,
        prefix,
    };
    windows.make_prefix()?;
    Ok(windows)
}

/// What cargo reports as built: the name of each target and its kind.
fn programs(messages: &str) -> BTreeMap<String, PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let program = |message: serde_json::Value| {
        let path = PathBuf::from(message["executable"].as_str()?);
        let (name, kind) = (
            message["target"]["name"].as_str()?,
            message["target"]["kind"][0].as_str()?,
        );
        Some((format!("{name} {kind}"), path))
    };
    messages.filter_map(program).collect()
}

/// Wine 8 lacks the library that Rust takes its random numbers from.
fn random_numbers(place: &Path) -> PathBuf {
    let library = place.join("bcryptprimitives.dll");
    if !library.exists() {
        let source = place.join("bcryptprimitives.c");
        fs::write(&source, BCRYPT_PRIMITIVES).unwrap();
        let compiled = Command::new(LINKER)
            .arg("-shared")
            .arg("-o")
            .args([&library, &source])
            .arg("-ladvapi32")
            .status();
        assert!(compiled.unwrap().success());
    }
    library
}

impl Windows {
    /// The build; `None` and a line with the reason where there is none.
    fn get(test: &str) -> Option<&'static Windows> {
        match &*WINDOWS {
            Ok(windows) => Some(windows),
            Err(why) => {
                eprintln!("SKIPPED {test}: {why}");
                None
            }
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        self.command_of(&self.exe, args)
    }

    fn command_of(&self, exe: &Path, args: &[&str]) -> Command {
        let mut command = self.in_prefix(&self.wine);
        command.arg(exe).args(args);
        command
    }

    fn in_prefix(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("WINEPREFIX", &self.prefix)
            .env("WINEDEBUG", "-all")
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &self.prefix)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.run_for(120, &self.command(args))
    }

    /// Starts Wine's server, and has it make or update the prefix.
    fn make_prefix(&self) -> Result<(), String> {
        fs::create_dir_all(&self.prefix).map_err(|error| error.to_string())?;
        // Wine's server ends some seconds after the last program of its prefix, and a program that starts at that moment ends with
        // "recvmsg: Connection reset by peer". It stays for a minute instead: the next test has begun by then.
        let server = self.wine.with_file_name("wineserver");
        if server.exists() {
            // Without pipes: the server would hold them.
            let mut keep = self.in_prefix(&server);
            keep.arg("-p60").stdout(Stdio::null()).stderr(Stdio::null());
            let kept = keep.status().map_err(|error| error.to_string())?;
            // 2: one of an earlier run is still there.
            assert!(matches!(kept.code(), Some(0 | 2)), "wineserver: {kept}");
        }
        // The first program that runs there does it, for minutes on a busy machine.
        let booted = self.run_once(600, &self.command_of(Path::new("wineboot"), &["--init"]));
        assert!(
            booted.status.success(),
            "wineboot: {} {}",
            booted.status,
            text(&booted.stderr)
        );
        Ok(())
    }

    /// Runs a program to its end, or for so long. Where Wine did not even start it, or a program that it runs, the prefix is made anew, and it is
    /// run again, once.
    fn run_for(&self, seconds: u32, inner: &Command) -> Output {
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let output = self.run_once(seconds, inner);
        if was_started(&output) {
            return output;
        }
        self.renew(inner, &format!("{}; {}", output.status, text(&output.stderr).trim()));
        self.run_once(seconds, inner)
    }

    /// Ends what uses the prefix, and makes it anew: Wine did not start a program there.
    fn renew(&self, program: &Command, why: &str) {
        let processes = self.processes();
        let program = program.get_args().next().unwrap_or_default().display();
        eprintln!("RETRIED {program}: Wine did not start it ({why}). Processes of its prefix:");
        for (process, described) in processes {
            eprintln!("    {described}");
            let _ = pidfd_send_signal(&process, Signal::KILL);
            let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&seconds(10)));
        }
        fs::remove_dir_all(&self.prefix).unwrap();
        self.make_prefix().unwrap();
    }

    /// The processes that use the prefix, Wine's server among them, each with a line of what it waits for.
    fn processes(&self) -> Vec<(OwnedFd, String)> {
        let variable = format!("WINEPREFIX={}", self.prefix.display());
        let of_prefix = |folder: &Path| {
            let pid = folder.file_name()?.to_str()?.parse().ok().and_then(Pid::from_raw)?;
            // Opened before it is looked at: a number that is used again is not mistaken for it.
            let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
            let environment = fs::read(folder.join("environ")).ok()?;
            if !environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == variable.as_bytes())
            {
                return None;
            }
            let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
            let (status, waits, call) = (read("stat"), read("wchan"), read("syscall"));
            let begin: String = status.chars().take(60).collect();
            Some((process, format!("{begin}.. in {waits}, system call {}", call.trim())))
        };
        let folders = fs::read_dir("/proc").unwrap().flatten();
        folders.filter_map(|folder| of_prefix(&folder.path())).collect()
    }

    fn run_once(&self, seconds: u32, inner: &Command) -> Output {
        let mut command = Command::new("timeout");
        command
            .arg(seconds.to_string())
            .arg(inner.get_program())
            .args(inner.get_args())
            .env_clear()
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null());
        for (name, value) in inner.get_envs() {
            command.env(name, value.unwrap());
        }
        command.output().unwrap()
    }

    /// All tests of a test program pass, and there are at least so many.
    fn assert_tests_pass(&self, program: &str, at_least: u32) {
        let output = self.run_for(300, &self.command_of(&self.tests[program], &[]));
        let printed = text(&output.stdout);
        let passed = printed
            .split("test result: ok. ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
        let failures = printed.split("failures:").nth(1).unwrap_or(&printed);
        // Indented, so that it stays one message (`scripts/failures.sh`).
        let failures = failures.trim().replace('\n', "\n    ");
        // timeout(1) ends with 124 when the program did not.
        assert!(
            output.status.success(),
            "{program} ended with {}:\n    {failures}\n    {}",
            output.status,
            text(&output.stderr)
        );
        assert!(
            passed.is_some_and(|passed| passed >= at_least),
            "{passed:?} of {at_least}"
        );
        eprintln!("{program}: {} tests passed under Wine", passed.unwrap_or_default());
    }

    /// Ends with this code, one error that has `part`, and one hint.
    fn assert_refused(&self, args: &[&str], code: i32, part: &str) {
        let output = self.run(args);
        let printed = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {printed}");
        let error = printed.find("error: ").map_or("", |at| &printed[at..]);
        assert!(error.contains(part), "{args:?}: {printed}");
        assert_eq!(error.matches("hint: ").count(), 1, "{args:?}: {printed}");
        assert!(!printed.contains("panicked"), "{args:?}: {printed}");
    }
}

/// Wine started the program, and those that it runs: every one prints something at once, and says itself what is wrong.
fn was_started(output: &Output) -> bool {
    let printed = text(&output.stderr);
    let itself = !output.stdout.is_empty() || ["error: ", "panicked"].iter().any(|own| printed.contains(own));
    itself && !text(&output.stdout).contains(NOT_STARTED)
}

/// `ERROR_INTERNAL_ERROR`, as Rust prints it: Wine's `CreateProcess` fails with it when the new process ends before its program runs (Wine,
/// dlls/ntdll/unix/process.c, NtCreateUserProcess).
const NOT_STARTED: &str = "code: 1359, kind";

fn seconds(count: i64) -> Timespec {
    Timespec {
        tv_sec: count,
        tv_nsec: 0,
    }
}

fn text(bytes: &[u8]) -> String {
    // A console of Windows ends lines its own way.
    String::from_utf8_lossy(bytes).replace("\r\n", "\n")
}

fn linux(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandglass"));
    command.args(args).env_clear().stdin(Stdio::null()).output().unwrap()
}

/// A Unix path as programs under Wine see it.
fn drive_z(path: &Path) -> String {
    format!("Z:{}", path.display()).replace('/', "\\")
}

#[test]
fn units_of_the_model_hold_on_windows() {
    if let Some(windows) = Windows::get("units_of_the_model_hold_on_windows") {
        windows.assert_tests_pass("sandglass_model lib", 10);
    }
}

#[test]
fn units_of_the_etw_decoder_hold_on_windows() {
    if let Some(windows) = Windows::get("units_of_the_etw_decoder_hold_on_windows") {
        windows.assert_tests_pass("sandglass_etw lib", 40);
    }
}

#[test]
fn units_and_scenes_of_the_correlator_hold_on_windows() {
    if let Some(windows) = Windows::get("units_and_scenes_of_the_correlator_hold_on_windows") {
        windows.assert_tests_pass("sandglass_correlator lib", 15);
        windows.assert_tests_pass("scenes test", 80);
    }
}

#[test]
fn units_of_the_agent_hold_on_windows() {
    if let Some(windows) = Windows::get("units_of_the_agent_hold_on_windows") {
        windows.assert_tests_pass("sandglass lib", 150);
    }
}

#[test]
fn recordings_replay_to_the_same_on_windows() {
    if let Some(windows) = Windows::get("recordings_replay_to_the_same_on_windows") {
        windows.assert_tests_pass("golden test", 1);
    }
}

#[test]
fn it_says_its_version() {
    let Some(windows) = Windows::get("it_says_its_version") else {
        return;
    };
    let output = windows.run(&["--version"]);
    assert_eq!(
        text(&output.stdout).trim(),
        format!("sandglass {}", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_replay_prints_what_it_prints_on_linux() {
    let Some(windows) = Windows::get("a_replay_prints_what_it_prints_on_linux") else {
        return;
    };
    for recording in ["demo-network", "add-timeout-killed"] {
        let events = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("recordings")
            .join(recording)
            .join("events.jsonl");
        for what in ["tree", "spans", "metrics"] {
            let here = linux(&["replay", "--print", what, events.to_str().unwrap()]);
            let there = windows.run(&["replay", "--print", what, &drive_z(&events)]);
            assert!(there.status.success(), "{} {}", there.status, text(&there.stderr));
            let (here, there) = match what {
                // Series come in no particular order, and the agent's own process differs.
                "metrics" => (stable(&text(&here.stdout)), stable(&text(&there.stdout))),
                _ => (text(&here.stdout), String::from_utf8(there.stdout).unwrap()),
            };
            assert!(here.len() > 200, "{recording} {what}: {here}");
            assert_eq!(here, there, "{recording} {what}");
        }
    }
}

fn stable(metrics: &str) -> String {
    // Series that stand at 0 are those of the phases that the agent's own system has.
    let own = |line: &&str| !line.contains("sandglass_process_") && !line.contains("sandglass_build");
    let mut lines: Vec<&str> = metrics
        .lines()
        .filter(own)
        .filter(|line| !line.ends_with(" 0") && !line.ends_with(" 0.0"))
        .collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn the_page_is_served() {
    let Some(windows) = Windows::get("the_page_is_served") else {
        return;
    };
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let events = Path::new(env!("CARGO_MANIFEST_DIR")).join("recordings/demo-network/events.jsonl");
    let args = [
        "replay",
        "--print",
        "nothing",
        "--serve",
        "--listen",
        "127.0.0.1:0",
        &drive_z(&events),
    ];
    let mut served = Served::start(windows.command(&args));
    let mut line = served.first_line();
    if line.is_empty() {
        windows.renew(&windows.command(&args), "no line of its own");
        served = Served::start(windows.command(&args));
        line = served.first_line();
    }
    let address = line.split('/').nth(2).unwrap().to_owned();
    for (path, part) in [
        ("/", "<title>"),
        ("/api/v1/sandboxes", "\"trace_id\""),
        ("/api/v1/health", "recording"),
        ("/metrics", "# EOF"),
        ("/readyz", ""),
    ] {
        let answer = get(&address, path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:.300}");
        assert!(answer.contains(part), "{path}: {answer:.300}");
    }
}

/// A program under Wine that is ended with its test.
struct Served(Child);

impl Served {
    fn start(mut program: Command) -> Served {
        Served(program.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Empty when it prints none within two minutes.
    fn first_line(&mut self) -> String {
        let stdout = self.0.stdout.take().unwrap();
        let mut line = String::new();
        if poll(&mut [PollFd::new(&stdout, PollFlags::IN)], Some(&seconds(120))).unwrap() > 0 {
            BufReader::new(stdout).read_line(&mut line).unwrap();
        }
        line
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    text(&answer)
}

#[test]
fn what_cannot_be_done_ends_with_its_code_and_a_hint() {
    let Some(windows) = Windows::get("what_cannot_be_done_ends_with_its_code_and_a_hint") else {
        return;
    };
    windows.assert_refused(&["replay", r"Z:\no\such\file"], 1, "cannot read recording");
    windows.assert_refused(&["print-config", "--set", "http.addres=1"], 64, "http.addres");
    windows.assert_refused(&["nonsense"], 64, "nonsense");
    windows.assert_refused(&["run", "--listen", "127.0.0.1:0"], 77, "sandglass-events");
    windows.assert_refused(&["service"], 69, "service control manager");
    let log = windows.prefix.join("drive_c/ProgramData/sandglass/sandglass.log");
    let log = fs::read_to_string(log).unwrap();
    assert!(
        log.contains("ERROR") && log.contains("service control manager"),
        "{log}"
    );
}

/// Wine reports that the session started; it writes no events.
#[test]
fn an_etl_is_recorded_for_so_long() {
    let Some(windows) = Windows::get("an_etl_is_recorded_for_so_long") else {
        return;
    };
    let output = windows.run(&["record", r"C:\no-etw.etl", "--seconds", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "0 bytes in C:\\no-etw.etl, 0 events lost\n");
}

#[test]
fn doctor_speaks_of_windows() {
    let Some(windows) = Windows::get("doctor_speaks_of_windows") else {
        return;
    };
    let output = windows.run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(77), "{report:#}");
    let findings: Vec<(String, String)> = report["sections"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|section| section["findings"].as_array().unwrap())
        .map(|finding| {
            ["check", "level"]
                .map(|key| finding[key].as_str().unwrap().to_owned())
                .into()
        })
        .collect();
    let has = |check: &str| findings.iter().any(|(name, _)| name == check);
    for check in [
        "windows.rights",
        "windows.sessions",
        "windows.providers",
        "windows.service.hns",
        "windows.service.containerd",
        "windows.log",
    ] {
        assert!(has(check), "{check}: {findings:?}");
    }
    // What stands in the machine below Wine is not looked at.
    assert!(
        !findings.iter().any(|(name, _)| name.starts_with("kernel.")),
        "{findings:?}"
    );
}

/// What is built for Windows: what its program is made of, and the crates with which that is linted (`.ci/run`). Other crates in one
/// command may give what they depend on other features, and so a second build.
const CRATES: [&str; 6] = [
    "sandglass",
    "sandglass-correlator",
    "sandglass-demo",
    "sandglass-etw",
    "sandglass-lab",
    "sandglass-model",
];
const TARGET: &str = "x86_64-pc-windows-gnu";
const LINKER: &str = "x86_64-w64-mingw32-gcc";
const BCRYPT_PRIMITIVES: &str = "#include <windows.h>
__declspec(dllimport) BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T count) { return SystemFunction036(bytes, (ULONG)count); }
BOOL WINAPI DllMain(HINSTANCE a, DWORD b, LPVOID c) { return TRUE; }
";
