// Formatting of numbers, durations and times.

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

/** A duration: three digits and a unit; minutes from 100 s on. */
export function duration(ns) {
  if (!(ns > 0)) return "0 ms";
  const seconds = ns / 1e9;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  if (seconds >= 100) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  const [size, unit] = UNITS.find(([size]) => ns >= size);
  const value = ns / size;
  const decimals = value < 10 ? 2 : value < 100 ? 1 : 0;
  return `${value.toFixed(decimals)} ${unit}`;
}

/** Percent of a whole. */
export function percent(part, whole) {
  if (!(whole > 0)) return "0 %";
  const value = (100 * part) / whole;
  return value > 0 && value < 1 ? "<1 %" : `${Math.round(value)} %`;
}

/** "12 s ago". */
export function ago(unixMs, nowMs) {
  const seconds = Math.max(0, (nowMs - unixMs) / 1000);
  if (seconds < 2) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

/** Date and time to the millisecond, in the reader's own time zone, with its offset. */
export function absolute(unixMs) {
  const at = new Date(unixMs);
  const two = (value) => String(value).padStart(2, "0");
  const offset = -at.getTimezoneOffset();
  const zone = offset === 0 ? "UTC" : `UTC${offset < 0 ? "−" : "+"}${two(Math.floor(Math.abs(offset) / 60))}:${two(Math.abs(offset) % 60)}`;
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
  return `${day} ${clock} ${zone}`;
}

/** Milliseconds of a wall-clock time; the API sends nanoseconds as text. */
export function unixMs(text) {
  return Number(BigInt(text) / 1000000n);
}

/** A number of bytes. */
export function bytes(count) {
  if (count < 1024) return `${count} B`;
  if (count < 1024 * 1024) return `${(count / 1024).toFixed(1)} KiB`;
  return `${(count / 1024 / 1024).toFixed(1)} MiB`;
}

/** A count with thin spaces between thousands. */
export function count(value) {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");
}

/** The first digits of a long id. */
export function shortId(id) {
  return id && id.length > 16 ? id.slice(0, 12) : id || "";
}

/** About `wanted` round marks between `from` and `to`, in nanoseconds. */
export function ticks(from, to, wanted) {
  const raw = (to - from) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(Math.max(1, raw)));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw) || power * 10;
  const marks = [];
  for (let at = Math.ceil(from / step) * step; at <= to && marks.length < 50; at += step) marks.push(at);
  return marks;
}

/** Label of an axis mark, without trailing zeros. */
export function mark(ns) {
  if (ns === 0) return "0";
  const [size, unit] = UNITS.find(([size]) => ns >= size) || UNITS[3];
  return `${Number((ns / size).toFixed(2))} ${unit}`;
}
