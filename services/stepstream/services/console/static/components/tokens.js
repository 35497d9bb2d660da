// Show the tokens of a response, coloured by log-probability or by the version that sampled each.

import { html } from "../vendor/lit-html/lit-html.js";
import { parts } from "./agent_text.js";
import { decimal } from "./format.js";

// Upper bounds of the colour classes, in natural logarithms: probabilities 1 %, 10 %, 50 %, 90 %.
const BOUNDS = [-4.605, -2.303, -0.693, -0.105];
const MOST = 5000;

/** @param {number | null} logprob */
export const logprobClass = (logprob) => (logprob === null ? "lp-none" : `lp-${BOUNDS.filter((bound) => logprob >= bound).length}`);

/**
 * @param {{ tokens: any[], by: string }} shown   `by`: `logprob` or `version`
 */
export function tokens({ tokens: rows, by }) {
  const versions = [...new Set(rows.map((row) => row.version))];
  const name = (/** @type {any} */ row) => (by === "version" ? `tv-${versions.indexOf(row.version) % 6}` : logprobClass(row.logprob));
  const legend = by === "version"
    ? versions.map((version, at) => html`<span class=${`token tv-${at % 6}`}>${version === null ? "unknown" : `v${version}`}</span>`)
    : ["below 1 %", "1 to 10 %", "10 to 50 %", "50 to 90 %", "above 90 %"].map((text, at) => html`<span class=${`token lp-${at}`}>${text}</span>`);
  return html`
    <p class="note legend">${by === "version" ? "Sampled by" : "Probability"}: ${legend} <span class="token masked">not trained on</span></p>
    <p class="tokens" tabindex="0" role="group" aria-label=${`${rows.length} tokens`}>${rows.slice(0, MOST).map((row) => html`<span class=${`token ${name(row)}${row.masked ? " masked" : ""}`}
      title=${`${row.id}, logprob ${decimal(row.logprob, 3)}, ${row.version === null ? "unknown version" : `v${row.version}`}${row.masked ? ", not trained on" : ""}`}>${row.text === undefined ? row.id : parts(row.text)}</span>`)}</p>
    ${rows.length > MOST ? html`<p class="note">${rows.length - MOST} more tokens</p>` : ""}`;
}
