// Where it is written what to look at next, by what an operation waited for. Does not load anything: links only.

import { h } from "./dom.js";

/** Reasons by runbook, and what the link is called. */
const RUNBOOKS = [
  ["processors", "busy processors", ["run_queue", "throttled"]],
  ["locks", "locks", ["file_lock", "kernel_lock"]],
  ["daemons", "daemons", ["daemon"]],
  ["kernel", "the kernel's own work", ["kernel_work"]],
  ["network", "the API server and the network", ["network"]],
];
/** A reason with less than this part of the time leads nowhere. */
const LEAST_PART = 0.1;

/** Links into `folder` to the runbooks of the reasons that took a considerable part of `total` nanoseconds; null without one. */
export function runbooks(time, total, folder) {
  const found = RUNBOOKS.filter(([, , reasons]) => reasons.reduce((sum, reason) => sum + (time[reason] || 0), 0) >= LEAST_PART * total);
  if (!found.length) return null;
  return h("p.runbooks", {}, "What to look at next: ", found.map(([file, name], index) => [
    index ? ", " : null,
    h("a.link", { href: `${folder}${file}.md`, rel: "noreferrer", target: "_blank" }, name),
  ]));
}
