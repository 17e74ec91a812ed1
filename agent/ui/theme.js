// Sets the theme before the first paint, so that a dark page never flashes white. Not a module: modules run after parsing.
(() => {
  let stored = null;
  try {
    stored = localStorage.getItem("sandglass.theme");
  } catch {
    // Storage is forbidden: the system's preference applies.
  }
  if (stored === "dark" || stored === "light") document.documentElement.dataset.theme = stored;
})();
