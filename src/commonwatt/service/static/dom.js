// Elements. Text enters the page only as a text node, never as markup.

export const byId = (id) => document.getElementById(id);

// h("button", { class: "primary", "aria-label": "Cancel", onclick: f }, "Cancel", child, ...)
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Writes only changed values, as the page is redrawn with every tick.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setClass(element, name) {
  if (element.className !== name) element.className = name;
}

export function table(element, heads, rows) {
  const head = h("thead", {}, h("tr", {}, heads.map((text) => h("th", { scope: "col" }, text))));
  const body = h("tbody", {}, rows.map(([first, ...cells]) => h("tr", {}, h("th", { scope: "row" }, first), cells.map((cell) => h("td", {}, cell)))));
  element.replaceChildren(head, body);
}

// Returns a function that calls `draw` at most once each `wait_ms`, and always after its last call.
export function calmly(draw, wait_ms = 250) {
  let planned = false;
  let last = -Infinity;
  return () => {
    if (planned) return;
    planned = true;
    setTimeout(() => {
      planned = false;
      last = performance.now();
      draw();
    }, Math.max(0, last + wait_ms - performance.now()));
  };
}
