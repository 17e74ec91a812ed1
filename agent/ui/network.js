// The network view: the last hour of lookups, connects, conntrack and drops, with slow names, causes and journeys.
// Fed by /api/v1/network. Does not: aggregate anything but the sums in its headline figures.

import { get, throttle, traceKey } from "./api.js";
import { causeMeaning, causeName } from "./causes.js";
import { makeChart } from "./chart.js";
import { fill, fillOn, h } from "./dom.js";
import { absolute, ago, count, duration, percent, unixMs } from "./format.js";
import { podName } from "./list.js";

const RCODES = [
  ["noerror", "answered", "good"], ["nxdomain", "no such name", "calm"], ["servfail", "servfail", "bad"],
  ["refused", "refused", "odd"], ["formerr", "formerr", "odd"], ["notimp", "notimp", "odd"], ["other", "other code", "odd"],
  ["timeout", "no answer", "worst"], ["unknown", "not seen", "calm"], ["open", "still open", "calm"],
];
const RESULTS = [
  ["established", "established", "good"], ["refused", "refused", "bad"], ["reset", "reset", "odd"], ["unreachable", "unreachable", "odd"],
  ["timeout", "no answer", "worst"], ["abandoned", "abandoned by the program", "calm"], ["other", "other", "odd"],
];
const RANGES = [[60, "10 min", "10 min"], [180, "30 min", "30 min"], [360, "1 hour", "hour"]];
const total = (values) => values.reduce((all, one) => all + one, 0);
const most = (values) => (values.length ? Math.max(...values) : null);
const last = (values) => (values.length ? values[values.length - 1] : null);
const named = (list) => list.map(([key, label, tone]) => ({ key, label, tone }));

export function networkView(root, params, shared) {
  const top = h("div.figures");
  const charts = {
    lookups: makeChart({ title: "Lookups", series: named(RCODES), format: count, sum: total }),
    times: makeChart({ title: "Duration of lookups", whole: "worst of the last", lines: true, log: [1e5, 1e10], format: (ns) => duration(ns),
      series: [{ key: "p95", label: "95th percentile", tone: "bad" }, { key: "p50", label: "median", tone: "good" }], sum: most }),
    connects: makeChart({ title: "Connections", series: named(RESULTS), format: count, sum: total }),
    trouble: makeChart({ title: "Retries and drops", format: count, sum: total,
      series: named([["retransmissions", "retransmitted queries", "calm"], ["unanswered", "unanswered queries", "bad"], ["drops", "packets dropped by this kernel", "worst"]]) }),
    table: makeChart({ title: "Conntrack entries", whole: "now", lines: true, format: (value) => count(Math.round(value)), sum: last,
      series: [{ key: "entries", label: "entries in the node's table", tone: "good" }] }),
    counters: makeChart({ title: "Conntrack counters", format: count, sum: total,
      series: named([["insert_failed", "insert_failed", "worst"], ["drop", "drop", "bad"], ["early_drop", "early_drop", "odd"], ["clash_resolve", "clash_resolve", "calm"], ["search_restart", "search_restart", "good"]]) }),
  };
  const names = h("section.card", { "aria-label": "Slow names" });
  const drops = h("section.card", { "aria-label": "Drops" });
  const causes = h("section.card", { "aria-label": "Causes" });
  const journeys = h("section.card", { "aria-label": "Journeys" });
  const note = h("div");
  // Slots that the charts show; 0 until the user selects a range: then all slots with data.
  let range = 0;
  let latest = null;
  const ranges = h("div.tabs", { role: "group", "aria-label": "How much is shown" }, RANGES.map(([slots, label]) =>
    h("button", { type: "button", data: { slots }, onclick: () => { range = slots; show(latest); } }, label)));
  const content = h("div.network", { hidden: true }, top,
    h("div.hours", {}, Object.values(charts).map((chart) => chart.element)),
    h("div.cards.wide", {}, h("div.pile", {}, journeys, causes), h("div.pile", {}, names, drops)));
  fill(root, h("div.network-head", {}, h("h1", {}, "Network"), ranges), note, content);
  let gone = false;

  async function load() {
    try {
      const view = await get("/api/v1/network");
      if (gone) return;
      shared.setNow(view.now_unix_ns);
      fill(note, missing(shared.health));
      content.hidden = false;
      show(view);
    } catch (error) {
      if (!gone && content.hidden) fill(note, h("div.empty", {}, h("h2", {}, error.message), h("p", {}, error.hint || "")));
    }
  }
  const reload = throttle(load, 1000);

  function show(view) {
    if (!view) return;
    latest = view;
    const shown = range || fitting(view);
    for (const button of ranges.children) button.setAttribute("aria-pressed", String(Number(button.dataset.slots) === shown));
    const hour = hourOf(view, shown);
    fillOn([view.readiness, view.conntrack, view.journeys_held_back, totals(view)], top, () => figures(view));
    const of = (pick) => ({ ...hour, slots: hour.slots.map((slot) => (slot ? pick(slot) : null)) });
    charts.lookups.show(of((slot) => slot.lookups));
    charts.times.show(of((slot) => ({ p50: slot.lookup_p50_ns, p95: slot.lookup_p95_ns })));
    charts.connects.show(of((slot) => slot.connects));
    charts.trouble.show(of((slot) => slot));
    charts.table.show(carried(of((slot) => ({ entries: slot.conntrack_entries }))));
    charts.counters.show(of((slot) => slot));
    fillOn(view.names, names, () => nameTable(view.names));
    fillOn(view.drops, drops, () => dropTable(view.drops));
    fillOn(view.causes, causes, () => causeTable(view.causes));
    fillOn([view.journeys, view.journeys_held_back], journeys, () => journeyList(view, shared));
  }

  load();
  let ticks = 0;
  return {
    network: reload,
    row: (row) => row.kind === "journey" && reload(),
    reload,
    tick() {
      // The window moves with the clock, also without traffic.
      ticks += 1;
      if (ticks % 40 === 0) reload();
    },
    leave: () => { gone = true; },
    keys: { back: () => { location.hash = shared.lastList; } },
  };
}

