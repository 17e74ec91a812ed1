// Charts over time slots: stacked bars or lines, plain SVG. The pointer or the arrow keys select a slot, and the legend then
// shows its numbers; screen readers announce them. Colours are in style.css, by `data-tone`.
// Does not: fetch data.

import { fill, fillOn, h, s, say } from "./dom.js";

const HEIGHT = 100;

/**
 * A chart. `series`: [{ key, label, tone }]. `lines`: lines, not bars. `log`: a logarithmic scale between two powers of
 * ten. `format`: formats a number. `sum`: the legend's number while no slot is selected, from all values of a series;
 * `whole`: the period of that number.
 */
export function makeChart({ title, series, lines, log, format, sum, whole = "last" }) {
  const plot = s("svg", { class: "plot", preserveAspectRatio: "none", "aria-hidden": "true" });
  const marks = h("div.chart-marks", { "aria-hidden": "true" });
  const cursor = h("div.chart-cursor", { hidden: true, "aria-hidden": "true" });
  const area = h("div.chart-area", {
    tabindex: "0", role: "slider", "aria-label": title, "aria-valuemin": "0",
    onpointermove: (event) => select(slotAt(event)),
    onpointerdown: (event) => select(slotAt(event)),
    onpointerleave: () => document.activeElement === area || select(-1),
    onblur: () => select(-1),
    onkeydown: key,
  }, marks, plot, cursor);
  const when = h("span.chart-when");
  const legend = h("ul.chart-legend");
  const from = h("span");
  const to = h("span");
  const element = h("section.card.hour", { "aria-label": title },
    h("div.hour-head", {}, h("h2", {}, title), when),
    area, h("div.chart-times", { "aria-hidden": "true" }, from, to), legend);
  let data = null;
  let selected = -1;

  function show(next) {
    data = next;
    if (selected >= data.count) selected = -1;
    area.setAttribute("aria-valuemax", String(data.count - 1));
    const top = log ? log[1] : niceTop(Math.max(0, ...data.slots.map((values) => (lines ? Math.max(...keys(values)) : keys(values).reduce((all, one) => all + one, 0)))));
    const height = (value) => {
      if (!log) return (HEIGHT * value) / Math.max(1, top);
      const [low, high] = log.map(Math.log10);
      return (HEIGHT * (Math.log10(Math.max(value, log[0])) - low)) / (high - low);
    };
    plot.setAttribute("viewBox", `0 0 ${data.count} ${HEIGHT}`);
    const drawn = (lines ? linePaths : barPaths)(height);
    fillOn([drawn, data.count], plot, () => drawn.map(([tone, path]) => s("path", { d: path, "data-tone": tone, class: lines ? "line" : "bars" })));
    const ends = log ? powers(log) : top < 2 ? [0, top] : [0, top / 2, top];
    fillOn([ends, top], marks, () => ends.map((value) => h("span", { style: { bottom: `${height(value)}%` } }, h("small", {}, format(value)))));
    say(from, data.from);
    say(to, data.to);
    showSlot();
  }

  const keys = (values) => series.map(({ key }) => (values && values[key]) || 0);

  /** One path per series: a rectangle for each slot, stacked on the series below it. */
  function barPaths(height) {
    const tops = new Array(data.count).fill(0);
    return series.map(({ key, tone }) => {
      const parts = [];
      data.slots.forEach((values, at) => {
        const value = (values && values[key]) || 0;
        if (!value) return;
        // One pixel at least: a single event among thousands stays visible.
        const tall = Math.max(1, height(value));
        parts.push(`M${at} ${(HEIGHT - tops[at]).toFixed(2)}h1v${(-tall).toFixed(2)}h-1z`);
        tops[at] += tall;
      });
      return [tone, parts.join("")];
    });
  }

  /** One path per series, interrupted where a slot has no value. */
  function linePaths(height) {
    return series.map(({ key, tone }) => {
      let down = false;
      const parts = [];
      data.slots.forEach((values, at) => {
        const value = values ? values[key] : null;
        if (value === null || value === undefined) {
          down = false;
          return;
        }
        const y = (HEIGHT - height(value)).toFixed(2);
        parts.push(down ? `L${at + 0.5} ${y}` : `M${at} ${y}L${at + 1} ${y}`);
        down = true;
      });
      return [tone, parts.join("")];
    });
  }

  function slotAt(event) {
    const box = area.getBoundingClientRect();
    return Math.min(data.count - 1, Math.max(0, Math.floor((data.count * (event.clientX - box.left)) / box.width)));
  }

  function key(event) {
    if (!data) return;
    const last = data.count - 1;
    const at = selected < 0 ? last : selected;
    const next = {
      ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 30, PageDown: at + 30, Home: 0, End: last, Escape: -1,
    }[event.key];
    if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    select(event.key === "Escape" ? -1 : Math.min(last, Math.max(0, next)));
  }

  function select(slot) {
    if (!data || slot === selected) return;
    selected = slot;
    showSlot();
  }

  function showSlot() {
    if (!data) return;
    cursor.hidden = selected < 0;
    cursor.style.setProperty("left", `${(100 * (selected + 0.5)) / data.count}%`);
    const values = selected < 0 ? null : data.slots[selected];
    say(when, selected < 0 ? (whole === "now" ? whole : `${whole} ${data.whole}`) : data.label(selected));
    const numbers = series.map(({ key }) => {
      if (selected < 0) return sum(data.slots.map((values) => (values ? values[key] : null)).filter((value) => value !== null && value !== undefined));
      return values && values[key] !== undefined ? values[key] : null;
    });
    fillOn(numbers, legend, () => series.map(({ label, tone }, index) => h("li", { class: numbers[index] ? null : "none" },
      h("span.swatch", { data: { tone }, "aria-hidden": "true" }), label, h("strong", {}, numbers[index] === null ? "–" : format(numbers[index])))));
    area.setAttribute("aria-valuenow", String(selected < 0 ? data.count - 1 : selected));
    area.setAttribute("aria-valuetext", `${when.textContent}: ${series.map(({ label }, index) => `${label} ${numbers[index] === null ? "none" : format(numbers[index])}`).join(", ")}`);
  }

  fill(legend, series.map(({ label }) => h("li.none", {}, label)));
  return { element, show };
}

/** The next round number. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 4, 6, 8, 10].map((factor) => factor * power).find((round) => round >= value) || 10 * power;
}

function powers([low, high]) {
  const marks = [];
  for (let value = low; value <= high; value *= 10) marks.push(value);
  return marks;
}
