//! The page in a real browser: headless Chromium, driven through chromedriver's WebDriver protocol
//! (<https://www.w3.org/TR/webdriver2/>) over plain HTTP.
//!
//! Skipped, by name, where Chromium or its driver is not installed. Screenshots go to `target/screenshots/`.

mod samples;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use sandglass::health::{Health, ProbeStatus};
use sandglass::http::{HttpOptions, Running, Services, serve};
use sandglass::node::NodeInfo;
use sandglass::sinks::store::{Store, StoreOptions, wall_ns};
use sandglass_model::time::SECOND;
use sandglass_model::{SandboxId, Timestamp};
use serde_json::{Value, json};
use tokio::sync::watch;

#[tokio::test(flavor = "multi_thread")]
async fn the_page_shows_sandboxes_live() -> Result<()> {
    let name = "the_page_shows_sandboxes_live";
    for needed in [CHROMIUM, DRIVER] {
        if !Path::new(needed).exists() {
            eprintln!("SKIPPED {name}: {needed} is not installed");
            return Ok(());
        }
    }
    let agent = Agent::start().await?;
    let browser = Browser::start().await?;
    let outcome = visit(&agent, &browser).await;
    if outcome.is_err() {
        browser.screenshot("failure").await?;
    }
    browser.stop().await;
    outcome
}

async fn visit(agent: &Agent, browser: &Browser) -> Result<()> {
    nothing_yet(agent, browser).await?;
    for trace in samples::busy_node(wall_ns()) {
        agent.store.update(trace);
    }
    a_list_that_lives(agent, browser).await?;
    filters(browser).await?;
    a_failure_by_click(browser).await?;
    a_slow_one_by_keyboard(agent, browser).await?;
    hostile_names_stay_text(agent, browser).await?;
    a_running_one_until_it_ends(agent, browser).await?;
    a_network_that_proves_usable(agent, browser).await?;
    a_stall_with_its_cause(agent, browser).await?;
    the_nodes_network(agent, browser).await?;
    journeys(browser).await?;
    other_views(agent, browser).await?;
    a_storm(agent, browser).await?;
    no_complaints(browser).await?;
    a_broken_stream_is_told(agent, browser).await
}

async fn nothing_yet(agent: &Agent, browser: &Browser) -> Result<()> {
    browser.size(1440, 1000).await?;
    browser.open(&agent.url("")).await?;
    browser
        .wait("return document.body.innerText.includes('No sandbox yet')")
        .await?;
    browser
        .wait("return document.querySelector('#live').textContent === 'live'")
        .await?;
    browser.screenshot("empty-light").await
}

async fn a_list_that_lives(agent: &Agent, browser: &Browser) -> Result<()> {
    // Nothing was loaded again by hand: these came through the stream.
    browser
        .wait("return document.querySelectorAll('a.row').length === 25")
        .await?;
    browser.keys("j").await?;
    browser.keys("j").await?;
    let first = samples::usual("shop", "arrives-live-0", 77, wall_ns() - SECOND);
    agent.store.update(first);
    let arrived = Instant::now();
    browser
        .wait("return document.querySelector('a.row .pod').textContent === 'arrives-live-0'")
        .await?;
    ensure!(
        arrived.elapsed() < Duration::from_secs(2),
        "it took {:?} to arrive",
        arrived.elapsed()
    );
    ensure!(
        browser.text(".stuck").await?.contains("iptables"),
        "the stuck operation is not shown"
    );
    browser.both_themes("list").await?;
    browser.size(400, 900).await?;
    browser.both_themes("list-narrow").await?;
    browser.no_sideways_scroll().await?;
    browser.size(1440, 1000).await
}

