// A form for a person's verdict on a step or a trajectory: a scale, tags, a comment, a correction.

import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */

const POINTS = ["very bad", "bad", "neither", "good", "very good"];
const TAGS = ["wrong", "unsafe", "unhelpful", "wrong tool", "too long", "exemplary"];

// `crypto.randomUUID` exists on https and loopback addresses only.
function randomUuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/**
 * @param {Context} context
 * @param {{ tenant: string, trajectory_id: string, step_index?: number }} about   without `step_index`: the trajectory
 */
export function verdict(context, about) {
  if (!context.may("operator")) return "";
  const name = about.step_index === undefined ? "trajectory" : `step ${about.step_index}`;
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.target);
    const button = /** @type {HTMLButtonElement} */ (form.querySelector("button"));
    // The same id for a repeated request: a lost answer makes no second verdict.
    form.dataset.event ||= randomUuid();
    const fields = new FormData(form);
    const scale = fields.get("scale");
    button.disabled = true;
    try {
      await context.post("/api/verdict", {
        ...about, event_id: form.dataset.event, scale: scale === null ? null : Number(scale), tags: fields.getAll("tag"),
        comment: fields.get("comment") || null, correction: fields.get("correction") || null,
      });
      context.notify(`Your verdict on the ${name} is on the log; the tables show it within seconds.`);
      delete form.dataset.event;
      form.reset();
      form.closest("details")?.removeAttribute("open");
    } catch (error) {
      context.notify(error instanceof Error ? error.message : String(error), "bad");
    } finally {
      button.disabled = false;
    }
  };
  return html`<details class="verdict"><summary>Judge this ${name}</summary>
    <form @submit=${submit} aria-label=${`Verdict on the ${name}`}>
      <fieldset><legend>How good is it?</legend>${POINTS.map((label, at) => html`<label><input type="radio" name="scale" value=${at + 1}> ${label}</label>`)}</fieldset>
      <fieldset><legend>Tags</legend>${TAGS.map((tag) => html`<label><input type="checkbox" name="tag" value=${tag}> ${tag}</label>`)}</fieldset>
      <label>Comment <textarea name="comment" rows="2" maxlength="10000"></textarea></label>
      <label>What the agent should have answered <textarea name="correction" rows="3" maxlength="100000"></textarea></label>
      <button>Send verdict</button>
    </form></details>`;
}
