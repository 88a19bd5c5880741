// The searches of a run: score against cost, with the front, and the best subnets.

const SCORE_NAMES = { loss: "loss", top1: "top-1", top5: "top-5", bleu: "BLEU", synflow: "synflow", naswot: "NASWOT" };
const COST_NAMES = { params: "parameters", flops: "operations of one sample", latency_ms: "ms of one batch" };
const scoreName = (name) => SCORE_NAMES[name] ?? name;
const SHARES = new Set(["top1", "top5"]);

const scoreText = (name, value) => (value === null ? "–" : SHARES.has(name) ? percent(value) : value.toPrecision(5));
const costText = (name, value) => (value === null ? "–" : name === "latency_ms" ? value.toFixed(2) : Math.round(value).toLocaleString("en"));

function searchChart(search, cost) {
  const scores = search.scores[search.score];
  const costs = search.costs[cost];
  const all = scores.map((_, place) => place).filter((place) => scores[place] !== null && costs[place] !== null);
  const points = (places) => ({ x: places.map((place) => costs[place]), y: places.map((place) => scores[place]),
    customdata: places, hovertext: places.map((place) => `subnet ${place}: ${scoreName(search.score)} ` +
      `${scoreText(search.score, scores[place])}, ${costText(cost, costs[place])}<br>${search.choices[place]}`), hoverinfo: "text" });
  const traces = [
    { type: "scatter", mode: "markers", name: "judged", ...points(all),
      marker: { size: 6, opacity: 0.75, color: all, colorscale: "Blues", reversescale: false, cmin: -all.length / 2,
        cmax: Math.max(1, ...all) } },
    { type: "scatter", mode: "lines+markers", name: "front", ...points(search.fronts[cost]),
      line: { color: "#EE6677", width: 1.8, shape: "hv" }, marker: { size: 7, color: "#EE6677" } },
    { type: "scatter", mode: "markers", name: "best", ...points(search.best.slice(0, 1)),
      marker: { size: 15, symbol: "circle-open", color: theme().text, line: { width: 2 } } },
  ];
  const axis = title(scoreName(search.score) + (search.score === "loss" ? " (less is better)" : ""));
  return [traces, layout(360, { xaxis: title(COST_NAMES[cost]), hovermode: "closest", showlegend: true,
    yaxis: { ...axis, ...(SHARES.has(search.score) ? { tickformat: ".0%" } : {}) } })];
}

function showSearch(run, place, cost) {
  const search = run.searches[place];
  byId("search-facts").textContent = `${search.strategy}, ${search.choices.length} subnets; darker: judged later`;
  const scores = Object.keys(search.scores).filter((name) => search.scores[name].some((value) => value !== null));
  const costs = Object.keys(COST_NAMES);
  fillTable("best", ["subnet", ...scores.map(scoreName), ...costs.map((name) => COST_NAMES[name]), "choices"],
    search.best.map((subnet) => [subnet, ...scores.map((name) => scoreText(name, search.scores[name][subnet])),
      ...costs.map((name) => costText(name, search.costs[name][subnet])), search.choices[subnet]]));
  return Promise.all([draw("found", searchChart(search, cost)), showWinning(search), showAlone(search)]);
}

function drawSearches(run) {
  byId("search-section").hidden = !run.searches.length;
  if (!run.searches.length) return undefined;
  const [which, cost] = [byId("search"), byId("search-cost")];
  which.replaceChildren(...run.searches.map((search, place) => element("option", search.name, { value: String(place) })));
  const known = Object.keys(COST_NAMES).filter((name) => run.searches[0].costs[name].some((value) => value !== null));
  cost.replaceChildren(...known.map((name) => element("option", COST_NAMES[name], { value: name })));
  const show = () => showSearch(run, Number(which.value), cost.value);
  which.onchange = cost.onchange = show;
  return show();
}
