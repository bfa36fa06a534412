// Details of a job or a node, and their actions.

import { ask } from "./api.js";
import { confirmed, facts, failed, say } from "./dialogs.js";
import { byId, h } from "./dom.js";
import { nodeWords } from "./cluster.js";
import { away, duration, energy, gpuTime, moment, money, number, si } from "./format.js";
import { now_s, state } from "./state.js";

async function act(path, question, done) {
  if (!(await confirmed(question))) return;
  try {
    await ask(path, { method: "POST" });
    say(done);
    byId("details").close();
  } catch (error) {
    failed(error);
  }
}

function show(title, ...parts) {
  const dialog = byId("details");
  const close = h("button", { class: "close", "aria-label": "Close", onclick: () => dialog.close() }, "\u00d7");
  dialog.replaceChildren(h("div", { class: "head" }, h("h2", { id: "details-title" }, title), close), ...parts);
  if (!dialog.open) dialog.showModal();
  close.focus();
}

export function openNode(name) {
  const node = state.nodes.get(name);
  if (!node) return;
  const jobs = node.jobs.map((id) => state.jobs.get(id)).filter(Boolean);
  const list = h("ul", { class: "plain" }, jobs.map((job) => h("li", {},
    h("button", { class: "link", onclick: () => openJob(job) }, `${job.id} ${job.name}`), ` of ${job.tenant}, ${number(job.gpus)} GPUs`)));
  const path = `/nodes/${encodeURIComponent(name)}`;
  const buttons = h("p", { class: "buttons" });
  if (state.who.operator) {
    buttons.append(node.drained
      ? h("button", { class: "primary", onclick: () => act(`${path}/undrain`, { title: `Undrain ${name}?`, text: "New jobs may start on it again.", yes: "Undrain" }, `Undrain of ${name} requested.`) }, "Undrain")
      : h("button", { class: "danger", onclick: () => act(`${path}/drain`, { title: `Drain ${name}?`, text: `No job will start on it until it is undrained. Allocated GPUs now: ${node.held_gpus}.`, yes: "Drain", danger: true }, `Drain of ${name} requested.`) }, "Drain"));
  }
  show(`Node ${name}`, facts([
    ["GPU type", node.gpu_type], ["GPUs", `${node.held_gpus} allocated, ${node.usable_gpus} usable of ${node.gpus}`],
    ["State", `${node.state}${node.drained ? ", drained" : ""}${node.cause ? `: ${node.cause}` : ""}`], ["Power", si(node.power_w, "W")],
  ]), h("h3", {}, "Jobs"), jobs.length ? list : h("p", { class: "none" }, "No visible jobs."), buttons);
}

const at = (time, now) => (time === null || time === undefined ? "" : `${moment(time, now)}, ${away(time, now)}`);

function buttonsOf(job) {
  const path = `/jobs/${job.id}`;
  const named = `Job ${job.id} (${job.name})`;
  const cancel = () => act(`${path}/cancel`, { title: `Cancel job ${job.id}?`, text: `${job.name} of ${job.tenant} will stop and not start again. This cannot be undone.`, yes: "Cancel the job", danger: true }, `Cancellation of ${named} requested.`);
  const hold = () => act(`${path}/hold`, { title: `Hold job ${job.id}?`, text: `${job.name} will not start until it is released. If it is running it continues, but does not start again after it leaves its nodes.`, yes: "Hold" }, `Hold of ${named} requested.`);
  const release = () => act(`${path}/release`, { title: `Release job ${job.id}?`, text: `${job.name} may start again.`, yes: "Release" }, `Release of ${named} requested.`);
  if (!["waiting", "running"].includes(job.status)) return h("p", { class: "buttons" });
  return h("p", { class: "buttons" },
    job.held ? h("button", { class: "primary", onclick: release }, "Release") : h("button", { onclick: hold }, "Hold"),
    h("button", { class: "danger", onclick: cancel }, "Cancel the job"));
}

export function openJob(job) {
  const now = now_s();
  const history = h("ol", { class: "events short" }, h("li", { class: "none" }, "\u2026"));
  const output = h("pre", { class: "log", tabindex: "0", "aria-label": "Output", hidden: true });
  const log = h("button", { onclick: () => showLog(job, output) }, "Show output");
  const account = h("div", {});
  show(`Job ${job.id}: ${job.name}`, facts([
    ["Tenant", job.tenant], ["State", job.held ? `${job.status}, on hold` : job.status],
    ["Why", [job.reason, job.sentence].filter(Boolean).join(": ")], ["Nodes", job.nodes.join(", ")],
    ["GPUs", job.nodes.length ? `${number(job.gpus)}${job.gpu_type ? ` \u00d7 ${job.gpu_type}` : ""}` : ""],
    ["Epochs", `${number(job.done_epochs, 1)} of ${number(job.epochs)}, ${number(job.kept_epochs, 1)} kept in checkpoints`],
    ["Submitted", at(job.submit_s, now)], ["Due", at(job.due_s, now)],
    ["Running since", job.status === "running" ? at(job.started_s, now) : ""],
    ["Expected start", job.status === "waiting" && job.expected_start_s !== null ? at(Math.max(job.expected_start_s, now), now) : ""],
    ["Expected end", at(job.expected_end_s, now)],
    ["Ended", at(job.ended_s, now)],
  ]), account, buttonsOf(job), h("h3", {}, "History"), history, h("p", { class: "buttons left" }, log), output);
  ask(`/jobs/${job.id}`).then((detail) => account.replaceChildren(accountOf(detail))).catch(failed);
  ask(`/jobs/${job.id}/explain`).then(({ history: events }) => {
    history.replaceChildren(...(events.length ? events.map((event) => eventLine(event, now)) : [h("li", { class: "none" }, "Nothing yet.")]));
  }).catch(failed);
}

function accountOf(detail) {
  return facts([
    ["Command", detail.command.join(" ")], ["Folder", detail.folder], ["Energy so far", energy(detail.energy_j)],
    ["Cost so far", money(detail.cost, state.who.currency)], ["GPU time so far", gpuTime(detail.gpu_s)],
  ]);
}

async function showLog(job, output) {
  try {
    output.textContent = (await ask(`/jobs/${job.id}/log`)) || "(no output yet)";
    output.hidden = false;
    output.scrollTop = output.scrollHeight;
  } catch (error) {
    failed(error);
  }
}

export function eventLine(event, now) {
  const whom = event.name ? `job ${event.job} ${event.name}` : event.job ? `job ${event.job}` : "";
  const where = event.nodes?.length ? ` on ${event.nodes.join(", ")}` : "";
  return h("li", {}, h("time", { title: duration(now - event.time_s) + " ago" }, moment(event.time_s, now)), " ",
    h("b", {}, event.kind), " ", `${whom}${where}`, event.sentence ? h("small", {}, event.sentence) : null);
}
