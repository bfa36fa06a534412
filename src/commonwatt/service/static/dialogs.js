// Dialogs and short messages. Modal <dialog>s keep the focus inside and close with Escape by themselves.

import { byId, h } from "./dom.js";

const SHOWN_MS = 8000;

export function say(text, bad = false) {
  const note = h("p", { class: bad ? "toast bad" : "toast" }, text);
  byId("says").append(note);
  setTimeout(() => note.remove(), SHOWN_MS);
}

export function failed(error) {
  if (error.name === "AbortError") return;
  const { field, expected } = error.problem ?? {};
  const words = error.message + (field && expected && !error.message.includes(expected) ? ` (${field}: expected ${expected})` : "");
  say(words, true);
}

// Asks for confirmation; resolves to true only on a yes.
export function confirmed({ title, text, yes, danger = false }) {
  const dialog = byId("confirm");
  const form = h("form", { method: "dialog" },
    h("h2", { id: "confirm-title" }, title), h("p", {}, text),
    h("p", { class: "buttons" },
      h("button", { value: "no", autofocus: true }, "No, leave it"),
      h("button", { value: "yes", class: danger ? "danger" : "primary" }, yes)));
  dialog.replaceChildren(form);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(
    ([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
