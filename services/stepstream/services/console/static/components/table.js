// Show rows as a table. All text becomes text nodes, so agents' text is never parsed as HTML.

import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { empty as nothingThere } from "./states.js";

/**
 * @template Row
 * @typedef {object} Column
 * @property {string} head
 * @property {(row: Row) => unknown} cell   text or a template
 * @property {"number" | "id" | "name" | "prose" | "path" | "text"} [kind]   `id`: one line in a fixed-width font, cut off; `name`:
 *   one line; `prose`: sentences; `path`: text that may break anywhere
 * @property {(row: Row) => "good" | "warn" | "bad" | ""} [mark]
 */

/**
 * @template Row
 * @param {string} label   name of the table for screen readers
 * @param {Column<Row>[]} columns
 * @param {Row[]} rows
 * @param {{ empty?: string, href?: (row: Row) => string, selected?: (row: Row) => boolean }} [options]
 *   `href`: the first cell becomes a link, and `j` and `k` walk the rows
 */
export function table(label, columns, rows, { empty = "Nothing yet.", href, selected } = {}) {
  if (!rows.length) return nothingThere(empty);
  /** @param {Column<Row>} column @param {Row} row @param {number} at */
  const cell = (column, row, at) => {
    const value = column.cell(row);
    const content = href && at === 0 ? html`<a href=${href(row)}>${value}</a>` : value;
    const title = column.kind === "id" && typeof value === "string" ? value : nothing;
    return html`<td class=${`${column.kind ?? "text"} ${column.mark?.(row) ?? ""}`} title=${title}>${content}</td>`;
  };
  return html`
    <div class="table" tabindex="0" role="region" aria-label=${label}>
      <table>
        <thead><tr>${columns.map((column) => html`<th scope="col" class=${column.kind ?? "text"}>${column.head}</th>`)}</tr></thead>
        <tbody>
          ${rows.map((row) => html`<tr aria-selected=${selected?.(row) ? "true" : nothing}>${columns.map((column, at) => cell(column, row, at))}</tr>`)}
        </tbody>
      </table>
    </div>`;
}
