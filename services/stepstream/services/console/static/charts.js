// Draw the charts with uPlot; each is created once and updated with new data.

import { clock, decimal, percent, version } from "./format.js";

// Height of a chart in pixels, without its legend.
const HEIGHTS = { success: 260, components: 260, steps: 220, staleness: 220 };
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const faint = (name) => `color-mix(in srgb, ${colour(name)} 18%, transparent)`;
const axis = (more) => ({ stroke: () => colour("soft"), grid: { stroke: () => colour("grid"), width: 1 }, ticks: { stroke: () => colour("grid") }, ...more });

const times = () => axis({ values: (_, at) => at.map((s) => clock(s * 1000)), space: 90 });

function band(split, name, dash) {
  const line = { stroke: () => colour(name), width: 2, dash, points: { size: 6, fill: () => colour(name) }, spanGaps: true };
  const edge = { stroke: "transparent", points: { show: false }, spanGaps: true };
  // The edges follow the line among the series; the line's legend shows their values too.
  const value = (chart, share, at, point) =>
    share === null ? "–" : `${percent(share)} (${percent(chart.data[at + 1][point])} to ${percent(chart.data[at + 2][point])})`;
  return [
    { label: split === "eval" ? "held-out tasks" : "training tasks", value, ...line },
    { label: "low", class: "band-edge", ...edge },
    { label: "high", class: "band-edge", ...edge },
  ];
}

const whole = (low, high) => {
  const step = Math.max(1, Math.ceil((high - low) / 12));
  const at = [];
  for (let v = Math.ceil(low / step) * step; v <= high; v += step) at.push(v);
  return at;
};

const byVersion = () => axis({ values: (_, at) => at.map(version), splits: (u) => whole(u.scales.x.min, u.scales.x.max) });

// Lines of the component chart, as [name, kind, rows by version]; several agents get names in the legend.
function componentLines(rows) {
  const shown = rows.filter((row) => row.split === "train" && row.version !== null);
  const several = new Set(shown.map((row) => row.agent)).size > 1;
  const lines = new Map();
  for (const row of shown) {
    const key = JSON.stringify([row.environment, row.agent, row.reward_spec, row.kind, row.name]);
    if (!lines.has(key)) lines.set(key, { name: several ? `${row.agent}: ${row.name}` : row.name, kind: row.kind, rows: new Map() });
    lines.get(key).rows.set(row.version, row.mean);
  }
  return [...lines.values()];
}

const COLOURS = ["eval", "train", "third", "good", "warn", "bad"];
const DASHES = { shadow: [6, 4], guard: [2, 4] };

const SPECS = {
  components: (s) => ({
    scales: { x: { time: false, range: (_, low, high) => [low - 0.5, high + 0.5] } },
    axes: [byVersion(), axis({})],
    series: [
      { label: "version", value: (_, v) => version(v) },
      ...componentLines(s.components).map(({ name, kind }, at) => ({
        label: kind === "shadow" || kind === "guard" ? `${name} (${kind})` : name,
        stroke: () => colour(COLOURS[at % COLOURS.length]), width: kind === "reward" ? 3 : 2, dash: DASHES[kind],
        points: { size: 5 }, spanGaps: true, value: (_, x) => decimal(x),
      })),
    ],
  }),
  success: () => ({
    scales: { x: { time: false, range: (_, low, high) => [low - 0.5, high + 0.5] }, y: { range: [0, 1] } },
    axes: [
      byVersion(),
      axis({ values: (_, at) => at.map((share) => `${Math.round(100 * share)} %`) }),
    ],
    series: [{ label: "version", value: (_, v) => version(v) }, ...band("eval", "eval"), ...band("train", "train", [6, 4])],
    bands: [
      { series: [3, 2], fill: () => faint("eval") },
      { series: [6, 5], fill: () => faint("train") },
    ],
  }),
  steps: () => ({
    scales: { y: { range: (_, low, high) => [0, Math.max(5, high * 1.1)] } },
    axes: [times(), axis({})],
    series: [{ label: "time", value: (_, s) => (s === null ? "–" : clock(s * 1000)) }, { label: "steps", stroke: () => colour("eval"), fill: () => faint("eval"), width: 2, points: { show: false } }],
  }),
  staleness: () => ({
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [times(), axis({})],
    series: [
      { label: "time", value: (_, s) => (s === null ? "–" : clock(s * 1000)) },
      { label: "mean", stroke: () => colour("eval"), width: 2, points: { show: false }, value: (_, x) => decimal(x) },
      { label: "largest", stroke: () => colour("train"), width: 2, dash: [6, 4], points: { show: false } },
      { label: "bound", stroke: () => colour("bad"), width: 1, dash: [2, 4], points: { show: false } },
    ],
  }),
};

