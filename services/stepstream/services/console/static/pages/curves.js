// Show success by policy version, with intervals, and which versions were promoted, tried, rolled back and served.

import { FEW, axis, chart, colour, faint, wholeTicks } from "../components/chart.js";
import { RANGE, filters, tenantFilter, untilFilter } from "../components/filters.js";
import { ago, bytes, count, decimal, percent, version } from "../components/format.js";
import { card, empty } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */
/**
 * @typedef {object} Point
 * @property {string} split @property {number} version @property {number} trajectories @property {number} outcomes
 * @property {number} successes @property {number} rate @property {number} low @property {number} high
 * @property {number} reward @property {number} at
 */
/** @typedef {{ version: number, previous: number, at: number, workers: number }} Swap */
/** @typedef {{ what: string, version: number | null, previous: number | null, share: number, author: string, reason: string, at: number }} Rollout */

export const title = "Curves";
export const tables = ["trajectories", "trajectory_hours", "checkpoints", "rollouts", "worker_status"];
export const ranged = true;

/** @type {[string, string, string, number[]][]} */
const SPLITS = [["eval", "held-out tasks", "eval", []], ["train", "training tasks", "train", [6, 4]]];

/** @type {Record<string, [words: string, mark: "" | "good" | "warn"]>} */
const ROLLOUTS = {
  promote: ["promoted", "good"], rollback: ["rolled back", "warn"], canary: ["canary", ""], canary_end: ["canary ended", ""],
  canary_rollback: ["canary rolled back", "warn"], follow: ["follows the newest", ""],
};
// Marks of the chart: sign, colour, and the height of the sign in pixels.
/** @type {Record<string, [sign: string, colour: string, top: number]>} */
const MARKS = { promote: ["▲", "good", 12], canary: ["◆", "third", 36], rollback: ["▼", "bad", 24], canary_rollback: ["▼", "bad", 24] };

