// The agent view: probes, losses, node, store and export. Fed by /api/v1/health and its stream events.
// Does not: count anything; every number comes from the agent.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { absolute, bytes, count, duration } from "./format.js";

const LOSSES = [
  ["lost", "Lost", "records for which the kernel had no room, by probe"],
  ["limited", "Limited", "records left out because their owner has too many, by probe"],
  ["late", "Late", "events that arrived after the watermark"],
  ["orphan", "Orphan", "events without a known owner"],
  ["evicted", "Evicted", "entries evicted from full tables"],
  ["shed", "Shed", "outputs rejected by full queues of sinks"],
];

export function agentView(root, params, shared) {
  const content = h("div.agent");
  fill(root, h("h1", {}, "Agent"), content);
  const known = h("section.card");
  let gone = false;

  function health(report) {
    fill(content,
      trouble(report),
      h("section.losses", { "aria-label": "Losses" }, LOSSES.map(([key, label, meaning]) => loss(report[key], label, meaning))),
      h("section.card", {}, h("h2", {}, "Probes"), probes(report.probes)),
      report.cni && h("section.card", {}, h("h2", {}, "CNI configuration"), cni(report.cni)),
      report.ip_pools?.length ? h("section.card", {}, h("h2", {}, "IP pools"), pools(report.ip_pools)) : null,
      h("div.cards", {},
        h("section.card", {}, h("h2", {}, "Node"), table([
          ["name", report.node.name], ["system", `${report.node.os} ${report.node.kernel}`], ["machine", report.node.machine],
          ["boot id", report.node.boot_id], ["agent", `${report.node.service} ${report.node.version}`],
        ])),
        h("section.card", {}, h("h2", {}, "Pipeline and store"), table([
          ["events", count(report.events)],
          ["events in the queue", count(report.queue_depth)],
          ["bytes in the ring buffer", bytes(report.ring_bytes)],
          ["records not decoded", count(report.undecodable.total)],
          ["open traces", count(report.open_traces)],
          ["sandboxes without traffic yet", count(report.store.waiting)],
          ["traces kept", within(report.store.traces, report.store.max_traces, count)],
          ["memory of the store", within(report.store.bytes, report.store.max_bytes, bytes)],
          ["traces evicted since the start", evicted(report.store)],
          ["traces from before the restart", report.store.earlier && count(report.store.earlier)],
          ["traces on disk", report.store_disk && onDisk(report.store_disk)],
          ["journal of open traces", report.journal && journal(report.journal)],
          ["pages open", count(report.streams)],
          ["stuck after", duration(report.stuck_after_ns)],
        ])),
        h("section.card", {}, h("h2", {}, "OTLP export"), otlp(report.otlp)),
        report.configuration && h("section.card", {}, h("h2", {}, "Configuration"), table([
          ["loaded", absolute(Number(report.configuration.loaded_unix_ns) / 1e6)],
          ["hash", report.configuration.hash],
          ["the file is refused", report.configuration.refused],
          ["needs a restart", report.configuration.needs_restart.join(", ")],
        ])),
        known));
  }

  async function load() {
    try {
      const [report, older] = await Promise.all([get("/api/v1/health"), get("/api/v1/known")]);
      if (gone) return;
      showKnown(older.sandboxes);
      health(report);
    } catch (error) {
      if (!gone && !shared.health) fill(content, h("div.empty", {}, h("h2", {}, error.message), h("p", {}, error.hint || "")));
    }
  }

  function showKnown(sandboxes) {
    fill(known, h("h2", {}, "Older than the agent"),
      sandboxes.length
        ? [h("p.muted", {}, "These sandboxes existed before the agent started, so they have no trace of their creation."),
           h("ul.known", {}, sandboxes.slice(0, 200).map((sandbox) => h("li", {},
             h("strong", {}, sandbox.identity.name || sandbox.sandbox.slice(0, 12)), " ",
             h("span.muted", {}, sandbox.identity.namespace || ""))))]
        : h("p.muted", {}, "None. The agent needs the runtime's CRI socket to list sandboxes older than itself."));
  }

  if (shared.health) health(shared.health);
  load();
  return { health, reload: load, leave: () => { gone = true; }, keys: { back: () => { location.hash = shared.lastList; } } };
}

function trouble(report) {
  const lines = [report.not_alive, report.not_ready].filter(Boolean);
  return lines.length ? h("div.stuck", {}, h("h2", {}, "The agent reports a problem"), h("ul", {}, lines.map((line) => h("li", {}, line)))) : null;
}