async fn filters(browser: &Browser) -> Result<()> {
    for (tab, rows) in [("failed", 3), ("running", 1), ("slowest", 25), ("newest", 26)] {
        browser.click(&format!("[data-tab={tab}]")).await?;
        browser
            .wait(&format!("return document.querySelectorAll('a.row').length === {rows}"))
            .await
            .with_context(|| format!("tab {tab}"))?;
    }
    browser.keys("/").await?;
    browser.keys("sleep").await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 1")
        .await?;
    ensure!(
        browser.run("return location.hash").await? == "#/?q=sleep",
        "the filter is not in the address"
    );
    browser.keys(ESCAPE).await?;
    browser.run("document.querySelector('#search').value = ''; document.querySelector('#search').dispatchEvent(new Event('input'))").await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 26")
        .await
}

async fn a_failure_by_click(browser: &Browser) -> Result<()> {
    browser.click("[data-tab=failed]").await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 3")
        .await?;
    browser
        .run("[...document.querySelectorAll('a.row')].find((row) => row.textContent.includes('attempt 2')).click()")
        .await?;
    browser
        .wait("return document.querySelectorAll('[role=treeitem]').length === 5")
        .await?;
    let verdict = browser.text(".verdict-line").await?;
    ensure!(verdict.contains(samples::NO_ADDRESS), "verdict: {verdict}");
    let details = browser.text(".details").await?;
    ensure!(
        details.contains("plugin host-local") && details.contains(samples::NO_ADDRESS),
        "details: {details}"
    );
    ensure!(
        browser.text(".related").await?.contains("previous attempt"),
        "the first attempt is not linked"
    );
    browser.click("[role=treeitem]:nth-child(1)").await?;
    browser.click(".details .link").await?;
    browser
        .wait("return document.querySelector('.related')?.innerText.includes('next attempt')")
        .await?;
    browser.run("history.back()").await?;
    browser
        .wait("return document.querySelector('.related')?.innerText.includes('previous attempt')")
        .await?;
    browser.click("[role=treeitem]:nth-child(5)").await?;
    browser.both_themes("failed").await?;
    browser.size(400, 900).await?;
    browser.both_themes("failed-narrow").await?;
    browser.no_sideways_scroll().await?;
    browser.size(1440, 1000).await?;
    browser.keys(ESCAPE).await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 3")
        .await
}

async fn a_slow_one_by_keyboard(agent: &Agent, browser: &Browser) -> Result<()> {
    browser.open(&agent.url("#/?tab=slowest")).await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 25")
        .await?;
    // First row, second row, back and forth again, open.
    for key in ["j", "j", "k", "j", ENTER] {
        browser.keys(key).await?;
    }
    browser
        .wait("return document.querySelectorAll('[role=treeitem]').length > 5")
        .await?;
    let verdict = browser.text(".verdict-line").await?;
    ensure!(
        verdict.starts_with("Command sleep of plugin slow-firewall took 4.20 s"),
        "verdict: {verdict}"
    );
    ensure!(
        browser.text(".details").await?.contains("sleep 4.2"),
        "the command line is not shown"
    );
    browser.both_themes("waterfall").await?;
    browser.size(400, 900).await?;
    browser.both_themes("waterfall-narrow").await?;
    browser.size(1440, 1000).await?;
    // The chosen span fills the width, and back.
    let covers = "const box = (selector) => document.querySelector(selector).getBoundingClientRect().width; \
        return box('[aria-selected=true] .span-bar') / box('[aria-selected=true] .span-track')";
    browser.click("[role=treeitem]:nth-child(7)").await?;
    ensure!(
        browser.text(".details").await?.starts_with("plugin host-local"),
        "a click does not choose a span"
    );
    let before = browser.run(covers).await?.as_f64();
    browser.keys("z").await?;
    let after = browser.run(covers).await?.as_f64();
    ensure!(before < after && after > Some(0.9), "zoom: {before:?}, then {after:?}");
    browser.screenshot("zoom-light").await?;
    browser.keys("z").await?;
    browser.click("[role=treeitem]:nth-child(13)").await?;
    // Up the tree: what started the command.
    browser.keys("k").await?;
    browser
        .wait("return document.querySelector('.details').innerText.includes('wait-for-policy --node worker-3')")
        .await?;
    let hash = browser.run("return location.hash").await?;
    ensure!(
        hash.as_str().is_some_and(|hash| hash.split('/').count() == 4),
        "no deep link to the span: {hash}"
    );
    browser.keys(ESCAPE).await?;
    browser.wait("return location.hash === '#/?tab=slowest'").await
}

