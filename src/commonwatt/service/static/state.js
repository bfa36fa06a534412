// State of the page: the board of the last message, events, samples. Only this file changes it; views read it.

const MOST_EVENTS = 200;
const MOST_SAMPLES = 5000;

export const state = {
  who: null, // { operator, tenant, label, version, currency }
  head: null,
  nodes: new Map(),
  jobs: new Map(),
  events: [], // latest first
  samples: [],
  tenants: [],
  ledger: [],
  services: [],
  capacity: null, // the plan; null: not an operator's to see
  powered: [], // GPUs on, and wanted, over time
  shares: [], // shares of tenants over time, since the page was opened
  lastEvent: 0,
  sent_s: 0, // the server's clock when its last message was sent
  heard_ms: 0, // ours then
};

// The server's clock, as the reader's may be wrong.
export function now_s() {
  if (state.head === null) return Date.now() / 1000;
  return state.sent_s + (performance.now() - state.heard_ms) / 1000;
}

export function takeBoard(message) {
  state.head = message.head;
  state.sent_s = message.sent_s;
  state.heard_ms = performance.now();
  if (message.whole) {
    state.nodes = new Map(message.nodes.map((node) => [node.name, node]));
    state.jobs = new Map(message.jobs.map((job) => [job.id, job]));
  } else {
    for (const node of message.nodes) state.nodes.set(node.name, node);
    for (const job of message.jobs) state.jobs.set(job.id, job);
    for (const id of message.gone) state.jobs.delete(id);
  }
  addSample(message.head);
}

function addSample({ time_s, power_w, busy_gpus, running, waiting }) {
  const last = state.samples.at(-1);
  if (last && last.time_s >= time_s) return;
  state.samples.push({ time_s, power_w, busy_gpus, running, waiting });
  if (state.samples.length > MOST_SAMPLES) state.samples.splice(0, state.samples.length - MOST_SAMPLES);
}

// Samples from before the page was opened.
export function takeSamples(samples) {
  const first = state.samples[0]?.time_s ?? Infinity;
  state.samples = [...samples.filter((sample) => sample.time_s < first), ...state.samples].slice(-MOST_SAMPLES);
}

// Samples of GPUs on and wanted from before, and from now on with each look at the plan.
export function takePowered(samples) {
  state.powered = samples.filter((sample) => sample.wanted_gpus !== null);
}

export function takeCapacity(plan) {
  state.capacity = plan;
  if (!plan?.pools.length || !state.head) return;
  const on = [...state.nodes.values()].filter((node) => node.state === "on" || node.state === "waking");
  state.powered.push({
    time_s: now_s(), on_gpus: on.reduce((sum, node) => sum + node.usable_gpus, 0),
    wanted_gpus: plan.pools.reduce((sum, pool) => sum + pool.wanted_gpus, 0),
  });
  if (state.powered.length > MOST_SAMPLES) state.powered.splice(0, state.powered.length - MOST_SAMPLES);
}

// Tenants as of now. Where the policy guarantees them shares, these are kept: `used NAME`, `entitled NAME`, `debt NAME`.
export function takeTenants(tenants) {
  state.tenants = tenants;
  const guaranteed = tenants.filter((tenant) => tenant.fairness);
  if (!guaranteed.length || !state.head) return;
  const sample = { time_s: now_s() };
  for (const { name, fairness } of guaranteed) {
    sample[`used ${name}`] = fairness.used_share;
    sample[`entitled ${name}`] = fairness.entitled_share;
    sample[`debt ${name}`] = fairness.debt_gpu_s / 3600;
  }
  state.shares.push(sample);
  if (state.shares.length > MOST_SAMPLES) state.shares.splice(0, state.shares.length - MOST_SAMPLES);
}

export function takeEvent(event) {
  if (event.id <= state.lastEvent) return;
  state.lastEvent = event.id;
  state.events.unshift(event);
  state.events.length = Math.min(state.events.length, MOST_EVENTS);
}

// Paul Tol's "muted" scheme; tenants beyond it share a grey.
const COLOURS = ["#88CCEE", "#CC6677", "#DDCC77", "#3c9a55", "#8A7BD8", "#AA4499", "#44AA99", "#999933"];
const given = new Map();

export function colourOf(tenant) {
  if (!given.has(tenant)) given.set(tenant, COLOURS[given.size] ?? "#9A9A9A");
  return given.get(tenant);
}

export const coloured = () => [...given];
