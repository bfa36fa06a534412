// The Gantt chart of the schedule: running jobs from start to expected end, then waiting jobs by expected start.

import { byId, h, setText } from "./dom.js";
import { clock, duration, moment, plural } from "./format.js";
import { Rows } from "./rows.js";
import { colourOf, coloured, now_s, state } from "./state.js";

const PAST = 0.15; // of the width
const SPANS = [600, 1800, 3600, 10800, 21600, 43200, 86400, 259200, 604800, 2592000];
let rows;
let span = { begin_s: 0, end_s: 1 };

export function setUpPlan(open) {
  rows = new Rows(byId("plan-rows"), { make, fill, open, none: "No running or waiting jobs." });
  byId("plan-span").addEventListener("change", drawPlan);
}

function make() {
  const bar = h("i", { class: "bar" });
  const due = h("i", { class: "due" });
  const name = h("span", { class: "name", role: "gridcell" });
  const track = h("span", { class: "track", role: "gridcell" }, bar, due);
  return Object.assign(h("div", { class: "plan-row" }, name, track), { parts: { bar, due, name, track } });
}

const begins = (job) => (job.status === "running" ? job.started_s : job.expected_start_s);

function fill(row, job) {
  const { bar, due, name, track } = row.parts;
  const now = now_s();
  const start = begins(job);
  setText(name, job.name);
  bar.hidden = start === null;
  if (start !== null) {
    const end = job.expected_end_s === null ? span.end_s : Math.max(job.expected_end_s, start, job.status === "running" ? now : 0);
    const left = place(start);
    bar.className = `bar ${job.status}${job.expected_end_s === null ? " open" : ""}`;
    bar.style.left = `${left}%`;
    bar.style.width = `${Math.max(0.3, place(end) - left)}%`;
    bar.style.setProperty("--tint", colourOf(job.tenant));
  }
  due.hidden = job.due_s === null || job.due_s < span.begin_s || job.due_s > span.end_s;
  if (!due.hidden) due.style.left = `${place(job.due_s)}%`;
  const until = job.expected_end_s === null ? "end unknown" : `to ${moment(job.expected_end_s, now)}`;
  const from = start === null ? "start unknown" : `${job.status} from ${moment(start, now)}`;
  track.setAttribute("aria-label", `${from} ${until}`);
  row.title = `${job.name} of ${job.tenant}: ${from} ${until}`;
}

const place = (at_s) => Math.min(100, Math.max(0, (100 * (at_s - span.begin_s)) / (span.end_s - span.begin_s)));

export function drawPlan() {
  const running = [];
  const waiting = [];
  for (const job of state.jobs.values()) {
    if (job.status === "running") running.push(job);
    else if (job.expected_start_s !== null) waiting.push(job);
  }
  const unknown = Math.max(0, state.head.waiting - waiting.length); // the list has all that have a start
  const late = (value) => value ?? Infinity;
  running.sort((a, b) => late(a.expected_end_s) - late(b.expected_end_s) || a.id - b.id);
  waiting.sort((a, b) => a.expected_start_s - b.expected_start_s || a.id - b.id);
  const shown = [...running, ...waiting];
  span = spanOf(shown);
  drawAxis();
  drawKey(shown);
  setText(byId("plan-note"),
    `${plural(running.length, "job")} running, ${plural(waiting.length, "expected start")}` +
    (unknown ? `, ${plural(unknown, "waiting job")} without one` : "") + ". The vertical line marks the present, a dot a due date.");
  rows.show(shown);
}

function spanOf(shown) {
  const now = now_s();
  const chosen = byId("plan-span").value;
  const ends = shown.map((job) => job.expected_end_s ?? begins(job)).filter((end) => end !== null).sort((a, b) => a - b);
  if (chosen === "all") {
    const begin_s = shown.reduce((least, job) => Math.min(least, begins(job) ?? least), now - 60);
    return { begin_s, end_s: Math.max(now + 60, ends.at(-1) ?? 0) };
  }
  const most = (ends[Math.floor(0.9 * (ends.length - 1))] ?? now) - now;
  const width = chosen ? Number(chosen) : (SPANS.find((s) => s * (1 - PAST) >= most) ?? SPANS.at(-1));
  return { begin_s: now - PAST * width, end_s: now + (1 - PAST) * width };
}

function drawAxis() {
  const axis = byId("plan-axis");
  const now = now_s();
  const narrow = axis.clientWidth < 500;
  const marks = narrow ? 3 : 6;
  const length = span.end_s - span.begin_s;
  const ticks = Array.from({ length: marks }, (_, k) => span.begin_s + ((k + 0.5) * length) / marks);
  const words = (at_s) => (at_s < now ? `\u2212${duration(now - at_s)}` : `+${duration(at_s - now)}`);
  const at = (tick) => Object.assign(h("span", {}, narrow ? words(tick) : `${clock(tick, now)} (${words(tick)})`), { where: tick });
  axis.replaceChildren(...ticks.map(at));
  for (const tick of axis.children) tick.style.left = `${place(tick.where)}%`;
  byId("plan-rows").style.setProperty("--now", `${place(now) / 100}`);
}

function drawKey(shown) {
  for (const job of shown.slice(0, 500)) colourOf(job.tenant);
  const key = byId("plan-key");
  const named = coloured().slice(0, 8);
  if (key.childElementCount === named.length) return;
  key.replaceChildren(...named.map(([tenant, colour]) => {
    const chip = h("i", { class: "chip" });
    chip.style.background = colour;
    return h("li", {}, chip, tenant);
  }));
}
