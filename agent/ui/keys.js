// The keyboard: one table of what each key does, and the dialog that shows it.

import { fill, h } from "./dom.js";

const HELP = [
  ["j / ↓", "next row"],
  ["k / ↑", "previous row"],
  ["Enter", "open the row"],
  ["Esc", "back to the list; leave the search field"],
  ["z", "let the chosen span fill the width, or the whole trace"],
  ["/", "search"],
  ["g", "sandboxes"],
  ["o", "operations"],
  ["n", "network"],
  ["← / →", "on a chart: the slot before, the slot after"],
  ["a", "agent"],
  ["r", "load again"],
  ["t", "light or dark"],
  ["?", "this help"],
];

/** Opens the help. */
export function showHelp() {
  const dialog = document.getElementById("keys");
  fill(
    dialog,
    h("h2", { id: "keys-title" }, "Keyboard"),
    h("dl.keys", {}, HELP.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("form", { method: "dialog" }, h("button.button", {}, "Close")),
  );
  if (!dialog.open) dialog.showModal();
}

/** Listens once for the whole page; `actions` maps a key to what it does. */
export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.getElementById("keys").open) return;
    const field = event.target.closest("input, select, textarea");
    if (field) {
      if (event.key === "Escape") field.blur();
      return;
    }
    const action = actions[event.key];
    if (action && action(event) !== false) event.preventDefault();
  });
}

/** Moves the focus among `items` by `step`; from outside them to the first. */
export function moveFocus(items, step) {
  if (!items.length) return;
  const at = items.indexOf(document.activeElement);
  const next = at < 0 ? 0 : Math.min(items.length - 1, Math.max(0, at + step));
  items[next].focus();
  items[next].scrollIntoView({ block: "nearest" });
}
