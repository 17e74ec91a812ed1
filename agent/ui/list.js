// The list view: recent sandboxes, operations outside of creations, or journeys; updated live.
// The agent filters and sorts. A row that changes is patched at once, and the list is fetched again soon after.

import { get, throttle, traceKey } from "./api.js";
import { fill, fillOn, h, say } from "./dom.js";
import { absolute, ago, count, duration, shortId, unixMs } from "./format.js";
import { causeName } from "./causes.js";
import { moveFocus } from "./keys.js";
import { PHASES, TRAFFIC_PHASES, phaseBar } from "./phases.js";
import { reasonName } from "./reasons.js";

const TABS = [
  ["newest", "Newest", "sort=newest"],
  ["slowest", "Slowest", "sort=slowest&state=ended"],
  ["failed", "Failed", "result=failed"],
  ["running", "Running now", "state=running"],
];
const REASONS = ["failed", "dropped", "retried", "slow"];
const KINDS = {
  sandboxes: ["Sandboxes", "sandbox", "sandboxes"],
  operations: ["Operations", "operation", "operations"],
  journeys: ["Journeys", "journey", "journeys"],
};
const VERBS = ["DEL", "CHECK", "ADD", "GC", "STATUS", "VERSION"];
const STEP = 100;
// A new row is highlighted only if its trace began recently, not if a changed filter brought it.
const ARRIVAL_MS = 10000;

