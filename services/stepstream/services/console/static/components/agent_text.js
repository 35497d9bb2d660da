// Show text of agents and people as text: what could deceive a reader or slow the page is made visible or cut.

import { html, nothing } from "../vendor/lit-html/lit-html.js";

// Controls, and characters that change direction or have no width: they could show a text other than what it says.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/;
// Replacement of a personal value by governance: `<EMAIL:3f9a…>`.
const REDACTED = /<[A-Z][A-Z0-9_]{1,40}:[0-9a-f]{4,64}>/;
const PARTS = new RegExp(`(${HIDDEN.source})|(${REDACTED.source})`, "g");
// Characters and marked parts that a text shows at first.
const SHOWN = 4000;
// Longer texts scroll in a box of their own, which the keyboard reaches.
const LONG = 1500;
const MARKED = 500;

/** @param {string} character */
const code = (character) => `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;

/** @param {string} text @returns {unknown[]} text nodes and marks */
export function parts(text) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(PARTS)) {
    if (found.length >= 2 * MARKED) break;
    if (match.index > at) found.push(text.slice(at, match.index));
    at = match.index + match[0].length;
    found.push(match[1] !== undefined
      ? html`<span class="hidden-character" title="hidden character">${code(match[1])}</span>`
      : html`<mark class="redaction" title="redacted by governance">${match[0]}</mark>`);
  }
  const rest = text.slice(at);
  if (rest) found.push(found.length >= 2 * MARKED ? rest.replace(new RegExp(HIDDEN.source, "g"), "\ufffd") : rest);
  return found;
}

/**
 * A block of text.
 * @param {string} text
 * @param {{ length?: number, more?: () => void, from?: number, whole?: boolean }} [options]
 *   `length`: length of the whole text if `text` is cut; `more`: fetches the whole text; `from`: where to mark the
 *   first difference; `whole`: show all of it at once
 */
export function agentText(text, { length, more, from, whole = false } = {}) {
  const end = whole ? text.length : Math.max(SHOWN, from === undefined ? 0 : from + 200);
  const shown = text.slice(0, end);
  const rest = (length ?? text.length) - shown.length;
  const body = from === undefined ? parts(shown)
    : [...parts(shown.slice(0, from)), html`<mark class="difference" id="difference" tabindex="-1">${shown.length > from ? parts(shown.slice(from)) : "(nothing)"}</mark>`];
  const isLong = shown.length > LONG;
  return html`<bdi class=${isLong ? "agent-text long" : "agent-text"} tabindex=${isLong ? 0 : nothing} dir="auto">${body}</bdi>${rest > 0
    ? html`<p class="note">${rest.toLocaleString("en-GB")} more characters${more ? html` <button type="button" @click=${more}>Show all</button>` : ""}</p>` : ""}`;
}
