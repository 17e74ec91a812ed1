// The waterfall: spans in their order, bars on one time axis, and the details of the one that is looked at.
// A tree for assistive technology; arrows and j/k move in it, the pointer only previews.

import { causeName } from "./causes.js";
import { fill, fillOn, h, say } from "./dom.js";
import { absolute, duration, mark, percent, ticks, unixMs } from "./format.js";

/** `onchoose` hears of another chosen span; `below` stands under the chart. */
export function makeWaterfall(onchoose, below) {
  const axis = h("div.axis", { "aria-hidden": "true" });
  const lines = h("div.gridlines", { "aria-hidden": "true" });
  const flags = h("div.flags", { hidden: true });
  const tree = h("div.spans", { role: "tree", "aria-label": "Spans" });
  const details = h("aside.card.details", { "aria-label": "Details of the span" });
  const zoomButton = h("button.zoom", { type: "button", title: "Let the chosen span fill the width (z)", onclick: () => zoom() });
  const column = h("div.column", {},
    h("div.card.chart", {},
      h("div.chart-head", {}, h("div.chart-title", {}, h("h2", {}, "Waterfall"), zoomButton), axis),
      h("div.chart-body", {}, lines, flags, tree)),
    below);
  const element = h("section.waterfall", { "aria-label": "Waterfall" }, column, details);
  let trace = null;
  let items = new Map();
  let chosen = "";
  // Span that fills the width; none means the whole trace.
  let zoomed = "";

  /** `wished` is the span to begin with, if there is such a one. */
  function show(next, wished) {
    trace = next;
    const fresh = new Map();
    for (const span of trace.timeline) {
      const item = items.get(span.id) || makeItem(span);
      fresh.set(span.id, item);
      if (!item.element.isConnected) tree.append(item.element);
    }
    for (const [id, item] of items) if (!fresh.has(id)) item.element.remove();
    items = fresh;
    if (!items.has(chosen)) chosen = items.has(wished) ? wished : interesting(trace);
    draw();
    select(chosen, false);
  }

  /** The part of time that is shown, from the begin of the root. */
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

  /** When the sandbox was ready, and when its network had proven usable. */
  function showFlags(part) {
    const { network } = trace;
    const shown = [];
    if (network) {
      shown.push(["sandbox", "sandbox ready", network.created_ns]);
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
    zoomed = zoomed ? "" : chosen;
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
      // Only when the pointer moves: a row that comes to lie under a resting one is not what is asked for.
      onmousemove: (event) => (event.movementX || event.movementY) && preview(first.id),
      onmouseleave: () => preview(chosen),
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
        bar.dataset.frame = /^(sandbox|cni |journey)/.test(span.name) ? "yes" : "no";
        const left = Math.max(0, part(span.offset_ns));
        const right = Math.min(1, part(span.offset_ns + span.duration_ns));
        bar.hidden = right < 0 || left > 1;
        bar.style.setProperty("left", `${100 * left}%`);
        bar.style.setProperty("width", `${100 * Math.max(0, right - left)}%`);
        fillOn([span.events, span.duration_ns], bar, () => span.events.map((event) => h("span.span-event", {
          title: `${event.name} ${duration(event.offset_ns - span.offset_ns)} after the begin\n${told(event, "\n")}`,
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
    if (id !== chosen) {
      chosen = id;
      onchoose(id);
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
      const at = Math.max(0, ids.indexOf(chosen));
      const inside = tree.contains(document.activeElement);
      const next = ids[inside ? Math.min(ids.length - 1, Math.max(0, at + step)) : at];
      if (next) choose(next, true);
    },
  };
}

/** The span that a reader wants to see first: the innermost failed one, the innermost open one, or the one with the most own time. */
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

/** What a lookup or connection was to. */
function about(span) {
  const { attributes } = span;
  if (span.name === "lookup") return attributes["dns.question.name"];
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

/** What an event says, in few words: most of its values need no name beside them. */
function told(event, between) {
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
  const hidden = new Set(["process.command_args", "cni.error.message", "cni.error.details", "sandglass.cause", "sandglass.cause.confidence", "sandglass.cause.evidence"]);
  return [
    h("h2", {}, h("span.swatch", { data: { phase: span.phase } }), span.name),
    span.status === "error"
      ? h("div.failure", {},
          h("strong", {}, span.error_class || "failed"),
          h("p", {}, attributes["cni.error.message"] || span.error_message || "A part of it failed."),
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
    args ? h("div.command", {}, h("h3", {}, "Command line"), h("pre", { tabindex: "0" }, args.map(quote).join(" "))) : null,
    span.events.length
      ? [h("h3", {}, "Events"), h("ol.events", {}, span.events.map((event) => h("li", {},
          h("span.event-at", {}, `+${duration(event.offset_ns - span.offset_ns)}`),
          h("span.event-name", { data: { event: event.name.replaceAll(" ", "-") } }, event.name),
          h("span.event-more", {}, told(event, " · ")))))]
      : null,
    h("h3", {}, "Attributes"),
    h("dl.attributes", {}, Object.entries(attributes)
      .filter(([key]) => !hidden.has(key))
      .map(([key, value]) => [h("dt", {}, key), h("dd", {}, Array.isArray(value) ? value.join(", ") : String(value))])),
    span.links.length
      ? [h("h3", {}, "Links"), h("dl.attributes", {}, span.links.map((link) => [
          h("dt", {}, link.relation.replaceAll("_", " ")),
          // The caller's trace is the runtime's own: it is where that exports to.
          h("dd", {}, link.relation === "caller" ? link.trace_id : h("a.link", { href: `#/trace/${link.trace_id}/${link.span_id}` }, link.trace_id))]))]
      : null,
  ];
}

function row(name, ...value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
}

/** As a shell would want it; control characters made visible. */
function quote(text) {
  const visible = text.replace(/[\u0000-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`);
  return /^[\w@%+=:,./-]+$/.test(visible) ? visible : `'${visible.replaceAll("'", "'\\''")}'`;
}
