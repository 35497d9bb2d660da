// Switch between light and dark; theme.js sets the first theme before anything is drawn.

export const theme = () => document.documentElement.dataset.theme;

/** @param {"light" | "dark"} chosen */
export function setTheme(chosen) {
  document.documentElement.dataset.theme = chosen;
  try { localStorage.setItem("theme", chosen); } catch { /* storage may be forbidden */ }
  dispatchEvent(new Event("themed"));
}
