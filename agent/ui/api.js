// Talks to the agent: JSON over fetch, and one stream of events that mends itself.

/** Asks for JSON. Throws an error with the agent's own words, and its hint. */
export async function get(path, signal) {
  let response;
  try {
    response = await fetch(path, { signal, headers: { accept: "application/json" } });
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw Object.assign(new Error("The agent does not answer."), { hint: "Is it still running on this node?" });
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw Object.assign(new Error(body.error || `HTTP ${response.status}`), { hint: body.hint || "", status: response.status });
  }
  return body;
}

/** What tells a trace from every other, as it stands in addresses: several may have one trace id. */
export function traceKey({ trace_id: id, root_span_id: root }) {
  return `${id}/${root}`;
}

/** Follows the stream. `on.open` also means: what was shown before may be old. */
export function follow(on) {
  let source = null;
  let timer = 0;
  const connect = () => {
    clearTimeout(timer);
    close();
    source = new EventSource("/api/v1/stream");
    source.onopen = () => on.open();
    source.onerror = () => {
      on.broken();
      // The browser tries again by itself, unless the agent refused (too many streams).
      if (source && source.readyState === EventSource.CLOSED) {
        clearTimeout(timer);
        timer = setTimeout(connect, 4000);
      }
    };
    for (const name of ["row", "health", "network", "reload"]) {
      source.addEventListener(name, (event) => on[name](JSON.parse(event.data)));
    }
  };
  const close = () => {
    if (source) source.close();
    source = null;
  };
  // A browser gives one agent six connections, for all its tabs: those that nobody looks at must not hold them.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(close, 10000);
    else if (!source || source.readyState === EventSource.CLOSED) connect();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => {
    if (event.persisted) connect();
  });
  connect();
}

/** Runs `action` at once, but at most once per `ms`, and never twice at a time; the last wish is always served. */
export function throttle(action, ms) {
  let timer = 0;
  let busy = false;
  let again = false;
  let last = -Infinity;
  const run = async () => {
    timer = 0;
    busy = true;
    last = performance.now();
    try {
      await action();
    } finally {
      busy = false;
      if (again) {
        again = false;
        soon();
      }
    }
  };
  const soon = () => {
    if (busy) again = true;
    else if (!timer) timer = setTimeout(run, Math.max(0, last + ms - performance.now()));
  };
  return soon;
}