/** The shortest range that covers all slots with data. */
function fitting(view) {
  if (!view.slots.length) return RANGES[0][0];
  const age = (BigInt(view.until_unix_ns) - BigInt(view.slots[0].at_unix_ns)) / BigInt(view.slot_ns);
  return (RANGES.find(([slots]) => age <= slots) || RANGES[RANGES.length - 1])[0];
}

/** The newest slots as a dense list, with the labels of its times. */
function hourOf(view, size) {
  const slot = BigInt(view.slot_ns);
  const begin = BigInt(view.until_unix_ns) - slot * BigInt(size);
  const slots = new Array(size).fill(null);
  for (const one of view.slots) {
    const at = Number((BigInt(one.at_unix_ns) - begin) / slot);
    if (at >= 0 && at < size) slots[at] = one;
  }
  const ms = (at) => Number((begin + slot * BigInt(at)) / 1000000n);
  const clock = (at) => absolute(ms(at)).slice(11, 19);
  return { slots, count: size, label: (at) => `${clock(at)} to ${clock(at + 1)}`, from: clock(0), to: clock(size), whole: RANGES.find(([slots]) => slots === size)[2] };
}

/** The table is read only when it changes: a slot without a reading repeats the last one. */
function carried(hour) {
  let before = null;
  const slots = hour.slots.map((slot) => {
    if (slot && slot.entries !== undefined) before = slot;
    return before;
  });
  return { ...hour, slots };
}

function totals(view) {
  const sum = (pick) => total(view.slots.map(pick));
  const lookups = sum((slot) => total(Object.values(slot.lookups)));
  const good = sum((slot) => (slot.lookups.noerror || 0) + (slot.lookups.nxdomain || 0));
  const connects = sum((slot) => total(Object.values(slot.connects)));
  const stood = sum((slot) => (slot.connects.established || 0) + (slot.connects.abandoned || 0));
  return { lookups, bad: lookups - good, connects, broken: connects - stood, drops: sum((slot) => slot.drops), searched: sum((slot) => slot.search_names) };
}

function figures(view) {
  const { lookups, bad, connects, broken, drops, searched } = totals(view);
  const { readiness, conntrack } = view;
  return [
    figure(count(lookups), "lookups", bad ? `${count(bad)} failed (${percent(bad, lookups)})` : lookups ? "none failed" : "", bad > 0),
    figure(count(connects), "connections", broken ? `${count(broken)} failed (${percent(broken, connects)})` : connects ? "none failed" : "", broken > 0),
    figure(readiness.wait_p95_ns ? duration(readiness.wait_p95_ns) : "–", "until the network is usable",
      `95 % of ${count(readiness.ready)} sandboxes${readiness.failed ? `; ${count(readiness.failed)} never usable` : ""}`, readiness.failed > 0),
    conntrack
      ? figure(conntrack.limit ? percent(conntrack.entries, conntrack.limit) : count(conntrack.entries), "conntrack table",
          conntrack.limit ? `${count(conntrack.entries)} of ${count(conntrack.limit)}` : "", conntrack.limit && conntrack.entries > 0.8 * conntrack.limit,
          conntrack.limit ? h("meter", { min: "0", max: String(conntrack.limit), high: String(0.8 * conntrack.limit), optimum: "0", value: String(conntrack.entries), "aria-label": "fill of the conntrack table" }) : null)
      : figure("–", "conntrack table", "not read", false),
    figure(count(drops), "packets dropped", "DNS and SYN, by this kernel", drops > 0),
    figure(count(searched), "search path names", lookups ? `${(searched / lookups).toFixed(1)} for each lookup` : "", false),
  ];
}

