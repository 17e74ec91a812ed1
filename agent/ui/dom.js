// Makes elements. Every text from outside goes through text nodes and attributes, never through a parser of markup:
// names of pods and arguments of commands are written by strangers.

/** Makes `tag` ("div.row.wide" gives classes) with attributes and children; a null child is left out. */
export function h(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") setStyle(element, value);
    else if (key === "data") Object.assign(element.dataset, value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** Makes an element of a drawing. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  append(element, children);
  return element;
}

/** Replaces what `element` holds. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

const keys = new WeakMap();

/** Fills only when `key` changed: what is being clicked on or focused must not be replaced under the pointer. */
export function fillOn(key, element, make) {
  const text = JSON.stringify(key);
  if (keys.get(element) === text) return;
  keys.set(element, text);
  fill(element, make());
}

/** Sets text only when it changed, so that a live page does not disturb selections and screen readers. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// Through the object model: the policy of the page forbids style attributes.
function setStyle(element, values) {
  for (const [key, value] of Object.entries(values)) element.style.setProperty(key, String(value));
}