async fn hostile_names_stay_text(agent: &Agent, browser: &Browser) -> Result<()> {
    let trace = samples::hostile(90, wall_ns());
    let id = trace.id;
    agent.store.update(trace);
    browser.open(&agent.url("#/?tab=failed")).await?;
    browser
        .wait("return document.querySelector('a.row .pod')?.textContent.startsWith('<img src=x')")
        .await?;
    browser.open(&agent.url(&format!("#/trace/{id}"))).await?;
    browser
        .wait("return document.querySelectorAll('[role=treeitem]').length === 5")
        .await?;
    ensure!(
        browser.text(".details").await?.contains("<script>"),
        "the text is not shown as it is"
    );
    ensure!(
        browser.text(".details").await?.contains("\\x202e"),
        "a direction override is not made visible"
    );
    for hostile in ["main img[src=x]", "main script"] {
        let found = browser
            .run(&format!("return document.querySelectorAll('{hostile}').length"))
            .await?;
        ensure!(found == 0, "{hostile} was made from a name");
    }
    ensure!(
        browser.run("return document.title").await? != "owned",
        "a script in a name ran"
    );
    browser.screenshot("hostile").await
}

async fn a_running_one_until_it_ends(agent: &Agent, browser: &Browser) -> Result<()> {
    let trace = samples::stuck("edge", "runs-0", 99, wall_ns() - 3 * SECOND);
    agent.store.update(trace.clone());
    browser.open(&agent.url(&format!("#/trace/{}", trace.id))).await?;
    browser
        .wait(
            "return document.querySelector('.verdict-line')?.innerText.startsWith('Command iptables has been running')",
        )
        .await?;
    browser.both_themes("running").await?;
    agent.store.update(samples::unstuck(trace, 5));
    browser
        .wait("return document.querySelector('.chip.result').textContent === 'succeeded'")
        .await?;
    browser
        .wait("return !document.querySelector('.span[data-status=running]')")
        .await
}

async fn a_network_that_proves_usable(agent: &Agent, browser: &Browser) -> Result<()> {
    let start = wall_ns() - 2 * SECOND;
    let waiting = samples::waiting("shop", "waits-0", 120, start);
    let id = waiting.id;
    agent.store.update(waiting);
    browser.open(&agent.url("#/?q=waits-0")).await?;
    browser
        .wait("return document.querySelector('a.row .chip.waiting')?.textContent === 'not on the network yet'")
        .await?;
    // It is created: its time stands still, and it is not among those that run.
    let time = browser.text("a.row .time").await?;
    ensure!(time.ends_with(" ms"), "a waiting sandbox is timed: {time}");
    browser.screenshot("waiting-light").await?;
    browser.open(&agent.url(&format!("#/trace/{id}"))).await?;
    browser
        .wait("return document.querySelectorAll('.flag').length === 1")
        .await?;
    agent
        .store
        .update(samples::network_ready("shop", "waits-0", 120, start));
    browser
        .wait("return document.querySelectorAll('.flag').length === 2 && !document.querySelector('.chip.waiting')")
        .await?;
    let facts = browser.text(".facts").await?;
    ensure!(
        facts.contains("usable 34.0 ms after its first packet"),
        "facts: {facts}"
    );
    let tree = browser.text("[role=tree]").await?;
    ensure!(
        tree.contains(samples::NAME) && tree.contains("10.96.41.7:5432"),
        "lookup and connection are not named: {tree}"
    );
    let events = browser
        .run("return document.querySelectorAll('.span-event[data-event=answer]').length")
        .await?;
    ensure!(events == 6, "{events} answers are marked");
    browser.both_themes("ready").await?;
    browser.size(400, 900).await?;
    browser.both_themes("ready-narrow").await?;
    browser.no_sideways_scroll().await?;
    browser.size(1440, 1000).await
}

