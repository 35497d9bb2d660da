// Call the console's endpoints.

const TIMEOUT_MS = 20000;

/** The server's answer was an error; `status` 0: it did not answer. */
export class ApiError extends Error {
  /** @param {string} message @param {number} status */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let csrf = "";

/** @param {string} token  sent with every action; the server gives it with the session */
export function useToken(token) {
  csrf = token;
}

/** @param {string} path @param {RequestInit} init @returns {Promise<any>} */
async function call(path, init) {
  let reply;
  let value;
  try {
    reply = await fetch(path, { ...init, credentials: "same-origin", signal: AbortSignal.timeout(TIMEOUT_MS) });
    value = await reply.json();
  } catch (error) {
    throw new ApiError(`The console does not answer: ${error instanceof Error ? error.message : error}`, 0);
  }
  if (!reply.ok) throw new ApiError(value.error ?? `status ${reply.status}`, reply.status);
  return value;
}

/** @param {string} path @param {Record<string, string | number | null | undefined>} [parameters] */
export function get(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  return call(query.size ? `${path}?${query}` : path, {});
}

/** @param {string} path @param {object} [body] */
export function post(path, body = {}) {
  return call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf },
    body: JSON.stringify(body),
  });
}