export function listView(root, { name, params }, shared) {
  const operations = name === "operations";
  const journeys = name === "journeys";
  const [title, one, many] = KINDS[name];
  const filter = {
    tab: params.get("tab") || "newest",
    q: params.get("q") || "",
    plugin: params.get("plugin") || "",
    result: params.get("result") || "",
    verb: params.get("verb") || "",
    reason: params.get("reason") || "",
    cause: params.get("cause") || "",
  };
  let limit = STEP;
  let shown = new Map();
  let busy = false;
  let requests = 0;
  let stuckAges = [];
  let stuckSinces = [];
  let gone = false;

  const search = h("input", {
    type: "search", id: "search", placeholder: journeys ? "Pod, namespace, name, address, error…" : "Pod, namespace, sandbox, plugin, command, error…",
    "aria-label": "Search", value: filter.q, autocomplete: "off", spellcheck: "false", maxlength: "200",
    oninput: () => choose({ q: search.value }),
  });
  const plugin = h("select", { "aria-label": "Plugin", onchange: () => choose({ plugin: plugin.value }) });
  const result = select("Result", [["", "Any result"], ["ok", "Succeeded"], ["failed", "Failed"]], filter.result, (value) => choose({ result: value }));
  const verb = select("Verb", [["", "Any verb"], ...VERBS.map((verb) => [verb, verb])], filter.verb, (value) => choose({ verb: value }));
  const reason = select("Reason", [["", "Any reason"], ...REASONS.map((reason) => [reason, reason])], filter.reason, (value) => choose({ reason: value }));
  const wait = h("select", { "aria-label": "Waited for", hidden: true, onchange: () => choose({ reason: wait.value }) });
  const cause = h("select", { "aria-label": "Cause", hidden: true, onchange: () => choose({ cause: cause.value }) });
  const tabs = TABS.filter(([key]) => !journeys || key !== "running").map(([key, label]) => {
    const badge = h("span", { class: `badge ${key}`, hidden: true });
    return { key, badge, button: h("button", { type: "button", data: { tab: key }, onclick: () => choose({ tab: key }) }, label, badge) };
  });
  const summary = h("p.summary", { role: "status" });
  const stuck = h("section.stuck", { "aria-label": "Stuck now", hidden: true });
  const scaleMarks = h("span.scale-track", { title: "bars grow with the cube root of the time" });
  const scale = h("div.scale", { "aria-hidden": "true", hidden: true }, scaleMarks);
  const rows = h("ol.rows", { "aria-label": title });
  const foot = h("div.foot");
  fill(
    root,
    h("h1.hidden-title", {}, title),
    journeys ? h("a.back", { href: "#/network" }, "← Network of the node") : null,
    stuck,
    h("div.bar", {}, h("div.tabs", { role: "group", "aria-label": "Which" }, tabs.map((tab) => tab.button)), h("div.filters", {}, search, journeys ? reason : plugin, operations ? verb : null, journeys ? null : wait, operations ? null : cause, journeys ? null : result)),
    h("div.list-head", {}, summary, phaseKey(journeys ? TRAFFIC_PHASES.slice(1) : [...PHASES, ...TRAFFIC_PHASES.slice(1)])),
    scale,
    rows,
    foot,
  );
  showTabs(null);
  showChoice(plugin, [], "plugin", "Any plugin", String);
  showChoice(cause, [], "cause", "Any cause", causeName);
  showChoice(wait, [], "reason", "Any wait", reasonName);

  function select(label, options, value, onchange) {
    const element = h("select", { "aria-label": label, onchange: () => onchange(element.value) });
    for (const [key, text] of options) element.append(h("option", { value: key, selected: key === value }, text));
    return element;
  }

  function choose(change) {
    Object.assign(filter, change);
    limit = STEP;
    const next = new URLSearchParams();
    for (const [key, value] of Object.entries(filter)) {
      if (value && !(key === "tab" && value === "newest")) next.set(key, value);
    }
    const text = next.toString();
    const hash = `#/${name === "sandboxes" ? "" : name}${text ? `?${text}` : ""}`;
    // Replaces the history entry: a letter typed is no navigation, and must not rebuild the view.
    history.replaceState(null, "", hash);
    shared.lastList = hash;
    showTabs(null);
    reload();
  }

  function address() {
    const tab = TABS.find(([key]) => key === filter.tab) || TABS[0];
    const query = new URLSearchParams(tab[2]);
    query.set("kind", (operations && filter.verb) || one);
    if (filter.q.trim()) query.set("q", filter.q.trim());
    if (filter.plugin) query.set("plugin", filter.plugin);
    if (filter.reason) query.set("reason", filter.reason);
    if (filter.cause && !operations) query.set("cause", filter.cause);
    if (filter.result && !query.has("result") && filter.tab !== "running") query.set("result", filter.result);
    query.set("limit", String(limit));
    return `/api/v1/sandboxes?${query}`;
  }

  async function load() {
    // Responses may arrive out of order: only the newest request's is shown.
    const turn = ++requests;
    try {
      const [page, running] = await Promise.all([get(address()), get("/api/v1/operations")]);
      if (gone || turn !== requests) return;
      shared.setNow(page.now_unix_ns);
      busy = running.operations.length > 0;
      show(page);
      showStuck(running);
    } catch (error) {
      if (!gone) fillOn(error.message, foot, () => h("p.trouble", {}, error.message, " ", error.hint || ""));
    }
  }
  const reload = throttle(load, 60);
  const later = throttle(load, 400);

  function show(page) {
    showTabs(page.counts);
    showChoice(plugin, page.plugins, "plugin", "Any plugin", String);
    showChoice(cause, page.causes, "cause", "Any cause", causeName);
    cause.hidden = !page.causes.length && !filter.cause;
    showChoice(wait, page.reasons, "reason", "Any wait", reasonName);
    wait.hidden = !page.reasons.length && !filter.reason;
    result.disabled = filter.tab === "failed" || filter.tab === "running";
    say(summary, summarize(page));
    // Running traces are left out of the scale: one of minutes would shrink all other bars to a dot.
    const longest = Math.max(1, ...page.rows.filter((row) => !row.running).map((row) => row.busy_ns));
    showScale(longest, page.rows.some((row) => !row.running));
    const staying = new Set(page.rows.map(traceKey));
    for (const [key, item] of shown) if (!staying.has(key)) item.element.remove();
    const next = new Map();
    let before = rows.firstElementChild;
    for (const row of page.rows) {
      const known = shown.get(traceKey(row));
      const item = known || makeRow(row, shared, shared.now() - unixMs(row.start_unix_ns) < ARRIVAL_MS && shown.size > 0);
      item.update(row, longest);
      next.set(traceKey(row), item);
      // Rows already in place are not moved, which would lose the focus.
      if (item.element === before) before = before.nextElementSibling;
      else rows.insertBefore(item.element, before);
    }
    shown = next;
    const more = page.total - page.rows.length;
    fillOn([page.rows.length === 0, more, filter], foot, () => [
      page.rows.length === 0 ? empty(page) : null,
      more > 0 && limit < 1000
        ? h("button.button", { type: "button", onclick: () => { limit = Math.min(1000, limit + STEP); reload(); } }, `Show ${Math.min(STEP, more)} more of ${count(more)}`)
        : null,
    ]);
  }

  /** What the bars' lengths mean: they grow with the cube root of the time. */
  function showScale(longest, known) {
    scale.hidden = !known;
    const marks = [1 / 64, 1 / 8, 1].map((part) => [Math.cbrt(part), duration(Math.max(1, longest * part))]);
    fillOn(marks, scaleMarks, () => marks.map(([at, text]) => h("span", { style: { "--at": at } }, text)));
  }

  function summarize(page) {
    const { counts } = page;
    const parts = [`${count(page.total)} ${page.total === 1 ? one : many}`];
    if (counts.waiting) parts.push(`${count(counts.waiting)} without traffic yet`);
    if (counts.median_ns) parts.push(`median ${duration(counts.median_ns)}`, `95 % within ${duration(counts.p95_ns)}`);
    if (name === "sandboxes" && counts.older_than_agent) parts.push(`${count(counts.older_than_agent)} older than the agent`);
    if (counts.earlier) parts.push(`${count(counts.earlier)} from before the agent's restart`);
    if (counts.evicted) parts.push(`${count(counts.evicted)} evicted`);
    return parts.join("  ·  ");
  }

  function showTabs(counts) {
    for (const { key, button, badge } of tabs) {
      button.setAttribute("aria-pressed", String(filter.tab === key));
      if (!counts) continue;
      const number = { failed: counts.failed, running: counts.running }[key] || 0;
      badge.hidden = number === 0;
      say(badge, count(number));
    }
  }

  function showChoice(element, names, key, any, word) {
    const known = filter[key] && !names.includes(filter[key]) ? [filter[key], ...names] : names;
    const seen = known.join("\n");
    if (element.dataset.seen === seen && element.options.length) return;
    element.dataset.seen = seen;
    fill(element, h("option", { value: "" }, any), known.map((name) => h("option", { value: name, selected: name === filter[key] }, word(name))));
  }

  function showStuck({ operations: running, stuck_after_ns: after }) {
    const found = running.filter((operation) => operation.stuck);
    stuck.hidden = found.length === 0;
    const most = found.slice(0, 5);
    const ages = most.map(() => h("span.age"));
    const sinces = most.map(() => h("span.since"));
    fillOn([found.length, most.map((operation) => [traceKey(operation), operation.span_id, operation.waits_for, operation.waiting && operation.waiting.text])], stuck, () => {
      [stuckAges, stuckSinces] = [ages, sinces];
      return [
        h("h2", {}, found.length === 1 ? "Stuck now" : `${found.length} stuck now`, h("small", {}, `running for more than ${duration(after)}`)),
        h("ul", {}, most.map((operation, index) =>
          h("li", {},
            h("a", { href: `#/trace/${traceKey(operation)}/${operation.span_id}` },
              h("strong", {}, podName(operation)), " ", operation.name, operation.ifname ? ` ${operation.ifname}` : "",
              operation.waits_for.length ? [" waits for ", h("strong", {}, operation.waits_for.join(" › "))] : null,
              operation.pid ? ` (pid ${operation.pid})` : "",
              operation.waiting ? h("span.waiting", {},
                h("span.swatch", { data: { reason: operation.waiting.reason }, "aria-hidden": "true" }),
                h("span", {}, operation.waiting.text, sinces[index])) : null),
            ages[index]))),
      ];
    });
    most.forEach((operation, index) => {
      say(stuckAges[index], duration(operation.age_ns));
      if (operation.waiting) say(stuckSinces[index], `, for ${duration(operation.waiting.for_ns)} now`);
    });
  }

  function empty(page) {
    const filtered = filter.q || filter.plugin || filter.result || filter.verb || filter.reason || filter.cause || filter.tab !== "newest";
    if (filtered && (page.counts.all > 0 || filter.tab !== "newest")) {
      return h("div.empty", {},
        h("h2", {}, "Nothing matches"),
        h("p", {}, "No trace in the agent's store matches these filters."),
        h("button.button", { type: "button", onclick: () => {
          for (const field of [search, result, verb, plugin, reason, wait, cause]) field.value = "";
          choose({ tab: "newest", q: "", plugin: "", result: "", verb: "", reason: "", cause: "" });
        } }, "Clear filters"));
    }
    return h("div.empty", {},
      h("img", { src: "/ui/icon.svg", alt: "", width: "64", height: "64" }),
      h("h2", {}, `No ${one} yet`),
      journeys ? h("p", {}, "Lookups and connects that fail, are slow, are retried or lose a packet appear here, with names, servers, retries, NAT and drops.") :
      operations
        ? h("p", {}, "DEL, CHECK, GC and STATUS appear here when the runtime requests them: delete a pod to see one.")
        : [
            h("p", {}, "The agent observes this node. The next pod created here appears while it is being created."),
            h("p", {}, "To see one now: ", h("code", {}, "kubectl run hello --image=nginx"), " or run ", h("code", {}, "make demo"), "."),
          ],
      h("p.muted", {}, "Still nothing after a pod was created? ", h("a", { href: "#/agent" }, "Check which probes are attached"), "."));
  }

  reload();
  const links = () => [...rows.querySelectorAll("a.row")];
  return {
    row(row) {
      const item = shown.get(traceKey(row));
      if (item) item.update(row);
      later();
    },
    reload,
    tick() {
      for (const item of shown.values()) item.tick();
    },
    health() {
      // A stuck operation sends no change: only the clock makes it stuck.
      if (busy) later();
    },
    leave() {
      gone = true;
    },
    keys: {
      down: () => moveFocus(links(), 1),
      up: () => moveFocus(links(), -1),
      search: () => { search.focus(); search.select(); },
      back: () => false,
    },
  };
}