async fn a_stall_with_its_cause(agent: &Agent, browser: &Browser) -> Result<()> {
    let trace = samples::stalled("shop", "stalls-0", 121, wall_ns() - 9 * SECOND);
    let id = trace.id;
    agent.store.update(trace.clone());
    agent
        .store
        .update(samples::stalled_journey(&trace, wall_ns() - 3 * SECOND));
    agent.store.update(samples::refused_journey(wall_ns() - 4 * SECOND));
    let offline = samples::never_connected("shop", "offline-0", 122, wall_ns() - 19 * SECOND);
    let never = offline.id;
    agent.store.update(offline);
    browser.open(&agent.url(&format!("#/trace/{id}"))).await?;
    browser
        .wait("return document.querySelector('.cause')?.innerText.includes('insert_failed rose by 1')")
        .await?;
    let verdict = browser.text(".verdict-line").await?;
    ensure!(
        verdict
            == "Lookup of db.shop.svc.cluster.local took 5.01 s: conntrack dropped one of two parallel queries (likely)",
        "verdict: {verdict}"
    );
    let dropped = "return document.querySelector('.span-event[data-event=packet-dropped]').title";
    let title = browser.run(dropped).await?;
    ensure!(
        title.as_str().is_some_and(|title| title.contains("NETFILTER_DROP")),
        "the drop does not say why: {title}"
    );
    ensure!(
        browser.text(".details").await?.starts_with("lookup"),
        "the stalled lookup is not what is shown first"
    );
    browser.both_themes("stalled").await?;
    browser.size(400, 900).await?;
    browser.both_themes("stalled-narrow").await?;
    browser.no_sideways_scroll().await?;
    browser.size(1440, 1000).await?;
    browser.run("document.querySelector('.related a').click()").await?;
    browser
        .wait("return document.querySelector('.related')?.innerText.includes('creation of the sandbox')")
        .await?;
    browser.both_themes("journey").await?;
    // One that tried more often than is shown.
    browser.open(&agent.url(&format!("#/trace/{never}"))).await?;
    browser
        .wait("return document.querySelector('.facts')?.innerText.includes('36 more attempts are not shown')")
        .await
}

async fn the_nodes_network(agent: &Agent, browser: &Browser) -> Result<()> {
    let now = wall_ns();
    for (at, traffic) in samples::an_hour(now) {
        agent.store.traffic(&traffic, at);
    }
    browser.open(&agent.url("#/")).await?;
    browser.keys("n").await?;
    browser
        .wait("return document.querySelectorAll('.hour .plot path').length > 20")
        .await?;
    let page = browser.text("main").await?;
    for part in [
        "kafka-0.kafka.data.svc.cluster.local",
        "NETFILTER_DROP",
        "Conntrack race",
        "10.96.0.80:8080",
    ] {
        ensure!(page.contains(part), "{part} is not shown:\n{page}");
    }
    // By keyboard to the newest slot and one back; the reader of the screen hears its numbers.
    browser.run("document.querySelector('.chart-area').focus()").await?;
    browser.keys("\u{e010}\u{e012}").await?;
    let heard = browser
        .run("return document.querySelector('.chart-area').getAttribute('aria-valuetext')")
        .await?;
    ensure!(
        heard
            .as_str()
            .is_some_and(|heard| heard.contains(" to ") && heard.contains("answered ")),
        "the chosen slot is not told: {heard}"
    );
    browser.keys(ESCAPE).await?;
    // Ten minutes of the hour: as many slots, and so other sums.
    let shown = "return document.querySelector('.hour .plot').getAttribute('viewBox')";
    ensure!(
        browser.run(shown).await? == "0 0 360 100",
        "the hour is not shown whole"
    );
    browser.click("[data-slots='60']").await?;
    browser.wait(&format!("{} === '0 0 60 100'", shown)).await?;
    browser.click("[data-slots='360']").await?;
    // New findings come by themselves.
    let drops = "return document.querySelector('[aria-label=Drops]').innerText";
    let dropped = sandglass_correlator::Traffic::Dropped {
        scope: sandglass_correlator::traffic::Scope::Node,
        packet: sandglass_model::network::DroppedPacket::TcpSyn,
        reason: "TCP_OVERWINDOW".into(),
    };
    agent.store.traffic(&dropped, wall_ns());
    browser.wait(&format!("{drops}.includes('TCP_OVERWINDOW')")).await?;
    browser.both_themes("network").await?;
    browser.size(1440, 2000).await?;
    browser.both_themes("network-whole").await?;
    browser.size(400, 900).await?;
    browser.both_themes("network-narrow").await?;
    browser.no_sideways_scroll().await?;
    browser.size(400, 3600).await?;
    browser.screenshot("network-narrow-whole").await?;
    browser.size(1440, 1000).await
}

