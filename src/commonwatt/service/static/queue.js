// The table of jobs: running and waiting ones from the stream, which lists only so many that wait; others are searched
// for on the server. Ended ones come from the server too.

import { ask } from "./api.js";
import { byId, calmly, h, setClass, setText } from "./dom.js";
import { away, moment, number, percent, plural } from "./format.js";
import { Rows } from "./rows.js";
import { now_s, state } from "./state.js";

const ENDED_PAGE = 200;
const FOUND_PAGE = 200;
const SEARCH_MS = 10000; // between searches for the same
const TYPED_MS = 300; // between searches while somebody types
let rows;
let ended = [];
let found = []; // waiting jobs that are not listed
let searched_ms = 0;
let choice = { status: "", tenant: "", find: "" };
let again = () => {};
let searchAgain = () => {};

export function setUpQueue(open, failed) {
  rows = new Rows(byId("queue-rows"), { make, fill, open, none: "No such job." });
  const changed = async () => {
    const status = byId("queue-status").value;
    choice = { status, tenant: byId("queue-tenant").value, find: byId("queue-find").value.trim().replace(/\s+/g, " ").toLowerCase() };
    byId("queue-rows").scrollTop = 0;
    found = [];
    if (status === "ended") await loadEnded().catch(failed);
    else searchSoon();
    drawQueue();
  };
  again = calmly(() => choice.status === "ended" && loadEnded().then(drawQueue, failed), 2000);
  searchAgain = calmly(() => Date.now() > searched_ms + SEARCH_MS && search().catch(failed), SEARCH_MS);
  const searchSoon = calmly(() => search().catch(failed), TYPED_MS);
  for (const id of ["queue-status", "queue-tenant"]) byId(id).addEventListener("change", changed);
  byId("queue-find").addEventListener("input", changed);
}

async function loadEnded() {
  const of = choice.tenant ? `&tenant=${encodeURIComponent(choice.tenant)}` : "";
  ended = (await ask(`/jobs/ended?limit=${ENDED_PAGE}${of}`)).jobs;
}

// How many waiting jobs are not listed.
function unlisted() {
  let listed = 0;
  for (const job of state.jobs.values()) listed += job.status === "waiting";
  return Math.max(0, (state.head?.waiting ?? 0) - listed);
}

const searches = () => unlisted() > 0 && (choice.tenant || choice.find || choice.status === "held") && !["running", "ended"].includes(choice.status);

async function search() {
  if (!searches()) return;
  const asked = choice;
  searched_ms = Date.now();
  const of = new URLSearchParams({ status: "waiting", limit: FOUND_PAGE });
  if (asked.tenant) of.set("tenant", asked.tenant);
  if (asked.status === "held") of.set("held", "true");
  const find = asked.find.replace(/^(\d+)\s+\S.*/, "$1"); // a number and a name, as in the table: the number decides
  if (find) of.set("find", find);
  const { jobs } = await ask(`/jobs?${of}`);
  if (choice !== asked) return; // another search has begun
  found = jobs;
  drawQueue();
}

// A job has ended: fetch the ended jobs again, a little later.
export function endedAnother(id) {
  found = found.filter((job) => job.id !== id);
  again();
}

function make() {
  const cells = ["name", "tenant", "state", "progress", "when", "why"].map((name) => h("span", { class: name, role: "gridcell" }));
  const meter = h("i", { class: "meter" });
  const share = h("b", {});
  cells[3].append(meter, share);
  return Object.assign(h("div", { class: "job-row" }, cells), { cells, meter, share });
}

function fill(row, job) {
  const [name, tenant, status, , when, why] = row.cells;
  const now = now_s();
  setText(name, `${job.id} ${job.name}`);
  setText(tenant, job.tenant);
  setText(status, job.held ? "held" : job.status);
  setClass(status, `state is-${job.held ? "held" : job.status}`);
  const share = job.epochs ? Math.min(1, job.done_epochs / job.epochs) : null;
  row.meter.style.setProperty("--done", `${100 * (share ?? 0)}%`);
  setText(row.share, percent(share));
  setText(when, whenOf(job, now));
  setText(why, [job.reason, job.sentence].filter(Boolean).join(": ") || whereOf(job));
  row.title = why.textContent;
}

const whereOf = (job) => (job.nodes.length ? `on ${job.nodes.join(", ")}` : "");

function whenOf(job, now) {
  if (job.status === "running") {
    if (job.expected_end_s === null) return "end unknown";
    return `${job.expected_end_s > now - 1 ? "ends" : "expected to have ended"} ${away(job.expected_end_s, now)}`;
  }
  if (job.status === "waiting") {
    return job.expected_start_s === null ? "start unknown" : `starts ${away(Math.max(job.expected_start_s, now), now)}`;
  }
  return job.ended_s === null ? "" : `ended ${moment(job.ended_s, now)}`;
}

const ORDER = { running: 0, waiting: 1 };

export function drawQueue() {
  drawTenantChoice();
  const { status, tenant, find } = choice;
  const all = status === "ended" ? ended : [...state.jobs.values(), ...found.filter((job) => !state.jobs.has(job.id))];
  const shown = all.filter((job) =>
    (!status || status === "ended" || (status === "held" ? job.held : job.status === status)) &&
    (!tenant || job.tenant === tenant) &&
    (!find || `${job.id} ${job.name} ${job.tenant} ${job.reason ?? ""} ${job.sentence ?? ""}`.toLowerCase().includes(find)));
  if (status !== "ended") {
    const time = (job) => (job.status === "running" ? job.expected_end_s : job.expected_start_s) ?? Infinity;
    const order = new Map(shown.map((job) => [job, time(job)]));
    shown.sort((a, b) => (ORDER[a.status] ?? 2) - (ORDER[b.status] ?? 2) || (order.get(a) > order.get(b) ? 1 : order.get(a) < order.get(b) ? -1 : a.id - b.id));
  }
  setText(byId("queue-note"), `${plural(shown.length, "job")}${restOf(status)}. Arrow keys move, Enter opens.`);
  if (searches()) searchAgain();
  rows.show(shown);
}

// What the number of jobs shown leaves out.
function restOf(status) {
  if (status === "ended") return ended.length === ENDED_PAGE ? ` (the latest ${ENDED_PAGE})` : "";
  const rest = status === "running" ? 0 : unlisted();
  if (!rest) return "";
  if (searches()) {
    const first = found.length === FOUND_PAGE ? ` (of those not listed, the first ${FOUND_PAGE})` : "";
    return choice.find ? `${first}; of ${number(rest)} not listed, only names and whole numbers are searched` : first;
  }
  return `; ${number(rest)} more wait and start later: choose a tenant, or search by name or number`;
}

function drawTenantChoice() {
  const select = byId("queue-tenant");
  const names = state.tenants.map((tenant) => tenant.name);
  select.parentElement.hidden = !state.who?.operator;
  if (select.options.length === names.length + 1) return;
  const chosen = select.value;
  select.replaceChildren(h("option", { value: "" }, "all"), ...names.map((name) => h("option", { value: name }, name)));
  select.value = chosen;
}
