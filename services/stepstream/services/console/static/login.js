// Show the login form.

import { ApiError, post } from "./api.js";
import { html, render } from "./vendor/lit-html/lit-html.js";

/** @param {HTMLElement} place */
export function drawLogin(place) {
  const draw = (fault = "", busy = false) => render(
    html`
      <form class="card login" aria-labelledby="login-title" @submit=${submit}>
        <h1 id="login-title">Log in</h1>
        <label>Name <input name="name" autocomplete="username" required autofocus></label>
        <label>Password <input name="password" type="password" autocomplete="current-password" required></label>
        <p class="notice" role="alert" ?hidden=${!fault}>${fault}</p>
        <button ?disabled=${busy}>Log in</button>
      </form>`,
    place,
  );
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const fields = new FormData(/** @type {HTMLFormElement} */ (event.target));
    draw("", true);
    try {
      await post("/api/login", { name: fields.get("name"), password: fields.get("password") });
      location.reload();
    } catch (error) {
      draw(error instanceof ApiError ? error.message : String(error));
    }
  };
  document.title = "Log in · Stepstream";
  draw();
}
