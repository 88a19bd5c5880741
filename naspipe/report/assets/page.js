// Adds tables and charts to the page, and adapts the timeline's detail to its zoom level.

const naspipe = { runs: [], run: null, layer: -1, window: null, isReady: false };
const CONFIG = {
  responsive: true, displaylogo: false, showSendToCloud: false, plotlyServerURL: "",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
};
const byId = (id) => document.getElementById(id);

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

async function loadPlotly() {
  // Inserted as an inline script, because the page may not request any address.
  document.head.append(element("script", await unpack(byId("plotly").textContent)));
}

function element(tag, text, properties = {}) {
  const made = Object.assign(document.createElement(tag), properties);
  if (text !== undefined) made.textContent = text;
  return made;
}

function fillTable(id, head, rows) {
  const table = byId(id);
  table.replaceChildren();
  if (head) {
    const line = table.createTHead().insertRow();
    head.forEach((text) => line.append(element("th", text)));
  }
  const body = table.createTBody();
  return rows.map((cells) => {
    const line = body.insertRow();
    cells.forEach((text) => line.append(element("td", text)));
    return line;
  });
}

const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
const MEASURES = [
  ["passes_per_second", "passes per second", (value) => value.toPrecision(4)],
  ["seconds", "seconds", (value) => value.toFixed(2)],
  ["num_passes", "passes", String],
  ["bubble_ratio", "bubble", percent],
  ["causal_bound", "causal bound of the bubble", percent],
  ["owed_ratio", "weights' gradients left for later (W)", percent],
  ["filled_ratio", "W in time that would have been idle", percent],
  ["bubble_with_teacher", "bubble, the teacher's forwards counted as work", percent],
  ["hit_rate", "cache hit rate", percent],
  ["stall_ratio", "stalled for loads", percent],
  ["num_sums", "sums between groups", String],
  ["reduction_ratio", "waited for other groups' sums and copies", percent],
  ["final_loss", "loss, last tenth", (value) => value.toPrecision(5)],
  ["validation_loss", "validation loss, last", (value) => value.toPrecision(5)],
  ["validation_perplexity", "validation perplexity, last", (value) => value.toPrecision(4)],
  ["validation_top1", "validation top-1, last", percent],
];

function measure(run, key) {
  const [, , format] = MEASURES.find(([name]) => name === key);
  const value = run.numbers[key];
  return value === undefined ? "–" : typeof value === "number" ? format(value) : value;
}

function drawTiles(run) {
  const stages = `${run.num_stages} stage${run.num_stages > 1 ? "s" : ""}`;
  const tiles = [
    ["throughput", `${measure(run, "passes_per_second")}`, `passes per second, ${stages}`],
    ["time", `${measure(run, "seconds")} s`, `${measure(run, "num_passes")} passes`],
    ["bubble", measure(run, "bubble_ratio"), `causal bound: ${measure(run, "causal_bound")}`],
    ["cache hit rate", measure(run, "hit_rate"), `stalled for loads: ${measure(run, "stall_ratio")}`],
    ["loss", measure(run, "final_loss"), "mean of the last tenth"],
  ];
  if (run.numbers.owed_ratio !== undefined) {
    tiles.push(["idle time filled", measure(run, "filled_ratio"), `by W, which took ${measure(run, "owed_ratio")} of all stages' time`]);
  }
  if (run.numbers.validation_loss !== undefined) {
    const top1 = run.numbers.validation_top1 === undefined ? "" : `, top-1 ${measure(run, "validation_top1")}`;
    tiles.push(["validation loss", measure(run, "validation_loss"), `the last one${top1}`]);
  }
  byId("tiles").replaceChildren(...tiles.map(([name, value, note]) => {
    const tile = element("div", undefined, { className: "tile" });
    tile.append(element("div", name, { className: "name" }), element("div", value, { className: "value" }), element("div", note, { className: "note" }));
    return tile;
  }));
}

function drawComparison(runs) {
  byId("compared-section").hidden = runs.length < 2;
  const shown = MEASURES.filter(([key]) => runs.some((run) => run.numbers[key] !== undefined));
  const rows = shown.map(([key, name]) => [name, ...runs.map((run) => measure(run, key))]);
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.facts)))];
  names.forEach((name) => {
    const texts = runs.map((run) => run.facts[name] ?? "–");
    if (new Set(texts).size > 1) rows.push([name, ...texts]);
  });
  rows.push(["against the first", "–", ...runs.slice(1).map((run) => run.agreement)]);
  fillTable("compared", ["", ...runs.map((run) => run.name)], rows);
}

