// Show each tool's calls, errors and latency beside its baseline of the 7 days before.

import { axis, chart, colour } from "../components/chart.js";
import { RANGE, filters, tenantFilter, untilFilter } from "../components/filters.js";
import { count, decimal, percent, width } from "../components/format.js";
import { card } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Tools";
export const tables = ["tool_hours", "trajectories"];
export const ranged = true;

/** @param {Context} context */
export const load = (context) => {
  const { since, until, tenant, agent, model, tool } = context.state;
  return context.get("/api/tools", { since, until, tenant, agent, model, tool });
};

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${filters([...tenantFilter(data.tenants, context), { name: "agent", label: "Agent", kind: "search" }, { name: "model", label: "Model", kind: "search" }, RANGE, ...untilFilter(context)], context)}
  ${card("Tools", table("Tools", columns(context), data.tools, {
    empty: "No tool was called in this range or the 7 days before it.",
    href: (row) => context.href("tools", { ...context.state, tool: row.tool }), selected: (row) => row.tool === context.state.tool,
  }), { wide: true, note: "An alert: at least 20 calls, and the lower bound of their errors (99 % Wilson) is above twice the baseline." })}
  ${context.state.tool ? card(`Calls of ${context.state.tool}`, series(data.series, context.state.tool), { wide: true, note: `A point is ${width(data.bucket_s)}.` }) : ""}`;

/** @param {Context} context @returns {import("../components/table.js").Column<any>[]} */
const columns = (context) => [
  { head: "Tool", cell: (row) => row.tool, kind: "name" },
  { head: "Alert", cell: (row) => (row.raised ? "errors" : slow(row) ? "slow" : "–"), mark: (row) => (row.raised ? "bad" : slow(row) ? "warn" : "") },
  { head: "Calls", kind: "number", cell: (row) => count(row.calls) },
  { head: "Failed", kind: "number", cell: (row) => (row.calls ? percent(row.failed / row.calls) : "–") },
  { head: "Baseline", kind: "number", cell: (row) => percent(row.baseline) },
  { head: "Errors", cell: (row) => row.errors.slice(0, 3).map((/** @type {any} */ error) => `${error.class} ${count(error.calls)}`).join(", ") || "none" },
  { head: "p50", kind: "number", cell: (row) => ms(row.p50) },
  { head: "p95", kind: "number", cell: (row) => ms(row.p95) },
  { head: "p95 before", kind: "number", cell: (row) => ms(row.p95_before) },
  { head: "", cell: (row) => html`<a href=${trajectoriesHref(context, row.tool)}>trajectories</a>` },
];

// The page's agent and range: without a range, Trajectories would search further back than the row counts.
/** @param {Context} context @param {string} tool */
const trajectoriesHref = ({ state, href }, tool) =>
  href("trajectories", { tool, since: state.since || "24h", ...(state.agent ? { agent: state.agent } : {}) });

/** @param {number | null} value */
const ms = (value) => (value === null ? "–" : value < 1000 ? `${decimal(value, value < 10 ? 1 : 0)} ms` : `${decimal(value / 1000, 1)} s`);
/** @param {any} row */
const slow = (row) => row.p95 !== null && row.p95_before !== null && row.p95 >= 2 * row.p95_before;

/** @param {any[]} rows @param {string} tool */
const series = (rows, tool) => chart("tool", `Calls and failed calls of ${tool}`, {
  key: tool, height: 200, data: [rows.map((row) => row.at / 1000), rows.map((row) => row.calls), rows.map((row) => row.failed)],
  options: { axes: [axis(), axis()], series: [{}, { label: "calls", width: 2, stroke: () => colour("eval") }, { label: "failed", width: 2, stroke: () => colour("bad") }] },
});