function loss(counter, label, meaning) {
  return h("div.card.loss", { title: meaning, class: counter.total ? "card loss some" : "card loss" },
    h("span.loss-count", {}, count(counter.total)),
    h("span.loss-name", {}, label),
    h("span.muted", {}, meaning),
    Object.entries(counter.by).filter(([, value]) => value > 0).map(([key, value]) => h("span.loss-part", {}, `${key} ${count(value)}`)));
}

function probes(list) {
  if (!list.length) return h("p.muted", {}, "No probe has been reported yet.");
  return h("div.scroll", {}, h("table", {},
    h("thead", {}, h("tr", {}, ["", "Probe", "Hook", "Consequence"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, list.map((probe) => h("tr", {},
      h("td", {}, h("span.state", { role: "img", "aria-label": probe.attached ? "attached" : "not attached", data: { state: probe.attached ? (probe.consequence ? "partly" : "ok") : "failed" } })),
      h("th", { scope: "row" }, probe.probe),
      h("td", {}, h("code", {}, probe.hook)),
      h("td", {}, probe.consequence || "none: attached and complete", probe.hint ? h("span.hint", {}, probe.hint) : null))))));
}

/** What keeps sandboxes from getting a network, or since when nothing does. */
function cni(report) {
  const since = report.usable_since_unix_ns;
  return [
    report.problems.length ? h("ul", {}, report.problems.map((problem) => h("li", {},
      h("code", {}, problem.kind), " ", problem.text,
      problem.handlers ? ` (runtime handlers ${problem.handlers.join(", ")})` : ""))) : null,
    h("p.muted", {}, since ? `Usable since ${absolute(Number(since) / 1e6)}.` : "Not usable: the runtime fails before it executes a plugin."),
  ];
}

/** How full the pools of addresses are; what could not be read or decided says so. */
function pools(list) {
  const fill = (set) => `${count(set.used)} of ${count(Number(set.addresses))} used${set.leaked ? `, ${count(set.leaked)} leaked` : ""}`;
  const notes = (pool) => [
    pool.outside && `${count(pool.outside)} outside of the ranges`,
    pool.skipped && `${count(pool.skipped)} files skipped`,
    pool.truncated && "more than is read",
    pool.unreadable && `not readable: ${pool.unreadable}`,
    pool.leaks_unknown && !pool.unreadable && `leaks not judged: ${pool.leaks_unknown}`,
  ].filter(Boolean).join("; ");
  return h("ul", {}, list.map((pool) => h("li", {},
    h("code", {}, pool.network), " ", pool.sets.map(fill).join("; "),
    notes(pool) ? h("span.muted", {}, ` (${notes(pool)})`) : null)));
}

function table(rows) {
  return h("dl.attributes", {}, rows.filter(([, value]) => value).map(([key, value]) => [h("dt", {}, key), h("dd", {}, value)]));
}

/** A number and its bound; the store of a replay has none (2^64 - 1). */
function within(value, bound, format) {
  return bound < 2 ** 53 ? `${format(value)} / ${format(bound)}` : format(value);
}

/** What the next run of the agent will show again, or why it will not. */
function onDisk({ traces, bytes: size, lost, left_alone: leftAlone, problem }) {
  return [
    `${count(traces)}, ${bytes(size)}`,
    lost && `${count(lost)} lost`,
    leftAlone && `${count(leftAlone)} files of another version left alone`,
    problem,
  ].filter(Boolean).join("; ");
}

/** The journal beside the store's files, and what an earlier run left open. */
function journal({ interrupted, ...files }) {
  return [onDisk(files), interrupted && `${count(interrupted)} interrupted by a kill`].filter(Boolean).join("; ");
}

/** Evicted traces, by kind. */
function evicted({ evicted: all, evicted_kinds: kinds }) {
  const parts = Object.entries(kinds).filter(([, number]) => number > 0);
  const words = parts.map(([kind, number]) => `${count(number)} ${kind.replaceAll("_", " ")}`);
  return words.length ? `${count(all)}: ${words.join(", ")}` : count(all);
}

/** Status of the export, one line per field. */
function otlp(status) {
  if (!status || typeof status !== "object" || !Object.keys(status).length || status.enabled === false) {
    return h("p.muted", {}, "Off. Set ", h("code", {}, "OTEL_EXPORTER_OTLP_ENDPOINT"), " to send every trace to a collector.");
  }
  return table(Object.entries(status).map(([key, value]) => {
    const name = key.replaceAll("_", " ").replace(/ unix ns$/, "");
    if (value === null || value === "" || typeof value === "object") return [name, value ? JSON.stringify(value) : ""];
    if (/_unix_ns$/.test(key)) return [name, absolute(Number(value) / 1e6)];
    return [name, typeof value === "number" ? count(value) : String(value)];
  }));
}
