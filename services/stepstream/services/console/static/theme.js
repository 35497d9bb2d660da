// Set the theme before drawing: the reader's last choice, else the system's.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage may be forbidden */ }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
