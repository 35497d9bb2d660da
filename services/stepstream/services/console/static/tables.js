// Draw the tables and tiles. All text becomes text nodes, so agents' text is never parsed as HTML.

import { ago, bytes, count, decimal, percent, version, versions } from "./format.js";

const outcome = (row) => (row.success === null ? ["open", ""] : row.success ? ["success", "good"] : ["failure", "bad"]);
// A worker reports every few seconds.
const SILENT_MS = 15000;
const states = { serving: "good", loading: "warn", starting: "warn", refused: "bad", stopping: "warn" };

// A column: its heading, the cell's text (or [text, class]), and the class of all its cells.
const TABLES = {
  "table-workers": {
    of: "workers", empty: "No worker has reported yet.",
    columns: [
      ["Worker", (r) => r.worker_id], ["Engine", (r) => r.engine], ["Serves", (r) => `${r.model} ${version(r.version)}`],
      ["Newest", (r) => version(r.newest_version)], ["State", (r) => [r.reason ? `${r.state}: ${r.reason}` : r.state, states[r.state] ?? ""]],
      ["In flight", (r) => count(r.requests_in_flight), "number"], ["Seen", (r, now) => [ago(r.seen_at, now), now - r.seen_at > SILENT_MS ? "warn" : ""]],
    ],
  },
  "table-checkpoints": {
    of: "checkpoints", empty: "No checkpoint has been published yet.",
    columns: [
      ["Version", (r) => version(r.version)], ["Parent", (r) => version(r.parent_version)], ["Track", (r) => r.track],
      ["Trajectories", (r) => count(r.trajectories), "number"], ["Updates", (r) => count(r.updates), "number"],
      ["SHA-256", (r) => r.sha256, "id"], ["Size", (r) => bytes(r.size_bytes), "number"], ["Published", (r, now) => ago(r.at, now)],
    ],
  },
  "table-learner": {
    of: "learner", empty: "The learner has not updated this model yet.",
    columns: [
      ["Training", (r) => percent(r.train), "number"], ["Waiting for attempts", (r) => percent(r.wait), "number"],
      ["Reading records", (r) => percent(r.read), "number"], ["Processing records", (r) => percent(r.fold), "number"],
      ["Publishing", (r) => percent(r.publish), "number"], ["Updates", (r) => count(r.updates), "number"],
    ],
  },
  "table-trajectories": {
    of: "trajectories", empty: "No trajectory has been labelled yet.",
    columns: [
      ["Tenant", (r) => r.tenant], ["Trajectory", (r) => r.trajectory_id, "id"], ["Task", (r) => r.task_id, "id"], ["Agent", (r) => r.agent], ["Split", (r) => r.split],
      ["Versions", (r) => versions(r.version_min, r.version_max)], ["Steps", (r) => count(r.steps), "number"],
      ["Reward", (r) => decimal(r.reward), "number"], ["Outcome", outcome], ["Closed by", (r) => (r.closed_by === "end" ? r.trajectory_end : r.closed_by)],
      ["Revision", (r) => count(r.revision), "number"], ["Ended", (r, now) => ago(r.at, now)],
    ],
  },
  "table-alarms": {
    of: "alarms", empty: "No alarms: no guard has fallen while a rewarded component rose, and engines agree with the learner.",
    columns: [
      ["State", (r) => (r.state === "raised" ? ["active", "bad"] : ["cleared", "good"])], ["Agent", (r) => r.agent || "all"],
      ["Rose", (r) => `${r.rising}: ${decimal(r.rising_before)} to ${decimal(r.rising_after)}`],
      ["Fell", (r) => (r.falling ? `${r.falling}: ${decimal(r.falling_before)} to ${decimal(r.falling_after)}` : "none")],
      ["Since", (r) => version(r.since_version)], ["Raised", (r, now) => ago(r.raised_at, now)],
    ],
  },
  "table-feedback": {
    of: "feedback", empty: "No feedback has arrived yet.",
    columns: [
      ["Signal", (r) => r.name], ["Source", (r) => r.source], ["Events", (r) => count(r.events), "number"],
      ["Mean", (r) => decimal(r.mean, 3), "number"], ["Newest", (r, now) => ago(r.at, now)],
    ],
  },
  "table-dead-letters": {
    of: "dead_letters", empty: "No dead letters: every record was valid.",
    columns: [
      ["Job", (r) => r.job], ["From", (r) => r.topic], ["Error", (r) => [r.error, "bad"]], ["Records", (r) => count(r.records), "number"],
      ["Newest reason", (r) => r.reason], ["Newest", (r, now) => ago(r.at, now)],
    ],
  },
};

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function table({ columns, empty }, rows, now, titleId) {
  if (!rows.length) return element("p", empty, "empty");
  const made = element("table");
  made.setAttribute("aria-labelledby", titleId);
  const heads = element("tr");
  for (const [heading, , name] of columns) {
    const head = element("th", heading, name === "number" ? name : "");
    head.scope = "col";
    heads.append(head);
  }
  made.createTHead().append(heads);
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const [, cell, name = ""] of columns) {
      const [text, mark = ""] = [cell(row, now)].flat();
      const made = element("td", text, `${name} ${mark}`.trim());
      if (name === "id") made.title = text;
      line.append(made);
    }
  }
  return made;
}

