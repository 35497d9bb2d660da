// Show who serves what, which versions are published, and what the learners do.

import { RANGE, filters, untilFilter } from "../components/filters.js";
import { ago, bytes, count, percent, version } from "../components/format.js";
import { card } from "../components/states.js";
import { table } from "../components/table.js";
import { html } from "../vendor/lit-html/lit-html.js";

/** @typedef {import("../context.js").Context} Context */

export const title = "Fleet";
export const tables = ["worker_status", "checkpoints", "learner_updates", "rollouts"];
export const every = 5;
export const ranged = true;

// A worker reports every few seconds.
const SILENT_MS = 15000;
/** @type {Record<string, "good" | "warn" | "bad">} */
const MARKS = { serving: "good", loading: "warn", starting: "warn", refused: "bad", stopping: "warn" };

/** @param {Context} context */
export const load = ({ get, state }) => get("/api/fleet", { since: state.since, until: state.until });

/** @param {any} data @param {Context} context */
export const render = (data, context) => html`
  ${filters([{ ...RANGE, options: [["1h", "1 hour"], ["15m", "15 minutes"], ["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"]] }, ...untilFilter(context)], context)}
  ${card("Workers", table("Workers", [
    { head: "Worker", cell: (row) => row.worker_id },
    { head: "Engine", cell: (row) => row.engine },
    { head: "Serves", cell: (row) => `${row.model} ${version(row.version)}` },
    { head: "Newest", cell: (row) => version(row.newest_version) },
    { head: "State", cell: (row) => (row.reason ? `${row.state}: ${row.reason}` : row.state), mark: (row) => MARKS[row.state] ?? "" },
    { head: "In flight", cell: (row) => count(row.requests_in_flight), kind: "number" },
    { head: "Seen", cell: (row) => ago(row.seen_at, context.now), mark: (row) => (context.now - row.seen_at > SILENT_MS ? "warn" : ""), kind: "name" },
  ], data.workers, { empty: "No worker reported in this range." }), { wide: true })}
  ${card("Versions served", table("Versions served", [
    { head: "Model", cell: (row) => row.model, kind: "name" },
    { head: "Version", cell: (row) => version(row.version) },
    { head: "Workers", cell: (row) => count(row.workers), kind: "number" },
  ], served(data.workers, context.now), { empty: "No worker serves a version now." }), { wide: true, note: `Workers that reported in the last ${SILENT_MS / 1000} s.` })}
  ${card("The learners' time", table("The learners' time", [
    { head: "Model", cell: (row) => row.model, kind: "name" },
    { head: "Updates", cell: (row) => count(row.updates), kind: "number" },
    { head: "Training", cell: (row) => percent(row.train), kind: "number" },
    { head: "Waiting", cell: (row) => percent(row.wait), kind: "number" },
    { head: "Reading", cell: (row) => percent(row.read), kind: "number" },
    { head: "Processing", cell: (row) => percent(row.fold), kind: "number" },
    { head: "Publishing", cell: (row) => percent(row.publish), kind: "number" },
    { head: "Last update", cell: (row) => ago(row.at, context.now), kind: "name" },
  ], data.learners, { empty: "No learner updated a model in this range." }), { wide: true })}
  ${card("Rollouts", table("Rollouts", [
    { head: "When", cell: (row) => ago(row.at, context.now), kind: "name" },
    { head: "Decision", cell: (row) => row.action },
    { head: "Model", cell: (row) => row.model, kind: "name" },
    { head: "Stable", cell: (row) => (row.stable_version === null ? "newest" : version(row.stable_version)) },
    { head: "Canary", cell: (row) => (row.canary_version === null ? "–" : `${version(row.canary_version)}, ${percent(row.canary_share)}`) },
    { head: "By", cell: (row) => row.author },
    { head: "Reason", cell: (row) => row.reason || "–", kind: "prose" },
  ], data.rollouts, { empty: "Nobody decided a rollout in this range." }), { wide: true })}
  ${card("Published versions", table("Published versions", [
    { head: "Model", cell: (row) => row.model, kind: "name" },
    { head: "Version", cell: (row) => version(row.version) },
    { head: "Parent", cell: (row) => version(row.parent_version) },
    { head: "Track", cell: (row) => row.track },
    { head: "Updates", cell: (row) => count(row.updates), kind: "number" },
    { head: "Trajectories", cell: (row) => count(row.trajectories), kind: "number" },
    { head: "SHA-256", cell: (row) => row.sha256, kind: "id" },
    { head: "Size", cell: (row) => bytes(row.size_bytes), kind: "number" },
    { head: "Published", cell: (row) => ago(row.at, context.now), kind: "name" },
  ], data.versions, { empty: "No version was published in this range." }), { wide: true })}`;

/** @param {any[]} workers @param {number} now */
function served(workers, now) {
  /** @type {Map<string, { model: string, version: number, workers: number }>} */
  const rows = new Map();
  for (const { model, version: number, seen_at } of workers) {
    if (number === null || now - seen_at > SILENT_MS) continue;
    const key = JSON.stringify([model, number]);
    const row = rows.get(key) ?? { model, version: number, workers: 0 };
    rows.set(key, { ...row, workers: row.workers + 1 });
  }
  return [...rows.values()].sort((a, b) => b.version - a.version);
}
