// The phases of time: their words, and the bars that show them. Colours stand in style.css, by `data-phase`.

import { h } from "./dom.js";
import { duration, percent } from "./format.js";

/** In the order bars show them: from the runtime inwards. */
export const PHASES = [
  ["runtime", "Runtime", "the container runtime: before the first plugin, between operations, its own steps"],
  ["between_plugins", "Between plugins", "inside a CNI operation, but in no plugin"],
  ["plugin", "Plugin", "a CNI plugin itself"],
  ["delegate", "Delegate", "a plugin that another plugin called, IPAM included"],
  ["command", "Command", "a command that a plugin started"],
];

/** Only on Windows. */
const WINDOWS_PHASES = [
  ["hns", "HNS", "the host network service"],
  ["hcs", "HCS", "the host compute service"],
  ["vnic_wait", "Wait for vNIC", "the plugin had answered, and the adapter was not in the sandbox yet"],
];

/** After the sandbox was ready. */
export const TRAFFIC_PHASES = [
  ["application", "Not on the network", "the sandbox was ready, and its programs had not used the network yet, or did something else"],
  ["lookup", "Lookup", "DNS lookups until the first was answered"],
  ["connect", "Connect", "TCP connections until the first stood"],
];

/** A stacked bar; `width` is its part of the room, 0 to 1. */
export function phaseBar(phases, total, width) {
  const bar = h("span.phase-bar", { "aria-hidden": "true", style: { width: `${Math.max(1.5, 100 * width)}%` } });
  for (const [key] of [...PHASES, ...WINDOWS_PHASES, ...TRAFFIC_PHASES]) {
    const ns = phases[key] || 0;
    if (ns > 0) bar.append(h("span", { data: { phase: key }, style: { "flex-grow": ns / Math.max(1, total) } }));
  }
  return bar;
}

/** Numbers beside the bar; of a journey (`traffic`) only the phases it has. */
export function legend(phases, total, traffic) {
  return h(
    "ul.legend",
    {},
    [...PHASES.filter(([key]) => !traffic || phases[key] > 0), ...[...WINDOWS_PHASES, ...TRAFFIC_PHASES].filter(([key]) => phases[key] > 0)].map(([key, label, meaning]) => {
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
