// The trace view: verdict, phases, waterfall and related traces of one trace.

import { get, throttle, traceKey } from "./api.js";
import { fill, fillOn, h, say } from "./dom.js";
import { absolute, ago, count, duration, shortId, unixMs } from "./format.js";
import { causeMeaning, causeName, findings } from "./causes.js";
import { podName } from "./list.js";
import { legend, phaseBar } from "./phases.js";
import { explained, strip } from "./reasons.js";
import { makeWaterfall } from "./waterfall.js";

const RELATIONS = {
  previous_attempt: "previous attempt",
  next_attempt: "next attempt",
  sandbox: "creation of the sandbox",
  operation: "operation on the sandbox",
  journey: "journey of its traffic",
  same_trace: "in the same trace of the runtime",
};

/** `within` selects one of several traces with this id: its root, or any other span of it, which is then selected first. */
export function traceView(root, { id, within, span }, shared) {
  let gone = false;
  let trace = null;
  let which = within;
  const head = h("div.trace-head");
  const facts = h("dl.facts");
  const took = h("strong");
  const began = h("span");
  const verdict = h("p.verdict-line", { role: "status" });
  const phases = h("div");
  const why = h("div");
  const path = h("div.path");
  const answer = h("section.card.answer", { "aria-label": "Where the time went" }, verdict, why, phases, path);
  const related = h("section.related", { "aria-label": "Related", hidden: true });
  const waterfall = makeWaterfall((chosen) => history.replaceState(null, "", `#/trace/${traceKey(trace)}/${chosen}`), related);
  const note = h("div");
  const back = h("a.back", { href: shared.lastList }, "← Back to the list");
  const content = h("div.trace", { hidden: true }, head, facts, answer, waterfall.element);
  fill(root, back, note, content);

  async function load() {
    try {
      trace = await get(`/api/v1/traces/${[id, which].filter(Boolean).map(encodeURIComponent).join("/")}`);
    } catch (error) {
      if (!gone && !trace) fill(note, h("div.empty", {}, h("h2", {}, error.message), h("p", {}, error.hint || "")));
      return;
    }
    if (gone) return;
    // From now on this trace, even if a newer one with this id comes in.
    which = trace.root_span_id;
    shared.setNow(trace.now_unix_ns);
    fill(note);
    content.hidden = false;
    show();
  }
  const reload = throttle(load, 60);
  const later = throttle(load, 300);

  function show() {
    document.title = `${podName(trace)} · sandglass`;
    showHead();
    // A success with a cause, such as a retried lookup, has a colour of its own.
    answer.dataset.result = trace.causes && trace.result === "ok" ? "badly" : trace.result;
    say(verdict, sentence(trace, shared));
    fillOn(trace.phases, phases, () => [
      h("div.breakdown-bar", {}, phaseBar(trace.phases, trace.duration_ns, 1)),
      legend(trace.phases, trace.duration_ns, trace.kind === "journey"),
    ]);
    const operation = explained(trace);
    fillOn([operation && operation.id, operation && operation.attributes], path, () =>
      operation ? [h("h3", {}, `What ${operation.name} waited for, on its critical path`), strip(operation, trace.runbooks)] : []);
    const found = findings(trace).slice(0, 3);
    fillOn(found.map(({ span, ...rest }) => [span.id, rest]), why, () => found.map(explain));
    waterfall.show(trace, span || (within === which ? "" : within));
    showRelated();
  }

  function showHead() {
    const start = unixMs(trace.start_unix_ns);
    const runtime = trace.timeline[0].attributes["sandglass.runtime"];
    const network = trace.network ? trace.network.state : "";
    fillOn([trace.pod, trace.namespace, trace.result, trace.incomplete, network], head, () =>
      h("div.title", {},
        h("h1", {}, podName(trace), trace.namespace ? h("small", {}, trace.namespace) : null),
        h("div.chips", {},
          h("span.chip", { class: `chip result ${trace.reason && trace.result === "ok" ? "again" : trace.result}` }, { ok: trace.reason || "succeeded", failed: trace.reason || "failed", running: "running", waiting: "created" }[trace.result]),
          network === "waiting" ? h("span.chip.waiting", {}, "no traffic yet") : null,
          network === "failed" ? h("span.chip.failed", {}, "network never usable") : null,
          trace.operation ? h("span.chip", {}, trace.operation) : null,
          trace.attempt > 1 ? h("span.chip.again", {}, `attempt ${trace.attempt}`) : null,
          trace.incomplete ? h("span.chip.gap", { title: "records were lost, or the begin was not observed: spans may be missing" }, "incomplete") : null)));
    const { network: usable } = trace;
    say(took, duration(usable ? usable.created_ns : trace.duration_ns));
    say(began, ago(start, shared.now()));
    const labels = trace.identity.labels || [];
    const hidden = trace.timeline[0].attributes["sandglass.network_attempts_left_out"];
    fillOn([runtime, trace.sandbox, trace.identity, trace.running, usable, hidden], facts, () => [
      fact(trace.running ? "has run for" : usable ? "sandbox created after" : "took", took),
      usable ? fact("network", ...readiness(usable), hidden ? h("span.muted", {}, `; ${count(hidden)} more attempts are not shown`) : null) : null,
      trace.target ? fact("to", trace.target) : null,
      fact("began", began, h("span.muted", {}, ` ${absolute(start)}`)),
      runtime ? fact("runtime", runtime) : null,
      trace.sandbox ? fact("sandbox", copyable(trace.sandbox)) : null,
      trace.identity.uid ? fact("pod uid", copyable(trace.identity.uid)) : null,
      fact("trace id", copyable(trace.trace_id)),
      labels.length ? fact("labels", labels.map(([key, value]) => h("span.label", {}, `${key}=${value}`))) : null,
    ]);
  }

  function showRelated() {
    related.hidden = trace.related.length === 0;
    fillOn(trace.related.map((other) => [traceKey(other), other.result, other.duration_ns]), related, () => [
      h("h2", {}, "Related traces"),
      h("ul", {}, trace.related.map((other) =>
        h("li", {}, h("a", { href: `#/trace/${traceKey(other)}`, data: { result: other.result } },
          h("span.state", { role: "img", "aria-label": other.result }),
          h("span", {}, RELATIONS[other.relation] || other.relation),
          h("strong", {}, called(other)),
          other.attempt > 1 ? h("span.chip.again", {}, `attempt ${other.attempt}`) : null,
          h("span.muted", { title: absolute(unixMs(other.start_unix_ns)) }, ago(unixMs(other.start_unix_ns), shared.now())),
          h("span.time", {}, duration(other.duration_ns)))))),
    ]);
  }

  reload();
  return {
    row(row) {
      if (row.trace_id === id || (trace && trace.sandbox && row.sandbox === trace.sandbox)) later();
    },
    reload,
    tick: throttleTicks(() => trace && trace.running && later(), 4),
    leave() {
      gone = true;
      document.title = "sandglass";
    },
    keys: {
      down: () => waterfall.move(1),
      up: () => waterfall.move(-1),
      zoom: () => waterfall.zoom(),
      back: () => {
        location.hash = shared.lastList;
      },
      search: () => false,
    },
  };
}

