// Show consent, erasures with what proves them, and quarantine with its release.

import { parts } from "../components/agent_text.js";
import { filters } from "../components/filters.js";
import { ago, count } from "../components/format.js";
import { card } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";
import { outcome, outcomeMark, trajectoryHref } from "./trajectories.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "People";
export const tables = ["consents", "erasures", "erasure_proofs", "curation", "trajectories"];

/** @param {Context} context */
export const load = (context) => context.get("/api/people", { reason: context.state.reason });

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${filters([{ name: "reason", label: "Reason of the hold begins with", kind: "search" }], context)}
  ${card("Quarantine", table("Quarantine", quarantine(context), data.quarantine, {
    empty: "No trajectory is held out of training.", href: (row) => trajectoryHref(context, row),
  }), { wide: true, note: "Held out of training until a person releases them. Consent and redaction stay in force after a release." })}
  ${card("Erasures", table("Erasures", erasures(context), data.erasures, {
    empty: "Nobody asked to be erased. `stepstream erase` erases a person.",
  }), { wide: true, note: "Persons are shown by a digest. An erasure without a proof is in progress, or was interrupted: run it again to finish it." })}
  ${card("Consent", html`
    <p class="note">${data.consent_counts.map((/** @type {any} */ row) => `${row.consent}: ${count(row.consents)}`).join(", ")}</p>
    ${table("Consent", consents(context), data.consents, { empty: "No consent is set: policies and the records' own consent apply. `stepstream consent set` sets one." })}`,
  { wide: true, note: "Of all decisions that apply to a record, the strictest counts." })}`;

/** @param {Context} context @returns {import("../components/table.js").Column<any>[]} */
const quarantine = (context) => [
  { head: "Trajectory", kind: "id", cell: (row) => row.trajectory_id },
  { head: "Tenant", cell: (row) => row.tenant, kind: "name" },
  { head: "Agent", cell: (row) => parts(row.agent), kind: "name" },
  { head: "Reasons", cell: (row) => row.reasons.join(", ") },
  { head: "By", cell: (row) => row.by || "label" },
  { head: "Outcome", cell: outcome, mark: outcomeMark },
  { head: "Ended", cell: (row) => ago(row.ended_at, context.now) },
  ...(context.may("operator") ? [/** @type {import("../components/table.js").Column<any>} */ ({ head: "", cell: (row) => html`<button type="button" class="release" @click=${(/** @type {Event} */ event) => release(row, context, event)}>Release</button>` })] : []),
];

/** @param {any} row @param {Context} context @param {Event} event */
async function release(row, context, event) {
  const button = /** @type {HTMLButtonElement} */ (event.target);
  button.disabled = true;
  try {
    await context.post("/api/quarantine/release", { tenant: row.tenant, trajectory_ids: [row.trajectory_id] });
    button.textContent = "Released";
    context.notify(`${row.trajectory_id} is released; its next label shows it within seconds.`);
  } catch (error) {
    button.disabled = false;
    context.notify(error instanceof Error ? error.message : String(error), "bad");
  }
}

/** @param {Context} context @returns {import("../components/table.js").Column<any>[]} */
const erasures = (context) => [
  { head: "Person", kind: "id", cell: (row) => row.subject },
  { head: "Tenant", cell: (row) => row.tenant, kind: "name" },
  { head: "Requested", cell: (row) => `${ago(row.requested_at, context.now)}${row.requested_by ? ` by ${row.requested_by}` : ""}` },
  { head: "State", cell: (row) => (row.finished_at === null ? "in progress" : Object.keys(row.remaining).length ? "finished, with remains" : "finished"), mark: (row) => (row.finished_at === null || Object.keys(row.remaining).length ? "warn" : "good") },
  { head: "Proof", cell: (row) => (row.finished_at === null ? "none yet" : html`<details><summary>${ago(row.finished_at, context.now)}, release ${row.version}</summary>
    <p>${count(row.keys_destroyed)} keys destroyed; ${count(row.records_unreadable)} records unreadable, ${count(row.records_deleted)} deleted; ${count(row.consents_deleted)} consents; ${count(row.trajectories)} trajectories.</p>
    <p>Rows: ${list(row.rows_deleted)}.</p><p>Remaining: ${list(row.remaining)}.</p><p class="agent-id">${row.request_id}</p></details>`) },
];

/** @param {Record<string, number>} counts */
const list = (counts) => Object.entries(counts).map(([name, n]) => `${name} ${count(n)}`).join(", ") || "none";

/** @param {Context} context @returns {import("../components/table.js").Column<any>[]} */
const consents = (context) => [
  { head: "Tenant", cell: (row) => row.tenant, kind: "name" },
  { head: "Person", cell: (row) => row.user ?? "all" },
  { head: "Agent", cell: (row) => row.agent ?? "all", kind: "name" },
  { head: "Permits", cell: (row) => row.consent, mark: (row) => (row.consent === "none" ? "bad" : row.consent === "analyse" ? "warn" : "good") },
  { head: "Since", cell: (row) => ago(row.at, context.now) },
];
