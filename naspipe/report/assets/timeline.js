"use strict";
// The bars for a run's records and waits, for a time range and a number of pixels.

const LANES = { F: [-0.44, 0.36], B: [-0.08, 0.36], O: [-0.08, 0.36], W: [-0.08, 0.36], wait: [0.32, 0.12] };
// O, the weight gradients that a split backward deferred, has no records: a WRITE starts with it.
const KIND_NAMES = { F: "forward", B: "backward", O: "weights' gradients", W: "WRITE" };
// Okabe and Ito's colours, which people with most kinds of colour blindness can distinguish, with a
// slightly darker yellow.
const SUBNET_COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#D8C200"];
const DARK_TEXT_ON = new Set(["#E69F00", "#CC79A7", "#56B4E9", "#D8C200"]);
// Paul Tol's "bright" scheme.
const REASONS = {
  input: ["#8f99a8", "no input", "nothing to run here until activations or gradients of another stage came"],
  causal: ["#EE6677", "causal wait", "a forward was here, but an earlier subnet had still to write a layer that it reads: point at the strip for both"],
  reduction: ["#7A5BD6", "reduction", "a WRITE had its own gradients, but waited for the sum of those of another group's passes"],
  copy: ["#44AA99", "copy", "a forward was here, and another group had written its layer: the copy was on its way back"],
  buffers: ["#DDAA88", "buffers", "a forward was here, but an earlier pass in another group had to go through the layer first (batch normalisation, norms=ordered)"],
  norm: ["#228833", "global norm", "a WRITE had its gradient, but waited for the norm of all gradients of its step (clip_global_norm)"],
  teacher: ["#9BC995", "teacher", "no wait: a forward of the teacher ran here"],
  load: ["#66CCEE", "load", "a layer was on its way from host memory to the device"],
  window: ["#AA3377", "window", "as many subnets were under way as may be; an earlier one had to finish here"],
  other: ["#CCBB44", "other", "nothing was missing by the log: what a stage does between blocks (dispatch, messages, copies), or a busy machine"],
  fill: ["#cfd5de", "fill", "the pipeline was filling"],
  drain: ["#b9c0cb", "drain", "nothing was left to do here while other stages finished"],
};
// A run with sums between groups has one more lane per stage.
const LANES_WITH_SUMS = { F: [-0.46, 0.28], B: [-0.18, 0.28], O: [-0.18, 0.28], W: [-0.18, 0.28], wait: [0.13, 0.09], sums: [0.25, 0.2] };
const lanes = (run) => (run.sums.start.length ? LANES_WITH_SUMS : LANES);
const MAX_BARS = 3000;
const SECOND = 1e9;

const subnetColour = (subnet) => SUBNET_COLOURS[subnet % SUBNET_COLOURS.length];

// Mixes a colour, with weight `share`, with a grey.
function mixed(colour, share, grey) {
  const parts = [1, 3, 5].map((at) => Math.round(parseInt(colour.slice(at, at + 2), 16) * share + grey * (1 - share)));
  return `rgb(${parts.join(",")})`;
}

const LANE_COLOURS = { F: String, B: String, O: (colour) => mixed(colour, 0.5, 255), W: (colour) => mixed(colour, 0.55, 0) };

function duration(ns) {
  if (ns >= 1e9) return `${(ns / 1e9).toPrecision(4)} s`;
  if (ns >= 1e6) return `${(ns / 1e6).toPrecision(4)} ms`;
  return `${(ns / 1e3).toPrecision(3)} µs`;
}

const moment = (ns) => `${(ns / SECOND).toFixed(6)} s`;
const layerName = (run, row) => (row < 0 ? "?" : run.layers[row].label);

// Rows of a table of columns that overlap [from, to), in order of start.
function visible(columns, from, to) {
  const rows = [];
  for (let row = 0; row < columns.start.length; row++) {
    if (columns.start[row] < to && columns.start[row] + columns.length[row] >= from) rows.push(row);
  }
  return rows;
}

