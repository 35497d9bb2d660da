// Fetch and show a snapshot every second; wait longer while the store does not answer.

import { drawCharts, redrawAll } from "./charts.js";
import { clock } from "./format.js";
import { drawAlarms, drawTables, drawTiles } from "./tables.js";

const INTERVAL_MS = 1000;
const MAX_INTERVAL_MS = 15000;
const TIMEOUT_MS = 20000;

const byId = (id) => document.getElementById(id);
let snapshot = null;
let model = null;
let wait = INTERVAL_MS;
let timer = 0;
let refreshes = 0;

function show(fetched) {
  snapshot = fetched;
  drawAlarms(fetched);
  drawTiles(fetched);
  drawCharts(fetched);
  drawTables(fetched);
  const choice = byId("model");
  if ([...choice.options].map((o) => o.value).join("\n") !== fetched.models.join("\n")) {
    choice.replaceChildren(...fetched.models.map((name) => new Option(name)));
  }
  choice.value = fetched.model;
  byId("model-choice").hidden = fetched.models.length < 2;
  showStatus("live", `live, ${clock(fetched.now)}`);
}

function showStatus(state, text, notice = "") {
  byId("status").dataset.state = state;
  byId("status-text").textContent = text;
  byId("notice").textContent = notice;
  byId("notice").hidden = !notice;
  document.querySelector("main").classList.toggle("stale", state === "down" && snapshot !== null);
}

async function fetchSnapshot() {
  const query = model === null ? "" : `?model=${encodeURIComponent(model)}`;
  const reply = await fetch(`/api/snapshot${query}`, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  const fetched = await reply.json();
  if (reply.ok) return fetched;
  throw new Error(`Store unreachable: ${fetched.error}`);
}

async function refresh() {
  clearTimeout(timer);
  const number = ++refreshes; // a later refresh replaces one that still waits
  try {
    const fetched = await fetchSnapshot();
    if (number !== refreshes) return;
    show(fetched);
    wait = INTERVAL_MS;
  } catch (error) {
    if (number !== refreshes) return;
    const reason = error.message.startsWith("Store unreachable") ? error.message : `Console unreachable: ${error.message}`;
    wait = Math.min(2 * wait, MAX_INTERVAL_MS);
    showStatus("down", reason.split(":")[0].toLowerCase(), `${reason} Trying again in ${wait / 1000} s.`);
  }
  if (!document.hidden) timer = setTimeout(refresh, wait);
}

byId("model").addEventListener("change", (event) => { model = event.target.value; refresh(); });
byId("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* storage may be forbidden */ }
  redrawAll(snapshot);
});
// A hidden page fetches nothing.
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : refresh()));
refresh();
