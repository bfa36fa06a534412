// The cluster map: a tile for each node, by GPU type.

import { byId, h, setClass, setText } from "./dom.js";
import { number, plural, si } from "./format.js";
import { state } from "./state.js";

let made = 0; // tiles so far, for unique ids
const groups = new Map(); // GPU type: { list, title, tiles: Map(name, tile), active }

export function nodeWords(node) {
  const parts = [node.name, `${node.held_gpus} of ${node.usable_gpus} GPUs allocated`, node.state];
  if (node.drained) parts.push("drained");
  if (node.cause) parts.push(node.cause);
  if (node.power_w !== null && node.power_w !== undefined) parts.push(si(node.power_w, "W"));
  return parts.join(", ");
}

export function drawCluster(open) {
  const byType = new Map();
  for (const node of state.nodes.values()) {
    if (!byType.has(node.gpu_type)) byType.set(node.gpu_type, []);
    byType.get(node.gpu_type).push(node);
  }
  for (const [type, group] of groups) {
    if (byType.has(type)) continue;
    group.section.remove();
    groups.delete(type);
  }
  for (const [type, nodes] of byType) {
    if (!groups.has(type)) groups.set(type, makeGroup(type, open));
    drawGroup(groups.get(type), nodes);
  }
}

function makeGroup(type, open) {
  const title = h("h3", {});
  const list = h("div", { class: "tiles-map", role: "listbox", tabindex: "0", "aria-label": `Nodes with ${type}` });
  const section = h("div", {}, title, list);
  byId("map").append(section);
  const group = { type, title, list, section, tiles: new Map(), active: null };
  list.addEventListener("keydown", (event) => key(event, group, open));
  list.addEventListener("focus", () => activate(group, group.active ?? group.tiles.keys().next().value));
  list.addEventListener("blur", hideTip);
  list.addEventListener("click", (event) => {
    const tile = event.target.closest(".tile-node");
    if (!tile) return;
    activate(group, tile.dataset.node);
    open(tile.dataset.node);
  });
  list.addEventListener("pointerover", (event) => {
    const tile = event.target.closest(".tile-node");
    if (tile) showTip(tile);
  });
  list.addEventListener("pointerleave", hideTip);
  return group;
}

function drawGroup(group, nodes) {
  const held = nodes.reduce((sum, node) => sum + node.held_gpus, 0);
  const usable = nodes.reduce((sum, node) => sum + node.usable_gpus, 0);
  setText(group.title, `${group.type}: ${plural(nodes.length, "node")}, ${number(held)} of ${number(usable)} GPUs allocated`);
  const names = new Set(nodes.map((node) => node.name));
  for (const [name, tile] of group.tiles) {
    if (names.has(name)) continue;
    tile.remove();
    group.tiles.delete(name);
  }
  for (const node of nodes) {
    let tile = group.tiles.get(node.name);
    if (!tile) {
      tile = h("div", { role: "option", id: `node-${made++}` });
      tile.dataset.node = node.name;
      group.tiles.set(node.name, tile);
      group.list.append(tile);
    }
    if (tile.drawn === node) continue;
    tile.drawn = node;
    setClass(tile, `tile-node ${node.state}${node.drained ? " drained" : ""}${group.active === node.name ? " active" : ""}`);
    tile.style.setProperty("--held", `${node.gpus ? (100 * node.held_gpus) / node.gpus : 0}%`);
    tile.setAttribute("aria-label", nodeWords(node));
    tile.setAttribute("aria-selected", group.active === node.name);
  }
}

function activate(group, name) {
  const before = group.tiles.get(group.active);
  before?.classList.remove("active");
  before?.setAttribute("aria-selected", "false");
  const tile = group.tiles.get(name);
  if (!tile) return;
  group.active = name;
  tile.classList.add("active");
  tile.setAttribute("aria-selected", "true");
  group.list.setAttribute("aria-activedescendant", tile.id);
  tile.scrollIntoView({ block: "nearest" });
  showTip(tile);
}

function key(event, group, open) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const names = [...group.tiles.keys()];
  const at = Math.max(0, names.indexOf(group.active));
  const tops = names.slice(0, 200).map((name) => group.tiles.get(name).offsetTop);
  const across = Math.max(1, tops.filter((top) => top === tops[0]).length);
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -Infinity, End: Infinity };
  if (event.key === "Enter" || event.key === " ") open(names[at]);
  else if (event.key === "Escape") hideTip();
  else if (event.key in steps) activate(group, names[Math.min(names.length - 1, Math.max(0, at + steps[event.key]))]);
  else return;
  event.preventDefault();
}

function showTip(tile) {
  const node = state.nodes.get(tile.dataset.node);
  if (!node) return;
  const tip = byId("tip");
  const jobs = node.jobs.map((id) => state.jobs.get(id)?.name ?? `job ${id}`);
  const more = jobs.length > 4 ? ` and ${jobs.length - 4} more` : "";
  tip.replaceChildren(h("b", {}, node.name), h("span", {}, nodeWords(node).slice(node.name.length + 2)));
  if (jobs.length) tip.append(h("span", {}, jobs.slice(0, 4).join(", ") + more));
  tip.hidden = false;
  const box = tile.getBoundingClientRect();
  const left = Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8);
  const below = box.bottom + 6 + tip.offsetHeight < window.innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? box.bottom + 6 : box.top - tip.offsetHeight - 6}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

window.addEventListener("scroll", hideTip, { passive: true });