function recordText(run, row) {
  const { spans } = run;
  const kind = spans.kind[row];
  const verb = kind === "W" ? "wrote" : "read";
  const version = spans.version[row] < 0 ? "as first made" : `version ${spans.version[row]}`;
  const stalled = spans.stalled[row] ? `<br>waited ${duration(spans.stalled[row])} for its load` : "";
  const owed = spans.owed[row] ? `,<br>the first ${duration(spans.owed[row])} for weights' gradients that its backward left` : "";
  return `<b>${KIND_NAMES[kind]} of subnet ${spans.subnet[row]}</b><br>` +
    `layer ${layerName(run, spans.layer[row])}, ${verb} ${version}<br>stage ${spans.stage[row]}, ` +
    `from ${moment(spans.start[row])}, ${duration(spans.length[row])}${owed}${stalled}`;
}

function accessName(run, [kind, subnet, layer]) {
  return `${KIND_NAMES[kind]} of subnet ${subnet} (layer ${layerName(run, layer)})`;
}

function waitText(run, row) {
  const { waits } = run;
  const [next, cause, reason] = [waits.next[row], waits.cause[row], waits.reason[row]];
  let text = `<b>${REASONS[reason][1]}: ${duration(waits.length[row])}</b><br>stage ${waits.stage[row]}, ` +
    `from ${moment(waits.start[row])}`;
  const blocked = waits.blocked[row];
  const done = cause ? `${accessName(run, cause)},<br>done on stage ${cause[3]} at ${moment(cause[4])}` : "";
  if (blocked) text += `<br>here, but blocked: ${accessName(run, blocked)}<br>it needed the ${done}`;
  if (next) text += `<br>then ran: ${accessName(run, next)}`;
  if (cause && !blocked) text += `<br>which needed the ${done}`;
  return text;
}

// One bar per record, or two for a WRITE that starts with weight gradients; for ranges with few records.
function exactBars(run, rows) {
  const { spans } = run;
  return rows.flatMap((row) => {
    const [start, length, owed] = [spans.start[row], spans.length[row], spans.owed[row]];
    const all = { stage: spans.stage[row], subnet: spans.subnet[row], row, text: recordText(run, row) };
    const record = { ...all, lane: spans.kind[row], start: start + owed, length: length - owed };
    return owed ? [{ ...all, lane: "O", start, length: owed }, record] : [record];
  });
}

// Merges adjacent records of one subnet, and bars narrower than three pixels with adjacent ones.
function mergedBars(run, rows, pixel) {
  const { spans } = run;
  const bars = [];
  const open = new Map();
  for (const row of rows) {
    const lane = spans.kind[row] === "F" ? "F" : "B";
    const key = `${spans.stage[row]}${lane}`;
    const [start, length, subnet] = [spans.start[row], spans.length[row], spans.subnet[row]];
    const last = open.get(key);
    const near = last && start - last.end < pixel;
    if (near && ((last.times.size === 1 && last.times.has(subnet)) || last.end - last.start < 3 * pixel)) {
      last.end = Math.max(last.end, start + length);
      last.count += 1;
      last.times.set(subnet, (last.times.get(subnet) || 0) + length);
    } else {
      const bar = { lane, stage: spans.stage[row], start, end: start + length, count: 1, times: new Map([[subnet, length]]) };
      open.set(key, bar);
      bars.push(bar);
    }
  }
  return bars.map((bar) => {
    const subnets = [...bar.times].sort((one, other) => other[1] - one[1]).map(([subnet]) => subnet);
    const named = subnets.slice(0, 8).join(", ") + (subnets.length > 8 ? ", …" : "");
    const what = bar.lane === "F" ? "forward" : "backward and WRITE";
    return {
      lane: bar.lane, stage: bar.stage, start: bar.start, length: bar.end - bar.start, row: -1,
      subnet: subnets[0],
      text: `<b>${what}, subnet${subnets.length > 1 ? "s" : ""} ${named}</b><br>${bar.count} records, stage ` +
        `${bar.stage}, from ${moment(bar.start)}, ${duration(bar.end - bar.start)}<br>zoom in for layers and versions`,
    };
  });
}

