// Types of what a page gets and gives.

/** @typedef {"viewer" | "operator" | "admin"} Role */
/** @typedef {{ name: string, role: Role, tenant: string }} User  An empty tenant: all tenants. */
/** @typedef {Record<string, string>} State  The query string: everything that a link to the view shares. */

/**
 * @typedef {object} Context
 * @property {string} page    name of the page
 * @property {State} state    the query string
 * @property {User} user      who is logged in
 * @property {(tables: string[]) => string} changes   a text that differs once one of the tables has changed
 * @property {number} now     time of the newest answer, in milliseconds since the Unix epoch
 * @property {(role: Role) => boolean} may    whether the user's role includes `role`
 * @property {(change: Record<string, string | null>) => void} set   change the query string and load again; null removes a name
 * @property {(page: string, state?: State) => string} href   address of a view; the model, the range and the tenant are carried along
 * @property {(path: string, parameters?: Record<string, string | number | null | undefined>) => Promise<any>} get   fetch an endpoint
 * @property {(path: string, body?: object) => Promise<any>} post   call an action; needs the role of its endpoint
 * @property {() => Promise<void>} reload   fetch the page's data again
 * @property {() => void} redraw   render the page again with the data it has
 * @property {(message: string, kind?: "good" | "bad") => void} notify   show a message for some seconds
 */

/**
 * @typedef {object} PageModule
 * @property {string} title
 * @property {string[]} tables   load again when one of these tables changes
 * @property {number} [every]    also load again after so many seconds
 * @property {boolean} [ranged]   its figures are of the range that `since` and `until` in the address name
 * @property {(context: Context) => Promise<any>} load
 * @property {(data: any, context: Context) => unknown} render
 */

export {};
