"use strict";
(async () => {
  let page; // figures and charts
  const drawn = new Set();
  const left = []; // figures that are not drawn yet, from the top of the page
  const sheet = { width: 640, height: 700 }; // px, what fits A4 and Letter
  let logarithmic = false;
  let printing = false;
  let whole = false;

  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 640;

  /** Copy with the colours written var(--name) looked up. */
  function coloured(value, key = "") {
    if (Array.isArray(value)) return key === "shapes" || key === "data" ? value.map((v) => coloured(v)) : value;
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, k)]));
    }
    const name = /color$/.test(key) && /^var\((--[a-z]+)\)$/.exec(value);
    return name ? style(name[1]) : value;
  }

  function axis(own = {}) {
    const common = {
      gridcolor: style("--grid"), linecolor: style("--line"), zerolinecolor: style("--line"), automargin: true,
      tickfont: { size: narrow() ? 11 : 12 }, exponentformat: "SI", separatethousands: true,
    };
    return { ...common, ...own, title: { standoff: 10, font: { size: 12, color: style("--muted") }, ...own.title } };
  }

  function layoutOf(own, traces) {
    const legend = narrow() && own.showlegend !== false ? 20 * Math.ceil(traces / 2) : 0;
    return { hovermode: "closest", dragmode: narrow() ? false : "zoom", separators: ".,",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: 'system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif', size: 13, color: style("--ink") },
      margin: { l: 8, r: 14, t: 8, b: 8 },
      hoverlabel: { align: "left", bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--ink"), size: 13 } },
      ...own,
      ...(printing ? { width: sheet.width, height: Math.min(own.height || 260, sheet.height) } : { height: (own.height || 300) + legend }),
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: 12 }, ...own.legend },
      xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
    };
  }

  /** One bar for each stay of a job, a trace for each tenant that has a colour of its own. */
  function bars(chart) {
    const groups = [...chart.legend, ["other tenants", chart.others]].map(([name, color]) => ({
      type: "bar", orientation: "h", name, base: [], x: [], y: [], width: [], text: [], hovertext: [],
      hoverinfo: "text", textposition: "inside", insidetextanchor: "middle", constraintext: "none", textangle: 0,
      insidetextfont: { color: "#10151b", size: 11 },
      marker: { color, line: { color: style("--card"), width: chart.job.length > 1500 ? 0 : 1 } },
    }));
    const named = chart.job.length <= 150;
    chart.job.forEach((job, i) => {
      const node = chart.node[i], wide = chart.long[i], lanes = chart.lanes[i];
      const group = groups[Math.min(chart.rank[job], groups.length - 1)];
      group.base.push(chart.from[i]);
      group.x.push(wide);
      group.y.push(chart.tops[node] + chart.lane[i] + lanes / 2);
      group.width.push(lanes * 0.94);
      group.text.push(named && fits(chart, wide, chart.jobs[job]) ? chart.jobs[job] : "");
      const gpus = chart.gpus[i] === 1 ? "1 GPU" : chart.gpus[i] + " GPUs";
      const from = +chart.from[i].toFixed(3), to = +(chart.from[i] + wide).toFixed(3);
      group.hovertext.push(
        `<b>${chart.jobs[job]}</b> of ${chart.tenants[job]}<br>${gpus} of ${chart.nodes[node]}<br>` +
        `${from} to ${to} ${chart.unit}${chart.late[job] ? "<br>ended late" : ""}`);
    });
    return groups.filter((group) => group.x.length);
  }

  /** Whether a name of about 6.5 px a letter fits a bar this long. */
  function fits(chart, wide, name) {
    const plot = Math.max(120, document.getElementById("h-each").clientWidth - 140);
    return (wide / (shown(chart)[1] || 1)) * plot > name.length * 6.5 + 6;
  }

  function barLayout(chart) {
    const nodes = chart.nodes.map((_, i) => i);
    const every = Math.max(1, Math.ceil((nodes.length * 15) / (chart.height - 90)));
    const ticked = nodes.filter((i) => i % every === 0);
    return {
      height: chart.height, showlegend: chart.named, barmode: "overlay", bargap: 0,
      xaxis: { title: { text: chart.title }, range: shown(chart), zeroline: false },
      yaxis: {
        range: [chart.bottoms[nodes.length - 1] + 0.25, -0.25], showgrid: false, zeroline: false,
        tickvals: ticked.map((i) => (chart.tops[i] + chart.bottoms[i]) / 2), ticktext: ticked.map((i) => chart.ticks[i]),
      },
      shapes: nodes.map((i) => ({
        type: "rect", xref: "paper", x0: 0, x1: 1, y0: chart.tops[i], y1: chart.bottoms[i], layer: "below",
        fillcolor: style("--head"), line: { width: 0 },
      })),
    };
  }

  function heat(chart) {
    const [rows, columns] = chart.shape;
    const bytes = Uint8Array.from(atob(chart.percent), (c) => c.charCodeAt(0));
    const numbers = (n, at) => Array.from({ length: n }, (_, i) => at(i));
    const size = narrow() ? 11 : 12;
    return [{
      type: "heatmap", zmin: 0, zmax: 100, colorscale: [[0, style("--cool")], [0.5, style("--warm")], [1, style("--hot")]], zsmooth: false,
      z: numbers(rows, (r) => bytes.subarray(r * columns, (r + 1) * columns)),
      x: chart.edges, y: numbers(rows, (r) => r),
      customdata: numbers(rows, (r) => Array(columns).fill(chart.rows[r])),
      hovertemplate: `%{customdata}<br>%{z}% busy around %{x:.4~r} ${chart.unit}<extra></extra>`,
      colorbar: {
        orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", thickness: 10, len: narrow() ? 0.9 : 0.35,
        ticksuffix: "%", tickfont: { size }, outlinewidth: 0, title: { text: "busy GPUs", side: "top", font: { size } },
      },
    }];
  }

  function heatLayout(chart) {
    const rows = chart.rows.length;
    const every = Math.max(1, Math.ceil((rows * 18) / (chart.height - 90)));
    const ticked = chart.rows.map((_, i) => i).filter((i) => i % every === 0);
    return {
      height: chart.height,
      xaxis: { title: { text: chart.title }, range: shown(chart), showgrid: false },
      yaxis: { range: [rows - 0.5, -0.5], showgrid: false, tickvals: ticked, ticktext: ticked.map((i) => chart.ticks[i]) },
    };
  }

  /** The part of the time axis to show. */
  const shown = (spec) => (whole ? spec.whole : spec.focus);

  function specOf(id) {
    const chart = page.gantt[id];
    if (chart) {
      return chart.kind === "heat" ? { data: heat(chart), layout: heatLayout(chart) } : { data: bars(chart), layout: barLayout(chart) };
    }
    const spec = page.figures[id.replace("fig-", "")];
    if (spec && spec.focus) spec.layout.xaxis.range = shown(spec);
    return spec;
  }

  function draw(id) {
    const target = document.getElementById(id);
    const spec = target && specOf(id);
    if (!spec) return;
    target.style.minHeight = "";
    if (!spec.data.length) {
      target.innerHTML = '<p class="none">Nothing is known to draw here.</p>';
      return;
    }
    const config = {
      responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover",
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], toImageButtonOptions: { filename: id, scale: 2 },
    };
    Plotly.react(target, coloured(spec.data, "data"), coloured(layoutOf(spec.layout, spec.data.length)), config);
    drawn.add(id);
    if (id === "fig-cost") scale();
  }

  function scale() {
    const spec = page.figures.cost, mode = logarithmic ? spec.log : spec.linear;
    Plotly.update("fig-cost", { visible: mode.visible }, mode.layout);
    document.getElementById("log").setAttribute("aria-pressed", String(logarithmic));
    document.querySelector(".key.linear").hidden = logarithmic;
    document.querySelector(".key.log").hidden = !logarithmic;
  }

  const tabs = [...document.querySelectorAll("[role=tab]")];

  function choose(tab) {
    for (const each of tabs) {
      const chosen = each === tab;
      each.setAttribute("aria-selected", String(chosen));
      each.tabIndex = chosen ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !chosen;
    }
    const id = tab.id.replace("tab", "gantt");
    if (drawn.has(id)) Plotly.Plots.resize(id);
    else if (!left.includes(id)) draw(id);
  }

  function onTabKey(event) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = tabs[(tabs.indexOf(event.currentTarget) + step + tabs.length) % tabs.length];
    next.focus();
    choose(next);
  }

  /** Order the rows by a column: numbers by value, unknown last; a second time the other way round. */
  function sort(head) {
    const numeric = !head.className;
    const table = head.closest("table"), column = head.cellIndex, body = table.tBodies[0];
    const down = head.getAttribute("aria-sort") === "none" ? numeric : head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keyed = [...body.rows].map((row) => {
      const cell = row.cells[column];
      return { row, value: "v" in cell.dataset ? +cell.dataset.v : null, text: cell.textContent };
    });
    keyed.sort((a, b) => {
      if (numeric) {
        if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
        return down ? b.value - a.value : a.value - b.value;
      }
      return (down ? -1 : 1) * a.text.localeCompare(b.text, "en", { numeric: true });
    });
    body.append(...keyed.map((each) => each.row));
  }

  function makeSortable() {
    for (const head of document.querySelectorAll(".sortable thead th")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sort(head));
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
    }
  }

  const redraw = () => [...drawn].forEach(draw);

  /** Draw the figures of the first screen; the others follow one by one, when the browser has time. */
  function drawInTurn() {
    const later = window.requestIdleCallback || ((next) => setTimeout(next, 1));
    const next = () => {
      if (left.length) draw(left.shift());
      if (left.length) later(next);
      else document.documentElement.dataset.drawn = "true";
    };
    for (const id of left) {
      const chart = page.gantt[id], spec = page.figures[id.replace("fig-", "")];
      document.getElementById(id).style.minHeight = ((chart || spec.layout).height || 300) + "px";
    }
    while (left.length && document.getElementById(left[0]).getBoundingClientRect().top < window.innerHeight) {
      draw(left.shift());
    }
    document.documentElement.dataset.ready = "true";
    later(next);
  }

  function showWhole() {
    whole = !whole;
    for (const button of document.querySelectorAll(".whole")) button.setAttribute("aria-pressed", String(whole));
    redraw();
  }

  /** On paper: light, and no larger than the sheet. */
  function paper(on) {
    printing = on;
    document.documentElement.classList.toggle("paper", on);
    left.splice(0).forEach(draw);
    redraw();
  }

  /** The text that is packed in an element: data and plotly.js take a third of the space so. */
  function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  makeSortable();
  if (typeof DecompressionStream === "undefined") {
    for (const figure of document.querySelectorAll(".figure")) {
      figure.innerHTML = '<p class="none">This browser is too old to draw figures. The tables have the numbers.</p>';
    }
    document.documentElement.dataset.ready = document.documentElement.dataset.drawn = "true";
    return;
  }
  page = JSON.parse(await unpacked("data"));
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
  document.head.append(script);
  for (const { id } of document.querySelectorAll(".figure")) {
    if (page.figures[id.replace("fig-", "")] || id === tabs[0].id.replace("tab", "gantt")) left.push(id);
  }
  for (const figure of document.querySelectorAll("main > section .card .figure")) {
    if (figure.id.startsWith("fig-") && !left.includes(figure.id)) figure.innerHTML = '<p class="none">The runs were not recorded.</p>';
  }
  document.getElementById("log").addEventListener("click", () => {
    logarithmic = !logarithmic;
    if (drawn.has("fig-cost")) scale();
  });
  for (const button of document.querySelectorAll(".whole")) button.addEventListener("click", showWhole);
  for (const tab of tabs) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", onTabKey);
  }
  choose(tabs[0]);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => paper(true));
  window.addEventListener("afterprint", () => paper(false));
  drawInTurn();
})();
