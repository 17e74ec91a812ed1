// The waterfall: spans in tree order, bars on one time axis, and the details of the selected span.
// A tree for assistive technology; arrows and j/k move the selection, the pointer only previews.

import { causeName } from "./causes.js";
import { fill, fillOn, h, say } from "./dom.js";
import { absolute, duration, mark, percent, ticks, unixMs } from "./format.js";
import { isTime, reasonOf, strip, timeOf } from "./reasons.js";

/** `onselect` receives the id of a newly selected span; `below` is placed under the chart. */
export function makeWaterfall(onselect, below) {
  const axis = h("div.axis", { "aria-hidden": "true" });
  const lines = h("div.gridlines", { "aria-hidden": "true" });
  const flags = h("div.flags", { hidden: true });
  const tree = h("div.spans", { role: "tree", "aria-label": "Spans" });
  const details = h("aside.card.details", { "aria-label": "Details of the span" });
  const zoomButton = h("button.zoom", { type: "button", title: "Zoom to the selected span (z)", onclick: () => zoom() });
  const column = h("div.column", {},
    h("div.card.chart", {},
      h("div.chart-head", {}, h("div.chart-title", {}, h("h2", {}, "Waterfall"), zoomButton), axis),
      h("div.chart-body", {}, lines, flags, tree)),
    below);
  const element = h("section.waterfall", { "aria-label": "Waterfall" }, column, details);
  let trace = null;
  let items = new Map();
  let selected = "";
  // Id of the zoomed span; empty for the whole trace.
  let zoomed = "";

  /** `initial` is the id of the span to select first, if it exists. */
  function show(next, initial) {
    trace = next;
    const fresh = new Map();
    for (const span of trace.timeline) {
      const item = items.get(span.id) || makeItem(span);
      fresh.set(span.id, item);
      if (!item.element.isConnected) tree.append(item.element);
    }
    for (const [id, item] of items) if (!fresh.has(id)) item.element.remove();
    items = fresh;
    if (!items.has(selected)) selected = items.has(initial) ? initial : interesting(trace);
    draw();
    select(selected, false);
  }

  /** The visible time range, from the begin of the root. */
  function range() {
    const span = trace.timeline.find((span) => span.id === zoomed);
    if (!span) return { from: 0, to: Math.max(1, trace.duration_ns) };
    const margin = Math.max(1, span.duration_ns * 0.04);
    return { from: Math.max(0, span.offset_ns - margin), to: Math.min(trace.duration_ns, span.offset_ns + span.duration_ns + margin) };
  }

  function draw() {
    const { from, to } = range();
    const part = (ns) => (ns - from) / Math.max(1, to - from);
    const marks = ticks(from, to, innerWidth < 700 ? 3 : 6).filter((at) => part(at) < 0.97);
    fillOn([from, to, marks], axis, () => marks.map((at) => h("span", { style: { left: `${100 * part(at)}%` } }, mark(at))));
    fillOn([from, to, marks], lines, () => marks.map((at) => h("span", { style: { "--at": part(at) } })));
    showFlags(part);
    for (const span of trace.timeline) items.get(span.id).update(span, part);
    say(zoomButton, zoomed ? "whole trace" : "zoom");
    zoomButton.setAttribute("aria-pressed", String(!!zoomed));
  }

  /** Flags: when the sandbox was created, and when its network was usable. */
  function showFlags(part) {
    const { network } = trace;
    const shown = [];
    if (network) {
      shown.push(["sandbox", "sandbox created", network.created_ns]);
      if (network.ready_ns !== undefined) shown.push(["network", "network ready", network.ready_ns]);
      else if (network.state === "failed") shown.push(["failed", "network never usable", trace.duration_ns]);
    }
    const seen = shown.filter(([, , at]) => part(at) >= 0 && part(at) <= 1.0001);
    flags.hidden = seen.length === 0;
    fillOn(seen.map(([kind, , at]) => [kind, part(at)]), flags, () => seen.map(([kind, label, at]) => h("span.flag", {
      data: { flag: kind, side: part(at) > 0.5 ? "left" : "right" }, style: { "--at": part(at) }, title: `${label} ${duration(at)} after the begin`,
    }, h("span.flag-text", {}, label, " ", h("span.muted", {}, duration(at))))));
  }

  function zoom() {
    if (!trace) return;
    zoomed = zoomed ? "" : selected;
    draw();
  }

  function makeItem(first) {
    const label = h("span.span-name");
    const bar = h("span.span-bar");
    const track = h("span.span-track", {}, bar);
    const time = h("span.span-time");
    const element = h("div.span", {
      role: "treeitem", tabindex: "-1", data: { span: first.id },
      onclick: () => choose(first.id, true),
      onfocus: () => choose(first.id, false),
      // Only when the pointer moves: a row that moves under a resting pointer is no preview.
      onmousemove: (event) => (event.movementX || event.movementY) && preview(first.id),
      onmouseleave: () => preview(selected),
      ondblclick: () => zoom(),
    }, label, track, time);
    return {
      element,
      update(span, part) {
        element.setAttribute("aria-level", String(span.depth + 1));
        element.setAttribute("aria-label", `${span.name}, ${duration(span.duration_ns)}${span.status === "error" ? `, failed: ${span.error_message || span.error_class}` : ""}${span.end_unix_ns ? "" : ", running"}`);
        element.dataset.status = span.end_unix_ns ? span.status : "running";
        if (span.status === "error") element.dataset.failed = "yes";
        element.style.setProperty("--depth", span.depth);
        const [kind, ...rest] = span.name.split(" ");
        const extra = [span.attributes["cni.ifname"], span.attributes["cni.network.name"], about(span)].filter(Boolean).join(" · ");
        fillOn([span.name, span.status, extra], label, () => [
          span.status === "error" ? h("span.cross", { "aria-hidden": "true" }, "✕") : null,
          rest.length ? [h("span.span-kind", {}, kind), " ", rest.join(" ")] : kind,
          extra ? h("span.span-extra", {}, ` ${extra}`) : null,
        ]);
        label.title = extra ? `${span.name} ${extra}` : span.name;
        bar.dataset.phase = span.phase;
        const reason = reasonOf(span);
        if (reason) bar.dataset.reason = reason;
        bar.dataset.frame = /^(sandbox|cni |journey)/.test(span.name) ? "yes" : "no";
        const left = Math.max(0, part(span.offset_ns));
        const right = Math.min(1, part(span.offset_ns + span.duration_ns));
        bar.hidden = right < 0 || left > 1;
        bar.style.setProperty("left", `${100 * left}%`);
        bar.style.setProperty("width", `${100 * Math.max(0, right - left)}%`);
        fillOn([span.events, span.duration_ns], bar, () => span.events.map((event) => h("span.span-event", {
          title: `${event.name} ${duration(event.offset_ns - span.offset_ns)} after the begin\n${eventText(event, "\n")}`,
          data: { event: event.name.replaceAll(" ", "-") },
          style: { left: `${Math.min(100, Math.max(0, (100 * (event.offset_ns - span.offset_ns)) / Math.max(1, span.duration_ns)))}%` },
        })));
        say(time, duration(span.duration_ns));
      },
    };
  }

  function select(id, focus) {
    for (const [key, item] of items) {
      const on = key === id;
      item.element.setAttribute("aria-selected", String(on));
      item.element.tabIndex = on ? 0 : -1;
      if (on && focus) item.element.focus();
    }
    preview(id);
  }

  function choose(id, focus) {
    if (id !== selected) {
      selected = id;
      onselect(id);
    }
    select(id, focus);
  }

  let previewed = "";
  function preview(id) {
    const span = trace && trace.timeline.find((span) => span.id === id);
    if (!span) return;
    const key = JSON.stringify([span, trace.duration_ns]);
    if (key === previewed) return;
    previewed = key;
    fill(details, describe(span, trace));
  }

  return {
    element,
    show,
    zoom,
    move(step) {
      const ids = [...items.keys()];
      const at = Math.max(0, ids.indexOf(selected));
      const inside = tree.contains(document.activeElement);
      const next = ids[inside ? Math.min(ids.length - 1, Math.max(0, at + step)) : at];
      if (next) choose(next, true);
    },
  };
}

