// Draw what surrounds every page: the header, the navigation and short messages.

import { post } from "./api.js";
import { current, href } from "./router.js";
import { setTheme, theme } from "./themes.js";
import { html, nothing, render } from "./vendor/lit-html/lit-html.js";

/** @param {string} id */
const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

const STATES = { waiting: "connecting", live: "live", down: "not connected" };
const SHOWN_MS = 6000;

/** @param {import("./context.js").User | null} user @param {"waiting" | "live" | "down"} status */
export function drawHeader(user, status) {
  const toggle = () => {
    setTheme(theme() === "dark" ? "light" : "dark");
    drawHeader(user, status);
  };
  const logOut = async () => {
    await post("/api/logout");
    location.assign("/");
  };
  const who = user && user.name !== "local"
    ? html`<span class="who" title=${user.role}>${user.name}${user.tenant ? ` · ${user.tenant}` : ""}</span>
        <button type="button" id="logout" @click=${logOut}>Log out</button>`
    : nothing;
  render(
    html`
      <a class="brand" href="/overview"><img src="/static/icon.svg" alt="" width="26" height="26">Stepstream</a>
      <p id="status" role="status" data-state=${status}><span class="dot" aria-hidden="true"></span><span id="status-text">${STATES[status]}</span></p>
      ${who}
      ${user ? html`<button type="button" id="share" aria-label="Copy link" title="Copy a link to what is shown, which shows the same range later" @click=${() => dispatchEvent(new Event("share"))}>Copy<span> link</span></button>` : nothing}
      <button type="button" id="keys" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" @click=${() => dispatchEvent(new Event("help"))}>?</button>
      <button type="button" id="theme" aria-label="Switch between light and dark" title="Switch between light and dark (t)" @click=${toggle}>◐</button>`,
    byId("header"),
  );
}

/** @param {import("./pages/index.js").PageEntry[]} pages */
export function drawNavigation(pages) {
  const { page } = current();
  render(
    html`<ul>${pages.map(({ name, label, key }) => html`
      <li><a href=${href(name)} aria-current=${name === page ? "page" : nothing} aria-keyshortcuts=${`g ${key}`}>${label}</a></li>`)}</ul>`,
    byId("nav"),
  );
  byId("nav").hidden = !pages.length;
}

/** @type {{ text: string, kind: string }[]} */
let messages = [];

/** @param {string} text @param {"good" | "bad"} [kind] */
export function notify(text, kind = "good") {
  if (messages.some((message) => message.text === text)) return;
  const message = { text, kind };
  messages = [...messages, message].slice(-3);
  drawMessages();
  setTimeout(() => {
    messages = messages.filter((each) => each !== message);
    drawMessages();
  }, SHOWN_MS);
}

function drawMessages() {
  render(messages.map(({ text, kind }) => html`<p class=${`toast ${kind}`}>${text}</p>`), byId("toasts"));
}