async fn journeys(browser: &Browser) -> Result<()> {
    browser.click(".causes a").await?;
    browser
        .wait("return location.hash === '#/journeys?cause=conntrack_race' && document.querySelectorAll('a.row').length === 1")
        .await?;
    browser.screenshot("journeys-light").await?;
    browser
        .run("const cause = document.querySelector('select[aria-label=Cause]'); cause.value = ''; cause.dispatchEvent(new Event('change'))")
        .await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 2")
        .await?;
    ensure!(
        browser.text("main").await?.contains("10.96.0.80:8080"),
        "the node's own journey is not listed"
    );
    Ok(())
}

/// More changes at once than a stream holds: the page is told to load again, and does.
async fn a_storm(agent: &Agent, browser: &Browser) -> Result<()> {
    browser.open(&agent.url("#/")).await?;
    browser
        .wait("return document.querySelectorAll('a.row').length > 20")
        .await?;
    for number in 1_000..3_000 {
        agent
            .store
            .update(samples::usual("storm", &format!("storm-{number}"), number, wall_ns()));
    }
    browser
        .wait("return document.querySelector('a.row .pod').textContent === 'storm-2999'")
        .await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 100")
        .await?;
    browser.click(".foot .button").await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 200")
        .await
}

async fn a_broken_stream_is_told(agent: &Agent, browser: &Browser) -> Result<()> {
    browser.open(&agent.url("#/")).await?;
    browser
        .wait("return document.querySelector('#live').textContent === 'live'")
        .await?;
    agent.stop.send(true)?;
    browser.wait("return !document.querySelector('#broken').hidden").await?;
    browser.screenshot("broken-light").await
}

async fn other_views(agent: &Agent, browser: &Browser) -> Result<()> {
    browser.open(&agent.url("#/operations")).await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 1")
        .await?;
    ensure!(
        browser.text("a.row").await?.contains("attempt 3"),
        "the DEL's attempt is not shown"
    );
    browser.screenshot("operations-light").await?;
    browser.open(&agent.url("#/agent")).await?;
    browser
        .wait("return document.body.innerText.includes('tp_btf')")
        .await?;
    browser.both_themes("agent").await?;
    browser.keys("?").await?;
    browser.wait("return document.querySelector('dialog').open").await?;
    browser.screenshot("keys-light").await?;
    browser.keys(ESCAPE).await?;
    browser
        .open(&agent.url("#/trace/00000000000000000000000000000001"))
        .await?;
    browser
        .wait("return document.body.innerText.includes('this trace is not kept here')")
        .await
}

