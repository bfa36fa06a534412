// Power and GPUs over time, drawn by Plotly (served from the installed package).

import { byId } from "./dom.js";
import { state } from "./state.js";

const MOST_POINTS = 600;

function thinned(samples) {
  const step = Math.ceil(samples.length / MOST_POINTS);
  return step <= 1 ? samples : samples.filter((_, k) => (samples.length - 1 - k) % step === 0);
}

export function drawPower() {
  if (!window.Plotly || !state.samples.length) return;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const samples = thinned(state.samples);
  const x = samples.map((sample) => new Date(sample.time_s * 1000));
  const line = (name, key, shade, fill) => ({
    type: "scatter", mode: samples.length > 1 ? "lines" : "markers", name, x, y: samples.map((sample) => sample[key]),
    line: { color: shade, width: 2, shape: "hv" }, fill: fill ? "tozeroy" : "none",
  });
  const layout = (title) => ({
    height: 220, margin: { l: 56, r: 12, t: 8, b: 34 }, showlegend: false, hovermode: "x unified",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), size: 12, family: style.getPropertyValue("font-family") },
    hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--ink") } },
    xaxis: { type: "date", gridcolor: colour("--grid"), zeroline: false, nticks: 5 },
    yaxis: { title: { text: title }, rangemode: "tozero", gridcolor: colour("--grid"), zeroline: false, nticks: 5 },
  });
  const options = { displayModeBar: false, responsive: true };
  const watts = layout("W");
  watts.yaxis.exponentformat = "SI";
  Plotly.react(byId("power-figure"), [line("power (W)", "power_w", colour("--accent"), true)], watts, options);
  const jobs = state.who?.operator ? "jobs" : "your jobs"; // counted since the page was opened
  const gpus = layout("GPUs, jobs");
  gpus.showlegend = true;
  gpus.legend = { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 };
  gpus.margin.t = 30;
  Plotly.react(byId("gpu-figure"), [
    line("GPUs allocated", "busy_gpus", colour("--accent")), line(`${jobs} waiting`, "waiting", colour("--warm")),
    line(`${jobs} running`, "running", colour("--good")),
  ], gpus, options);
}
