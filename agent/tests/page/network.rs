//! The node's network: an hour of its traffic, and the journeys that were worth a trace.

use anyhow::{Result, ensure};
use sandglass::wall_clock::wall_ns;

use crate::agent::Agent;
use crate::browser::{Browser, ESCAPE};
use crate::samples;

pub async fn the_nodes_network(agent: &Agent, browser: &Browser) -> Result<()> {
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
        "the chosen slot is not announced: {heard}"
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
    let dropped = sandglass_correlator::Finding::Dropped {
        scope: sandglass_correlator::finding::Scope::Node,
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

pub async fn journeys(browser: &Browser) -> Result<()> {
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