function figure(value, name, more, bad, extra) {
  return h("div", { class: bad ? "card figure some" : "card figure" }, h("span.figure-value", {}, value), h("span.figure-name", {}, name), h("span.muted", {}, more), extra);
}

function nameTable(names) {
  if (!names.length) return [h("h2", {}, "Slow names"), h("p.muted", {}, "No lookup was observed.")];
  return [h("h2", {}, "Slow names"), h("div.scroll", {}, h("table", {},
    head(["Name", "Lookups", "Failed", "95th percentile", "Longest"]),
    h("tbody", {}, names.slice(0, 12).map((name) => h("tr", {},
      h("th.name", { scope: "row" }, name.name),
      h("td.number", {}, count(name.count)),
      h("td.number", { class: name.failed ? "number trouble" : "number" }, count(name.failed)),
      h("td.number", {}, duration(name.p95_ns)),
      h("td.number", {}, name.trace_id ? h("a.link", { href: `#/trace/${name.trace_id}` }, duration(name.max_ns)) : duration(name.max_ns)))))))];
}

function dropTable(drops) {
  if (!drops.length) return [h("h2", {}, "Drops by reason"), h("p.muted", {}, "The kernel dropped no DNS packet and no SYN.")];
  return [h("h2", {}, "Drops by reason"), h("div.scroll", {}, h("table", {},
    head(["Reason", "Packet", "Scope", "Count"]),
    h("tbody", {}, drops.map((drop) => h("tr", {},
      h("th.name", { scope: "row" }, drop.reason), h("td", {}, { dns: "DNS", tcp_syn: "SYN" }[drop.packet] || drop.packet), h("td", {}, drop.scope), h("td.number", {}, count(drop.count)))))))];
}

function causeTable(causes) {
  if (!causes.length) return [h("h2", {}, "Causes"), h("p.muted", {}, "No failed or slow lookup or connect has a known cause.")];
  const largest = causes[0].count;
  return [h("h2", {}, "Causes"), h("ul.causes", {}, causes.map(({ cause, count: number }) => h("li", { title: causeMeaning(cause) },
    h("a.link", { href: `#/journeys?cause=${cause}` }, causeName(cause)), h("strong", {}, count(number)),
    h("span.cause-bar", { "aria-hidden": "true", style: { width: `${Math.max(1, (100 * number) / largest)}%` } }),
    h("span.muted", {}, causeMeaning(cause)))))];
}

function journeyList(view, shared) {
  const heading = h("h2", {}, "Journeys", h("a.link.more", { href: "#/journeys" }, "all"));
  const held = view.journeys_held_back ? h("p.muted", {}, `${count(view.journeys_held_back)} more were counted without a trace: their rate was above the limit.`) : null;
  if (!view.journeys.length) return [heading, h("p.muted", {}, "None yet. Failed, slow, retried and dropped lookups and connects appear here, each with its trace."), held];
  return [heading, h("ul.journeys", {}, view.journeys.slice(0, 10).map((row) => h("li", {},
    h("a", { href: `#/trace/${traceKey(row)}` },
      h("span.chip", { class: `chip ${row.reason === "failed" || row.reason === "dropped" ? "failed" : "again"}` }, row.reason),
      h("strong", {}, podName(row)), h("span.target", {}, row.target),
      h("span.muted", { title: absolute(unixMs(row.start_unix_ns)) }, ago(unixMs(row.start_unix_ns), shared.now())),
      h("span.time", {}, duration(row.duration_ns)),
      row.causes && row.causes.length ? h("span.muted.why", {}, row.causes.map(causeName).join(", ")) : null)))), held];
}

function head(names) {
  return h("thead", {}, h("tr", {}, names.map((name, index) => h("th", { scope: "col", class: index && /Lookups|Failed|percentile|Longest|Count/.test(name) ? "number" : null }, name))));
}

/** A warning for each traffic probe that is not attached. */
function missing(report) {
  if (!report) return null;
  const blind = report.probes.filter((probe) => ["dns", "connect", "conntrack", "drops"].includes(probe.probe) && !probe.attached);
  return blind.length
    ? h("div.stuck", {}, h("h2", {}, "Some traffic cannot be observed"), h("ul", {}, blind.map((probe) => h("li", {}, `${probe.probe}: ${probe.consequence || "not attached"}`))))
    : null;
}
