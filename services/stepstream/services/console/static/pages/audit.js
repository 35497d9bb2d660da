// Show what people did in the console.

import { ago } from "../components/format.js";
import { card } from "../components/states.js";
import { table } from "../components/table.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Audit";
/** @type {string[]} */
export const tables = [];

/** @param {Context} context */
export const load = ({ get }) => get("/api/audit");

/** @type {Record<string, "good" | "warn" | "bad">} */
const MARKS = { done: "good", requested: "warn", failed: "bad" };

/** @param {any} data @param {Context} context */
export const render = (data, context) => card("Actions of people", table("Actions of people", [
  { head: "When", cell: (row) => ago(row.occurred_at_us / 1000, context.now), kind: "name" },
  { head: "User", cell: (row) => row.user },
  { head: "Role", cell: (row) => row.role || "–" },
  { head: "Action", cell: (row) => row.action },
  { head: "State", cell: (row) => row.state, mark: (row) => MARKS[row.state] ?? "" },
  { head: "Target", cell: (row) => row.target || "–", kind: "id" },
  { head: "Reason", cell: (row) => row.reason || "–" },
], data.actions, { empty: "Nobody has acted yet." }), { note: "The newest 500 records of the topic console-actions.", wide: true });
