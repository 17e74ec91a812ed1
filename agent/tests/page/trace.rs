//! One trace: its spans, its verdict, its links to others, by mouse and by keyboard, while it runs and after.

use anyhow::{Context as _, Result, ensure};
use sandglass::wall_clock::wall_ns;
use sandglass_model::time::SECOND;
use sandglass_model::waits::{TimeReason, TimeSpent, WaitDetail, WaitGroup};
use sandglass_model::{Detail, SpanId};

use crate::agent::Agent;
use crate::browser::{Browser, ENTER, ESCAPE};
use crate::samples;

pub async fn a_failure_by_click(browser: &Browser) -> Result<()> {
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

pub async fn a_slow_one_by_keyboard(agent: &Agent, browser: &Browser) -> Result<()> {
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
        hash.as_str().is_some_and(|hash| hash.split('/').count() == 5),
        "no deep link to the span: {hash}"
    );
    browser.keys(ESCAPE).await?;
    browser.wait("return location.hash === '#/?tab=slowest'").await
}

pub async fn hostile_names_stay_text(agent: &Agent, browser: &Browser) -> Result<()> {
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

/// A slow pod with the critical path of its operation, and a wait below the command that waited.
pub async fn what_a_slow_plugin_waited_for(agent: &Agent, browser: &Browser) -> Result<()> {
    let mut trace = samples::slow("edge", "waits-0", 123, wall_ns() - 30 * SECOND);
    let command = trace.spans.iter().rposition(|span| span.detail.as_command().is_some());
    let command = command.context("no command")?;
    let parents = |from: usize| std::iter::successors(Some(from), |&span| trace.spans[span].parent);
    let operation = parents(command).find(|&span| trace.spans[span].detail.as_operation().is_some());
    let operation = operation.context("no operation")?;
    let waited = trace.spans[command].duration_ns(trace.spans[command].start);
    let whole = trace.spans[operation].duration_ns(trace.spans[operation].start);
    let lock = WaitDetail {
        reason: TimeReason::FileLock,
        what: "/run/xtables.lock".to_owned(),
        by: "kube-proxy".into(),
        confidence: None,
    };
    let time = TimeSpent {
        parts: vec![(TimeReason::Processor, whole - waited), (TimeReason::FileLock, waited)],
        waits: vec![WaitGroup {
            reason: lock.reason,
            ns: waited,
            count: 1,
            what: lock.what.clone(),
            who: "iptables".into(),
            by: lock.by.clone(),
            confidence: None,
        }],
        recorded_after_ns: 0,
    };
    trace.spans[operation]
        .detail
        .as_operation_mut()
        .context("no operation")?
        .time = Some(Box::new(time));
    let mut wait = trace.spans[command].clone();
    wait.id = SpanId(wait.id.0 ^ 1);
    wait.parent = Some(command);
    wait.detail = Detail::Wait(Box::new(lock));
    trace.spans.push(wait);
    let id = trace.id;
    agent.store.update(trace);
    browser.open(&agent.url(&format!("#/trace/{id}"))).await?;
    browser
        .wait("return document.querySelectorAll('.answer .path [data-reason=file_lock]').length === 2")
        .await?;
    let path = browser.text(".answer .path").await?;
    for wanted in [
        "cni ADD",
        "File lock",
        "held by kube-proxy",
        "What to look at next: locks",
    ] {
        ensure!(path.contains(wanted), "the critical path lacks {wanted}: {path}");
    }
    let widths = "return [...document.querySelectorAll('.answer .path .phase-bar span')]\
        .map((part) => part.getBoundingClientRect().width).join(' ')";
    let widths = browser.run(widths).await?;
    let widths: Vec<f64> = widths
        .as_str()
        .unwrap_or_default()
        .split(' ')
        .map(|width| width.parse().unwrap_or_default())
        .collect();
    ensure!(
        matches!(widths[..], [processor, lock] if processor > 0.0 && lock > processor),
        "the strip's parts: {widths:?}"
    );
    let bar = browser
        .run("return document.querySelector('.span-bar[data-reason=file_lock]').closest('[role=treeitem]').innerText")
        .await?;
    ensure!(
        bar.as_str().is_some_and(|text| text.contains("/run/xtables.lock")),
        "the wait has no bar of its own: {bar}"
    );
    browser.both_themes("waits").await
}

pub async fn a_running_one_until_it_ends(agent: &Agent, browser: &Browser) -> Result<()> {
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

pub async fn operations_that_share_a_trace_id(agent: &Agent, browser: &Browser) -> Result<()> {
    let sandbox = samples::usual("shop", "goes-hard-0", 130, wall_ns() - 60 * SECOND);
    let [failed, second] = samples::dels_of_one_trace(&sandbox, wall_ns() - 9 * SECOND);
    let result = |word: &str| format!("return document.querySelector('.chip.result')?.textContent === '{word}'");
    let rows = "return [...document.querySelectorAll('a.row')].map((row) => row.dataset.result).join()";
    agent.store.update(failed.clone());
    browser.open(&agent.url("#/operations?q=goes-hard")).await?;
    browser.wait(&format!("{rows} === 'failed'")).await?;
    agent.store.update(second.clone());
    browser.wait(&format!("{rows} === 'ok,failed'")).await?;
    browser.screenshot("one-trace-id-list").await?;
    browser
        .run("document.querySelector('a.row[data-result=failed]').click()")
        .await?;
    browser.wait(&result("failed")).await?;
    ensure!(
        browser.text(".related").await?.contains("next attempt"),
        "the second DEL is not linked"
    );
    // What comes later with this id does not take its place.
    agent.store.update(second.clone());
    browser.run("document.querySelector('.related a').click()").await?;
    browser.wait(&result("succeeded")).await?;
    ensure!(
        browser.text(".related").await?.contains("previous attempt"),
        "the first DEL is not linked"
    );
    browser.screenshot("one-trace-id").await?;
    // Addresses as they were: of a span, and of the id alone.
    let ipam = failed.spans[3].id;
    browser
        .open(&agent.url(&format!("#/trace/{}/{ipam}", failed.id)))
        .await?;
    browser.wait(&result("failed")).await?;
    let chosen = browser
        .run("return document.querySelector('[aria-selected=true]').dataset.span")
        .await?;
    ensure!(chosen == ipam.to_string(), "{chosen} is chosen, not {ipam}");
    browser.open(&agent.url(&format!("#/trace/{}", failed.id))).await?;
    browser.wait(&result("succeeded")).await
}

pub async fn a_network_that_proves_usable(agent: &Agent, browser: &Browser) -> Result<()> {
    let start = wall_ns() - 2 * SECOND;
    let waiting = samples::waiting("shop", "waits-0", 120, start);
    let id = waiting.id;
    agent.store.update(waiting);
    browser.open(&agent.url("#/?q=waits-0")).await?;
    browser
        .wait("return document.querySelector('a.row .chip.waiting')?.textContent === 'no traffic yet'")
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

pub async fn a_stall_with_its_cause(agent: &Agent, browser: &Browser) -> Result<()> {
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
