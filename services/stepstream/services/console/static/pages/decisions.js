// Show decisions of the control plane: the evidence, what lost, what was done, its effect; answer, undo, freeze.

import { parts } from "../components/agent_text.js";
import { filters } from "../components/filters.js";
import { ago, count, decimal, percent } from "../components/format.js";
import { card, empty } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Decisions";
export const tables = /** @type {string[]} */ ([]);
export const every = 5;

const STATES = ["awaiting", "approved", "started", "done", "failed", "rejected", "expired", "undone", "held"];
/** @type {Record<string, "good" | "warn" | "bad">} */
const MARKS = { done: "good", approved: "good", awaiting: "warn", failed: "bad", rejected: "bad", undone: "warn" };

/** @param {Context} context */
export const load = ({ get, state }) =>
  get("/api/decisions", { id: state.id, agent: state.agent, model: state.model, state: state.state });

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${filters([
    { name: "state", label: "State", kind: "choice", options: STATES, all: "all but held" },
    { name: "agent", label: "Agent", kind: "search" },
    { name: "model", label: "Model", kind: "search" },
  ], context)}
  ${data.decision ? details(data.decision, context) : ""}
  ${card("Decisions", table("Decisions", [
    { head: "When", cell: (row) => ago(row.at_us / 1000, context.now), kind: "name" },
    { head: "Tenant", cell: (row) => parts(row.tenant), kind: "name" },
    { head: "Agent", cell: (row) => parts(row.agent), kind: "name" },
    { head: "Model", cell: (row) => row.model, kind: "name" },
    { head: "Decision", cell: (row) => parts(act(row)) },
    { head: "State", cell: state, mark: (row) => MARKS[row.state] ?? "" },
    { head: "Reason", cell: (row) => parts(row.reason), kind: "prose" },
  ], data.decisions, {
    empty: "No decision matches. The control plane decides once it runs and agents work.",
    href: (row) => context.href("decisions", { ...context.state, id: row.id }),
    selected: (row) => row.id === data.decision?.id,
  }), { wide: true })}
  ${data.policies.length ? data.policies.map((/** @type {any} */ row) => policy(row, context))
    : card("Policies", empty("No control policy is in force, so nothing is decided. `stepstream policy control apply` puts one in force."), { wide: true })}`;

/** @param {any} row */
const act = (row) => [row.action, row.lever, row.target].filter(Boolean).join(" ");

/** @param {any} row */
const state = (row) => (row.state === "awaiting" ? `awaiting, ${row.approved_by.length} of ${row.approvals} approved` : row.state);

/** @param {any} row @param {Context} context */
const details = (row, context) => html`
  ${card(`${row.action} ${row.lever ?? ""}: ${row.state}`, html`
    <p>${parts(act(row))}${row.share ? ` on ${percent(row.share)} of trajectories` : ""} for ${parts(row.agent)}, ${row.model}</p>
    <p>${row.rule ? `Rule ${row.rule}: ` : ""}${parts(row.reason)}</p>
    <p class="note">Cost ${decimal(row.cost, 1)}, reaches at most ${percent(row.blast_radius)} of trajectories. Policy ${row.policy_hash.slice(0, 12)}. ${row.undo ? html`Undo: ${parts(row.undo)}.` : ""}</p>
    ${row.approvals ? html`<p>${row.approvals} of ${row.roles.join(", ")} must approve, until ${time(row.watched_until_us)}.</p>` : ""}
    ${row.answers.map((/** @type {any} */ one) => html`<p class=${one.refused ? "bad" : ""}>${parts(one.author)} (${one.role || "unknown role"}) ${one.verdict} it${one.comment ? html`: ${parts(one.comment)}` : ""}${one.signature ? `, signed by key ${one.signature.key_id}` : ""}${one.refused ? `. It does not count: ${one.refused}` : ""}</p>`)}
    ${row.acts.map((/** @type {any} */ one) => html`<p class=${MARKS[one.state] ?? ""}>${one.state} ${time(one.occurred_at_us)}: ${parts([one.description, one.reason].filter(Boolean).join("; "))}</p>`)}
    ${buttons(row, context)}`, { wide: true, note: time(row.at_us) })}
  ${card("Evidence", table("Evidence", [
    { head: "Figure", cell: (one) => one.name },
    { head: "Value", cell: (one) => (one.value === null ? one.reason || "undefined" : decimal(one.value, 4)), kind: "number" },
    { head: "Interval", cell: (one) => interval(one.low, one.high, (/** @type {number} */ x) => decimal(x, 4)), kind: "number" },
    { head: "n", cell: (one) => count(one.n), kind: "number" },
    { head: "From", cell: (one) => (one.since_us ? `${one.view}, ${time(one.since_us)} to ${time(one.until_us)}` : one.view) },
  ], row.evidence, { empty: "It rests on no figure." }), { note: `View ${row.view || "unknown"}, position ${row.position || "unknown"}.` })}
  ${card("Success before and since", table("Success before and since", [
    { head: "Window", cell: (one) => (one.window === "before" ? "the day before" : "since, at most a day") },
    { head: "Success", cell: (one) => percent(one.rate), kind: "number" },
    { head: "95 % interval", cell: (one) => interval(one.low, one.high, percent), kind: "number" },
    { head: "Outcomes", cell: (one) => count(one.outcomes), kind: "number" },
  ], row.effect), { note: "All trajectories of the agent and model by their first step; other causes may have changed too." })}
  ${card("Alternatives that lost", table("Alternatives that lost", [
    { head: "Rule", cell: (one) => one.rule },
    { head: "Lever", cell: (one) => one.lever },
    { head: "Action", cell: (one) => one.action },
    { head: "Why it lost", cell: (one) => parts(one.reason) },
  ], row.lost, { empty: "No rule proposed anything else." }), { wide: true })}`;

/** @param {any} row @param {Context} context */
const buttons = (row, context) => {
  const answer = (/** @type {string} */ verdict) => (/** @type {Event} */ event) =>
    run(event, context, "/api/decisions/answer", { id: row.id, verdict, comment: comment() }, `You ${verdict} the decision.`);
  const undo = (/** @type {Event} */ event) =>
    run(event, context, "/api/decisions/undo", { id: row.id, reason: comment() }, "It is undone.");
  const canAnswer = row.may_answer && row.state === "awaiting";
  const canUndo = context.may("operator") && row.can_undo && ["done", "approved"].includes(row.state);
  if (!canAnswer && !canUndo) return "";
  return html`<div class="filters"><label>Comment <input id="decision-comment" maxlength="1000" autocomplete="off"></label>
    ${canAnswer ? html`<button type="button" class="approve" @click=${answer("approved")}>Approve</button>
    <button type="button" class="reject" @click=${answer("rejected")}>Reject</button>` : ""}
    ${canUndo ? html`<button type="button" class="undo" @click=${undo}>Undo</button>` : ""}</div>`;
};

const comment = () => /** @type {HTMLInputElement | null} */ (document.getElementById("decision-comment"))?.value ?? "";

/** @param {any} row @param {Context} context */
const policy = (row, context) => card(
  `Policy ${row.name} of ${row.tenant}`,
  html`
    ${row.frozen ? html`<p class="bad">Frozen: nothing is started; what runs may be taken back.</p>` : ""}
    <ul>${row.sentences.map((/** @type {string} */ text) => html`<li>${text}</li>`)}</ul>
    ${context.may("operator") ? html`<button type="button" class="freeze" @click=${(/** @type {Event} */ event) => run(
      event, context, "/api/decisions/freeze", { tenant: row.tenant, policy: row.name, frozen: !row.frozen },
      row.frozen ? "It is in force again." : "It is frozen.")}>${row.frozen ? "Unfreeze" : "Freeze"}</button>` : ""}`,
  { wide: true, note: `Version ${row.version} by ${row.author || "unknown"}, ${ago(row.at, context.now)}` },
);

/** @param {Event} event @param {Context} context @param {string} path @param {object} body @param {string} text */
async function run(event, context, path, body, text) {
  const button = /** @type {HTMLButtonElement} */ (event.target);
  button.disabled = true;
  try {
    await context.post(path, body);
    context.notify(text);
  } catch (error) {
    context.notify(error instanceof Error ? error.message : String(error), "bad");
  }
  button.disabled = false;
  await context.reload();
}

/** @param {number | null} low @param {number | null} high @param {(x: any) => string} format */
const interval = (low, high, format) => (low === null || high === null ? "–" : `${format(low)} to ${format(high)}`);

/** @param {number} us  microseconds since the Unix epoch */
const time = (us) => new Date(us / 1000).toLocaleString("en-GB");