/** Name of a row: its pod, else the sandbox id, else the operation. */
export function podName(row) {
  if (row.pod) return row.pod;
  if (row.sandbox) return shortId(row.sandbox);
  return row.operation || "node";
}

function phaseKey(phases) {
  return h("ul.phase-key", { "aria-hidden": "true" }, phases.map(([key, label]) => h("li", {}, h("span.swatch", { data: { phase: key } }), label)));
}

function makeRow(first, shared, arriving) {
  let row = first;
  let longest = 1;
  const mark = h("span.state", { role: "img" });
  const name = h("span.pod");
  const place = h("span.place");
  const chips = h("span.chips");
  const track = h("span.track");
  const verdict = h("span.verdict");
  const time = h("span.time");
  const when = h("span.when");
  const link = h("a.row", { href: `#/trace/${traceKey(row)}` },
    mark,
    h("span.who", {}, name, h("span.who-line", {}, chips, place)),
    h("span.what", {}, track, verdict),
    time, when);
  const element = h("li", { class: arriving ? "arriving" : null, data: { trace: traceKey(row) } }, link);

  const item = {
    element,
    update(next, scale) {
      row = next;
      if (scale) longest = scale;
      link.dataset.result = row.result;
      link.dataset.badly = row.result === "ok" && (row.causes || (row.network && row.network.state === "failed")) ? "yes" : "no";
      const word = { ok: "succeeded", failed: "failed", running: "running", waiting: "created; no traffic yet" }[row.result];
      mark.setAttribute("aria-label", word);
      mark.title = word;
      say(name, podName(row));
      name.title = podName(row);
      say(place, [row.namespace, row.target || (row.sandbox ? shortId(row.sandbox) : "")].filter(Boolean).join(" · "));
      place.title = row.sandbox || "";
      const network = row.network ? row.network.state : "";
      fillOn([row.operation, row.attempt, row.incomplete, network, row.reason], chips, () => [
        network === "waiting" ? h("span.chip.waiting", { title: "the sandbox is created; it has sent no traffic yet" }, "no traffic yet") : null,
        network === "failed" ? h("span.chip.failed", { title: "it sent traffic, and none succeeded within the deadline" }, "network never usable") : null,
        row.reason ? h("span.chip", { class: `chip ${["failed", "dropped"].includes(row.reason) ? "failed" : "again"}` }, row.reason) : null,
        row.operation ? h("span.chip", {}, row.operation) : null,
        row.attempt > 1 ? h("span.chip.again", { title: "attempt number" }, `attempt ${row.attempt}`) : null,
        row.incomplete ? h("span.chip.gap", { title: "records were lost, or the begin was not observed" }, "incomplete") : null,
      ]);
      // Cube root: the phases of 200 ms stay distinguishable beside 10 s.
      const width = Math.cbrt(Math.min(1, row.busy_ns / longest));
      // The time until a program uses its network is not the node's.
      const { application, ...busy } = row.phases;
      fillOn([busy, width], track, () => phaseBar(busy, row.busy_ns, width));
      say(verdict, row.verdict);
      verdict.title = row.verdict;
      item.tick();
    },
    tick() {
      const start = unixMs(row.start_unix_ns);
      say(time, duration(row.running ? Math.max(row.duration_ns, (shared.now() - start) * 1e6) : row.busy_ns));
      say(when, ago(start, shared.now()));
      if (when.title === "") when.title = absolute(start);
    },
  };
  return item;
}
