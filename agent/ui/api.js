// Requests to the agent: JSON over fetch, and one event stream that reconnects by itself.
// Does not: render, or keep state of a view.

/** Fetches JSON. Throws an error with the agent's message and its hint. */
export async function get(path, signal) {
  let response;
  try {
    response = await fetch(path, { signal, headers: { accept: "application/json" } });
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw Object.assign(new Error("The agent does not respond."), { hint: "Is it still running on this node?" });
  }
  const body = await response.json().catch(() => ({}));
  if (!response.ok) {
    throw Object.assign(new Error(body.error || `HTTP ${response.status}`), { hint: body.hint || "", status: response.status });
  }
  return body;
}

/** The key of a trace, as used in URLs: several traces may have one trace id. */
export function traceKey({ trace_id: id, root_span_id: root }) {
  return `${id}/${root}`;
}

/** Subscribes to the stream. `on.open` also fires after a reconnect: what is shown may be outdated. */
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
      // The browser reconnects by itself, unless the agent rejected the stream (too many are open).
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
  // A browser opens at most six HTTP/1.1 connections to one host, for all its tabs: hidden tabs must not hold them.
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

/** Runs `action` at most once per `ms` and never twice at a time. A call during a run schedules one more run. */
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