/// Errors that the page or its content policy reported; the unknown trace's 404 is asked for above.
async fn no_complaints(browser: &Browser) -> Result<()> {
    let log = browser
        .call(Method::POST, "/se/log", json!({ "type": "browser" }))
        .await?;
    let complaints: Vec<&Value> = log
        .as_array()
        .into_iter()
        .flatten()
        .filter(|entry| {
            !entry["message"]
                .as_str()
                .unwrap_or_default()
                .contains("/traces/00000000")
        })
        .collect();
    ensure!(complaints.is_empty(), "the browser complains: {complaints:#?}");
    Ok(())
}

// === the agent's side ===

struct Agent {
    store: Store,
    server: Running,
    stop: watch::Sender<bool>,
}

impl Agent {
    async fn start() -> Result<Agent> {
        let node = NodeInfo {
            name: "worker-3".into(),
            service: "sandglass".into(),
            version: "0.1.0".into(),
            boot_id: "6f1c2d3e-aaaa-4bbb-8ccc-0123456789ab".into(),
            os: "Linux".into(),
            kernel: "6.12.43".into(),
            machine: "x86_64".into(),
        };
        let store = Store::new(StoreOptions::default(), node);
        store.known(
            SandboxId("5e1f".repeat(16)),
            samples::usual("kube-system", "coredns-abc", 9, 1).identity,
            Timestamp(7),
        );
        let health = Health::default();
        for (probe, hook, consequence, hint) in [
            ("exec", "tp_btf", "", ""),
            ("stdio", "fentry", "", ""),
            (
                "lock",
                "none",
                "no lock waits",
                "needs kernel 5.19 or newer for contention_begin",
            ),
        ] {
            health.set_probe(ProbeStatus {
                probe: probe.into(),
                hook: hook.into(),
                attached: hook != "none",
                consequence: consequence.into(),
                hint: hint.into(),
            });
        }
        health.events.inc_by(48_211);
        health.orphan.inc_by(3);
        let services = Services {
            store: store.clone(),
            health,
            metrics: Arc::new(|| Ok("# EOF\n".to_owned())),
            alive: Arc::new(|| Ok(())),
            ready: Arc::new(|| Ok(())),
            otlp: Arc::new(
                || json!({ "endpoint": "127.0.0.1:4318", "delivered_spans": 18_233, "rejected_spans": 0, "queued": 0 }),
            ),
        };
        let options = HttpOptions {
            listen: ([127, 0, 0, 1], 0).into(),
            health_interval: Duration::from_millis(500),
            ..HttpOptions::default()
        };
        let (stop, stopped) = watch::channel(false);
        let server = serve(options, services, stopped).await?;
        Ok(Agent { store, server, stop })
    }

    fn url(&self, rest: &str) -> String {
        format!("http://{}/{rest}", self.server.address)
    }
}

// === the browser's side ===

struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    async fn start() -> Result<Browser> {
        let mut driver = Command::new(DRIVER)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("start chromedriver")?;
        let mut lines = BufReader::new(driver.stdout.take().context("chromedriver's output")?).lines();
        let port = loop {
            let line = lines.next().context("chromedriver ended")??;
            if let Some((_, port)) = line.split_once("started successfully on port ") {
                break port.trim_end_matches('.').parse()?;
            }
        };
        // Its further output is not wanted, but the pipe must not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir()?;
        let mut browser = Browser {
            driver,
            port,
            session: String::new(),
            _profile: profile,
        };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--force-color-profile=srgb",
            &format!("--user-data-dir={}", browser._profile.path().display()),
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "WARNING" },
            "goog:chromeOptions": { "binary": CHROMIUM, "args": arguments },
        } } });
        let session = browser.ask(Method::POST, "/session", capabilities).await?;
        browser.session = session["sessionId"].as_str().context("no session")?.to_owned();
        Ok(browser)
    }

    async fn stop(self) {
        let _ = self.call(Method::DELETE, "", Value::Null).await;
    }

    async fn open(&self, url: &str) -> Result<()> {
        self.call(Method::POST, "/url", json!({ "url": url })).await.map(drop)
    }

    async fn run(&self, script: &str) -> Result<Value> {
        self.call(Method::POST, "/execute/sync", json!({ "script": script, "args": [] }))
            .await
    }

    /// Until the script says true.
    async fn wait(&self, script: &str) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if self.run(script).await? == true {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        let seen = self.text("body").await?;
        bail!("never true: {script}\nthe page says:\n{seen}")
    }

    async fn text(&self, selector: &str) -> Result<String> {
        let text = self
            .run(&format!("return document.querySelector('{selector}')?.innerText ?? ''"))
            .await?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    async fn click(&self, selector: &str) -> Result<()> {
        let found = self
            .call(
                Method::POST,
                "/element",
                json!({ "using": "css selector", "value": selector }),
            )
            .await?;
        let element = found
            .as_object()
            .and_then(|object| object.values().next()?.as_str())
            .context("no such element")?;
        self.call(Method::POST, &format!("/element/{element}/click"), json!({}))
            .await
            .map(drop)
    }

    /// Types where the focus is.
    async fn keys(&self, text: &str) -> Result<()> {
        let actions: Vec<Value> = text
            .chars()
            .flat_map(|key| {
                [
                    json!({ "type": "keyDown", "value": key }),
                    json!({ "type": "keyUp", "value": key }),
                ]
            })
            .collect();
        let body = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] });
        self.call(Method::POST, "/actions", body).await.map(drop)
    }

    async fn size(&self, width: u32, height: u32) -> Result<()> {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false }),
        )
        .await
    }

    async fn both_themes(&self, name: &str) -> Result<()> {
        for theme in ["light", "dark"] {
            let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": theme }] });
            self.devtools("Emulation.setEmulatedMedia", features).await?;
            self.screenshot(&format!("{name}-{theme}")).await?;
        }
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": "light" }] });
        self.devtools("Emulation.setEmulatedMedia", features).await
    }

    async fn no_sideways_scroll(&self) -> Result<()> {
        let room = self
            .run("return document.documentElement.scrollWidth - innerWidth")
            .await?;
        ensure!(
            room.as_i64().is_some_and(|pixels| pixels <= 0),
            "the page is {room} pixels too wide"
        );
        Ok(())
    }

    async fn screenshot(&self, name: &str) -> Result<()> {
        // Two frames, so that what was just drawn is on it; and the glow of a new row has gone.
        tokio::time::sleep(Duration::from_millis(250)).await;
        let image = self.call(Method::GET, "/screenshot", Value::Null).await?;
        let folder = screenshots();
        std::fs::create_dir_all(&folder)?;
        let bytes = decode_base64(image.as_str().context("no image")?)?;
        std::fs::write(folder.join(format!("{name}.png")), bytes)?;
        Ok(())
    }

    async fn devtools(&self, command: &str, parameters: Value) -> Result<()> {
        self.call(
            Method::POST,
            "/goog/cdp/execute",
            json!({ "cmd": command, "params": parameters }),
        )
        .await
        .map(drop)
    }

    async fn call(&self, method: Method, path: &str, body: Value) -> Result<Value> {
        self.ask(method, &format!("/session/{}{path}", self.session), body)
            .await
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> Result<Value> {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port)).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", format!("127.0.0.1:{}", self.port))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let answer = sender.send_request(request).await?;
        let bytes = answer.into_body().collect().await?.to_bytes();
        let answer: Value = serde_json::from_slice(&bytes)?;
        if let Some(error) = answer["value"]["error"].as_str() {
            bail!("{path}: {error}: {}", answer["value"]["message"]);
        }
        Ok(answer["value"].clone())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn screenshots() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/screenshots")
}

fn decode_base64(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut bits) = (0u32, 0);
    for digit in text.bytes().filter(|&digit| digit != b'=') {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => bail!("not base64: {digit:#x}"),
        };
        held = held << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(held >> bits & 0xff)?);
        }
    }
    Ok(bytes)
}

const CHROMIUM: &str = "/usr/bin/chromium";
const DRIVER: &str = "/usr/bin/chromedriver";
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
