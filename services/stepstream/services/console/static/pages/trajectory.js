// Show one trajectory: its steps, what they were paid, its tree and group, and why it was (not) trained on.

import { agentText, parts } from "../components/agent_text.js";
import { ago, clock, count, decimal, versions } from "../components/format.js";
import { card, empty, waiting } from "../components/states.js";
import { stepBody, stepHead } from "../components/steps.js";
import { table } from "../components/table.js";
import { tokens } from "../components/tokens.js";
import { verdict } from "../components/verdict.js";
import { html } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { outcome, outcomeMark } from "./trajectories.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Trajectory";
export const tables = ["steps", "trajectories", "feedback", "curation", "training_decisions"];

// Whole texts and tokens of single steps; the page keeps them when it loads again.
/** @type {{ name: string, whole: Record<number, any>, tokens: Record<number, any>, status: any, explained: string }} */
let fetched = { name: "", whole: {}, tokens: {}, status: null, explained: "" };
// Once a trajectory has a label, only these tables change why it was or was not trained on.
const REASONS = ["trajectories", "curation", "training_decisions"];

/** @param {Context} context */
export async function load(context) {
  const { tenant, id, after } = context.state;
  const [labelled, all] = [context.changes(REASONS), context.changes(tables)];
  const data = await context.get("/api/trajectory", { tenant, id, after });
  const changes = data.label ? labelled : all;
  const name = JSON.stringify([data.tenant, data.trajectory_id]);
  if (fetched.name !== name) fetched = { name, whole: {}, tokens: {}, status: null, explained: "" };
  if (fetched.explained !== changes) {
    fetched.explained = changes;
    void explain(data, context, fetched);
  }
  return { ...data, fetched };
}

// An answer may come after the person has opened another page.
/** @param {Context} context */
function redraw(context) {
  if (document.getElementById("main")?.dataset.page === context.page) context.redraw();
}

