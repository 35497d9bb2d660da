// Render a page of the console without a browser: its text with the links, the data of its charts, and for a page of a
// range the parameters that it asks for.
//
// Usage: node render_page.mjs STATIC; standard input is JSON: page, state, data and user.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { page, state, data, user } = JSON.parse(readFileSync(0, "utf8"));
const root = `${pathToFileURL(process.argv[2])}/`;

// Stand-ins for the browser: the modules ask for them when they are loaded, and nothing is drawn.
globalThis.document = { createTreeWalker() {}, createComment() {}, getElementById() {}, documentElement: { dataset: {} } };
globalThis.HTMLElement = class {};
globalThis.customElements = { define() {} };
globalThis.location = { pathname: `/${page}`, search: `?${new URLSearchParams(state)}` };

const { href } = await import(`${root}router.js`);
const module = await import(`${root}pages/${page}.js`);
const context = { page, state, user, href, now: 0, may: () => true };
const charts = [];
let asked = {};
if (module.ranged) await module.load({ ...context, get: (path, parameters) => { asked = parameters; } });
const text = flat(module.render(data, context));
console.log(JSON.stringify({ text, charts, asked, ranged: module.ranged ?? false }));

function flat(value) {
  if (value === null || value === undefined || typeof value === "function" || typeof value === "symbol") return "";
  if (Array.isArray(value)) return value.map(flat).join("");
  if (typeof value !== "object") return String(value);
  if (value.strings) return value.strings.map((part, at) => part + flat(value.values[at])).join("");
  if (value.values?.length === 3) return value.values[0].map(value.values[2]).map(flat).join(""); // `repeat`
  if (value.values) return flat(value.values[0]); // `live`
  if (value.data) charts.push(value.data);
  return "";
}
