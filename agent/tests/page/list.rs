//! The list of sandboxes: empty, alive, filtered, and under a storm of changes.

use anyhow::{Context, Result, ensure};
use sandglass::wall_clock::wall_ns;
use sandglass_model::time::SECOND;

use crate::agent::Agent;
use crate::browser::{Browser, ESCAPE};
use crate::samples;

pub async fn nothing_yet(agent: &Agent, browser: &Browser) -> Result<()> {
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

pub async fn a_list_that_lives(agent: &Agent, browser: &Browser) -> Result<()> {
    // Nothing was loaded again by hand: these came through the stream.
    browser
        .wait("return document.querySelectorAll('a.row').length === 25")
        .await?;
    browser.keys("j").await?;
    browser.keys("j").await?;
    let first = samples::usual("shop", "arrives-live-0", 77, wall_ns() - SECOND);
    agent.store.update(first);
    browser
        .wait("return document.querySelector('a.row .pod').textContent === 'arrives-live-0'")
        .await?;
    ensure!(
        browser.text(".stuck").await?.contains("iptables"),
        "the stuck operation is not shown"
    );
    let stuck = browser.text(".stuck").await?;
    ensure!(
        stuck.contains("iptables waits for a lock on a file (/run/xtables.lock, held by kube-proxy)")
            && stuck.contains(", for "),
        "what it waits for is not shown: {stuck}"
    );
    let scale = browser.text(".scale").await?;
    ensure!(scale.split_whitespace().count() == 6, "the bars' scale: {scale}");
    browser.both_themes("list").await?;
    browser.size(400, 900).await?;
    browser.both_themes("list-narrow").await?;
    browser.no_sideways_scroll().await?;
    browser.size(1440, 1000).await
}

pub async fn filters(browser: &Browser) -> Result<()> {
    for (tab, rows) in [("failed", 3), ("running", 1), ("slowest", 25), ("newest", 26)] {
        browser.click(&format!("[data-tab={tab}]")).await?;
        browser
            .wait(&format!("return document.querySelectorAll('a.row').length === {rows}"))
            .await
            .with_context(|| format!("tab {tab}"))?;
    }
    // One waits for a lock now; nothing else has waits.
    browser
        .run("const wait = document.querySelector('[aria-label=\"Waited for\"]'); wait.value = 'file_lock'; wait.dispatchEvent(new Event('change'))")
        .await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 1")
        .await?;
    ensure!(
        browser.run("return location.hash").await? == "#/?reason=file_lock",
        "the reason is not in the address"
    );
    browser
        .run("const wait = document.querySelector('[aria-label=\"Waited for\"]'); wait.value = ''; wait.dispatchEvent(new Event('change'))")
        .await?;
    browser
        .wait("return document.querySelectorAll('a.row').length === 26")
        .await?;
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

/// More changes at once than a stream holds: the page receives the request to load again, and does.
pub async fn a_storm(agent: &Agent, browser: &Browser) -> Result<()> {
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