// The reason needs more queries than the steps do: the page shows the steps first.
/** @param {any} data @param {Context} context @param {typeof fetched} into */
async function explain(data, context, into) {
  try {
    into.status = await context.get("/api/trajectory/status", { tenant: data.tenant, id: data.trajectory_id });
  } catch (error) {
    into.explained = "";
    into.status = { state: "unknown", why: error instanceof Error ? error.message : String(error), would_change_it: "", curation: [], audit: [] };
  }
  redraw(context);
}

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${card("Summary", html`<p class="agent-id">${data.trajectory_id}</p>${summary(data, context)}${verdict(context, about(data))}`)}
  ${card("Why it was or was not trained on", data.fetched.status ? why(data.fetched.status) : waiting())}
  ${card("Steps", html`
    <p class="note">${legend(context)}</p>
    ${data.steps.length ? html`<ol class="steps">${repeat(data.steps, (/** @type {any} */ step) => step.step_index, (/** @type {any} */ step) => one(step, data, context))}</ol>` : empty("No further steps.")}
    <p class="pages">
      ${context.state.after ? html`<button type="button" @click=${() => context.set({ after: null })}>First steps</button>` : ""}
      ${data.more ? html`<button type="button" @click=${() => context.set({ after: String(data.steps.at(-1).step_index) })}>Further steps</button>` : ""}
    </p>`, { wide: true })}
  ${data.tree.nodes.length > 1 ? card("Sub-agents and hand-offs", tree(data, context), { note: data.tree.cut ? "Only a part of the tree is shown." : "" }) : ""}
  ${data.group.length > 1 ? card("Attempts of its group", group(data, context), { note: "Choose another attempt to see both side by side." }) : ""}
  ${card("Feedback", feedback(data, context))}`;

/** @param {any} data */
const about = (data) => ({ tenant: data.tenant, trajectory_id: data.trajectory_id });

/** @param {any} data @param {Context} context */
function summary(data, context) {
  const label = data.label;
  if (!label) return html`<p>Not labelled yet.</p>`;
  const facts = [
    ["Outcome", html`<span class=${outcomeMark(label)}>${outcome(label)}</span>`],
    ["Reward", `${decimal(label.reward)} (${label.reward_spec})`],
    ["Agent", parts(`${label.agent}${label.environment ? ` in ${label.environment}` : ""}`)],
    ["Sampled by", `${label.model} ${label.version_min >= 0 ? versions(label.version_min, label.version_max) : ""}, ${label.track}`],
    ["Harness", label.harness_version || "–"],
    ["Task", parts(label.task_id || "–")],
    ["Steps", `${count(label.steps)}, ${count(label.errors)} failed calls`],
    ["Tokens", `${count(label.prompt_tokens)} prompt, ${count(label.response_tokens)} response`],
    ["Cost", label.cost === null ? "unknown" : `$${decimal(label.cost, 4)}`],
    ["Closed by", `${label.closed_by}, revision ${label.revision}`],
    ["Began", `${new Date(data.first_ms).toLocaleString("en-GB")} (${ago(data.first_ms, context.now)})`],
    ["Flags", label.flags.join(", ") || "none"],
  ];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** @param {any} status */
const why = (status) => html`
  <p><strong id="state">${status.state.replaceAll("_", " ")}</strong>: ${status.why}.</p>
  ${status.would_change_it ? html`<p class="note">What would change it: ${status.would_change_it}.</p>` : ""}
  ${status.curation.map((/** @type {any} */ row) => html`<p class="note">${row.action} by ${row.by}: ${row.reason}</p>`)}
  ${status.audit.map((/** @type {any} */ row) => html`<p class="note">governance ${row.action} ${row.records} of ${row.source_topic}: ${Object.entries(row.finds).map(([rule, times]) => `${rule} ${times}`).join(", ") || "no finds"}</p>`)}`;

/** @param {Context} context */
function legend(context) {
  const by = context.state.colour === "version" ? "version" : "logprob";
  return html`Tokens are coloured by
    <select aria-label="Colour of tokens" @change=${(/** @type {Event} */ event) => context.set({ colour: /** @type {HTMLSelectElement} */ (event.target).value })}>
      <option value="logprob" ?selected=${by === "logprob"}>probability</option><option value="version" ?selected=${by === "version"}>version</option>
    </select>`;
}

/** @param {any} step @param {any} data @param {Context} context */
function one(step, data, context) {
  const index = step.step_index;
  const more = async () => {
    const answer = await context.get("/api/trajectory/step", { tenant: data.tenant, id: data.trajectory_id, step: index });
    data.fetched.whole[index] = { ...step, ...answer.step };
    redraw(context);
  };
  const showTokens = async () => {
    data.fetched.tokens[index] = { waiting: true };
    redraw(context);
    try {
      data.fetched.tokens[index] = await context.get("/api/trajectory/tokens", { tenant: data.tenant, id: data.trajectory_id, step: index });
    } catch (error) {
      data.fetched.tokens[index] = { reason: error instanceof Error ? error.message : String(error) };
    }
    redraw(context);
  };
  return html`<li id=${`step-${index}`} class=${step.error ? "failed" : ""}>
    <div class="step-head"><h3 id=${`step-title-${index}`}>Step ${index}</h3> <span class="note">${clock(step.occurred_ms)} · ${stepHead(step)}</span>
      ${step.error ? html`<span class="badge bad">${step.error}</span>` : ""}
      ${step.trainable ? "" : html`<span class="badge">not trainable</span>`}
      ${step.reward === null ? "" : html`<span class="badge number" title="reward, and return to go">${decimal(step.reward)} → ${decimal(step.return_to_go)}</span>`}</div>
    ${stepBody(data.fetched.whole[index] ?? step, { more, whole: index in data.fetched.whole })}
    ${response(step, data.fetched.tokens[index], showTokens, context)}
    ${verdict(context, { ...about(data), step_index: index })}
  </li>`;
}

/** @param {any} step @param {any} known @param {() => void} show @param {Context} context */
function response(step, known, show, context) {
  if (step.fidelity !== "token") return html`<p class="note">No tokens were captured (fidelity ${step.fidelity || "unknown"}).</p>`;
  if (!known) return html`<button type="button" class="show-tokens" @click=${show}>Show tokens</button>`;
  if (known.waiting) return html`<p class="note" aria-busy="true">Reading the log …</p>`;
  if (!known.tokens?.length) return html`<p class="note">${known.reason}</p>`;
  return tokens({ tokens: known.tokens, by: context.state.colour === "version" ? "version" : "logprob" });
}

/** @param {any} data @param {Context} context */
const tree = (data, context) => html`<ul class="tree">${data.tree.nodes.map((/** @type {any} */ node) => html`
  <li class=${`depth-${node.depth}`}>${node.trajectory_id === data.trajectory_id
    ? html`<strong class="agent-id">${node.trajectory_id}</strong>`
    : html`<a class="agent-id" href=${context.href("trajectory", { tenant: data.tenant, id: node.trajectory_id })}>${node.trajectory_id}</a>`}
    <span class="note">${node.agent ?? ""}${node.depth && node.parent_step_index >= 0 ? ` from step ${node.parent_step_index}` : ""}, ${count(node.steps)} steps</span>
    <span class=${outcomeMark(node)}>${outcome(node)}</span></li>`)}</ul>`;

/** @param {any} data @param {Context} context */
const group = (data, context) => table("Attempts of its group", [
  { head: "Attempt", kind: "id", cell: (row) => row.trajectory_id },
  { head: "Versions", cell: (row) => (row.version_min >= 0 ? versions(row.version_min, row.version_max) : "–") },
  { head: "Outcome", cell: outcome, mark: outcomeMark },
  { head: "Reward", kind: "number", cell: (row) => decimal(row.reward) },
  { head: "Steps", kind: "number", cell: (row) => count(row.steps) },
], data.group, {
  href: (row) => (row.trajectory_id === data.trajectory_id
    ? context.href("trajectory", { tenant: data.tenant, id: row.trajectory_id })
    : context.href("compare", { tenant: data.tenant, left: data.trajectory_id, right: row.trajectory_id })),
  selected: (row) => row.trajectory_id === data.trajectory_id,
});

/** @param {any} data @param {Context} context */
const feedback = (data, context) => table("Feedback", [
  { head: "Signal", cell: (row) => row.name },
  { head: "About", cell: (row) => (row.step_index >= 0 ? html`<a href=${`#step-${row.step_index}`}>step ${row.step_index}</a>` : "all") },
  { head: "Value", kind: "number", cell: (row) => (row.value === null ? row.category || "–" : decimal(row.value, 3)) },
  { head: "Source", cell: (row) => row.source },
  { head: "Text", cell: (row) => [row.comment, row.demonstration].filter(Boolean).map((text) => agentText(text)) },
  { head: "", cell: (row) => (row.retracted ? "retracted" : "") },
  { head: "When", cell: (row) => ago(row.occurred_ms, context.now), kind: "name" },
], data.feedback, { empty: "No feedback about it yet." });
