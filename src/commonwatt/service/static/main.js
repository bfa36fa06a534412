// The page: signing in, the stream, and drawing changes.

import { Refused, ask, leave, renew, session, token } from "./api.js";
import { drawCapacity, drawCapacityFigure } from "./capacity.js";
import { drawCluster } from "./cluster.js";
import { eventLine, openJob, openNode } from "./details.js";
import { confirmed, failed, say } from "./dialogs.js";
import { byId, calmly, h, setText } from "./dom.js";
import { link } from "./link.js";
import { drawPlan, setUpPlan } from "./plan.js";
import { drawPower } from "./power.js";
import { drawQueue, endedAnother, setUpQueue } from "./queue.js";
import { now_s, state, takeBoard, takeCapacity, takeEvent, takePowered, takeSamples, takeTenants } from "./state.js";
import { openSubmit } from "./submit.js";
import { drawCost, drawServices, drawShareFigures, drawShares, drawTenants, drawTiles } from "./tenants.js";

const ACCOUNTS_MS = 10000; // interval of requests for tenants and ledger
const WHY = "commonwatt-why";
let unlink = null;
let renewal;

const draw = calmly(() => {
  if (state.head === null || state.who === null) return;
  drawHead();
  drawTiles();
  drawCluster(openNode);
  drawPlan();
  drawQueue();
  drawCost();
  document.documentElement.dataset.ready = "true";
});
const drawCharts = calmly(() => {
  drawPower();
  drawCapacityFigure();
  drawShareFigures();
}, 2000);
const drawEvents = calmly(() => byId("event-list").replaceChildren(
  ...(state.events.length ? state.events.map((event) => eventLine(event, now_s())) : [h("li", { class: "none" }, "Nothing yet.")])), 500);

function drawHead() {
  const { head, who } = state;
  const { live, power } = MODES;
  byId("mode").className = head.mode === "live" ? "pill" : "pill dry";
  setText(byId("mode"), (MODES[head.mode] ?? live).words);
  setText(byId("engine"), `engine ${head.engine}`);
  setText(byId("who"), who.operator ? `operator ${who.label}` : `tenant ${who.tenant}`);
  setText(byId("switch"), MODES[afterwards()].yes);
  setText(byId("switch-power"), head.mode === "power" ? live.yes : power.yes);
  for (const id of ["mode", "new", "out"]) byId(id).hidden = false;
  byId("switch").hidden = !who.operator;
  byId("switch-power").hidden = !who.operator || head.engine !== "slurm";
  banner("trouble", head.trouble ? `The controller reports a problem: ${head.trouble}` : head.role === "standby" ? "This server stands by: another one is active, and what you see is a second or two old." : head.healthy ? "" : "The controller has not made a decision yet.");
}

function banner(id, text) {
  setText(byId(id), text);
  byId(id).hidden = !text;
}

function take({ name, data }) {
  banner("lost", "");
  if (name === "hello") {
    state.who = data;
    readAccounts();
    if (!state.samples.length) readSamples();
  } else if (name === "board") {
    takeBoard(data);
    drawCharts();
  } else if (name === "event") {
    takeEvent(data);
    if (["completed", "failed", "cancelled"].includes(data.kind)) endedAnother(data.job);
    drawEvents();
  }
  draw();
}

async function readAccounts() {
  try {
    const plan = state.who?.operator ? ask("/capacity") : null;
    const [tenants, ledger, services, capacity] = await Promise.all([ask("/tenants"), ask("/ledger"), ask("/services"), plan]);
    takeCapacity(capacity);
    drawCapacity();
    drawCharts();
    state.services = services.services;
    takeTenants(tenants.tenants);
    state.ledger = ledger.ledger;
    drawTenants();
    drawShares();
    drawServices();
    draw();
  } catch (error) {
    if (error instanceof Refused && error.status !== 503) failed(error); // the banner reports a missing server
  }
}

async function readSamples() {
  try {
    const { samples } = await ask(`/samples?since=${Math.floor(Date.now() / 1000 - 86400)}&limit=3000`);
    takeSamples(samples);
    takePowered(samples);
    drawCharts();
  } catch (error) {
    if (error instanceof Refused && error.status !== 403) failed(error);
  }
}

function signIn(why = "") {
  const dialog = byId("login");
  setText(byId("login-error"), why);
  byId("token").value = "";
  if (!dialog.open) dialog.showModal();
  offerSignIn();
}

