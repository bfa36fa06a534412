// Tenants and their entitlements, the cost so far, and savings against the baseline policy.

import { byId, h, setText, table } from "./dom.js";
import { DASH, duration, energy, gpuTime, money, number, percent, plural, si } from "./format.js";
import { lineChart } from "./power.js";
import { colourOf, state } from "./state.js";

const sum = (values) => (values.every((value) => value !== null && value !== undefined) ? values.reduce((a, b) => a + b, 0) : null);

// A share as a bar with a mark at the entitlement, and the number beside it.
function bar(share, entitled, colour) {
  const track = h("i", { class: "share" }, h("i", { class: "filled" }), entitled === null ? null : h("i", { class: "entitled" }));
  track.style.setProperty("--share", `${100 * (share ?? 0)}%`);
  track.style.setProperty("--entitled", `${100 * (entitled ?? 0)}%`);
  track.style.setProperty("--tint", colour);
  return h("span", { class: "shared" }, track, percent(share));
}

export function drawTenants() {
  table(byId("tenant-table"),
    ["Tenant", "Weight", "Entitlement", "GPU time", "Share of time", "Energy", "Share of energy", "Cost", "Running", "Waiting"],
    state.tenants.map((tenant) => {
      const colour = colourOf(tenant.name);
      const chip = h("i", { class: "chip" });
      chip.style.background = colour;
      return [h("span", {}, chip, tenant.name), number(tenant.weight, 2), tenant.entitlement === null ? "not enforced" : percent(tenant.entitlement), gpuTime(tenant.gpu_s),
        bar(tenant.gpu_share, tenant.entitlement, colour), energy(tenant.energy_j),
        bar(tenant.energy_share, tenant.entitlement, colour), money(tenant.cost, state.who?.currency),
        number(tenant.jobs.running), number(tenant.jobs.waiting)];
    }));
}

// What fairness entitles tenants to; hidden where the policy guarantees nothing.
export function drawShares() {
  const guaranteed = state.tenants.filter((tenant) => tenant.fairness);
  byId("shares").hidden = !guaranteed.length;
  if (!guaranteed.length) return;
  table(byId("share-table"),
    ["Tenant", "GPUs now", "Entitled to", "Used share", "Entitled share", "Used, decayed", "Debt"],
    guaranteed.map(({ name, fairness }) => {
      const chip = h("i", { class: "chip" });
      chip.style.background = colourOf(name);
      return [h("span", {}, chip, name), number(fairness.held_gpus), number(fairness.entitled_gpus, 1),
        bar(fairness.used_share, fairness.entitled_share, colourOf(name)), percent(fairness.entitled_share),
        gpuTime(fairness.used_gpu_s), gpuTime(fairness.debt_gpu_s)];
    }));
}

const MOST_LINES = 8; // there are no more colours

export function drawShareFigures() {
  const guaranteed = state.tenants.filter((tenant) => tenant.fairness);
  const size = ({ fairness }) => Math.abs(fairness.debt_gpu_s);
  const shown = [...guaranteed].sort((a, b) => size(b) - size(a)).slice(0, MOST_LINES);
  if (!shown.length) return;
  lineChart("share-figure", "share", state.shares, shown.flatMap(({ name }) => [
    [`${name}, used`, `used ${name}`, colourOf(name)], [`${name}, entitled`, `entitled ${name}`, colourOf(name), "dot"]]));
  lineChart("debt-figure", "debt, GPU h", state.shares, shown.map(({ name }) => [name, `debt ${name}`, colourOf(name)]));
}

export function drawServices() {
  const ms = (seconds) => (seconds === null ? DASH : `${number(1000 * seconds, 1)} ms`);
  byId("services").hidden = !state.services.length;
  table(byId("service-table"),
    ["Service", "Tenant", "Ready", "GPUs", "Requests/s", "Requests", "Late", "p50", "p99", "Target", "Energy", "Why"],
    state.services.map((service) => [service.name, service.tenant, `${service.ready} of ${service.replicas}`, number(service.gpus, 2),
      number(service.requests_per_s, 1), number(service.requests), service.late_share === null ? DASH : percent(service.late_share), ms(service.p50_s),
      ms(service.p99_s), ms(service.latency_target_s), energy(service.energy_j), service.trouble ?? service.sentence]));
}

const NAMES = {
  job: "ended jobs", segment: "running jobs", idle: "idle nodes", starting: "starting jobs", waking: "waking nodes",
  asleep: "nodes asleep", services: "services", meter: "all nodes",
};
const times = (value, factor) => (value === null ? null : value * factor);

