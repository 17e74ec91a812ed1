// Reasons: what the time of a plugin's critical path went to, and the strip that shows it. Colours are in style.css, by
// `data-reason`.

import { h } from "./dom.js";
import { duration, percent } from "./format.js";
import { runbooks } from "./runbooks.js";

/** In the order of the strip. */
const REASONS = [
  ["processor", "On a processor", "computed, or waited for less than 0.2 ms"],
  ["run_queue", "For a processor", "could run, and no processor was free"],
  ["throttled", "Throttled", "its cgroup had used up its quota"],
  ["file_lock", "File lock", "a lock on a file"],
  ["kernel_lock", "Kernel lock", "a lock inside the kernel"],
  ["kernel_work", "Kernel work", "the kernel's own work, such as RCU, clean-up or detection of duplicate addresses"],
  ["disk", "Disk", "a disk"],
  ["memory", "Memory", "free memory"],
  ["daemon", "Daemon", "another process behind a local socket"],
  ["network", "Network", "the network"],
  ["timer", "Timer", "a time that it chose itself"],
  ["child", "Child", "the end of a process"],
  ["thread", "Thread", "another thread of the same program"],
  ["pipe", "Pipe", "data or room in a pipe"],
  ["other", "Other", "a kernel function that the agent does not know"],
  ["runtime", "Between plugins", "the runtime between two plugins"],
  ["unknown", "Not recorded", "before waits were recorded, or where records were lost"],
];

const KEY = "sandglass.time.";

/** Nanoseconds by reason; null for a span without them. */
export function timeOf(span) {
  const found = REASONS.map(([key]) => [key, span.attributes[KEY + key]]).filter(([, ns]) => ns > 0);
  return found.length ? Object.fromEntries(found) : null;
}

/** The reason of a span `wait <reason>`; null for any other span. */
export function reasonOf(span) {
  const [, reason] = span.name.match(/^wait (\w+)$/) || [];
  return REASONS.some(([key]) => key === reason) ? reason : null;
}

/** What a reason is called. */
export function reasonName(reason) {
  const found = REASONS.find(([key]) => key === reason);
  return found ? found[1] : reason;
}

/** Whether this is an attribute that the strip shows. */
export function isTime(key) {
  return key.startsWith(KEY);
}

/** The longest operation whose critical path is known; undefined where there is none. */
export function explained(trace) {
  return trace.timeline
    .filter((span) => span.name.startsWith("cni ") && timeOf(span))
    .reduce((longest, span) => (longest && longest.duration_ns >= span.duration_ns ? longest : span), undefined);
}

/** The strip of a span with its legend, its longest waits, and links to runbooks in `folder`. */
export function strip(span, folder) {
  const time = timeOf(span);
  const shown = REASONS.filter(([key]) => time[key]);
  return [
    h("div.breakdown-bar", {}, h("span.phase-bar", { "aria-hidden": "true", style: { width: "100%" } },
      shown.map(([key]) => h("span", { data: { reason: key }, style: { "flex-grow": time[key] / Math.max(1, span.duration_ns) } })))),
    h("ul.legend", {}, shown.map(([key, label, meaning]) => h("li", { title: meaning },
      h("span.swatch", { data: { reason: key }, "aria-hidden": "true" }),
      h("span.legend-name", {}, label),
      h("span.legend-time", {}, duration(time[key])),
      h("span.legend-part", {}, percent(time[key], span.duration_ns))))),
    h("ul.longest", {}, (span.attributes["sandglass.time.waits"] || []).slice(0, 3).map((wait) => h("li", {}, wait))),
    runbooks(time, span.duration_ns, folder),
  ];
}
