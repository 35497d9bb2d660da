// Keep the page and its state in the address, so that a link shares the view.

/** @typedef {import("./context.js").State} State */

// Names that links to other pages carry along.
const CARRIED = ["model", "since", "until", "tenant"];
// Pages whose tenant names what they show: other pages are not filtered by it.
const OF_ONE = ["trajectory", "compare"];

/** @returns {{ page: string, state: State }} */
export function current() {
  return {
    page: location.pathname.slice(1) || "overview",
    state: Object.fromEntries(new URLSearchParams(location.search)),
  };
}

/** @param {string} page @param {State} [state] @returns {string} */
export function href(page, state = {}) {
  const { page: from, state: now } = current();
  const names = CARRIED.filter((name) => name in now && !(name === "tenant" && OF_ONE.includes(from)));
  const carried = Object.fromEntries(names.map((name) => [name, now[name]]));
  const query = new URLSearchParams({ ...carried, ...state });
  return query.size ? `/${page}?${query}` : `/${page}`;
}

/** @param {Record<string, string | null>} change @returns {string} the address of this page with a changed state */
export function changed(change) {
  const { page, state } = current();
  const query = new URLSearchParams(state);
  for (const [name, value] of Object.entries(change)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  return query.size ? `/${page}?${query}` : `/${page}`;
}

/**
 * The address that shows this view later, too. A range counts back from its end, so that the link of a page of a range
 * (`ranged`) names the end: `now`, in milliseconds since the Unix epoch, unless the view is of the past already.
 * @param {boolean} ranged @param {number} now @returns {string}
 */
export const shared = (ranged, now) => changed(ranged && !current().state.until ? { until: String(now) } : {});

/** @param {string} address @param {boolean} [replace]  do not add an entry to the history */
export function go(address, replace = false) {
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new Event("routed"));
}

/** @param {() => void} listener  called after each change of the address */
export function onRoute(listener) {
  addEventListener("popstate", listener);
  addEventListener("routed", listener);
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (!(link instanceof HTMLAnchorElement) || event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || link.target || link.download) return;
    if (link.origin !== location.origin || link.pathname.startsWith("/api/") || link.pathname.startsWith("/static/")) return;
    if (link.hash && link.pathname === location.pathname) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
