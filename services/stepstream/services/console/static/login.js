// Show the login form.

import { ApiError, post } from "./api.js";
import { html, nothing, render } from "./vendor/lit-html/lit-html.js";

// Reasons with which the server leads back from the OpenID Connect provider.
const REFUSED = /** @type {Record<string, string>} */ ({
  provider: "The login provider does not answer: try again, or ask an administrator to look at the console's log.",
  login: "The login was not completed: begin again.",
  access: "The login provider gives you no role here: ask an administrator.",
});

/** @param {HTMLElement} place @param {string} provider  host of the OpenID Connect provider; empty: there is none */
export function drawLogin(place, provider) {
  const refused = new URLSearchParams(location.search).get("refused") ?? "";
  const target = location.pathname === "/login" ? "/overview" : location.pathname + location.search;
  const draw = (fault = "", busy = false) => render(
    html`
      <form class="card login" aria-labelledby="login-title" @submit=${submit}>
        <h1 id="login-title">Log in</h1>
        <label>Name <input name="name" autocomplete="username" required autofocus></label>
        <label>Password <input name="password" type="password" autocomplete="current-password" required></label>
        <p class="notice" role="alert" ?hidden=${!fault}>${fault}</p>
        <button ?disabled=${busy}>Log in</button>
        ${provider ? html`<a class="button" href=${`/oidc/login?to=${encodeURIComponent(target)}`}>Log in with ${provider}</a>` : nothing}
      </form>`,
    place,
  );
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const fields = new FormData(/** @type {HTMLFormElement} */ (event.target));
    draw("", true);
    try {
      await post("/api/login", { name: fields.get("name"), password: fields.get("password") });
      location.assign(target);
    } catch (error) {
      draw(error instanceof ApiError ? error.message : String(error));
    }
  };
  document.title = "Log in · Stepstream";
  draw(REFUSED[refused]);
}
