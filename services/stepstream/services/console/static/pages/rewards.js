// Show what rewards are made of over time, and the alarms about it.

import { COLOURS, axis, chart, colour } from "../components/chart.js";
import { RANGE, filters, tenantFilter, untilFilter } from "../components/filters.js";
import { ago, count, decimal, version, width } from "../components/format.js";
import { card, empty } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Rewards";
export const tables = ["component_hours", "trajectories", "alarms"];
export const ranged = true;

const NAMES = ["since", "until", "tenant", "agent", "model", "environment", "split"];
const KINDS = /** @type {Record<string, string>} */ ({
  term: "Part of the reward", raw: "Scores of steps", shaping: "Shaping", guard: "Guards and corrections", shadow: "Measured, not paid",
});

/** @param {Context} context */
export const load = (context) => context.get("/api/rewards", Object.fromEntries(NAMES.map((name) => [name, context.state[name] ?? (name === "since" ? "7d" : "")])));

/** @param {any} data @param {Context} context */
export function render(data, context) {
  const kinds = [...new Set(data.components.map((/** @type {any} */ row) => row.kind))];
  return html`
    ${filters([
    ...tenantFilter(data.tenants, context),
    { name: "agent", label: "Agent", kind: "search" }, { name: "model", label: "Model", kind: "search" }, { name: "environment", label: "Environment", kind: "search" },
    { name: "split", label: "Split", kind: "choice", all: "all", options: ["train", "eval"] }, { ...RANGE, all: "7 days" }, ...untilFilter(context),
  ], context)}
    ${kinds.length ? kinds.map((kind) => component(kind, data)) : card("Components", empty("No labelled trajectory in this range: widen it, or remove a filter."), { wide: true })}
    ${card("Alarms", alarms(data, context), { wide: true })}`;
}

/** @param {any} kind @param {any} data */
function component(kind, data) {
  const rows = data.components.filter((/** @type {any} */ row) => row.kind === kind);
  const names = /** @type {string[]} */ ([...new Set(rows.map((/** @type {any} */ row) => row.name))]);
  const times = [...new Set(data.components.map((/** @type {any} */ row) => row.at))].sort((a, b) => a - b);
  const known = new Map(rows.map((/** @type {any} */ row) => [`${row.at}/${row.name}`, row]));
  const lines = names.map((name) => times.map((at) => known.get(`${at}/${name}`)?.mean ?? null));
  const newest = names.map((name) => rows.filter((/** @type {any} */ row) => row.name === name).at(-1));
  const text = newest.map((row) => `${row.name} ${decimal(row.mean)}`).join(", ");
  return html`${card(KINDS[kind] ?? kind, html`
    ${chart(`rewards-${kind}`, `Mean of each component: ${text}`, {
    key: JSON.stringify(names), height: 220, data: [times.map((at) => at / 1000), ...lines],
    options: { axes: [axis(), axis()], series: [{}, ...names.map((name, at) => ({ label: name, width: 2, spanGaps: true, stroke: () => colour(COLOURS[at % COLOURS.length]) }))] },
  })}
    ${table(`${KINDS[kind] ?? kind}, newest`, [
    { head: "Component", cell: (row) => row.name },
    { head: "Mean", kind: "number", cell: (row) => decimal(row.mean, 3) },
    { head: "Spread", kind: "number", cell: (row) => decimal(row.spread, 3) },
    { head: "Paid", kind: "number", cell: (row) => decimal(row.paid, 3) },
    { head: "Trajectories", kind: "number", cell: (row) => count(row.n), mark: (row) => (row.n < 30 ? "warn" : "") },
  ], newest)}`, { note: `Mean of trajectories, before weights; a point is ${width(data.bucket_s)}. Fewer than 30 trajectories are marked.` })}`;
}

/** @param {any} data @param {Context} context */
const alarms = (data, context) => table("Alarms", [
  { head: "State", cell: (row) => (row.state === "raised" ? "active" : "cleared"), mark: (row) => (row.state === "raised" ? "bad" : "good") },
  { head: "What", cell: (row) => row.message },
  { head: "Rose", cell: (row) => `${row.rising}: ${decimal(row.rising_before)} to ${decimal(row.rising_after)}` },
  { head: "Fell", cell: (row) => (row.falling ? `${row.falling}: ${decimal(row.falling_before)} to ${decimal(row.falling_after)}` : "none") },
  { head: "Trajectories", kind: "number", cell: (row) => `${count(row.trajectories_before)}, ${count(row.trajectories_after)}` },
  { head: "Since", cell: (row) => html`<a href=${trajectoriesHref(context, row)}>${version(row.since_version)}</a>` },
  { head: "Raised", cell: (row) => ago(row.raised_at, context.now), kind: "name" },
], data.alarms, { empty: "No alarms: no guard has fallen while a rewarded component rose." });

// Name what the alarm is about, also against the filters of the page; a part that the alarm lacks is no condition.
/** @param {Context} context @param {any} row */
function trajectoriesHref(context, row) {
  const { tenant, agent, model, environment, split } = row;
  const about = { tenant, agent, model, environment, split, version: String(row.since_version ?? "") };
  return context.href("trajectories", Object.fromEntries(Object.entries(about).filter(([, value]) => value)));
}
