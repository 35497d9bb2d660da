// List the pages in the order of the navigation. A page is one module of this folder:
//
//   export const title = "Rewards";
//   export const tables = ["trajectories"];            // reload when one of these tables changes
//   export async function load(context) { … }         // fetch the page's data; the shell shows waiting and errors
//   export function render(data, context) { … }       // return a template of lit-html

/** @typedef {import("../context.js").PageModule} PageModule */

/**
 * @typedef {object} PageEntry
 * @property {string} name       path of the page, and name of its module
 * @property {string} label      text in the navigation
 * @property {string} key        letter that opens it after `g`
 * @property {import("../context.js").Role} role   least role that sees it
 * @property {boolean} installation   true: hidden from users of one tenant
 * @property {boolean} [hidden]   true: reached by links only, not from the navigation
 * @property {() => Promise<PageModule>} module
 */

/** @type {PageEntry[]} */
export const PAGES = [
  { name: "overview", label: "Overview", key: "o", role: "viewer", installation: false, module: () => import("./overview.js") },
  { name: "trajectories", label: "Trajectories", key: "t", role: "viewer", installation: false, module: () => import("./trajectories.js") },
  { name: "trajectory", label: "Trajectory", key: "", role: "viewer", installation: false, hidden: true, module: () => import("./trajectory.js") },
  { name: "compare", label: "Two attempts", key: "", role: "viewer", installation: false, hidden: true, module: () => import("./compare.js") },
  { name: "review", label: "Review", key: "v", role: "viewer", installation: false, module: () => import("./review.js") },
  { name: "rewards", label: "Rewards", key: "r", role: "viewer", installation: false, module: () => import("./rewards.js") },
  { name: "tools", label: "Tools", key: "u", role: "viewer", installation: false, module: () => import("./tools.js") },
  { name: "decisions", label: "Decisions", key: "d", role: "viewer", installation: false, module: () => import("./decisions.js") },
  { name: "people", label: "People", key: "e", role: "viewer", installation: false, module: () => import("./people.js") },
  { name: "curves", label: "Curves", key: "c", role: "viewer", installation: false, module: () => import("./curves.js") },
  { name: "fleet", label: "Fleet", key: "f", role: "viewer", installation: true, module: () => import("./fleet.js") },
  { name: "pipeline", label: "Pipeline", key: "p", role: "viewer", installation: true, module: () => import("./pipeline.js") },
  { name: "settings", label: "Settings", key: "s", role: "admin", installation: true, module: () => import("./settings.js") },
  { name: "audit", label: "Audit", key: "a", role: "admin", installation: true, module: () => import("./audit.js") },
];
