// The charts other than the timeline: each function returns the traces and the layout of one chart.

const RUN_COLOURS = ["#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377"];
const RUN_DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
const BUSY_COLOUR = "#4477AA";

function theme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return { text: value("--text"), soft: value("--soft"), grid: value("--grid"), card: value("--card"), line: value("--line") };
}

function layout(height, more) {
  const { text, soft, grid, card, line } = theme();
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: line, tickfont: { color: soft }, automargin: true };
  const { xaxis, yaxis, ...rest } = more;
  return {
    height, margin: { l: 56, r: 14, t: 10, b: 44 }, paper_bgcolor: card, plot_bgcolor: card,
    font: { color: text, size: 12.5, family: "system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif" },
    hoverlabel: { bgcolor: card, bordercolor: soft, font: { color: text }, align: "left" },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

const title = (text) => ({ title: { text, standoff: 8 } });
const seconds = (column) => column.map((ns) => ns / SECOND);
const number = (value) => (typeof value === "number" ? value : null); // "nan" and "inf" are gaps

function runningMean(values, width) {
  const result = [];
  let [sum, count] = [0, 0];
  values.forEach((value, place) => {
    const old = place >= width ? values[place - width] : null;
    if (value !== null) [sum, count] = [sum + value, count + 1];
    if (old !== null) [sum, count] = [sum - old, count - 1];
    result.push(count ? sum / count : null);
  });
  return result;
}

function lossChart(runs) {
  const traces = [];
  runs.forEach((run, place) => {
    const values = run.losses.value.map(number);
    const colour = RUN_COLOURS[place % RUN_COLOURS.length];
    const width = Math.max(2, Math.round(values.length / 25));
    const common = { x: run.losses.subnet, mode: "lines", legendgroup: run.name };
    if (runs.length === 1 || place === 0) {
      traces.push({ ...common, y: values, showlegend: false, opacity: 0.35, line: { color: colour, width: 1 },
        hovertemplate: "subnet %{x}: %{y:.5g}<extra>" + run.name + "</extra>" });
    }
    traces.push({ ...common, y: runningMean(values, width), name: run.name, showlegend: runs.length > 1,
      line: { color: colour, width: 2.2, dash: RUN_DASHES[place % RUN_DASHES.length] },
      hovertemplate: `subnet %{x}: %{y:.5g}, mean of ${width} passes<extra>${run.name}</extra>` });
  });
  runs.forEach((run, place) => traces.push(...validationTraces(run, RUN_COLOURS[place % RUN_COLOURS.length], runs.length > 1)));
  return [traces, layout(300, { xaxis: title("subnet"), yaxis: title("loss") })];
}

// Held-out loss at each cut, after the last subnet whose update is included; other scores on hover.
function validationTraces(run, colour, isNamed) {
  const { subnet, scores } = run.validations;
  if (!subnet.length) return [];
  const text = subnet.map((_, place) => Object.entries(scores).map(([name, values]) =>
    `${SCORE_NAMES[name] || name} ${values[place] === null ? "?" : values[place].toPrecision(5)}`).join("<br>"));
  return [{ x: subnet, y: scores.loss, text, mode: "lines+markers", name: isNamed ? `${run.name}, validation` : "validation",
    showlegend: true, line: { color: colour, width: 1, dash: "dot" }, marker: { color: colour, size: 8, symbol: "diamond" },
    hovertemplate: `validation behind subnet %{x}:<br>%{text}<extra>${run.name}</extra>` }];
}

function sharesChart(run) {
  const { edges_ns: edges, shares } = run.bins;
  const middles = edges.slice(1).map((edge, place) => (edge + edges[place]) / 2 / SECOND);
  const mean = (name) => middles.map((_, place) => shares.reduce((sum, stage) => sum + stage[name][place], 0) / shares.length);
  const entries = [["busy", [BUSY_COLOUR, "busy"]], ...Object.entries(REASONS)];
  const traces = entries.map(([name, [colour, label]]) => ({ name: label, y: mean(name), x: middles, stackgroup: "all",
    mode: "lines", line: { width: 0.5, color: colour }, fillcolor: colour, meta: name,
    hovertemplate: "%{y:.1%}<extra>" + label + "</extra>" })).filter(({ y }) => y.some((share) => share > 0));
  const warmUp = run.warm_up_ns / SECOND;
  const shapes = warmUp > 0 ? [{ type: "line", x0: warmUp, x1: warmUp, y0: 0, y1: 1, yref: "paper",
    line: { dash: "dot", width: 1.5, color: theme().text } }] : [];
  return [traces, layout(320, { xaxis: { ...title("time (s)"), range: [0, run.end_ns / SECOND] },
    yaxis: { ...title("share of all stages' time"), tickformat: ".0%", range: [0, 1] }, hovermode: "x unified", shapes })];
}

function hitsChart(run) {
  const { edges_ns: edges, shares, hits, reads } = run.bins;
  const middles = edges.slice(1).map((edge, place) => (edge + edges[place]) / 2 / SECOND);
  const rate = hits.map((count, place) => (reads[place] ? count / reads[place] : null));
  const stalled = middles.map((_, place) => shares.reduce((sum, stage) => sum + stage.load[place], 0) / (shares.length || 1));
  const traces = [
    { name: "hit rate", x: middles, y: rate, mode: "lines", line: { color: "#228833", width: 2 }, hovertemplate: "%{y:.2%}<extra>hit rate</extra>" },
    { name: "stalled for loads", x: middles, y: stalled, mode: "lines", fill: "tozeroy", line: { color: REASONS.load[0], width: 1.5 }, hovertemplate: "%{y:.2%}<extra>stalled</extra>" },
  ];
  return [traces, layout(300, { xaxis: title("time (s)"), yaxis: { ...title("share"), tickformat: ".0%", range: [0, 1.03] }, hovermode: "x unified" })];
}

function accessesChart(run, row) {
  const { spans } = run;
  const own = [];
  spans.layer.forEach((layer, place) => { if (layer === row && spans.kind[place] !== "B") own.push(place); });
  const points = (kind, symbol, name, shift) => {
    const places = own.filter((place) => spans.kind[place] === kind);
    return { type: "scatter", mode: "markers", name, x: places.map((place) => spans.start[place] / SECOND),
      y: places.map((place) => spans.stage[place] + shift), customdata: places,
      hovertext: places.map((place) => recordText(run, place)), hoverinfo: "text",
      marker: { symbol, size: 10, color: places.map((place) => subnetColour(spans.subnet[place])), line: { width: 1, color: theme().text } } };
  };
  const traces = [points("F", "triangle-down", "READ", -0.17), points("W", "square", "WRITE", 0.17)];
  return [traces, layout(120 + 40 * run.num_stages, {
    xaxis: { ...title("time (s)"), range: [0, run.end_ns / SECOND] }, yaxis: stageAxis(run), showlegend: true })];
}

function stageAxis(run) {
  const stages = [...Array(run.num_stages).keys()];
  return { tickvals: stages, ticktext: stages.map((stage) => `stage ${stage} `), range: [run.num_stages - 0.45, -0.55],
    zeroline: false, showgrid: false, fixedrange: true };
}

function busyChart(run) {
  const stages = [...Array(run.num_stages).keys()].map((stage) => `stage ${stage}`);
  const kinds = [["F", "forward", "#4477AA"], ["B", "backward", "#66CCEE"], ["W", "WRITE", "#AA3377"]];
  const traces = kinds.map(([kind, name, colour]) => ({ type: "bar", name, x: stages, y: seconds(run.balance.busy_ns[kind]),
    marker: { color: colour }, hovertemplate: "%{y:.3f} s<extra>" + name + "</extra>" }));
  return [traces, layout(280, { barmode: "stack", bargap: 0.5, yaxis: title("busy (s)") })];
}

function peakChart(run) {
  const { subnets, peak_to_mean: peaks } = run.balance;
  const mean = peaks.reduce((sum, peak) => sum + peak, 0) / (peaks.length || 1);
  const traces = [{ type: "scatter", mode: "markers", x: subnets, y: peaks, name: "each subnet", marker: { size: 5, color: BUSY_COLOUR },
    hovertemplate: "subnet %{x}: %{y:.3f}<extra></extra>" }];
  traces.push({ type: "scatter", mode: "lines", x: [subnets[0], subnets.at(-1)], y: [mean, mean], name: `mean ${mean.toFixed(3)}`,
    line: { dash: "dash", color: "#EE6677", width: 1.5 }, hoverinfo: "skip" });
  const top = Math.max(1.1, ...peaks);
  return [traces, layout(280, { xaxis: title("subnet"), yaxis: { ...title("peak / mean"), range: [0.98, top + 0.05 * (top - 1)] } })];
}

function cutsChart(run) {
  const { subnets, first_blocks: first } = run.balance;
  const traces = first.slice(1).map((column, place) => ({ type: "scatter", mode: "lines", x: subnets,
    y: column.map((block) => (block < 0 ? null : block)), name: `stage ${place + 1} begins`,
    line: { shape: "hv", width: 1.6, color: RUN_COLOURS[place % RUN_COLOURS.length] },
    hovertemplate: "subnet %{x}: block %{y} of the chain<extra>stage " + (place + 1) + "</extra>" }));
  return [traces, layout(220, { xaxis: title("subnet"), yaxis: { ...title("block of the chain"), rangemode: "tozero" }, showlegend: true })];
}