// Shows where people sign in, if the site has an identity provider.
async function offerSignIn() {
  try {
    const { issuer } = await session();
    byId("by-provider").hidden = issuer === null;
    if (issuer !== null) setText(byId("provider"), `Sign in at ${new URL(issuer).host}`);
  } catch {
    byId("by-provider").hidden = true; // no server at this moment
  }
}

// Reloads the page, so that nothing of the last user stays.
async function signOut(why = "") {
  unlink?.();
  clearTimeout(renewal);
  await leave().catch(() => {});
  token.drop();
  if (state.who === null) return signIn(why);
  sessionStorage.setItem(WHY, why);
  location.reload();
}

function begin() {
  unlink = link({
    take,
    lost: (seconds, error) => banner("lost",
      `Connection lost${error instanceof Refused ? ` (${error.message})` : ""}. The page is out of date. Reconnecting in ${seconds} s.`),
    refused,
  });
}

async function refused(error) {
  if (error.message.startsWith("you have several tenants")) return askTenant(error.message);
  if (error.status === 401 && (await keepSignedIn())) return begin(); // the computer slept, say
  signOut(error.status === 403 || token.renewed() ? `You cannot use this page: ${error.message}.` : "This token is invalid or revoked.");
}

// Renews the token of a sign-in in time; returns whether there is one.
async function keepSignedIn() {
  clearTimeout(renewal);
  try {
    const after_s = await renew();
    if (after_s !== null) renewal = setTimeout(keepSignedIn, 1000 * after_s);
    return after_s !== null;
  } catch {
    renewal = setTimeout(keepSignedIn, 10000); // no server at this moment
    return false;
  }
}

function askTenant(text) {
  const [, names] = text.match(/\(([^)]*)\)/) ?? [null, ""];
  byId("tenant-choice").replaceChildren(...names.split(", ").map((name) => h("button", {
    class: "primary", onclick: () => {
      token.tenant(name);
      byId("tenants-of").close();
      begin();
    },
  }, name)));
  byId("tenants-of").showModal();
}

const MODES = {
  live: { words: "live", yes: "Go live", title: "Go live?", text: "Decisions will be carried out: jobs start, move and stop on the real cluster.", said: "Switch to live requested.", danger: true },
  power: { words: "power only: Slurm places jobs", yes: "Power only", title: "Switch power only?", text: "Slurm places all jobs. Nodes are put to sleep and woken by the capacity plan. Running jobs continue.", said: "Switch to power only requested.", danger: true },
  "dry-run": { words: "dry run: decisions are only recorded", yes: "Switch to a dry run", title: "Switch to a dry run?", text: "Running jobs continue. Jobs no longer start, move or stop; decisions are only recorded.", said: "Switch to a dry run requested." },
};

const afterwards = () => (state.head.mode === "dry-run" ? "live" : "dry-run");

async function switchMode(mode) {
  if (!(await confirmed(MODES[mode]))) return;
  try {
    await ask("/mode", { method: "POST", body: { mode } });
    say(MODES[mode].said);
  } catch (error) {
    failed(error);
  }
}

byId("login").addEventListener("cancel", (event) => event.preventDefault()); // the page is empty without a token
byId("login").querySelector("form").addEventListener("submit", (event) => {
  const given = byId("token").value.trim();
  byId("token").value = "";
  if (!token.good(given)) {
    event.preventDefault(); // the dialog stays
    return signIn("This is not a token: a token contains letters, digits, - and _ only. Were quotes copied with it?");
  }
  setText(byId("login-error"), "");
  token.set(given);
  begin();
});
byId("tenants-of").addEventListener("cancel", (event) => event.preventDefault());
byId("provider").addEventListener("click", () => location.assign("/sign-in"));
byId("out").addEventListener("click", () => signOut());
byId("new").addEventListener("click", openSubmit);
byId("switch").addEventListener("click", () => switchMode(afterwards()));
byId("switch-power").addEventListener("click", () => switchMode(state.head.mode === "power" ? "live" : "power"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
window.addEventListener("load", drawCharts);
document.addEventListener("visibilitychange", () => document.hidden || draw());
setInterval(() => document.hidden || draw(), 5000); // relative times change between ticks
setInterval(() => state.who && !document.hidden && readAccounts(), ACCOUNTS_MS);
setUpPlan(openJob);
setUpQueue(openJob, failed);
const why = sessionStorage.getItem(WHY);
sessionStorage.removeItem(WHY);
if (token.get() && !token.renewed()) begin();
else if (why === null && ((await keepSignedIn()) || token.get())) begin();
else signIn(why ?? "");