function throttleTicks(action, every) {
  let ticks = 0;
  return () => {
    ticks += 1;
    if (ticks % every === 0) action();
  };
}

/** When the network was usable, and how long that took from the first packet on. */
function readiness({ state, created_ns: created, first_attempt_ns: first, wait_ns: wait }) {
  if (state === "waiting") return [first === undefined ? "no traffic yet" : "no traffic has succeeded yet"];
  const tried = h("span.muted", {}, ` sent ${duration(Math.max(0, first - created))} after the sandbox was created`);
  if (state === "failed") return [h("strong.trouble", {}, `not usable ${duration(wait)} after its first packet`), tried];
  return [h("strong", {}, `usable ${duration(wait)} after its first packet`), tried];
}

/** Name of a related trace; with its pod if that is another one. */
function called(other) {
  const name = other.target || other.operation || podName(other);
  return other.relation === "same_trace" && name !== podName(other) ? `${name} ${podName(other)}` : name;
}

/** A cause with its confidence and evidence. */
function explain({ span, cause, confidence, evidence }) {
  return h("div.cause", {},
    h("p", {}, h("strong", {}, causeName(cause)), h("span.chip", { class: `chip ${confidence}`, title: "confidence" }, confidence),
      h("span.muted", {}, ` ${causeMeaning(cause)}`)),
    evidence.length ? h("ul.evidence", { "aria-label": `Evidence in ${span.name}` }, evidence.map((line) => h("li", {}, line))) : null);
}

/** The verdict; of a running trace the innermost open span. */
function sentence(trace, shared) {
  if (!trace.running) return trace.verdict;
  const open = trace.timeline.filter((span) => !span.end_unix_ns);
  const innermost = open[open.length - 1];
  if (!innermost) return "running";
  // The outermost process that is open knows what those below it wait for.
  const waiting = open.map(({ attributes }) => [attributes["sandglass.waiting"], attributes["sandglass.waiting.since"]]).find(([text]) => text);
  const why = waiting ? `: ${waiting[0]}, for ${duration(Math.max(0, shared.now() * 1e6 - waiting[1]))} now` : "";
  return `${innermost.name} has been running for ${duration(innermost.duration_ns)}${why}`;
}

function fact(name, ...value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, ...value));
}

function copyable(text) {
  const button = h("button.copy", { type: "button", title: `Copy ${text}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.dataset.done = "yes";
      setTimeout(() => delete button.dataset.done, 1200);
    } catch {
      getSelection().selectAllChildren(button);
    }
  } }, text.length > 16 ? `${shortId(text)}…` : text);
  return button;
}
