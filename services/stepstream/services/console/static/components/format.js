// Format numbers, sizes, versions and times as text.

/** @typedef {number | null | undefined} Figure  A missing one is shown as a dash. */

const NONE = "–";

export const percent = (/** @type {Figure} */ share) => (share === null || share === undefined ? NONE : `${(100 * share).toFixed(1)} %`);
export const count = (/** @type {Figure | string} */ n) => (n === null || n === undefined ? NONE : Number(n).toLocaleString("en-GB"));
export const decimal = (/** @type {Figure} */ x, digits = 2) => (x === null || x === undefined ? NONE : Number(x).toFixed(digits));
export const version = (/** @type {Figure} */ v) => (v === null || v === undefined ? NONE : `v${v}`);
export const versions = (/** @type {Figure} */ low, /** @type {Figure} */ high) => (low === high ? version(low) : `${version(low)}–${version(high)}`);
export const clock = (/** @type {number} */ ms) => new Date(ms).toLocaleTimeString("en-GB");

/** @param {number} ms  milliseconds since the Unix epoch */
export function minute(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.valueOf()) ? NONE : `${date.toISOString().slice(0, 16).replace("T", " ")} UTC`;
}

/** @param {number} n */
export function bytes(n) {
  const units = ["B", "kB", "MB", "GB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) { n /= 1000; at += 1; }
  return `${n.toFixed(at ? 1 : 0)} ${units[at]}`;
}

/** @param {number} ms  a time @param {number} now  both in milliseconds since the Unix epoch */
export function ago(ms, now) {
  const s = Math.max(0, Math.round((now - ms) / 1000));
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} d ago`;
}

/** @param {number} s  seconds of a chart's point */
export const width = (s) => (s < 60 ? `${s} seconds` : s < 3600 ? `${s / 60} min` : s < 86400 ? "an hour" : "a day");
