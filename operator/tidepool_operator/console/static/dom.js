// Elements from plain values. Text goes into the page as text alone: nothing here, or in any other file, reads markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. `vars` are custom properties of its style; null and false children and attributes are left out. */
export function h(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function s(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "vars") {
      for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    } else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Make `there` like `wanted` and touch only what differs, so that focus, selection and what is open stay. */
export function morph(there, wanted) {
  if (there.nodeType !== wanted.nodeType || there.nodeName !== wanted.nodeName || key(there) !== key(wanted)) {
    there.replaceWith(wanted);
    return;
  }
  if (there.nodeType === Node.TEXT_NODE) {
    if (there.data !== wanted.data) there.data = wanted.data;
    return;
  }
  if (there.hasAttribute("data-own")) return; // drawn by somebody else
  for (const { name } of [...there.attributes]) {
    if (name !== "open" && !wanted.hasAttribute(name)) there.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name === "style") there.style.cssText = wanted.style.cssText;
    else if (there.getAttribute(name) !== value) there.setAttribute(name, value);
  }
  fill(there, [...wanted.childNodes]);
}

/** Make the children of `parent` like `wanted`, elements in lists of any depth; what is none is left out. */
export function fill(parent, wanted_) {
  const there = [...parent.childNodes];
  const wanted = wanted_.flat(Infinity).filter((one) => one instanceof Node);
  wanted.forEach((node, i) => (i < there.length ? morph(there[i], node) : parent.append(node)));
  for (const node of there.slice(wanted.length)) node.remove();
}

function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
}

/** A link within the page; every part is escaped. */
export function to(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}
