// Show that there is nothing, that something is awaited, or what failed.

import { html } from "../vendor/lit-html/lit-html.js";

/** @param {string} text  what is missing and what makes it appear */
export const empty = (text) => html`<p class="empty">${text}</p>`;

export const waiting = () => html`<p class="empty" aria-busy="true">Loading …</p>`;

/** @param {string} text */
export const failed = (text) => html`<p class="notice" role="alert">${text}</p>`;

/**
 * A card with a title.
 * @param {string} title @param {unknown} content
 * @param {{ note?: string, wide?: boolean }} [options]
 */
export const card = (title, content, { note = "", wide = false } = {}) => html`
  <section class=${wide ? "card wide" : "card"} aria-label=${title}>
    <h2>${title}</h2>
    ${note ? html`<p class="note">${note}</p>` : ""}
    ${content}
  </section>`;

/** @param {string} title @param {string} figure @param {string} note @param {string} [mark]  good, warn or bad */
export const tile = (title, figure, note, mark = "") => html`
  <div class="tile"><h2>${title}</h2><p class=${`figure ${mark}`}>${figure}</p><p class="note">${note}</p></div>`;
