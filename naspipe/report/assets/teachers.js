// Elastic teachers: bars above the timeline, marks for refusals, and a table.

const STAY_ENDS = {
  end: ["#44AA99", "there", "until the student ended"],
  left: ["#CC8844", "left, or was killed", "until it was not shown any longer"],
  released: ["#88AACC", "released", "until it was not needed any longer"],
  dismissed: ["#EE6677", "dismissed", "until it was refused"],
  killed: ["#9aa5b8", "until the student was killed", "until the student was killed"],
};
const MOST_STAYS_ROWS = 40;

function staysChart(run, from, to) {
  const { names, stays, refusals } = run.teachers;
  const shown = Math.min(names.length, MOST_STAYS_ROWS);
  const traces = Object.entries(STAY_ENDS).map(([ends, [colour, name, until]]) => {
    const rows = stays.ends.map((_, row) => row).filter((row) => stays.ends[row] === ends && stays.row[row] < shown);
    const trace = barTrace(rows.map((row) => ({ stage: stays.row[row], start: stays.start[row], length: stays.length[row], row,
      text: `<b>${names[stays.row[row]]}</b><br>joined at ${moment(stays.start[row])}, ${duration(stays.length[row])}<br>${until}` })), [-0.36, 0.72], name);
    trace.marker.color = colour;
    return { ...trace, showlegend: rows.length > 0, meta: "stays" };
  });
  const marks = refusals.row.map((_, row) => row).filter((row) => refusals.row[row] < shown);
  traces.push({ type: "scatter", mode: "markers", name: "refused", meta: "refusals", hoverinfo: "text", showlegend: marks.length > 0,
    x: marks.map((row) => refusals.time[row] / SECOND), y: marks.map((row) => refusals.row[row]), customdata: marks,
    hovertext: marks.map((row) => `<b>${names[refusals.row[row]]} is refused</b><br>at ${moment(refusals.time[row])}<br>${refusals.why[row]}`),
    marker: { symbol: "x", size: 9, color: "#B02A3C", line: { width: 1, color: theme().card } } });
  const ticks = [...Array(shown).keys()];
  return [traces, layout(64 + 20 * Math.max(2, shown), { barmode: "overlay", hovermode: "closest", dragmode: "zoom", showlegend: true,
    margin: { ...besideNames(run).margin, b: 22 }, xaxis: { range: [from / SECOND, to / SECOND], automargin: false },
    yaxis: { automargin: false, tickvals: ticks, ticktext: ticks.map((row) => `${short(names[row])} `), range: [Math.max(2, shown) - 0.45, -0.55], zeroline: false,
      showgrid: false, fixedrange: true } })];
}

const short = (name) => (name.length > 24 ? `${name.slice(0, 10)}…${name.slice(-12)}` : name);

// The same margins for bars and timeline, so that their time axes are aligned.
function besideNames(run) {
  const { names } = run.teachers;
  if (!names.length) return {};
  return { margin: { l: 14 + 7.5 * Math.max(8, ...names.map((name) => short(name).length)), r: 14, t: 10, b: 44 } };
}

async function drawStays(run, from, to) {
  const plot = byId("teachers");
  const { names } = run.teachers;
  plot.hidden = !names.length;
  const more = names.length > MOST_STAYS_ROWS ? ` (the first ${MOST_STAYS_ROWS} of ${names.length})` : "";
  byId("stays-hint").textContent = names.length ? `Above it are the teachers that computed labels${more}: a bar from when one had ` +
    "passed its admission check until it left, a cross where one was refused. " : "";
  if (!names.length) return Plotly.purge(plot);
  const { stays, refusals } = run.teachers;
  const last = Math.max(1, ...stays.start.map((start, row) => start + stays.length[row]), ...refusals.time);
  naspipe.isDrawing = true;
  await draw("teachers", staysChart(run, run.end_ns ? from : 0, run.end_ns ? to : last));
  naspipe.isDrawing = false;
  if (!plot.hasZoom) plot.on("plotly_relayout", onZoom);
  plot.hasZoom = true;
  return undefined;
}

function drawTaught(run) {
  const { counted, counts, seconds_missing: missing, audits_missed: audits } = run.teachers;
  byId("teachers-section").hidden = !counts.length;
  byId("teachers-hint").textContent = `Stages waited ${duration(missing * SECOND)} in all for labels that had not come` +
    (audits ? `; ${audits} audits had no second teacher in time.` : ".");
  fillTable("taught", counts.length ? ["teacher", ...counted] : null, counts);
}
