// Keyboard: `g` and a letter opens a page, `j` and `k` walk the rows, `/` goes to the filters, `?` shows this.

import { go, href } from "./router.js";
import { setTheme, theme } from "./themes.js";
import { html, render } from "./vendor/lit-html/lit-html.js";

/** @typedef {import("./pages/index.js").PageEntry} PageEntry */

const help = /** @type {HTMLDialogElement} */ (document.getElementById("help"));
const SEQUENCE_MS = 1500;

/** @param {EventTarget | null} target */
const isField = (target) => target instanceof HTMLElement && /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);

/** @param {number} step */
function walk(step) {
  const links = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main .table td:first-child a")]);
  if (!links.length) return;
  const at = links.findIndex((link) => link === document.activeElement);
  links[Math.min(Math.max(at + step, 0), links.length - 1)].focus();
}

/** @param {PageEntry[]} pages */
function showHelp(pages) {
  const rows = [
    ...pages.filter((page) => !page.hidden).map((page) => [`g ${page.key}`, page.label]),
    ["/", "Go to the filters"], ["j, k", "Next and previous row"], ["Enter", "Open the row"], ["t", "Light or dark"], ["?", "Show these keys"],
  ];
  render(
    html`<h2 id="help-title">Keys</h2>
      <dl>${rows.map(([keys, text]) => html`<div><dt><kbd>${keys}</kbd></dt><dd>${text}</dd></div>`)}</dl>
      <form method="dialog"><button>Close</button></form>`,
    help,
  );
  if (!help.open) help.showModal();
}

/** @param {() => PageEntry[]} pages  those that the user may open */
export function followKeys(pages) {
  let wentAt = -Infinity;
  addEventListener("help", () => showHelp(pages()));
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.ctrlKey || event.altKey || isField(event.target) || help.open) return;
    const isSecond = event.timeStamp - wentAt < SEQUENCE_MS;
    wentAt = -Infinity;
    if (isSecond) {
      const page = pages().find((each) => each.key === event.key && !each.hidden);
      if (page) go(href(page.name));
    } else if (event.key === "g") wentAt = event.timeStamp;
    else if (event.key === "j") walk(1);
    else if (event.key === "k") walk(-1);
    else if (event.key === "t") setTheme(theme() === "dark" ? "light" : "dark");
    else if (event.key === "?") showHelp(pages());
    else if (event.key === "/") {
      const field = document.querySelector("main .filters :is(input, select)");
      if (!(field instanceof HTMLElement)) return;
      field.focus();
      event.preventDefault();
    }
  });
}
