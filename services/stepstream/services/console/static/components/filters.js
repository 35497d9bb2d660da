// Show fields that filter the page; their values are in the address.

import { minute } from "./format.js";
import { html } from "../vendor/lit-html/lit-html.js";
import { live } from "../vendor/lit-html/directives/live.js";

/** @typedef {import("../context.js").Context} Context */

/**
 * @typedef {object} Filter
 * @property {string} name     name in the query string
 * @property {string} label
 * @property {"search" | "number" | "choice"} kind
 * @property {(string | [value: string, label: string])[]} [options]   of a choice, without "all"
 * @property {string} [all]    label of the empty choice; missing: there is none, the first option is the default
 */

export const RANGE = /** @type {Filter} */ ({
  name: "since", label: "Range", kind: "choice",
  options: [["24h", "24 hours"], ["15m", "15 minutes"], ["1h", "1 hour"], ["7d", "7 days"], ["30d", "30 days"], ["90d", "90 days"]],
});

/**
 * The end of the range where the address names one, as a shared link does; it leads back to now.
 * @param {Context} context @returns {Filter[]}
 */
export const untilFilter = ({ state: { until } }) =>
  (until ? [{ name: "until", label: "Until", kind: "choice", options: [[until, minute(Number(until))]], all: "now" }] : []);

/**
 * The filter by tenant, for users of all tenants where there are several.
 * @param {string[]} tenants @param {Context} context @returns {Filter[]}
 */
export const tenantFilter = (tenants, context) => (context.user.tenant || (tenants.length < 2 && !context.state.tenant)
  ? [] : [{ name: "tenant", label: "Tenant", kind: "choice", options: tenants, all: "All tenants" }]);

/** @param {Filter[]} fields @param {Context} context */
export const filters = (fields, context) => html`
  <form class="filters" role="search" aria-label="Filters" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
    ${fields.map((field) => html`<label>${field.label} ${input(field, context)}</label>`)}
  </form>`;

/** @param {Filter} field @param {Context} context */
function input(field, context) {
  const value = context.state[field.name] ?? "";
  const change = (/** @type {Event} */ event) => {
    const chosen = /** @type {HTMLInputElement | HTMLSelectElement} */ (event.target).value;
    context.set({ [field.name]: chosen });
  };
  if (field.kind !== "choice") {
    return html`<input type=${field.kind} name=${field.name} .value=${live(value)} @change=${change} autocomplete="off" spellcheck="false">`;
  }
  const pairs = (field.options ?? []).map((option) => (typeof option === "string" ? [option, option] : option));
  const known = field.all === undefined || !value || pairs.some(([one]) => one === value) ? pairs : [...pairs, [value, value]];
  return html`<select name=${field.name} @change=${change}>
    ${field.all === undefined ? "" : html`<option value="" ?selected=${!value}>${field.all}</option>`}
    ${known.map(([one, label], at) => html`<option value=${one} ?selected=${live(value ? one === value : field.all === undefined && at === 0)}>${label}</option>`)}
  </select>`;
}