function successData(rows) {
  const versions = [...new Set(rows.map((row) => row.version))].sort((a, b) => a - b);
  const columns = (split) => {
    const found = new Map(rows.filter((row) => row.split === split).map((row) => [row.version, row]));
    return ["rate", "low", "high"].map((name) => versions.map((v) => found.get(v)?.[name] ?? null));
  };
  return [versions, ...columns("eval"), ...columns("train")];
}

function componentData(rows) {
  const lines = componentLines(rows);
  const versions = [...new Set(lines.flatMap((line) => [...line.rows.keys()]))].sort((a, b) => a - b);
  return [versions, ...lines.map((line) => versions.map((v) => line.rows.get(v) ?? null))];
}

const DATA = {
  components: (s) => componentData(s.components),
  success: (s) => successData(s.success),
  steps: (s) => [s.steps.map((row) => row.at / 1000), s.steps.map((row) => row.steps)],
  staleness: (s) => [
    s.staleness.map((row) => row.at / 1000),
    s.staleness.map((row) => row.mean),
    s.staleness.map((row) => row.max),
    s.staleness.map(() => s.staleness_bound),
  ],
};

// Text of each chart for screen readers.
const DESCRIPTIONS = {
  components: (s) => componentLines(s.components).map((line) => {
    const [newest, mean] = [...line.rows].at(-1);
    return `${line.name} (${line.kind}) ${version(newest)}: ${decimal(mean)}`;
  }).join("; "),
  success: (s) => s.success.map((row) => `${row.split} ${version(row.version)}: ${percent(row.rate)}`).join("; "),
  steps: (s) => `Steps per second, last: ${s.steps.at(-1)?.steps ?? 0}`,
  staleness: (s) => { const last = s.staleness.at(-1); return last ? `Staleness, last: mean ${decimal(last.mean)}, largest ${last.max}` : ""; },
};

const EMPTY = {
  components: (s) => (componentLines(s.components).length ? "" : "No component of a policy version has been measured yet."),
  success: (s) => (s.success.length ? "" : "No trajectory with an outcome yet."),
  steps: (s) => (s.steps.some((row) => row.steps > 0) ? "" : "No steps in the last two minutes."),
  staleness: (s) => (s.staleness.length ? "" : "No trajectory yet."),
};

const drawn = {};
let lines = "";

export function drawCharts(snapshot) {
  // A chart's lines are fixed at its creation.
  const now = JSON.stringify(componentLines(snapshot.components).map(({ name, kind }) => [name, kind]));
  if (now !== lines) drop("components");
  lines = now;
  for (const name of Object.keys(SPECS)) {
    const place = document.getElementById(`chart-${name}`);
    const empty = EMPTY[name](snapshot);
    place.setAttribute("aria-label", empty || DESCRIPTIONS[name](snapshot));
    if (empty) {
      drop(name);
      const message = document.createElement("p");
      message.className = "empty";
      message.textContent = empty;
      place.replaceChildren(message);
      continue;
    }
    const data = DATA[name](snapshot);
    if (drawn[name]) drawn[name].setData(data);
    else {
      place.replaceChildren();
      drawn[name] = new uPlot({ width: place.clientWidth, height: HEIGHTS[name], ...SPECS[name](snapshot) }, data, place);
    }
  }
}

function drop(name) {
  drawn[name]?.destroy();
  delete drawn[name];
}

// A chart's colours are fixed at its creation, so a new theme needs new charts.
export function redrawAll(snapshot) {
  Object.keys(drawn).forEach(drop);
  if (snapshot) drawCharts(snapshot);
}

new ResizeObserver(() => {
  for (const [name, chart] of Object.entries(drawn)) {
    chart.setSize({ width: document.getElementById(`chart-${name}`).clientWidth, height: HEIGHTS[name] });
  }
}).observe(document.querySelector("main"));
