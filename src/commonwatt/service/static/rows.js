// A long list of rows of one height. Only visible rows are in the page, so 10,000 are as fast as ten.
// The list keeps the focus and names its active row (aria-activedescendant), so rows can be added and removed.

import { h } from "./dom.js";

export class Rows {
  // make() returns an empty row; fill(element, item) writes an item into it; open(item) is Enter or a click.
  constructor(list, { make, fill, open, none }) {
    Object.assign(this, { list, make, fill, open });
    this.items = [];
    this.active = null; // id of an item
    this.pool = [];
    this.space = h("div", { class: "space", role: "presentation" });
    this.none = h("p", { class: "none" }, none);
    list.append(this.space, this.none);
    list.addEventListener("scroll", () => this.paint(), { passive: true });
    list.addEventListener("keydown", (event) => this.key(event));
    list.addEventListener("focus", () => this.paint());
    new ResizeObserver(() => this.paint()).observe(list);
  }

  get height() {
    return parseFloat(getComputedStyle(this.list).getPropertyValue("--row")) || 36;
  }

  show(items) {
    this.items = items;
    this.none.hidden = items.length > 0;
    this.list.setAttribute("aria-rowcount", items.length);
    this.paint();
  }

  paint() {
    const height = this.height;
    this.space.style.height = `${this.items.length * height}px`;
    const first = Math.max(0, Math.floor(this.list.scrollTop / height) - 3);
    const count = Math.min(this.items.length - first, Math.ceil(this.list.clientHeight / height) + 6);
    const active = this.activeIndex();
    this.list.removeAttribute("aria-activedescendant");
    for (let k = 0; k < Math.max(count, this.pool.length); k++) {
      if (k >= this.pool.length) this.pool.push(this.newRow());
      const row = this.pool[k];
      row.hidden = k >= count;
      if (row.hidden) continue;
      const index = first + k;
      row.item = this.items[index];
      row.style.transform = `translateY(${index * height}px)`;
      row.setAttribute("aria-rowindex", index + 1);
      row.classList.toggle("active", index === active);
      if (index === active) this.list.setAttribute("aria-activedescendant", row.id);
      this.fill(row, row.item);
    }
  }

  newRow() {
    const row = this.make();
    row.id = `${this.list.id}-${this.pool.length}`;
    row.setAttribute("role", "row");
    row.addEventListener("click", () => {
      this.active = row.item.id;
      this.paint();
      this.open(row.item);
    });
    this.space.append(row);
    return row;
  }

  activeIndex() {
    const at = this.items.findIndex((item) => item.id === this.active);
    return at >= 0 ? at : this.items.length ? 0 : -1;
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.list.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const at = this.activeIndex();
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") this.open(this.items[at]);
    else if (event.key in steps) this.go(Math.min(this.items.length - 1, Math.max(0, at + steps[event.key])));
    else return;
    event.preventDefault();
  }

  go(index) {
    this.active = this.items[index].id;
    const { height, list } = this;
    if (index * height < list.scrollTop) list.scrollTop = index * height;
    const low = (index + 1) * height - list.clientHeight;
    if (low > list.scrollTop) list.scrollTop = low;
    this.paint();
  }
}
