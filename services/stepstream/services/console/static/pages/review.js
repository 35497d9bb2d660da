// Show what deserves a look: judges that disagree, responses of low certainty, trajectories of active alarms.

import { parts } from "../components/agent_text.js";
import { RANGE, filters } from "../components/filters.js";
import { count, decimal, percent } from "../components/format.js";
import { card } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";
import { trajectoryHref } from "./trajectories.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Review";
export const tables = ["feedback", "trajectories", "alarms"];

/** @param {Context} context */
export const load = (context) => context.get("/api/review", { since: context.state.since ?? "7d" });

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${filters([{ ...RANGE, all: "7 days" }], context)}
  ${card("Verdicts that disagree", table("Verdicts that disagree", [
    { head: "Trajectory", kind: "id", cell: (row) => row.trajectory_id },
    { head: "About", cell: (row) => (row.step_index >= 0 ? `step ${row.step_index}` : "all") },
    { head: "Signal", cell: (row) => row.signal },
    { head: "From", kind: "number", cell: (row) => decimal(row.low) },
    { head: "To", kind: "number", cell: (row) => decimal(row.high) },
    { head: "By", cell: (row) => row.sources.join(", ") },
  ], data.disagreement, { empty: "No verdicts about one thing differ by half the scale or more.", href: (row) => trajectoryHref(context, row) }), { wide: true })}
  ${card("Low certainty", table("Low certainty", [
    { head: "Trajectory", kind: "id", cell: (row) => row.trajectory_id },
    { head: "Agent", cell: (row) => parts(row.agent), kind: "name" },
    { head: "Certainty", kind: "number", cell: (row) => percent(row.certainty) },
    { head: "Tokens", kind: "number", cell: (row) => count(row.tokens) },
  ], data.unsure, { empty: "No trajectory with token probabilities in this range.", href: (row) => trajectoryHref(context, row) }),
  { note: "Geometric mean of the probabilities of its response tokens, least first.", wide: true })}
  ${card("Active alarms", table("Active alarms", [
    { head: "Trajectory", kind: "id", cell: (row) => row.trajectory_id },
    { head: "Agent", cell: (row) => parts(row.agent), kind: "name" },
    { head: "Component", kind: "number", cell: (row) => decimal(row.risen) },
    { head: "Reward", kind: "number", cell: (row) => decimal(row.reward) },
    { head: "Alarm", cell: (row) => row.message, kind: "prose" },
  ], data.alarms, { empty: "No alarm is active.", href: (row) => trajectoryHref(context, row) }),
  { note: "Where the component that rose is highest.", wide: true })}
  ${card("How it works", html`<p class="note">What a person has judged leaves the queues. Open a row, read its steps, and give a verdict there: it becomes feedback with you as its source.</p>`)}`;