/** The span to select first: the innermost failed one, else the innermost open one, else the one with the most own time. */
function interesting(trace) {
  const spans = trace.timeline;
  const deepest = (found) => found.reduce((best, span) => (!best || span.depth >= best.depth ? span : best), null);
  const pick =
    deepest(spans.filter((span) => span.status === "error")) ||
    (trace.running && deepest(spans.filter((span) => !span.end_unix_ns))) ||
    longest(spans.filter((span) => span.phase !== "application")) || spans[0];
  return pick.id;
}

function longest(spans) {
  return spans.reduce((best, span) => (!best || span.own_ns > best.own_ns ? span : best), null);
}

/** Target of a lookup, connect or journey. */
function about(span) {
  const { attributes } = span;
  if (span.name === "lookup") return attributes["dns.question.name"];
  if (reasonOf(span)) return [attributes["sandglass.wait.what"], attributes["sandglass.wait.by"]].filter(Boolean).join(", ");
  if (span.name !== "connect") return attributes["sandglass.journey.target"];
  const address = attributes["network.peer.address"];
  return `${address.includes(":") ? `[${address}]` : address}:${attributes["network.peer.port"]}`;
}

const WORDS = {
  "dns.question.name": "", "sandglass.dns.type": "", "sandglass.dns.rcode": "", "dns.answers": "is", "sandglass.dns.id": "id",
  "network.peer.address": "server", "network.transport": "over",
  "sandglass.drop.reason": "", "sandglass.drop.function": "in",
  "sandglass.nat": "", "sandglass.nat.backend": "to", "sandglass.conntrack.id": "entry",
};

