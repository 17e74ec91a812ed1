// Keyboard shortcuts: the table of keys, the dialog that shows it, and the listener.

import { fill, h } from "./dom.js";

const HELP = [
  ["j / ↓", "next row"],
  ["k / ↑", "previous row"],
  ["Enter", "open the row"],
  ["Esc", "back to the list, or leave the search field"],
  ["z", "zoom to the selected span, or back to the whole trace"],
  ["/", "search"],
  ["g", "sandboxes"],
  ["o", "operations"],
  ["n", "network"],
  ["← / →", "on a chart: previous slot, next slot"],
  ["a", "agent"],
  ["r", "reload the data"],
  ["t", "light or dark"],
  ["?", "show this dialog"],
];

/** Opens the help. */
export function showHelp() {
  const dialog = document.getElementById("keys");
  fill(
    dialog,
    h("h2", { id: "keys-title" }, "Keyboard shortcuts"),
    h("dl.keys", {}, HELP.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("form", { method: "dialog" }, h("button.button", {}, "Close")),
  );
  if (!dialog.open) dialog.showModal();
}

/** Adds the page's one key listener; `actions` maps a key to its function. */
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

/** Moves the focus among `items` by `step`; to the first one if the focus is elsewhere. */
export function moveFocus(items, step) {
  if (!items.length) return;
  const at = items.indexOf(document.activeElement);
  const next = at < 0 ? 0 : Math.min(items.length - 1, Math.max(0, at + step));
  items[next].focus();
  items[next].scrollIntoView({ block: "nearest" });
}