function drawWaits(run) {
  const reasons = Object.keys(REASONS).filter((reason) => run.wait_totals_ns[reason].some((ns) => ns > 0));
  const share = (ns) => (run.end_ns ? percent(ns / run.end_ns) : "–");
  const rows = [...Array(run.num_stages).keys()].map((stage) => {
    const waited = reasons.map((reason) => run.wait_totals_ns[reason][stage]);
    const idle = waited.reduce((sum, ns) => sum + ns, 0);
    return [`stage ${stage}`, share(run.end_ns - idle), ...waited.map(share)];
  });
  fillTable("waits", ["whole run", "busy", ...reasons.map((reason) => REASONS[reason][1])], rows);
  byId("reasons").replaceChildren(...reasons.flatMap((reason) => {
    const [colour, name, meaning] = REASONS[reason];
    const term = element("dt");
    const patch = element("i");
    patch.style.background = colour;
    term.append(patch, name);
    return [term, element("dd", meaning)];
  }));
}

function drawLayers(run) {
  const select = byId("layer");
  select.replaceChildren(...run.layers.map((layer, row) => element("option", layer.label, { value: String(row) })));
  const order = run.layers.map((_, row) => row);
  const blame = (row) => run.layers[row].causal_ns + run.layers[row].reduction_ns;
  order.sort((one, other) => blame(other) - blame(one) || one - other);
  const blamed = order.slice(0, 8).filter((row) => blame(row) > 0);
  const reduced = run.sums.start.length ? ["for its sums, copies and buffers"] : [];
  const head = ["layer", "rule", "stages waited for its WRITEs", "times", ...reduced, "READs", "WRITEs"];
  const lines = fillTable("blamed", blamed.length ? head : null, blamed.map((row) => {
    const { label, rule, causal_ns: ns, causal_waits: times, reads, writes } = run.layers[row];
    return [label, rule, duration(ns), times, ...reduced.map(() => duration(run.layers[row].reduction_ns)), reads, writes];
  }));
  lines.forEach((line, place) => {
    line.className = "click";
    line.addEventListener("click", () => showLayer(blamed[place]));
  });
  const busiest = run.layers.reduce((best, layer, row) => (layer.rule === "exact" && layer.reads < run.numbers.num_passes && (best < 0 || layer.reads > run.layers[best].reads) ? row : best), -1);
  showLayer(blamed[0] ?? Math.max(0, busiest));
}

function showLayer(row) {
  const { run } = naspipe;
  if (!run.layers.length) {
    byId("order").textContent = byId("layer-facts").textContent = "";
    return Plotly.purge("accesses");
  }
  naspipe.layer = row;
  const layer = run.layers[row];
  byId("layer").value = String(row);
  byId("order").textContent = layer.order;
  byId("layer-facts").textContent = `rule ${layer.rule}, ${layer.reads} READs, ${layer.writes} WRITEs` +
    (layer.causal_waits ? `, stages waited ${duration(layer.causal_ns)} for its WRITEs` : "");
  return draw("accesses", accessesChart(run, row));
}

const draw = (id, [traces, shape]) => Plotly.react(id, traces, shape, CONFIG);

async function drawTimeline(from, to) {
  const { run } = naspipe;
  const least = Math.max(1000, run.end_ns / 1e6);
  const length = Math.min(Math.max(to - from, least), Math.max(run.end_ns, 1));
  const start = Math.min(Math.max(from, 0), Math.max(run.end_ns - length, 0));
  naspipe.window = [start, start + length];
  const plot = byId("timeline");
  const { traces, isExact, records } = timelineTraces(run, start, start + length, Math.max(300, plot.clientWidth - 90));
  const shape = layout(110 + (run.sums.start.length ? 120 : 84) * run.num_stages, {
    xaxis: { ...title("time since the first record (s)"), range: [start / SECOND, (start + length) / SECOND] },
    yaxis: { ...stageAxis(run), ...(run.teachers.names.length ? { automargin: false } : {}) }, barmode: "overlay",
    hovermode: "closest", dragmode: "zoom", showlegend: true, ...besideNames(run),
  });
  await drawStays(run, start, start + length);
  byId("detail").textContent = isExact ? `${records} records, each one drawn` : `${records} records, merged: zoom in for each one`;
  naspipe.isDrawing = true;
  await Plotly.react(plot, traces, shape, CONFIG);
  naspipe.isDrawing = false;
}

