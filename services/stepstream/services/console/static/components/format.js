// Format numbers, sizes, versions and times as text.

const NONE = "–";

export const percent = (share) => (share === null || share === undefined ? NONE : `${(100 * share).toFixed(1)} %`);
export const count = (n) => (n === null || n === undefined ? NONE : Number(n).toLocaleString("en-GB"));
export const decimal = (x, digits = 2) => (x === null || x === undefined ? NONE : Number(x).toFixed(digits));
export const version = (v) => (v === null || v === undefined ? NONE : `v${v}`);
export const versions = (low, high) => (low === high ? version(low) : `${version(low)}–${version(high)}`);
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

export function bytes(n) {
  const units = ["B", "kB", "MB", "GB"];
  let at = 0;
  while (n >= 1000 && at < units.length - 1) { n /= 1000; at += 1; }
  return `${n.toFixed(at ? 1 : 0)} ${units[at]}`;
}

export function ago(ms, now) {
  const s = Math.max(0, Math.round((now - ms) / 1000));
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86400)} d ago`;
}
