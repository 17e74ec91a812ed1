//! The page in a real browser: headless Chromium, driven through chromedriver's WebDriver protocol
//! (<https://www.w3.org/TR/webdriver2/>) over plain HTTP.
//!
//! Skipped, by name, where Chromium or its driver is not installed. Screenshots go to `screenshots/` of the target directory.
//! It is one visit, in order: what a part shows the next one stands on. Each view has a file of its own.

mod agent;
mod browser;
mod list;
mod network;
#[path = "../samples/mod.rs"]
mod samples;
mod trace;

use std::path::Path;

use agent::Agent;
use anyhow::{Result, ensure};
use browser::{Browser, CHROMIUM, DRIVER, ESCAPE};
use hyper::Method;
use sandglass::wall_clock::wall_ns;
use serde_json::{Value, json};

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
    list::nothing_yet(agent, browser).await?;
    for trace in samples::busy_node(wall_ns()) {
        agent.store.update(trace);
    }
    list::a_list_that_lives(agent, browser).await?;
    list::filters(browser).await?;
    trace::a_failure_by_click(browser).await?;
    trace::a_slow_one_by_keyboard(agent, browser).await?;
    trace::hostile_names_stay_text(agent, browser).await?;
    trace::a_running_one_until_it_ends(agent, browser).await?;
    trace::a_network_that_proves_usable(agent, browser).await?;
    trace::a_stall_with_its_cause(agent, browser).await?;
    network::the_nodes_network(agent, browser).await?;
    network::journeys(browser).await?;
    other_views(agent, browser).await?;
    trace::operations_that_share_a_trace_id(agent, browser).await?;
    trace::what_a_slow_plugin_waited_for(agent, browser).await?;
    list::a_storm(agent, browser).await?;
    no_complaints(browser).await?;
    a_broken_stream_is_shown(agent, browser).await
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

async fn a_broken_stream_is_shown(agent: &Agent, browser: &Browser) -> Result<()> {
    browser.open(&agent.url("#/")).await?;
    browser
        .wait("return document.querySelector('#live').textContent === 'live'")
        .await?;
    agent.stop.send(true)?;
    browser.wait("return !document.querySelector('#broken').hidden").await?;
    browser.screenshot("broken-light").await
}

/// Errors that the page or its content policy reported; the unknown trace's 404 is requested above.
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
