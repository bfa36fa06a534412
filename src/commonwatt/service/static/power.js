// Power and GPUs over time, drawn by Plotly (served from the installed package).

import { byId } from "./dom.js";
import { state } from "./state.js";

const MOST_POINTS = 600;

function thinned(samples) {
  const step = Math.ceil(samples.length / MOST_POINTS);
  return step <= 1 ? samples : samples.filter((_, k) => (samples.length - 1 - k) % step === 0);
}

// Draws samples over time into the element `id`: `lines` are name, key of the samples, colour (or the name of one in the
// style sheet), and `dash` of a line that is not solid. One line is filled.
export function lineChart(id, title, all, lines) {
  if (!window.Plotly || !all.length) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const samples = thinned(all);
  const x = samples.map((sample) => new Date(sample.time_s * 1000));
  const single = lines.length === 1;
  const layout = {
    height: 220, margin: { l: 56, r: 12, t: single ? 8 : 30, b: 34 }, showlegend: !single, hovermode: "x unified",
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), size: 12, family: style.getPropertyValue("font-family") },
    hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--ink") } },
    xaxis: { type: "date", gridcolor: colour("--grid"), zeroline: false, nticks: 5 },
    yaxis: {
      title: { text: title }, rangemode: "tozero", gridcolor: colour("--grid"), zeroline: false, nticks: 5,
      ...(title === "W" ? { exponentformat: "SI" } : {}),
    },
  };
  const traces = lines.map(([name, key, shade, dash = "solid"]) => ({
    type: "scatter", mode: samples.length > 1 ? "lines" : "markers", name, x, y: samples.map((sample) => sample[key]),
    line: { color: shade.startsWith("--") ? colour(shade) : shade, width: 2, shape: "hv", dash }, fill: single ? "tozeroy" : "none",
  }));
  Plotly.react(byId(id), traces, layout, { displayModeBar: false, responsive: true });
}

export function drawPower() {
  lineChart("power-figure", "W", state.samples, [["power (W)", "power_w", "--accent"]]);
  const jobs = state.who?.operator ? "jobs" : "your jobs"; // counted since the page was opened
  lineChart("gpu-figure", "GPUs, jobs", state.samples, [
    ["GPUs allocated", "busy_gpus", "--accent"], [`${jobs} waiting`, "waiting", "--warm"], [`${jobs} running`, "running", "--good"],
  ]);
}
