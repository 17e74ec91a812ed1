// Sets the theme before the first paint, so that a dark page never flashes white. Not a module: modules run too late.
(() => {
  let stored = null;
  try {
    stored = localStorage.getItem("sandglass.theme");
  } catch {
    // Storage may be forbidden; the system's preference is then the answer.
  }
  if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
})();