/** The attributes of an event in short form: most values need no name. */
function eventText(event, between) {
  return event.attributes.map(([key, value]) => {
    const word = WORDS[key] === undefined ? key.replace(/^(sandglass|network|dns)\./, "").replaceAll(/[._]/g, " ") : WORDS[key];
    return word ? `${word} ${value}` : value;
  }).join(between);
}

function describe(span, trace) {
  const { attributes } = span;
  const args = attributes["process.command_args"];
  const signal = attributes["sandglass.process.signal"];
  const code = attributes["process.exit.code"];
  const hidden = new Set(["process.command_args", "cni.error.message", "cni.error.details", "sandglass.cause", "sandglass.cause.confidence", "sandglass.cause.evidence",
    "sandglass.waiting", "sandglass.waiting.reason", "sandglass.waiting.since"]);
  return [
    h("h2", {}, h("span.swatch", { data: reasonOf(span) ? { reason: reasonOf(span) } : { phase: span.phase } }), span.name),
    span.status === "error"
      ? h("div.failure", {},
          h("strong", {}, span.error_class || "failed"),
          h("p", {}, attributes["cni.error.message"] || span.error_message || "A child span failed."),
          attributes["cni.error.details"] ? h("p.muted", {}, attributes["cni.error.details"]) : null)
      : null,
    attributes["sandglass.cause"]
      ? h("div.failure.why", {},
          h("strong", {}, causeName(attributes["sandglass.cause"])), h("span.chip", {}, attributes["sandglass.cause.confidence"]),
          h("ul.evidence", {}, (attributes["sandglass.cause.evidence"] || []).map((line) => h("li", {}, line))))
      : null,
    h("dl.times", {},
      row("took", h("strong", {}, duration(span.duration_ns)), span.end_unix_ns ? null : " so far"),
      row("own time", duration(span.own_ns), h("span.muted", {}, ` ${percent(span.own_ns, trace.duration_ns)} of the whole`)),
      row("began", `${duration(span.offset_ns)} after the begin`, h("span.muted.wrap", {}, absolute(unixMs(span.start_unix_ns)))),
      signal !== undefined ? row("ended", `killed by signal ${signal}`) : code !== undefined ? row("exit code", String(code)) : null),
    attributes["sandglass.waiting"]
      ? h("div.failure.why", {},
          h("strong", {}, span.end_unix_ns ? "When it was cut off" : "Now"),
          h("p", {}, h("span.swatch", { data: { reason: attributes["sandglass.waiting.reason"] }, "aria-hidden": "true" }), " ", attributes["sandglass.waiting"]),
          h("p.muted", {}, `since ${absolute(attributes["sandglass.waiting.since"] / 1e6)}`))
      : null,
    timeOf(span) ? h("div.path", {}, h("h3", {}, "Critical path"), strip(span, trace.runbooks)) : null,
    args ? h("div.command", {}, h("h3", {}, "Command line"), h("pre", { tabindex: "0" }, args.map(quote).join(" "))) : null,
    span.events.length
      ? [h("h3", {}, "Events"), h("ol.events", {}, span.events.map((event) => h("li", {},
          h("span.event-at", {}, `+${duration(event.offset_ns - span.offset_ns)}`),
          h("span.event-name", { data: { event: event.name.replaceAll(" ", "-") } }, event.name),
          h("span.event-more", {}, eventText(event, " · ")))))]
      : null,
    h("h3", {}, "Attributes"),
    h("dl.attributes", {}, Object.entries(attributes)
      .filter(([key]) => !hidden.has(key) && !isTime(key))
      .map(([key, value]) => [h("dt", {}, key), h("dd", {}, Array.isArray(value) ? value.join(", ") : String(value))])),
    span.links.length
      ? [h("h3", {}, "Links"), h("dl.attributes", {}, span.links.map((link) => [
          h("dt", {}, link.relation.replaceAll("_", " ")),
          // The caller's trace is the runtime's own and not in this store.
          h("dd", {}, link.relation === "caller" ? link.trace_id : h("a.link", { href: `#/trace/${link.trace_id}/${link.span_id}` }, link.trace_id))]))]
      : null,
  ];
}

function row(name, ...value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
}

/** Quotes for a shell; control characters become escapes. */
function quote(text) {
  const visible = text.replace(/[\u0000-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`);
  return /^[\w@%+=:,./-]+$/.test(visible) ? visible : `'${visible.replaceAll("'", "'\\''")}'`;
}
