// Show one step: what the agent saw, answered and called, what it was paid, and what governance removed.

import { html } from "../vendor/lit-html/lit-html.js";
import { agentText } from "./agent_text.js";
import { count, decimal, versions } from "./format.js";

/**
 * @typedef {object} StepOptions
 * @property {(index: number) => void} [more]   fetches the whole texts of a step
 * @property {boolean} [whole]                  the texts are whole: show all of them
 * @property {any} [difference]                 where this step first differs from the other attempt's: part, item, at
 */

/** @param {any} step @param {StepOptions} [options] */
export function stepBody(step, { more, whole = false, difference } = {}) {
  const whenMore = more ? () => more(step.step_index) : undefined;
  const from = (/** @type {string} */ part, /** @type {number} */ item = 0) => (difference?.part === part && difference.item === item ? difference.at : undefined);
  const text = (/** @type {any} */ value, /** @type {string} */ field, /** @type {number | undefined} */ at) =>
    agentText(value[field] ?? "", { length: value.lengths?.[field], more: whenMore, from: at, whole });
  const response = step.response;
  return html`
    ${step.content_missing ? html`<p class="note">The texts of this step are not in the tables: they arrive within seconds, and leave with their retention.</p>` : ""}
    <section aria-label="Observation"><h3>Observation</h3>
      ${step.shared_messages ? html`<p class="note">continues ${count(step.shared_messages)} messages ${step.shared_step >= 0 ? html`of step ${step.shared_step} <span class="badge">branch</span>` : "of the step before"}</p>` : ""}
      ${step.messages.map((/** @type {any} */ message, /** @type {number} */ at) => html`<div class="message"><span class="role">${message.role}</span>
        ${text(message, "content", shift(from("messages", at), message))}${calls(message, whenMore, whole)}</div>`)}
    </section>
    <section aria-label="Action"><h3>Action</h3>
      ${response.reasoning ? html`<details ?open=${from("reasoning") !== undefined}><summary>Reasoning</summary>${text(response, "reasoning", from("reasoning"))}</details>` : ""}
      ${response.content || from("content") !== undefined ? text(response, "content", from("content")) : html`<p class="note">no text</p>`}
      ${calls(response, whenMore, whole, difference)}
    </section>
    ${step.components?.length ? html`<section aria-label="Reward"><h3>Reward ${decimal(step.reward)}</h3>
      <ul class="components">${step.components.map((/** @type {any} */ one) => html`<li>
        <span>${one.name}</span> <span class="number">${decimal(one.value, 3)}${one.weight ? ` × ${decimal(one.weight)}` : ""}</span>
        <span class="note">${one.kind}, from ${one.source}${one.final ? "" : ", not final"}</span></li>`)}</ul></section>` : ""}
    ${redactions(step)}`;
}

// `at` counts in the text `role: content` of a message; what lies before the content is not marked.
/** @param {number | undefined} at @param {any} message */
const shift = (at, message) => (at === undefined ? undefined : Math.max(0, at - message.role.length - 2));

/** @param {any} message @param {(() => void) | undefined} more @param {boolean} whole @param {any} [difference] */
function calls(message, more, whole, difference) {
  return (message.tool_calls ?? []).map((/** @type {any} */ call, /** @type {number} */ at) => {
    const isFirst = difference?.part === "tool_calls" && difference.item === at;
    return html`<div class="tool-call">
      <span class="role">calls ${isFirst && difference.at <= call.name.length ? html`<mark class="difference" id="difference">${call.name}</mark>` : call.name}</span>
      ${agentText(call.arguments, { length: call.lengths?.arguments, more, whole, from: isFirst && difference.at > call.name.length ? difference.at - call.name.length - 1 : undefined })}
      ${call.error ? html`<p class="bad">${call.error}</p>` : ""}
      ${call.result ? html`<p class="note">result</p>${agentText(call.result, { length: call.lengths?.result, more, whole })}` : ""}
    </div>`;
  });
}

/** @param {any} step */
function redactions(step) {
  const rules = Object.entries(step.redactions ?? {});
  if (!rules.length && !step.flags?.length) return "";
  return html`<p class="note">${rules.map(([rule, times]) => html`<mark class="redaction">${rule}: ${times} redacted</mark> `)}
    ${step.flags.map((/** @type {string} */ flag) => html`<span class="badge">${flag}</span> `)}</p>`;
}

/** @param {any} step  one line about a step */
export const stepHead = (step) => [
  step.version_min >= 0 ? `${step.model} ${versions(step.version_min, step.version_max)}` : step.model,
  `${count(step.response_tokens)} tokens`,
  step.duration_ms === null ? "" : `${decimal(step.duration_ms, 0)} ms`,
  step.cost === null ? "" : `$${decimal(step.cost, 4)}`,
  step.finish_reason,
].filter(Boolean).join(" · ");
