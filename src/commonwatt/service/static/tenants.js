// Tenants against their entitlement, the cost so far, and what the baseline policy would have cost.

import { byId, h, setText, table } from "./dom.js";
import { DASH, energy, gpuTime, money, number, percent, si } from "./format.js";
import { colourOf, state } from "./state.js";

const sum = (values) => (values.every((value) => value !== null && value !== undefined) ? values.reduce((a, b) => a + b, 0) : null);

// A share as a bar with a mark where the entitlement is; the number stands beside it.
function bar(share, entitled, colour) {
  const track = h("i", { class: "share" }, h("i", { class: "filled" }), entitled === null ? null : h("i", { class: "entitled" }));
  track.style.setProperty("--share", `${100 * (share ?? 0)}%`);
  track.style.setProperty("--entitled", `${100 * (entitled ?? 0)}%`);
  track.style.setProperty("--tint", colour);
  return h("span", { class: "shared" }, track, percent(share));
}

export function drawTenants() {
  table(byId("tenant-table"),
    ["Tenant", "Weight", "Entitled to", "GPU time", "Share of time", "Energy", "Share of energy", "Cost", "Running", "Waiting"],
    state.tenants.map((tenant) => {
      const colour = colourOf(tenant.name);
      const chip = h("i", { class: "chip" });
      chip.style.background = colour;
      return [h("span", {}, chip, tenant.name), number(tenant.weight, 2), percent(tenant.entitlement), gpuTime(tenant.gpu_s),
        bar(tenant.gpu_share, tenant.entitlement, colour), energy(tenant.energy_j),
        bar(tenant.energy_share, tenant.entitlement, colour), money(tenant.cost, state.who?.currency),
        number(tenant.jobs.running), number(tenant.jobs.waiting)];
    }));
}

// A row of the ledger in J, currency and GPU seconds.
const scaled = (row) => ({
  row: row.row, energy_j: times(row.energy_uj, 1e-6), cost: times(row.cost_n, 1e-9), gpu_s: times(row.gpu_us, 1e-6),
});
const times = (value, factor) => (value === null ? null : value * factor);

export function drawCost() {
  const { head, who } = state;
  const ledger = state.ledger.map(scaled);
  const names = [...new Set(ledger.map((row) => row.row))];
  const rows = names.map((name) => {
    const of = ledger.filter((row) => row.row === name);
    return [name, energy(sum(of.map((row) => row.energy_j))), money(sum(of.map((row) => row.cost)), who?.currency), gpuTime(sum(of.map((row) => row.gpu_s)))];
  });
  if (rows.length) {
    const all = (key) => sum(ledger.map((row) => row[key]));
    rows.push(["all", energy(all("energy_j")), money(all("cost"), who?.currency), gpuTime(all("gpu_s"))]);
  }
  table(byId("cost-table"), ["Charged for", "Energy", "Cost", "GPU time"], rows);
  setText(byId("saving"), savingWords(head?.saved, who?.currency));
}

export function savingWords(saved, currency) {
  if (!saved) return "What the baseline policy would have used is not known yet.";
  const part = (value, text) => (value === null || value === undefined ? "an unknown amount" : `${text} ${value >= 0 ? "less" : "more"}`);
  const kwh = saved.energy_kwh === null || saved.energy_kwh === undefined ? null : energy(Math.abs(saved.energy_kwh) * 3.6e6);
  const cost = saved.cost === null || saved.cost === undefined ? null : money(Math.abs(saved.cost), currency);
  return `Estimated against the baseline policy: ${part(saved.energy_kwh, kwh)} energy and ${part(saved.cost, cost)} cost.`;
}

export function drawTiles() {
  const { head, who } = state;
  const ledger = state.ledger.map(scaled);
  const cost = ledger.length ? sum(ledger.map((row) => row.cost)) : null;
  const joules = ledger.length ? sum(ledger.map((row) => row.energy_j)) : null;
  const jobs = { running: 0, waiting: 0 };
  for (const { status } of state.jobs.values()) jobs[status] += 1;
  const down = [...state.nodes.values()].filter((node) => node.state === "down").length;
  const drained = [...state.nodes.values()].filter((node) => node.drained).length;
  const tiles = [
    ["GPUs held", `${number(head.busy_gpus)} of ${number(head.total_gpus)}`, percent(head.total_gpus ? head.busy_gpus / head.total_gpus : null)],
    ["Jobs", `${number(jobs.running)} running`, `${number(jobs.waiting)} waiting`],
    ["Power now", si(head.power_w, "W"), "of all nodes"],
    ["Energy so far", energy(joules), who.operator ? "all jobs and nodes" : "of your jobs"],
    ["Cost so far", money(cost, who.currency), head.saved?.cost === null || head.saved?.cost === undefined ? "savings unknown" : `${money(head.saved.cost, who.currency)} saved (estimate)`],
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
