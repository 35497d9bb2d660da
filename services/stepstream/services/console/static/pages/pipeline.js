// Show the lag of the jobs, dead letters and their redrive, governance and the local spool.

import { ApiError } from "../api.js";
import { RANGE, filters, untilFilter } from "../components/filters.js";
import { ago, bytes, count } from "../components/format.js";
import { card, failed } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Pipeline";
export const tables = ["dead_letters", "governance_audit"];
export const every = 5;
export const ranged = true;

/** @param {Context} context */
export const load = ({ get, state }) => get("/api/pipeline", { since: state.since, until: state.until, error: state.error, topic: state.topic });

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${filters([
    { name: "error", label: "Error", kind: "choice", options: names(data.counts, "error"), all: "All errors" },
    { name: "topic", label: "From", kind: "choice", options: names(data.counts, "topic"), all: "All topics" },
    RANGE, ...untilFilter(context),
  ], context)}
  ${card("Lag", data.lag_fault ? failed(data.lag_fault) : table("Lag", [
    { head: "Job", cell: (row) => row.job },
    { head: "Records to process", cell: (row) => count(row.records), kind: "number" },
  ], data.lag, { empty: "No job has committed offsets yet." }), { note: "Records on the log that each job has not processed." })}
  ${card("Governance", table("Governance", [
    { head: "Tenant", cell: (row) => row.tenant, kind: "name" },
    { head: "Action", cell: (row) => row.action },
    { head: "Rule", cell: (row) => row.rule || "–" },
    { head: "Records", cell: (row) => count(row.records), kind: "number" },
    { head: "Matches", cell: (row) => count(row.matches), kind: "number" },
    { head: "Newest", cell: (row) => ago(row.at, context.now) },
  ], data.governance, { empty: "Governance changed no record in this range." }))}
  ${card("Spool of this machine", html`<p>${data.spool.files ? `${count(data.spool.files)} files, ${bytes(data.spool.bytes)}` : "No spool on this machine."}</p>`, {
    note: "The gateway's folder of events that wait for Kafka, step indices and saved responses.",
  })}
  ${card("Dead letters by reason", table("Dead letters by reason", [
    { head: "Job", cell: (row) => row.job },
    { head: "From", cell: (row) => row.topic },
    { head: "Error", cell: (row) => row.error, mark: () => "bad" },
    { head: "Records", cell: (row) => count(row.records), kind: "number" },
    { head: "Newest", cell: (row) => ago(row.at, context.now) },
  ], data.counts, { empty: "No dead letters in this range: every record was valid." }))}
  ${card("Newest dead letters", table("Newest dead letters", [
    { head: "When", cell: (row) => ago(row.at, context.now), kind: "name" },
    { head: "Job", cell: (row) => row.job },
    { head: "Record", cell: (row) => `${row.topic}[${row.partition}]@${row.offset}`, kind: "id" },
    { head: "Error", cell: (row) => row.error, mark: () => "bad" },
    { head: "Reason", cell: (row) => row.reason },
    { head: "Size", cell: (row) => bytes(row.value_bytes), kind: "number" },
    ...(context.may("operator") ? [{ head: "Action", cell: (/** @type {any} */ row) => html`<button type="button" class="redrive" @click=${() => redrive([row.event_id], context)}>Send again</button>` }] : []),
  ], data.letters, { empty: "No dead letters in this range." }), {
    note: "Sending a record again helps after its cause was mended. It keeps its id, so it takes effect once.", wide: true,
  })}`;

/** @param {any[]} rows @param {string} name */
const names = (rows, name) => [...new Set(rows.map((row) => row[name]))].sort();

/** @param {string[]} ids @param {Context} context */
async function redrive(ids, context) {
  try {
    const { sent, not_sent } = await context.post("/api/dead-letters/redrive", { ids });
    const faults = Object.values(not_sent);
    if (faults.length) context.notify(`Not sent: ${faults.join("; ")}`, "bad");
    else context.notify(sent ? `${sent} sent again` : "Its record was sent again before");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    context.notify(error.message, "bad");
  }
}