/** @param {Context} context */
export const load = ({ get, state }) => get("/api/curves", { tenant: state.tenant, model: state.model, agent: state.agent, harness: state.harness, since: state.since, until: state.until });

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${filters([
    ...tenantFilter(data.tenants, context),
    { name: "model", label: "Model", kind: "choice", options: data.models },
    { name: "agent", label: "Agent", kind: "choice", options: data.agents, all: "All agents" },
    ...(data.harnesses.length || context.state.harness ? [/** @type {import("../components/filters.js").Filter} */ ({ name: "harness", label: "Harness", kind: "choice", options: data.harnesses, all: "All harnesses" })] : []),
    RANGE, ...untilFilter(context),
  ], context)}
  ${card("Success by policy version", data.success.length
    ? chart("success", describe(data.success), curve(data.success, data.rollouts))
    : empty("No trajectory with an outcome in this range."), {
    note: `Share of trajectories with an outcome that succeeded, by the newest version in each, over all tracks and environments${context.state.harness ? "" : " and all harness versions"}; the band is the 95 % Wilson interval. A hollow point has fewer than ${FEW} outcomes: the line leaves it out.${context.user.tenant ? "" : " Upright lines: ▲ promoted, ◆ tried as a canary, ▼ returned to by a rollback."}`,
    wide: true,
  })}
  ${card("Versions", table("Versions", [
    { head: "Version", cell: (/** @type {Point} */ row) => version(row.version), kind: "number" },
    { head: "Tasks", cell: (row) => row.split },
    { head: "Success", cell: (row) => percent(row.rate), kind: "number" },
    { head: "95 % interval", cell: (row) => `${percent(row.low)} to ${percent(row.high)}` },
    { head: "Outcomes", cell: (row) => count(row.outcomes), kind: "number", mark: (row) => (row.outcomes < FEW ? "warn" : "") },
    { head: "Reward", cell: (row) => decimal(row.reward), kind: "number" },
    { head: "Last", cell: (row) => ago(row.at, context.now), kind: "name" },
  ], data.success.slice(0, 40)), { wide: true })}
  ${context.user.tenant ? "" : installation(data, context)}`;

/** @param {any} data @param {Context} context */
const installation = (data, context) => html`
  ${card("Promotions and rollbacks", table("Promotions and rollbacks", [
    { head: "When", cell: (/** @type {Rollout} */ row) => ago(row.at, context.now), kind: "name" },
    { head: "What", cell: (row) => `${ROLLOUTS[row.what][0]}${row.what === "canary" ? `, ${percent(row.share)}` : ""}`, mark: (row) => ROLLOUTS[row.what][1] },
    { head: "From", cell: (row) => version(row.previous) },
    { head: "To", cell: (row) => version(row.version) },
    { head: "By", cell: (row) => row.author || "–", kind: "name" },
    { head: "Reason", cell: (row) => row.reason, kind: "prose" },
  ], data.rollouts, { empty: "No version was promoted, tried or rolled back in this range." }), { wide: true, note: "Decisions of people and of the controller; without a version: the newest." })}
  ${card("Served", table("Served", [
    { head: "When", cell: (/** @type {Swap} */ row) => ago(row.at, context.now), kind: "name" },
    { head: "From", cell: (row) => version(row.previous) },
    { head: "To", cell: (row) => version(row.version) },
    { head: "Workers", cell: (row) => count(row.workers), kind: "number" },
  ], data.swaps, { empty: "No worker changed its version in this range." }), { note: "Changes of version, as the workers report; of the last 7 days." })}
  ${card("Checkpoints", table("Checkpoints", [
    { head: "Version", cell: (row) => version(row.version) },
    { head: "Parent", cell: (row) => version(row.parent_version) },
    { head: "Track", cell: (row) => row.track },
    { head: "Trajectories", cell: (row) => count(row.trajectories), kind: "number" },
    { head: "Size", cell: (row) => bytes(row.size_bytes), kind: "number" },
    { head: "Published", cell: (row) => ago(row.at, context.now), kind: "name" },
  ], data.checkpoints.slice(0, 20), { empty: "No version was published in this range." }))}`;

/** @param {Point[]} points */
const describe = (points) => points.slice(0, 8).map((row) =>
  `${row.split} ${version(row.version)}: ${percent(row.rate)}, ${percent(row.low)} to ${percent(row.high)} of ${row.outcomes}`).join("; ");

/** @param {Point[]} points @param {Rollout[]} rollouts */
function curve(points, rollouts) {
  const versions = [...new Set(points.map((row) => row.version))].sort((a, b) => a - b);
  const columns = SPLITS.flatMap(([split]) => {
    const found = new Map(points.filter((row) => row.split === split).map((row) => [row.version, row]));
    /** @param {(row: Point) => number | null} value */
    const column = (value) => versions.map((one) => { const row = found.get(one); return row ? value(row) : null; });
    return [
      column((row) => (row.outcomes >= FEW ? row.rate : null)),
      column((row) => row.low),
      column((row) => row.high),
      column((row) => (row.outcomes < FEW ? row.rate : null)),
    ];
  });
  return {
    key: JSON.stringify(rollouts.map((row) => [row.version, row.what])),
    height: 300,
    data: [versions, ...columns],
    options: {
      scales: { x: { time: false, range: (/** @type {unknown} */ _, /** @type {number} */ low, /** @type {number} */ high) => [low - 0.5, high + 0.5] }, y: { range: [0, 1] } },
      axes: [
        axis({ values: (/** @type {unknown} */ _, /** @type {number[]} */ at) => at.map(version), splits: (/** @type {any} */ u) => wholeTicks(u.scales.x.min, u.scales.x.max) }),
        axis({ values: (/** @type {unknown} */ _, /** @type {number[]} */ at) => at.map((share) => `${Math.round(100 * share)} %`) }),
      ],
      series: [{ label: "version", value: (/** @type {unknown} */ _, /** @type {number} */ v) => version(v) }, ...SPLITS.flatMap(lines)],
      bands: SPLITS.map(([, , name], at) => ({ series: [3 + 4 * at, 2 + 4 * at], fill: () => faint(String(name)) })),
      hooks: { draw: [(/** @type {any} */ u) => drawMarks(u, rollouts)] },
    },
  };
}

/** @param {any[]} split  name, label, colour, dash */
function lines([, label, name, dash]) {
  const edge = { stroke: "transparent", points: { show: false }, spanGaps: true, class: "band-edge" };
  /** @param {any} chart @param {number | null} share @param {number} at @param {number} point @param {number} first */
  const text = (chart, share, at, point, first) =>
    share === null ? "–" : `${percent(share)} (${percent(chart.data[first + 1][point])} to ${percent(chart.data[first + 2][point])})`;
  return [
    { label, stroke: () => colour(name), width: 2, dash, points: { show: true, size: 7, fill: () => colour(name) }, spanGaps: true,
      value: (/** @type {any} */ u, /** @type {number | null} */ share, /** @type {number} */ at, /** @type {number} */ point) => text(u, share, at, point, at) },
    { label: "low", ...edge },
    { label: "high", ...edge },
    { label: `${label}, few`, stroke: () => colour(name), width: 0, points: { show: true, size: 8, width: 1.5, fill: () => colour("card") }, paths: () => null,
      value: (/** @type {any} */ u, /** @type {number | null} */ share, /** @type {number} */ at, /** @type {number} */ point) => text(u, share, at, point, at - 3) },
  ];
}

/** @param {any} u  uPlot @param {Rollout[]} rollouts */
function drawMarks(u, rollouts) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  for (const { what, version: marked } of rollouts) {
    if (!(what in MARKS) || marked === null) continue;
    const [sign, name, top] = MARKS[what];
    const x = Math.round(u.valToPos(marked, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = ctx.fillStyle = colour(name);
    ctx.globalAlpha = 0.6;
    ctx.setLineDash([3 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.fillText(sign, x, bbox.top + top * devicePixelRatio);
  }
  ctx.restore();
}