// Waits narrower than a pixel are merged with adjacent ones, with the reason of the longest. If they
// cover less than half of the bar, nothing is drawn, because the stage was mostly busy.
function waitBars(run, rows, pixel, isExact) {
  const { waits } = run;
  const bars = [];
  const open = new Map();
  for (const row of rows) {
    const [start, length, stage, reason] = [waits.start[row], waits.length[row], waits.stage[row], waits.reason[row]];
    const last = open.get(stage);
    if (!isExact && last && start - last.end < pixel && (last.end - last.start < pixel || last.reason === reason)) {
      last.end = Math.max(last.end, start + length);
      last.count += 1;
      last.waited += length;
      if (length > last.longest) Object.assign(last, { longest: length, reason, row });
    } else {
      const bar = { stage, start, end: start + length, longest: length, waited: length, reason, row, count: 1 };
      open.set(stage, bar);
      bars.push(bar);
    }
  }
  return bars.filter((bar) => bar.waited >= (bar.end - bar.start) / 2).map((bar) => ({
    reason: bar.reason, stage: bar.stage, start: bar.start, length: bar.end - bar.start, row: bar.count === 1 ? bar.row : -1,
    text: waitText(run, bar.row) + (bar.count > 1 ? `<br>the longest of ${bar.count} waits here, ${duration(bar.waited)} in all` : ""),
  }));
}

// The traces of the timeline for [from, to) nanoseconds on a plot of `pixels` pixels.
function timelineTraces(run, from, to, pixels) {
  const pixel = (to - from) / pixels;
  const rows = visible(run.spans, from, to);
  const waits = visible(run.waits, from, to);
  const sums = visible(run.sums, from, to);
  const isExact = rows.length + waits.length + sums.length <= MAX_BARS;
  const bars = isExact ? exactBars(run, rows) : mergedBars(run, rows, pixel);
  const traces = ["F", "B", "O", "W"].map((lane) => {
    const own = bars.filter((bar) => bar.lane === lane);
    const name = isExact ? KIND_NAMES[lane] : { ...KIND_NAMES, B: "backward and WRITE" }[lane];
    const trace = barTrace(own, lanes(run)[lane], name);
    trace.marker.color = own.map((bar) => LANE_COLOURS[lane](subnetColour(bar.subnet)));
    const fits = (bar) => bar.length > (8 + 7 * String(bar.subnet).length) * pixel;
    trace.insidetextfont = { size: 11, color: own.map((bar) => (DARK_TEXT_ON.has(subnetColour(bar.subnet)) ? "#1d2330" : "#ffffff")) };
    trace.text = own.map((bar) => ("FB".includes(lane) && fits(bar) ? String(bar.subnet) : ""));
    return trace;
  });
  const waited = waitBars(run, waits, pixel, isExact);
  for (const [reason, [colour, name]] of Object.entries(REASONS)) {
    const own = waited.filter((bar) => bar.reason === reason);
    const trace = barTrace(own, lanes(run).wait, name);
    trace.marker.color = colour;
    if (own.length) traces.push({ ...trace, showlegend: true, legendgroup: reason });
  }
  if (sums.length) traces.push(...sumTraces(run, sums, pixel, isExact));
  return { traces, isExact, records: rows.length };
}

function barTrace(bars, [offset, width], name) {
  return {
    type: "bar", orientation: "h", name, showlegend: false,
    base: bars.map((bar) => bar.start / SECOND), x: bars.map((bar) => bar.length / SECOND),
    y: bars.map((bar) => bar.stage), offset, width, // one value for all bars, or a list with one per bar
    customdata: bars.map((bar) => bar.row), hovertext: bars.map((bar) => bar.text), hoverinfo: "text",
    textposition: "inside", insidetextanchor: "middle", textangle: 0,
    marker: { line: { width: 0 } },
  };
}
