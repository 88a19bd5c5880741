// Winning choices: for each decision of a search, how often the best subnets have each choice.

function winningText(decision, choice, best) {
  const gain = choice.gain === null ? "no mean to compare"
    : `mean score with it ${choice.gain < 0 ? "worse" : "better"} by ${Math.abs(choice.gain).toPrecision(3)}`;
  return `${decision.name}=${choice.name}: ${percent(choice.best)} of the best ${best}, ` +
    `${percent(choice.judged)} of all<br>${gain}`;
}

const byNumber = (one, other) => Number(one) - Number(other) || (one < other ? -1 : one > other ? 1 : 0);

function winningChart({ best, decisions }) {
  const names = [...new Set(decisions.flatMap((each) => each.choices.map((choice) => choice.name)))].sort(byNumber);
  const cells = (value) => names.map((name) => decisions.map((decision) => {
    const choice = decision.choices.find((each) => each.name === name);
    return choice ? value(choice, decision) : null;
  }));
  const isRoomy = decisions.length <= 16 && names.length <= 12;
  const trace = {
    type: "heatmap", x: decisions.map((each) => each.name), y: names, z: cells((choice) => choice.best - choice.judged),
    zmin: -1, zmax: 1, zmid: 0, colorscale: [[0, "#BB5566"], [0.5, theme().card], [1, "#004488"]], xgap: 1, ygap: 1,
    hovertext: cells((choice, decision) => winningText(decision, choice, best)), hoverinfo: "text",
    colorbar: { title: { text: "share of the best<br>less share of all", font: { size: 11 } }, tickformat: ".0%", thickness: 12 },
    ...(isRoomy ? { text: cells((choice) => `${(100 * choice.best).toFixed(0)} %`), texttemplate: "%{text}" } : {}),
  };
  return [[trace], layout(Math.min(600, 174 + 28 * names.length), {
    margin: { l: 56, r: 14, t: 34, b: 44 },
    xaxis: { ...title("decision"), type: "category" }, yaxis: { ...title("choice"), type: "category" } })];
}

function showWinning(search) {
  const { best, decisions } = search.winning;
  byId("winning-section").hidden = !decisions.length;
  if (!decisions.length) return undefined;
  byId("winning-hint").textContent = `Of the best ${best} subnets, how many have each choice; blue where it is more than ` +
    "among all that were judged, red where it is less. Left out is what all subnets have alike, or some have not at all.";
  return draw("winning", winningChart(search.winning));
}
