// Sums of gradients between groups: a lane of the timeline, and a table.

const SUM_COLOUR = REASONS.reduction[0];

function sumText(run, row) {
  const { sums } = run;
  const end = sums.start[row] + sums.length[row];
  const waited = sums.waited[row] ? `its WRITE waited ${duration(sums.waited[row])}` : "its WRITE did not wait for it";
  return `<b>sum of layer ${layerName(run, sums.layer[row])}</b><br>left stage ${sums.sender[row]} behind the WRITE of ` +
    `pass ${sums.given[row]}, at ${moment(sums.start[row])}<br>joined on stage ${sums.stage[row]} before the WRITE of pass ` +
    `${sums.joined[row]}, by ${moment(end)}<br>own gradients there at ${moment(sums.own[row])}: ${waited}`;
}

// Returns the position of a block's sums in its stage's lane, with the first blocks at the top.
function sumRows(run) {
  const blocks = new Map();
  run.sums.stage.forEach((stage, row) => {
    blocks.set(stage, (blocks.get(stage) || new Set()).add(run.sums.block[row]));
  });
  const rows = new Map([...blocks].map(([stage, found]) => [stage, [...found].sort((one, other) => one - other)]));
  const [offset, width] = LANES_WITH_SUMS.sums;
  return (row) => {
    const own = rows.get(run.sums.stage[row]);
    return [offset + width * own.indexOf(run.sums.block[row]) / own.length, width / own.length];
  };
}

// One bar per sum on the stage that joined it; darker while its WRITE waited only for the sum.
function exactSums(run, rows) {
  const { sums } = run;
  const place = sumRows(run);
  const bars = (name, part) => {
    const own = rows.map((row) => ({ row, stage: sums.stage[row], text: sumText(run, row), ...part(row) })).filter((bar) => bar.length > 0);
    const trace = barTrace(own, [own.map((bar) => place(bar.row)[0]), own.map((bar) => place(bar.row)[1] * 0.85)], name);
    return { ...trace, meta: "sums", showlegend: own.length > 0 };
  };
  const whole = bars("sum under way", (row) => ({ start: sums.start[row], length: sums.length[row] }));
  whole.marker.color = "rgba(122,91,214,0.35)";
  const late = bars("a WRITE waits for it", (row) => {
    const from = Math.max(sums.start[row], sums.own[row]);
    return { start: from, length: sums.waited[row] ? sums.own[row] + sums.waited[row] - from : 0 };
  });
  late.marker.color = SUM_COLOUR;
  return [whole, late];
}

// Merges sums that overlap, or that are less than a pixel apart, to one bar.
function mergedSums(run, rows, pixel) {
  const { sums } = run;
  const bars = [];
  const open = new Map();
  for (const row of rows) {
    const [stage, start, end] = [sums.stage[row], sums.start[row], sums.start[row] + sums.length[row]];
    const last = open.get(stage);
    if (last && start - last.end < pixel) {
      Object.assign(last, { end: Math.max(last.end, end), count: last.count + 1, late: last.late + (sums.waited[row] > 0) });
    } else {
      const bar = { stage, start, end, count: 1, late: Number(sums.waited[row] > 0), row: -1 };
      open.set(stage, bar);
      bars.push(bar);
    }
  }
  const drawn = bars.map((bar) => ({ ...bar, length: bar.end - bar.start,
    text: `<b>${bar.count} sums for stage ${bar.stage}</b><br>from ${moment(bar.start)}, ${duration(bar.end - bar.start)}<br>` +
      `${bar.late} WRITEs waited for theirs; zoom in for each` }));
  const trace = { ...barTrace(drawn, LANES_WITH_SUMS.sums, "sum under way"), meta: "sums", showlegend: true };
  trace.marker.color = "rgba(122,91,214,0.35)";
  return [trace];
}

function sumTraces(run, rows, pixel, isExact) {
  if (!isExact) return mergedSums(run, rows, pixel);
  const { sums } = run;
  const [offset, width] = LANES_WITH_SUMS.sums;
  const left = { type: "scatter", mode: "markers", name: "sum leaves", meta: "sums", hoverinfo: "text",
    x: rows.map((row) => sums.start[row] / SECOND), y: rows.map((row) => sums.sender[row] + offset + width / 2),
    customdata: rows, hovertext: rows.map((row) => sumText(run, row)),
    marker: { symbol: "triangle-right", size: 8, color: SUM_COLOUR } };
  return [...exactSums(run, rows), left];
}

function drawRoutes(run) {
  const { routes } = run;
  byId("routes-section").hidden = !routes.length;
  byId("sums-hint").textContent = routes.length ? "Below it are the sums of gradients between groups: a mark where one left, " +
    "a bar from then until it was joined here, darker where a WRITE had everything else. " : "";
  const rows = routes.map(({ sender, stage, sums, way_ns: way, waits, waited_ns: waited }) =>
    [`stage ${sender} to ${stage}`, sums, duration(way / sums), waits, waits ? duration(waited / waits) : "–"]);
  fillTable("routes", routes.length ? ["", "sums", "under way, mean", "WRITEs that waited", "each, mean"] : null, rows);
}
