// The capacity plan: GPUs kept on by pool, the promise, the power budget, and GPUs on against wanted over time.

import { byId, setText, table } from "./dom.js";
import { duration, number, percent, plural, si } from "./format.js";
import { lineChart } from "./power.js";
import { state } from "./state.js";

export function drawCapacity() {
  const plan = state.capacity;
  byId("capacity").hidden = byId("to-capacity").hidden = !plan?.policy;
  if (!plan?.policy) return;
  setText(byId("capacity-note"), [promised(plan), lately(plan), budget(plan.budget)].filter(Boolean).join(" "));
  table(byId("capacity-table"), ["Pool", "GPUs", "On", "Wanted", "Promised", "Promise"], plan.pools.map((pool) => [
    pool.name ?? "all nodes", number(pool.gpus), number(pool.on_gpus), number(pool.wanted_gpus), number(pool.promised_gpus),
    pool.kept ? "kept" : pool.sentence || "not kept"]));
}

function promised({ policy, target, pools }) {
  const when = pools.length ? "" : " No plan was made yet.";
  return `Plan ${policy}${target === null ? "" : `, promise ${target}`}.${when}`;
}

function lately({ period_s, total_gpus, mean_on_gpus, mean_wanted_gpus, served_share }) {
  if (mean_on_gpus === null || served_share === null) return "";
  return `Last ${duration(period_s)}: ${number(mean_on_gpus, 1)} of ${plural(total_gpus, "GPU")} on, `
    + `${number(mean_wanted_gpus, 1)} wanted, enough on for ${percent(served_share)} of the time.`;
}

function budget(power) {
  if (!power) return "";
  const limit = power.limit_w === null ? "None now" : si(power.limit_w, "W");
  return `Power budget: ${limit}; nodes count for ${si(power.counted_w, "W")}. It keeps ${plural(power.nodes_off, "node")} off, `
    + `and ${plural(power.waiting_jobs, "job")} waiting.`;
}

export function drawCapacityFigure() {
  if (!state.capacity?.policy) return;
  lineChart("capacity-figure", "GPUs", state.powered, [["GPUs on", "on_gpus", "--accent"], ["GPUs wanted", "wanted_gpus", "--warm"]]);
}