function onZoom(change) {
  if (naspipe.isDrawing) return;
  if (change["xaxis.autorange"]) drawTimeline(0, naspipe.run.end_ns);
  else if ("xaxis.range[0]" in change) drawTimeline(change["xaxis.range[0]"] * SECOND, change["xaxis.range[1]"] * SECOND);
}

function zoom(how) {
  const [from, to] = naspipe.window;
  const length = to - from;
  const windows = {
    all: [0, naspipe.run.end_ns], back: [from - length / 2, to - length / 2], forth: [from + length / 2, to + length / 2],
    in: [from + length / 4, to - length / 4], out: [from - length / 2, to + length / 2],
  };
  return drawTimeline(...windows[how]);
}

function showSubnet(subnet) {
  const { spans } = naspipe.run;
  let [from, to] = [Infinity, 0];
  spans.subnet.forEach((number, row) => {
    if (number === subnet) [from, to] = [Math.min(from, spans.start[row]), Math.max(to, spans.start[row] + spans.length[row])];
  });
  if (to > 0) return drawTimeline(from - (to - from) / 20, to + (to - from) / 20);
  byId("detail").textContent = `no record of subnet ${subnet}`;
  return undefined;
}

async function showRun(run) {
  Object.assign(naspipe, { run, isReady: false });
  const { facts } = run;
  byId("subtitle").textContent = ["steps", "sampler", "seed", "passes", "stages", "groups", "order", "partition", "device", "memory budget"]
    .filter((name) => facts[name]).map((name) => `${name} ${facts[name]}`).join(" · ");
  byId("words").replaceChildren(...run.words.map((sentence) => element("li", sentence)));
  byId("remarks").replaceChildren(...run.remarks.map((remark) => element("p", remark)));
  byId("hits-hint").textContent = facts["memory budget"]
    ? `With a memory budget of ${facts["memory budget"]} of layers on each stage's device.`
    : "No memory budget: every layer stayed on its device, so each access is a hit.";
  [...byId("runs").children].forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === run.name)));
  byId("subnet").max = String(Math.max(0, ...run.balance.subnets.slice(-1)));
  byId("facts").replaceChildren(...Object.entries(facts).map(([name, value]) => {
    const fact = element("div");
    fact.append(element("dt", name), element("dd", value));
    return fact;
  }));
  drawTiles(run);
  drawWaits(run);
  drawRoutes(run);
  drawTaught(run);
  await drawTimeline(0, run.end_ns);
  await drawCharts(run);
  naspipe.isReady = true;
}

async function drawCharts(run) {
  await draw("shares", sharesChart(run));
  await draw("loss", lossChart(naspipe.runs));
  await draw("hits", hitsChart(run));
  await drawLayers(run);
  await draw("busy", busyChart(run));
  await draw("peak", peakChart(run));
  await draw("cuts", cutsChart(run));
  await drawSearches(run);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
}

async function main() {
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(prefersDark.matches ? "dark" : "light");
  const { runs } = JSON.parse(await unpack(byId("tables").textContent));
  await loadPlotly();
  naspipe.runs = runs;
  if (runs.length > 1) {
    byId("runs").append(...runs.map((run) => {
      const button = element("button", run.name, { type: "button" });
      button.addEventListener("click", () => showRun(run));
      return button;
    }));
  }
  drawComparison(runs);
  await showRun(runs[0]);
  byId("timeline").on("plotly_relayout", onZoom);
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => zoom(button.dataset.zoom)));
  byId("subnet").addEventListener("change", (event) => showSubnet(Number(event.target.value)));
  byId("layer").addEventListener("change", (event) => showLayer(Number(event.target.value)));
  byId("theme").addEventListener("click", () => {
    setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    showRun(naspipe.run);
  });
}

main();
