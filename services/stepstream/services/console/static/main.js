// Run the console: who is logged in, which page is shown, and when it loads again.

import { ApiError, get, post, useToken } from "./api.js";
import { failed, waiting } from "./components/states.js";
import { drawHeader, drawNavigation, notify } from "./frame.js";
import { followKeys } from "./keyboard.js";
import { listen } from "./live.js";
import { PAGES } from "./pages/index.js";
import { changed, current, go, href, onRoute, shared } from "./router.js";
import { html, render } from "./vendor/lit-html/lit-html.js";

/** @typedef {import("./context.js").Context} Context */
/** @typedef {import("./context.js").PageModule} PageModule */
/** @typedef {import("./context.js").User} User */

// Pause between two loads that changes of tables cause.
const PAUSE_MS = 1000;
const ROLES = ["viewer", "operator", "admin"];

const main = /** @type {HTMLElement} */ (document.getElementById("main"));

/** @type {User | null} */
let user = null;
/** @type {{ module: PageModule, context: Context, data: any } | null} */
let shown = null;
let loads = 0;
let loadedAt = 0;
let pending = 0;
// How often each table has changed; the empty name counts the times when changes may have been missed.
/** @type {Record<string, number>} */
const changes = {};
/** @type {"waiting" | "live" | "down"} */
let status = "waiting";

/** @param {import("./pages/index.js").PageEntry} page */
const permitted = (page) =>
  user !== null && ROLES.indexOf(user.role) >= ROLES.indexOf(page.role) && !(page.installation && user.tenant);

/** @param {"waiting" | "live" | "down"} now */
function setStatus(now) {
  status = now;
  main.classList.toggle("stale", now === "down" && shown !== null);
  drawFrame();
}

function drawFrame() {
  drawHeader(user, status);
  drawNavigation(user === null ? [] : PAGES.filter((page) => !page.hidden && permitted(page)));
}

/** @param {string} page @returns {Context} */
function contextOf(page) {
  const now = /** @type {User} */ (user);
  const context = {
    page, state: current().state, user: now, now: Date.now(), href,
    may: (/** @type {import("./context.js").Role} */ role) => ROLES.indexOf(now.role) >= ROLES.indexOf(role),
    changes: (/** @type {string[]} */ tables) => JSON.stringify(["", ...tables].map((name) => changes[name] ?? 0)),
    set: (/** @type {Record<string, string | null>} */ change) => go(changed(change)),
    get: async (/** @type {string} */ path, /** @type {any} */ parameters) => {
      const value = await get(path, parameters);
      context.now = value.now;
      return value;
    },
    post, reload: load, redraw: draw, notify,
  };
  return context;
}

function draw() {
  if (!shown) return;
  document.title = `${shown.module.title} · Stepstream`;
  render(html`<h1 id="title" tabindex="-1">${shown.module.title}</h1>${shown.module.render(shown.data, shown.context)}`, main);
  main.dataset.page = shown.context.page;
}

/** Show the page of the address. */
async function open() {
  const { page } = current();
  const entry = PAGES.find((each) => each.name === page);
  drawFrame();
  if (user === null) return;
  if (!entry || !permitted(entry)) {
    shown = null;
    document.title = "Stepstream";
    delete main.dataset.page;
    render(failed(entry ? "Your role does not include this page." : `There is no page ${page}.`), main);
    return;
  }
  const context = contextOf(page);
  const isNew = shown?.context.page !== page;
  if (isNew) {
    delete main.dataset.page;
    render(waiting(), main);
  }
  const module = await entry.module();
  shown = { module, context, data: isNew ? undefined : shown?.data };
  await load();
  if (isNew) scrollTo(0, 0);
}

/** Fetch the data of the page that is shown, and draw it. */
async function load() {
  clearTimeout(pending);
  pending = 0;
  if (!shown) return;
  const page = shown;
  const number = ++loads; // a later load replaces one that still waits
  try {
    const data = await page.module.load(page.context);
    if (number !== loads) return;
    page.data = data;
    loadedAt = Date.now();
    setStatus("live");
    draw();
  } catch (error) {
    if (number === loads) fail(error);
  }
  if (number === loads && page.module.every) later(page.module.every * 1000);
}

/** @param {unknown} error */
function fail(error) {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401) {
    location.reload();
    return;
  }
  const isAway = error.status === 0 || error.status === 503;
  if (isAway) setStatus("down");
  if (shown?.data === undefined || !isAway) {
    render(failed(error.message), main);
  }
  notify(error.message, "bad");
  if (isAway) later(5000);
}

/** @param {number} wait  milliseconds until the page loads again; an earlier plan stays */
function later(wait) {
  if (!pending && !document.hidden) pending = setTimeout(load, wait);
}

/** @param {string} name */
function count(name) {
  changes[name] = (changes[name] ?? 0) + 1;
}

/** Copy a link to the view; where the browser has no clipboard, as over plain HTTP, the address becomes that link. */
async function share() {
  const address = shared(shown?.module.ranged ?? false, shown?.context.now ?? Date.now());
  try {
    await navigator.clipboard.writeText(`${location.origin}${address}`);
    notify("The link is copied.");
  } catch {
    go(address);
    notify("Copy the link from the address bar.");
  }
}

/** @param {string[]} names  tables that changed */
function onTables(names) {
  names.forEach(count);
  if (shown?.module.tables.some((name) => names.includes(name))) later(Math.max(0, loadedAt + PAUSE_MS - Date.now()));
}

async function start() {
  const session = await get("/api/session");
  user = session.user;
  useToken(session.csrf ?? "");
  if (user === null) {
    const { drawLogin } = await import("./login.js");
    drawFrame();
    drawLogin(main, session.provider);
    return;
  }
  onRoute(open);
  followKeys(() => PAGES.filter(permitted));
  addEventListener("share", share);
  listen({
    onTables,
    onStore: (fault) => { count(""); if (fault) setStatus("down"); void load(); },
    onState: (live) => { count(""); if (!live) setStatus("down"); else if (status === "down") void load(); },
  });
  // A hidden page fetches nothing.
  document.addEventListener("visibilitychange", () => { if (!document.hidden) void load(); });
  await open();
}

start().catch((error) => {
  render(failed(error.message), main);
  throw error;
});