// Rows of the ledger in J, currency and GPU seconds, and their total. The meter's row is the total; a tenant
// does not see it, and its total covers its own jobs.
function ledgerRows() {
  const scaled = state.ledger.map((row) => ({
    row: row.row, energy_j: times(row.energy_uj, 1e-6), cost: times(row.cost_n, 1e-9), gpu_s: times(row.gpu_us, 1e-6),
  }));
  const added = (row, parts) => ({
    row, energy_j: sum(parts.map((part) => part.energy_j)), cost: sum(parts.map((part) => part.cost)), gpu_s: sum(parts.map((part) => part.gpu_s)),
  });
  const names = [...new Set(scaled.map(({ row }) => row))];
  const rows = names.map((name) => added(name, scaled.filter(({ row }) => row === name)));
  const parts = rows.filter(({ row }) => row !== "meter");
  return { parts, total: rows.find(({ row }) => row === "meter") ?? (rows.length ? added("all", parts) : null) };
}

export function drawCost() {
  const { head, who } = state;
  const { parts, total } = ledgerRows();
  table(byId("cost-table"), ["Charged for", "Energy", "Cost", "GPU time"], [...parts, ...(total ? [total] : [])].map(
    ({ row, energy_j, cost, gpu_s }) => [NAMES[row] ?? row, energy(energy_j), money(cost, who?.currency), gpuTime(gpu_s)]));
  setText(byId("saving"), who?.operator ? savingWords(head?.saved, who?.currency) : ""); // it covers all jobs
}

// Savings against the baseline, simulated on the same jobs; each part may be unknown.
export function savingWords(saved, currency) {
  if (!saved) return "Usage under the baseline policy is not known yet.";
  const part = (value, text, what, whole) => {
    if (value === null || value === undefined) return `${what} unknown`;
    const share = whole ? ` (${percent(Math.abs(value) / whole)})` : "";
    return `${text(Math.abs(value))}${share} ${value >= 0 ? "less" : "more"} ${what}`;
  };
  const parts = [
    part(saved.energy_kwh, (kwh) => energy(kwh * 3.6e6), "energy", saved.baseline_energy_kwh),
    part(saved.cost, (cost) => money(cost, currency), "cost", saved.baseline_cost),
  ];
  if (saved.tardiness_cost) parts.push(part(saved.tardiness_cost, (cost) => money(cost, currency), "tardiness cost"));
  const basis = saved.jobs && saved.period_s ? `, simulated on ${plural(saved.jobs, "job")} of the last ${duration(saved.period_s)}` : "";
  const on = (plan) => (plan ? `nodes follow the capacity plan ${plan}` : "all nodes stay on");
  const plans = saved.capacity || saved.baseline_capacity ? ` With this policy ${on(saved.capacity)}, with the baseline ${on(saved.baseline_capacity)}.` : "";
  const vain = saved.no_forecast ? ` No forecast is included: ${saved.no_forecast}.` : "";
  return `Estimate against ${saved.baseline ?? "the baseline policy"}${basis}: ${parts.join(", ")}.${plans}${vain}`;
}

export function drawTiles() {
  const { head, who } = state;
  const { total } = ledgerRows();
  const cost = total?.cost ?? null;
  const down = [...state.nodes.values()].filter((node) => node.state === "down").length;
  const drained = [...state.nodes.values()].filter((node) => node.drained).length;
  const tiles = [
    ["GPUs allocated", `${number(head.busy_gpus)} of ${number(head.total_gpus)}`, percent(head.total_gpus ? head.busy_gpus / head.total_gpus : null)],
    ["Jobs", `${number(head.running)} running`, `${number(head.waiting)} waiting`],
    ["Power now", si(head.power_w, "W"), "of all nodes"],
    ["Energy so far", energy(total?.energy_j), who.operator ? "all jobs and nodes" : "of your jobs"],
    ["Cost so far", money(cost, who.currency), !who.operator ? "of your jobs" : head.saved?.cost === null || head.saved?.cost === undefined ? "savings unknown" : `${money(head.saved.cost, who.currency)} saved (estimate)`],
    ["Nodes", number(state.nodes.size), `${number(down)} down, ${number(drained)} drained`],
    ["Last decision", head.tick_s === null ? DASH : `${number(1000 * head.tick_s)}\u00a0ms`, `tick ${number(head.ticks)}`],
  ];
  const list = byId("tiles");
  if (list.childElementCount !== tiles.length) {
    list.replaceChildren(...tiles.map(() => h("div", { class: "tile" }, h("dt"), h("dd", {}, h("b"), h("span")))));
  }
  tiles.forEach(([name, value, note], k) => {
    const tile = list.children[k];
    setText(tile.querySelector("dt"), name);
    setText(tile.querySelector("b"), value);
    setText(tile.querySelector("span"), note);
  });
}