export function drawAlarms(snapshot) {
  const active = snapshot.alarms.filter((row) => row.state === "raised");
  const place = document.getElementById("alarms");
  place.hidden = !active.length;
  place.querySelector("h2").textContent = active.length === 1 ? "1 active alarm" : `${active.length} active alarms`;
  const messages = active.map((row) => row.message);
  const list = place.querySelector("ul");
  // Leave an unchanged list alone; otherwise a screen reader would read it each second.
  if ([...list.children].map((item) => item.textContent).join("\n") !== messages.join("\n")) {
    list.replaceChildren(...messages.map((message) => element("li", message)));
  }
}

export function drawTables(snapshot) {
  for (const [id, spec] of Object.entries(TABLES)) {
    const place = document.getElementById(id);
    place.replaceChildren(table(spec, snapshot[spec.of], snapshot.now, place.closest("section").getAttribute("aria-labelledby")));
  }
}

export function drawTiles(snapshot) {
  const show = (id, text, note) => {
    document.getElementById(`tile-${id}`).textContent = text;
    document.getElementById(`tile-${id}-note`).textContent = note;
  };
  // Show held-out tasks; without any, training tasks.
  const heldOut = snapshot.success.filter((row) => row.split === "eval");
  const rows = heldOut.length ? heldOut : snapshot.success;
  const newest = rows.reduce((best, row) => (best === null || row.version > best.version ? row : best), null);
  if (newest) {
    show("success", percent(newest.rate), `${version(newest.version)}, ${newest.split}: ${percent(newest.low)} to ${percent(newest.high)} of ${count(newest.outcomes)}`);
  } else show("success", "–", "no outcome yet");
  const recent = snapshot.steps.slice(-10);
  const rate = recent.reduce((sum, row) => sum + row.steps, 0) / Math.max(1, recent.length);
  const [totals] = snapshot.totals;
  show("steps", decimal(rate, rate < 10 ? 1 : 0), `mean of 10 s; ${count(totals.steps)} steps, ${count(totals.trajectories)} trajectories in total`);
  const stale = snapshot.staleness.at(-1);
  show("staleness", stale ? decimal(stale.mean, 1) : "–", stale ? `largest ${stale.max}; bound ${snapshot.staleness_bound}` : "no trajectory yet");
  const served = [...new Set(snapshot.workers.filter((row) => row.model === snapshot.model && row.version !== null).map((row) => row.version))].sort((a, b) => a - b);
  const published = snapshot.checkpoints[0];
  show("versions", served.length ? served.map(version).join(", ") : "–", published ? `newest published ${version(published.version)}, ${ago(published.at, snapshot.now)}` : "none published yet");
}
