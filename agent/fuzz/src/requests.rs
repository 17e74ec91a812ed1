//! What the fuzz target of the HTTP server runs: the input is what a peer sends over a connection of loopback.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass::health::Health;
use sandglass::http::{HttpOptions, Services, serve};
use sandglass::node::NodeInfo;
use sandglass::sinks::store::StoreOptions;
use sandglass::view::Store;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

struct Rig {
    runtime: Runtime,
    address: SocketAddr,
    _stop: watch::Sender<bool>,
}

impl Rig {
    fn start() -> Rig {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        {
            let _entered = runtime.enter();
            // Rust's own `main` ignores SIGPIPE, and libFuzzer's does not: a vectored write to a connection that its peer has reset
            // ended the target without a word. The handler stays.
            signal(SignalKind::pipe()).expect("a handler");
        }
        let mut options = HttpOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)), Duration::from_secs(30));
        options.head_timeout = Duration::from_millis(200);
        let services = Services {
            journal: None,
            store: Store::new(StoreOptions::live(1_000), NodeInfo::default()),
            health: Health::default(),
            metrics: Arc::new(|| Ok("# EOF\n".to_owned())),
            alive: Arc::new(|| Ok(())),
            ready: Arc::new(|| Ok(())),
            otlp: Arc::new(|| serde_json::Value::Null),
        };
        let (stop, stopped) = watch::channel(false);
        let server = runtime.block_on(serve(options, services, stopped)).expect("loopback");
        Rig {
            address: server.address,
            runtime,
            _stop: stop,
        }
    }
}

static RIG: Mutex<Option<Rig>> = Mutex::new(None);

/// Sends the bytes, and reads what comes back: nothing, or an answer of HTTP/1.0 or 1.1.
pub fn run(data: &[u8]) {
    let mut rig = RIG.lock().expect("one thread");
    let rig = rig.get_or_insert_with(Rig::start);
    rig.runtime.block_on(async {
        let mut stream = TcpStream::connect(rig.address).await.expect("the server listens");
        // No TIME_WAIT for each of a million inputs.
        let _ = stream.set_zero_linger();
        let _ = stream.write_all(data).await;
        let _ = stream.shutdown().await;
        let mut answer = vec![0; 16 << 10];
        let read = tokio::time::timeout(Duration::from_millis(5), stream.read(&mut answer)).await;
        let read = read.ok().and_then(Result::ok).unwrap_or(0);
        let answer = &answer[..read];
        // The version is that of the request.
        let is_answer = ["HTTP/1.0 ", "HTTP/1.1 "]
            .iter()
            .any(|version| answer.starts_with(&version.as_bytes()[..answer.len().min(version.len())]));
        let failed = answer.get(9..12) == Some(b"500");
        assert!(is_answer && !failed, "{}", String::from_utf8_lossy(answer));
    });
}
