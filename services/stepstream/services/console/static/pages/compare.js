// Show two attempts side by side, with their first difference marked.

import { count, decimal, versions } from "../components/format.js";
import { card } from "../components/states.js";
import { stepBody, stepHead } from "../components/steps.js";
import { html } from "../vendor/lit-html/lit-html.js";
import { outcome, outcomeMark } from "./trajectories.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Two attempts";
export const tables = ["trajectories"];

/** @param {Context} context */
export const load = (context) => {
  const { tenant, left, right } = context.state;
  return context.get("/api/compare", { tenant, left, right });
};

const PARTS = /** @type {Record<string, string>} */ ({ messages: "in what the agents saw", reasoning: "in the reasoning", content: "in the answer", tool_calls: "in the tool calls", end: "where one attempt ends" });

/** @param {any} data @param {Context} context */
export function render(data, context) {
  const first = data.difference;
  const rows = Math.max(data.left.steps.length, data.right.steps.length);
  const jump = () => document.getElementById(`pair-${first.step}`)?.scrollIntoView({ block: "start" });
  return html`
    ${card("First difference", first
    ? html`<p id="first">Step ${first.step}, ${PARTS[first.part]}. <button type="button" @click=${jump}>Go to it</button></p>`
    : html`<p id="first">${data.whole ? "Both attempts saw and did the same." : `No difference in the first ${count(rows)} steps and the beginnings of long texts. What follows is not compared.`}</p>`, { wide: true })}
    ${[data.left, data.right].map((side) => card("Attempt", head(side, context)))}
    <section class="card wide" aria-label="Steps of both attempts">
      ${Array.from({ length: rows }, (_, at) => html`<div id=${`pair-${at}`} class=${first?.step === at ? "pair differs" : "pair"}>
        ${[data.left, data.right].map((side) => step(side.steps[at], first?.step === at ? first : undefined))}</div>`)}
      ${data.left.more || data.right.more ? html`<p class="note">Only the first ${count(rows)} steps are compared.</p>` : ""}
    </section>`;
}

/** @param {any} side @param {Context} context */
const head = (side, context) => html`
  <p><a class="agent-id" href=${context.href("trajectory", { tenant: side.tenant, id: side.trajectory_id })}>${side.trajectory_id}</a></p>
  ${side.label ? html`<p><span class=${outcomeMark(side.label)}>${outcome(side.label)}</span>, reward ${decimal(side.label.reward)},
    ${side.label.version_min >= 0 ? versions(side.label.version_min, side.label.version_max) : side.label.model}, ${count(side.label.steps)} steps</p>` : html`<p>not labelled yet</p>`}`;

/** @param {any} one @param {any} difference */
const step = (one, difference) => (one
  ? html`<article aria-label=${`Step ${one.step_index}`}><div class="step-head"><h3>Step ${one.step_index}</h3> <span class="note">${stepHead(one)}</span></div>
      ${stepBody(one, { difference })}</article>`
  : html`<article><p class="note">${difference ? html`<mark class="difference" id="difference">This attempt has ended.</mark>` : "This attempt has ended."}</p></article>`);
