// The form that submits a job, with the common fields of the job file.

import { ask, freshKey } from "./api.js";
import { say } from "./dialogs.js";
import { byId, h } from "./dom.js";
import { state } from "./state.js";

const field = (label, name, attributes = {}, hint = "") => h("label", { class: "field" }, label, " ",
  h("input", { name, autocomplete: "off", spellcheck: "false", ...attributes }), hint ? h("small", {}, hint) : null);

export function openSubmit() {
  const dialog = byId("submit");
  const key = freshKey();
  const types = [...new Set([...state.nodes.values()].map((node) => node.gpu_type))].sort();
  const tenant = state.who.operator ? h("label", { class: "field" }, "Tenant ",
    h("select", { name: "tenant", required: true }, state.tenants.map(({ name }) => h("option", { value: name }, name)))) : null;
  const error = h("p", { class: "error", role: "alert" });
  const send = h("button", { class: "primary" }, "Submit");
  const form = h("form", { class: "fields", onsubmit: (event) => {
    event.preventDefault();
    submit(form, key, error, send);
  } },
  h("h2", { id: "submit-title" }, "Submit a job"), tenant,
  field("Name", "name", { required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]{0,99}", placeholder: "resnet-50", title: "letters, digits, dots, dashes" }),
  field("Command", "command", { required: true, placeholder: "python train.py --lr 0.1" }, "Split like in a shell, run without one."),
  field("Epochs", "epochs", { type: "number", min: 1, value: 1 }),
  field("GPUs", "gpus", { type: "number", min: 1, value: 1 }),
  h("label", { class: "field" }, "GPU type ", h("select", { name: "gpu_type" }, h("option", { value: "" }, "any"), types.map((type) => h("option", { value: type }, type)))),
  field("Due", "due", { type: "datetime-local" }, "In your time zone."),
  field("Tardiness weight (cost per second late)", "tardiness_weight", { type: "number", min: 0, step: "any", value: 0 }),
  field("Time limit, s", "time_limit_s", { type: "number", min: 1, step: "any" }, "Used for planning if no times are known."),
  h("details", {}, h("summary", {}, "More"),
    field("Working folder", "folder", { placeholder: "/home/me/project" }), field("Image", "image"),
    field("Checkpoint folder", "snapshots", { placeholder: "/home/me/snapshots" }), field("Kind", "kind", {}, "Jobs of one kind are assumed to scale alike."),
    field("Allowed GPU counts", "gpu_counts", { placeholder: "1, 2, 4", pattern: "\\s*\\d+(\\s*,\\s*\\d+)*\\s*" })),
  error,
  h("p", { class: "buttons" }, h("button", { type: "button", onclick: () => dialog.close() }, "Back"), send));
  dialog.replaceChildren(form);
  dialog.showModal();
  form.elements.name.focus();
}

const NUMBERS = new Set(["epochs", "gpus", "tardiness_weight", "time_limit_s"]);

function jobOf(form) {
  const job = {};
  for (const [name, text] of new FormData(form)) {
    const value = text.trim();
    if (name === "tenant" || value === "") continue;
    if (NUMBERS.has(name)) job[name] = Number(value);
    else if (name === "due") job.due = new Date(value).toISOString();
    else if (name === "gpu_counts") job.gpu_counts = value.split(",").map(Number);
    else job[name] = value;
  }
  return job;
}

async function submit(form, key, error, send) {
  error.textContent = "";
  send.disabled = true;
  const tenant = form.elements.tenant ? `?tenant=${encodeURIComponent(form.elements.tenant.value)}` : "";
  try {
    const job = await ask(`/jobs${tenant}`, { method: "POST", body: jobOf(form), headers: { "Idempotency-Key": key } });
    byId("submit").close();
    say(`Job ${job.id} (${job.name}) is accepted.`);
    for (const warning of job.warnings ?? []) say(warning, true);
  } catch (problem) {
    const { field: name, expected } = problem.problem ?? {};
    error.textContent = problem.message + (expected && !problem.message.includes(expected) ? ` (${name}: expected ${expected})` : "");
    form.elements[String(name ?? "").split(".")[0]]?.focus?.();
  } finally {
    send.disabled = false;
  }
}
