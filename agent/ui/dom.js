// Creates elements. Text from the node goes through text nodes and attributes, never through an HTML parser: pod names and
// command arguments are untrusted input.

/** Creates `tag` ("div.row.wide" sets classes) with attributes and children; null children are skipped. */
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

/** Creates an SVG element. */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  append(element, children);
  return element;
}

/** Replaces the children of `element`. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

const keys = new WeakMap();

/** Replaces the children only when `key` changed: an element under the pointer or with the focus must stay. */
export function fillOn(key, element, make) {
  const text = JSON.stringify(key);
  if (keys.get(element) === text) return;
  keys.set(element, text);
  fill(element, make());
}

/** Sets text only when it changed: an update must not disturb selections and screen readers. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// The page's Content-Security-Policy forbids style attributes; the object model is allowed.
function setStyle(element, values) {
  for (const [key, value] of Object.entries(values)) element.style.setProperty(key, String(value));
}
