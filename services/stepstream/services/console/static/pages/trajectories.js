// Find trajectories: newest first, by what they did, what they were paid and what was said.

import { parts } from "../components/agent_text.js";
import { filters, untilFilter } from "../components/filters.js";
import { ago, count, decimal, versions } from "../components/format.js";
import { card } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Trajectories";
export const tables = ["trajectories"];
export const ranged = true;

const NAMES = ["tenant", "agent", "model", "version", "outcome", "tool", "reward_least", "reward_most", "text", "task", "group", "id", "environment", "harness", "split", "since", "until", "after"];

/** @type {import("../components/filters.js").Filter} */
const TENANT = { name: "tenant", label: "Tenant", kind: "search" };
/** @type {import("../components/filters.js").Filter[]} */
const FIELDS = [
  { name: "text", label: "Words in a step", kind: "search" },
  { name: "agent", label: "Agent", kind: "search" },
  { name: "model", label: "Model", kind: "search" },
  { name: "version", label: "Version", kind: "number" },
  { name: "outcome", label: "Outcome", kind: "choice", all: "all", options: [["success", "succeeded"], ["failure", "failed"], ["none", "no outcome"], ["error", "with errors"], ["held", "held"]] },
  { name: "tool", label: "Tool", kind: "search" },
  { name: "reward_least", label: "Reward from", kind: "number" },
  { name: "reward_most", label: "to", kind: "number" },
  { name: "group", label: "Group", kind: "search" },
  { name: "id", label: "Id begins with", kind: "search" },
  { name: "since", label: "Range", kind: "choice", all: "until 50 are found", options: [["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"], ["90d", "90 days"]] },
];
// Conditions that links bring along: shown while they hold, so that they can be seen and removed.
/** @type {import("../components/filters.js").Filter[]} */
const FROM_LINKS = [
  { name: "task", label: "Task", kind: "search" }, { name: "environment", label: "Environment", kind: "search" },
  { name: "harness", label: "Harness", kind: "search" }, { name: "split", label: "Split", kind: "search" },
];

/** @param {Context} context */
export const load = (context) =>
  context.get("/api/trajectories", Object.fromEntries(NAMES.map((name) => [name, context.state[name]])));

/** @param {any} row */
const isKnown = (row) => row.success !== null && row.success !== undefined;
// A time-out of the agent counts as a failure, once no feedback is waited for any more.
/** @param {any} row */
const isTimeOut = (row) => row.end === "truncated" && !row.pending?.length;
/** @param {any} row */
export const outcome = (row) => (isKnown(row) ? (row.success ? "succeeded" : "failed") : isTimeOut(row) ? "timed out" : "none yet");
/** @param {any} row @returns {"" | "good" | "bad"} */
export const outcomeMark = (row) => (isKnown(row) ? (row.success ? "good" : "bad") : isTimeOut(row) ? "bad" : "");
/** @param {Context} context @param {any} row */
export const trajectoryHref = (context, row) => context.href("trajectory", { tenant: row.tenant, id: row.trajectory_id });

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${filters([...FIELDS, ...FROM_LINKS.filter((field) => context.state[field.name]), ...untilFilter(context), ...(context.user.tenant ? [] : [TENANT])], context)}
  ${card("Trajectories", html`
    ${table("Trajectories", columns(context), data.trajectories, { empty: nothing(data, context), href: (row) => trajectoryHref(context, row) })}
    <p class="pages">
      ${context.state.after ? html`<button type="button" @click=${() => context.set({ after: null })}>Newest</button>` : ""}
      ${data.next ? html`<button type="button" id="older" @click=${() => context.set({ after: data.next })}>Older</button>` : ""}
    </p>`, { wide: true, note: note(data, context) })}`;

/** @param {any} data @param {Context} context */
function note(data, context) {
  const many = `${count(data.trajectories.length)} trajectories${data.next ? ", more are older" : ""}`;
  return context.state.since ? many : `${many}; searched ${data.days === 1 ? "1 day" : `${data.days} days`}`;
}

/** @param {any} data @param {Context} context */
const nothing = (data, context) => (context.state.since
  ? "No trajectory matches in this range: widen it, or remove a condition."
  : `No trajectory of the last ${data.days} days matches: remove a condition. A trajectory appears once it is labelled.`);

/** @param {Context} context @returns {import("../components/table.js").Column<any>[]} */
const columns = (context) => [
  { head: "Trajectory", kind: "id", cell: (row) => row.trajectory_id },
  ...(context.user.tenant ? [] : [/** @type {import("../components/table.js").Column<any>} */ ({ head: "Tenant", cell: (row) => row.tenant })]),
  { head: "Agent", cell: (row) => parts(row.agent), kind: "name" },
  { head: "Versions", cell: (row) => (row.version_min >= 0 ? versions(row.version_min, row.version_max) : row.model) },
  { head: "Outcome", cell: outcome, mark: outcomeMark },
  { head: "Reward", kind: "number", cell: (row) => decimal(row.reward) },
  { head: "Steps", kind: "number", cell: (row) => count(row.steps) },
  { head: "Tools", cell: (row) => `${row.tools.slice(0, 3).join(", ")}${row.tools.length > 3 ? " …" : ""}` },
  { head: "Errors", kind: "number", cell: (row) => count(row.errors + row.failed_calls), mark: (row) => (row.errors + row.failed_calls ? "bad" : "") },
  { head: "Flags", cell: (row) => row.flags.slice(0, 2).join(", ") },
  { head: "Began", cell: (row) => ago(row.opened_ms, context.now) },
];
