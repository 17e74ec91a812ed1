// Phases: their names, and the bars that show them. Colours are in style.css, by `data-phase`.

import { h } from "./dom.js";
import { duration, percent } from "./format.js";

/** In the order bars show them: from the runtime inwards. */
export const PHASES = [
  ["runtime", "Runtime", "the container runtime: before the first plugin, between operations, its own steps"],
  ["between_plugins", "Between plugins", "inside a CNI operation, outside of its plugins"],
  ["plugin", "Plugin", "a CNI plugin itself"],
  ["delegate", "Delegate", "a plugin that another plugin executed, IPAM included"],
  ["command", "Command", "a process that a plugin started"],
];

/** Only where plugins are shims for daemons. */
const DAEMON_PHASES = [["daemon", "Daemon", "a daemon that a plugin had sent a request to"]];

/** Only on Windows. */
const WINDOWS_PHASES = [
  ["hns", "HNS", "Host Network Service"],
  ["hcs", "HCS", "Host Compute Service"],
  ["vnic_wait", "Wait for vNIC", "from the end of the plugin until the interface was in the sandbox"],
];

/** After the sandbox was created. */
export const TRAFFIC_PHASES = [
  ["application", "No traffic", "the sandbox was created, and its programs sent nothing"],
  ["lookup", "Lookup", "DNS lookups until one was answered"],
  ["connect", "Connect", "TCP connects until one was established"],
];

/** A stacked bar; `width` is its part of the available width, 0 to 1. */
export function phaseBar(phases, total, width) {
  const bar = h("span.phase-bar", { "aria-hidden": "true", style: { width: `${Math.max(1.5, 100 * width)}%` } });
  for (const [key] of [...PHASES, ...DAEMON_PHASES, ...WINDOWS_PHASES, ...TRAFFIC_PHASES]) {
    const ns = phases[key] || 0;
    if (ns > 0) bar.append(h("span", { data: { phase: key }, style: { "flex-grow": ns / Math.max(1, total) } }));
  }
  return bar;
}

/** Durations by phase; of a journey (`traffic`) only the phases it has. */
export function legend(phases, total, traffic) {
  return h(
    "ul.legend",
    {},
    [...PHASES.filter(([key]) => !traffic || phases[key] > 0), ...[...DAEMON_PHASES, ...WINDOWS_PHASES, ...TRAFFIC_PHASES].filter(([key]) => phases[key] > 0)].map(([key, label, meaning]) => {
      const ns = phases[key] || 0;
      return h(
        "li",
        { title: meaning, class: ns > 0 ? null : "none" },
        h("span.swatch", { data: { phase: key }, "aria-hidden": "true" }),
        h("span.legend-name", {}, label),
        h("span.legend-time", {}, ns > 0 ? duration(ns) : "–"),
        h("span.legend-part", {}, ns > 0 ? percent(ns, total) : ""),
      );
    }),
  );
}
