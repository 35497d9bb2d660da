// Show whether the policy learns, whether all is safe, and what changed lately.

import { FEW, axis, chart, colour, faint } from "../components/chart.js";
import { RANGE, filters, tenantFilter, untilFilter } from "../components/filters.js";
import { ago, clock, count, decimal, percent, version } from "../components/format.js";
import { card, tile } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Overview";
export const tables = ["steps", "trajectories", "trajectory_hours", "checkpoints", "alarms", "rollouts"];
export const every = 5;
export const ranged = true;

/** @param {Context} context */
export const load = (context) => context.get("/api/overview", { tenant: context.state.tenant, model: context.state.model, since: context.state.since, until: context.state.until });

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${filters([...tenantFilter(data.tenants, context), { name: "model", label: "Model", kind: "choice", options: data.models }, RANGE, ...untilFilter(context)], context)}
  ${alarms(data, context)}
  <section class="tiles" aria-label="Now">${tiles(data, context)}</section>
  ${card("Steps per second", chart("steps", `Steps per second, last: ${data.steps.at(-1)?.steps ?? 0}`, steps(data.steps)), {
    note: "Governed steps of the last two minutes, by the time they occurred.",
    wide: true,
  })}
  ${card("What changed", table("What changed", [
    { head: "When", cell: (row) => ago(row.at, context.now), kind: "name" },
    { head: "What", cell: (row) => row.kind },
    { head: "Model", cell: (row) => `${row.model} ${version(row.version)}`, kind: "name" },
    { head: "Detail", cell: (row) => row.detail, kind: "prose" },
  ], data.changes, { empty: "Nothing changed in this range." }), { wide: true })}`;

// The answer has the newest alarms as rows, and the number of all that are active.
/** @param {any} data @param {Context} context */
function alarms(data, context) {
  const active = data.alarms.filter((/** @type {any} */ row) => row.state === "raised");
  if (!active.length) return "";
  const more = data.active_alarms - active.length;
  return html`<section class="notice" id="alarms" role="alert" aria-labelledby="alarms-title">
    <h2 id="alarms-title">${data.active_alarms === 1 ? "1 active alarm" : `${count(data.active_alarms)} active alarms`}</h2>
    <ul>${active.map((/** @type {any} */ row) => html`<li>${row.message}</li>`)}
      ${more > 0 ? html`<li><a href=${context.href("rewards")}>and ${count(more)} more</a></li>` : ""}</ul>
  </section>`;
}

/** @param {any} data @param {Context} context */
function tiles(data, context) {
  const [newest] = data.success;
  const recent = data.steps.slice(-11, -1);
  const rate = recent.reduce((/** @type {number} */ sum, /** @type {any} */ row) => sum + row.steps, 0) / Math.max(1, recent.length);
  const stale = data.staleness;
  const published = data.changes.find((/** @type {any} */ row) => row.kind === "checkpoint");
  return [
    newest
      ? tile("Success, newest version", percent(newest.rate), `${version(newest.version)}, ${newest.split}: ${percent(newest.low)} to ${percent(newest.high)} of ${count(newest.outcomes)}, ${newest.outcomes < FEW ? "too few to compare, " : ""}all agents and harnesses`, newest.outcomes < FEW ? "warn" : "")
      : tile("Success, newest version", "–", "no outcome in this range"),
    tile("Steps per second", decimal(rate, rate < 10 ? 1 : 0), `mean of 10 s; ${count(data.totals.steps)} steps, ${count(data.totals.trajectories)} trajectories in this range`),
    tile("Staleness", decimal(stale.mean, 1), stale.mean === null ? "no trajectory in this range" : `largest ${stale.max}; bound ${data.staleness_bound}`, stale.max > data.staleness_bound ? "warn" : ""),
    tile("Newest version", published ? version(published.version) : "–", published ? `${published.model}, ${ago(published.at, context.now)}` : "none published in this range"),
  ];
}

/** @param {{ at: number, steps: number }[]} rows */
const steps = (rows) => ({
  key: "steps",
  height: 220,
  data: [rows.map((row) => row.at / 1000), rows.map((row) => row.steps)],
  options: {
    scales: { y: { range: (/** @type {unknown} */ _, /** @type {number} */ __, /** @type {number} */ high) => [0, Math.max(5, high * 1.1)] } },
    axes: [axis({ values: (/** @type {unknown} */ _, /** @type {number[]} */ at) => at.map((s) => clock(s * 1000)), space: 90 }), axis()],
    series: [
      { label: "time", value: (/** @type {unknown} */ _, /** @type {number | null} */ s) => (s === null ? "–" : clock(s * 1000)) },
      { label: "steps", stroke: () => colour("eval"), fill: () => faint("eval"), width: 2, points: { show: false } },
    ],
  },
});
