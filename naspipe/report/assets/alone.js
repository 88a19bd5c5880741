// Reliability of a search's ranking: inherited scores against those of subnets trained alone.

const NOT_RETRAINED = "No subnet of this search was trained alone yet: naspipe retrain RUN --steps N says how far its ranking holds.";

function aloneWords(search) {
  const { alone } = search;
  const how = `Trained alone for ${alone.steps} steps, seed ${alone.seed}; judged by ${alone.judged_by}. `;
  const found = alone.confidence;
  if (!found) return `${how}Fewer than ${alone.fewest} subnets say nothing of the ranking.`;
  const ends = `${found.low.toFixed(2)} to ${found.high.toFixed(2)}`;
  return `${how}Kendall's tau with ${scoreName(alone.compared_by)} alone is ${found.tau.toFixed(2)} (${ends}, 90 %) over ` +
    `${found.subnets} subnets: the better one of two is named in ${found.right_pairs.toFixed(0)} of 100 pairs.`;
}

function aloneChart(search) {
  const { alone } = search;
  const inherited = alone.subnets.map((subnet) => search.scores[search.score][subnet]);
  const reached = alone.scores[alone.compared_by];
  const axis = (name, where) => ({ ...title(`${scoreName(name)} ${where}`), ...(SHARES.has(name) ? { tickformat: ".1%" } : {}) });
  const trace = {
    type: "scatter", mode: "markers+text", x: inherited, y: reached, text: alone.subnets.map(String), textposition: "top center",
    marker: { size: 9, color: "#4477AA" }, hoverinfo: "text",
    hovertext: alone.subnets.map((subnet, place) => `subnet ${subnet}, rank ${alone.ranks[place]}: ` +
      `${scoreText(search.score, inherited[place])} inherited, ${scoreText(alone.compared_by, reached[place])} alone`),
  };
  return [[trace], layout(360, { margin: { l: 56, r: 14, t: 34, b: 44 }, xaxis: axis(search.score, "with the run's weights"), yaxis: axis(alone.compared_by, "alone") })];
}

function showAlone(search) {
  const { alone } = search;
  byId("alone").hidden = byId("retrained").hidden = !alone;
  byId("alone-hint").textContent = alone ? aloneWords(search) : NOT_RETRAINED;
  if (!alone) return undefined;
  const names = Object.keys(alone.scores).filter((name) => alone.scores[name].some((value) => value !== null));
  fillTable("retrained", ["subnet", "rank", `${scoreName(search.score)} inherited`, ...names.map((name) => `${scoreName(name)} alone`), "choices"],
    alone.subnets.map((subnet, place) => [subnet, alone.ranks[place], scoreText(search.score, search.scores[search.score][subnet]),
      ...names.map((name) => scoreText(name, alone.scores[name][place])), search.choices[subnet]]));
  return draw("alone", aloneChart(search));
}
