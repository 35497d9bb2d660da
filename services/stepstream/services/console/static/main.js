// Asks for a snapshot every second and shows it; waits longer while the store does not answer.

import { drawCharts, redrawAll } from "./charts.js";
import { clock } from "./format.js";
import { drawAlarms, drawTables, drawTiles } from "./tables.js";

const EVERY_MS = 1000;
const LONGEST_MS = 15000;
const ANSWER_MS = 20000;

const place = (id) => document.getElementById(id);
let snapshot = null;
let model = null;
let wait = EVERY_MS;
let timer = 0;
let turns = 0;

function show(found) {
  snapshot = found;
  drawAlarms(found);
  drawTiles(found);
  drawCharts(found);
  drawTables(found);
  const choice = place("model");
  if ([...choice.options].map((o) => o.value).join("\n") !== found.models.join("\n")) {
    choice.replaceChildren(...found.models.map((name) => new Option(name)));
  }
  choice.value = found.model;
  place("model-choice").hidden = found.models.length < 2;
  say("live", `live, ${clock(found.now)}`);
}

function say(state, text, notice = "") {
  place("status").dataset.state = state;
  place("status-text").textContent = text;
  place("notice").textContent = notice;
  place("notice").hidden = !notice;
  document.querySelector("main").classList.toggle("stale", state === "down" && snapshot !== null);
}

async function ask() {
  const query = model === null ? "" : `?model=${encodeURIComponent(model)}`;
  const reply = await fetch(`/api/snapshot${query}`, { signal: AbortSignal.timeout(ANSWER_MS) });
  const found = await reply.json();
  if (reply.ok) return found;
  throw new Error(`Store unreachable: ${found.error}`);
}

async function turn() {
  clearTimeout(timer);
  const mine = ++turns; // a turn begun later takes over from one that still waits
  try {
    const found = await ask();
    if (mine !== turns) return;
    show(found);
    wait = EVERY_MS;
  } catch (error) {
    if (mine !== turns) return;
    const why = error.message.startsWith("Store unreachable") ? error.message : `Console unreachable: ${error.message}`;
    wait = Math.min(2 * wait, LONGEST_MS);
    say("down", why.split(":")[0].toLowerCase(), `${why} Trying again in ${wait / 1000} s.`);
  }
  if (!document.hidden) timer = setTimeout(turn, wait);
}

place("model").addEventListener("change", (event) => { model = event.target.value; turn(); });
place("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* storage may be forbidden */ }
  redrawAll(snapshot);
});
// A page that nobody looks at asks nothing.
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : turn()));
turn();
