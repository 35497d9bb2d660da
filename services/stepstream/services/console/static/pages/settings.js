// Show the effective settings, secrets masked.

import { filters } from "../components/filters.js";
import { card } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */
/** @typedef {{ name: string, variable: string, value: string, origin: string, description: string }} Setting */

export const title = "Settings";
/** @type {string[]} */
export const tables = [];

/** @param {Context} context */
export const load = ({ get }) => get("/api/settings");

/** @param {{ settings: Setting[] }} data @param {Context} context */
export function render(data, context) {
  const words = (context.state.text ?? "").toLowerCase();
  const rows = data.settings.filter((row) =>
    (!words || `${row.name} ${row.description}`.toLowerCase().includes(words)) && (!context.state.changed || row.origin !== "default"));
  return html`
    ${filters([
      { name: "text", label: "Search", kind: "search" },
      { name: "changed", label: "Show", kind: "choice", all: "All settings", options: [["yes", "Those that are set"]] },
    ], context)}
    ${card("Settings in effect", table("Settings in effect", [
      { head: "Setting", cell: (/** @type {Setting} */ row) => html`<code>${row.name}</code>` },
      { head: "Value", cell: (row) => row.value || "–", kind: "path" },
      { head: "Source", cell: (row) => row.origin, kind: "path" },
      { head: "Meaning", cell: (row) => row.description, kind: "prose" },
    ], rows, { empty: "No setting has these words." }), { note: "Of the console's process. Secrets are masked.", wide: true })}`;
}
