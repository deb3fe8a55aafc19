// The run as a whole.

function overviewView() {
  const runs = overview.runs;
  let layered = 0;
  const smooth = () => state.smooth;
  const page = h("div", { class: "overview" });
  const redraw = () => { for (const chart of charts) chart.draw(); };
  const controls = h("div", { class: "row controls" },
    choice("Smoothing", [[1, "as measured"], [5, "5 steps"], [15, "15"], [51, "51"]], state.smooth, (v) => { note({ smooth: v }); redraw(); }),
    h("span", { class: "soft tip" }, "Point at a chart to read a step in all of them; double-click to see its episodes."));
  const stacks = h("div", { class: "grid" });
  const showStacks = () => {
    for (const chart of [...charts]) if (stacks.contains(chart.box)) { charts.delete(chart); sizes.unobserve(chart.box); }
    replace(stacks, stackedCharts(runs[layered], smooth));
  };
  showStacks();
  const outcome = [
    outcomeChart(runs, "Reward", "reward/mean", "reward", { smooth }),
    outcomeChart(runs, "Correctness", "correctness", "correctness", { smooth, zero: true }),
    runs.some((run) => !run.metrics.tags["reward/mean"]) && lineChart({ title: "Loss", series: curves(runs, "loss"), smooth }),
  ].filter(Boolean);
  add(page, [
    damageNote(runs),
    stopNote(runs),
    runs.length > 1 ? runsTable(runs) : tiles(runs),
    heading(2, "Learning", controls),
    outcome.length ? h("div", { class: "grid" }, outcome, figureCharts(runs, smooth)) : nothingYet(),
    stacks.children.length ? [heading(2, "What it does, and what it is paid for",
      runs.length > 1 ? choice("Run", runs.map((run, i) => [i, run.name]), 0, (i) => { layered = i; showStacks(); }) : null), stacks] : null,
    evaluationSection(runs),
    group("Groups and lengths", healthCharts(runs, smooth)),
    group("Optimisation", LEARNING.map(([tag, title]) => lineChart({ title, series: curves(runs, tag), smooth })).filter(Boolean)),
    allMetrics(runs),
  ]);
  indexed().then((columns) => { for (const card of outcome) if (card.isConnected) card.late(columns); }).catch(shown);
  return page;
}

/** Files that could not be read. */
function damageNote(runs) {
  const lines = [...runs.flatMap((run) => run.damage || []), ...overview.files.map((file) => file.damaged).filter(Boolean)];
  if (!lines.length) return null;
  return h("div", { class: "panel damage", role: "note" }, h("b", null, `${count(lines.length, "file")} could not be read whole`), ": what could be is shown.",
    details("which", () => h("ul", { class: "plain" }, lines.slice(0, 200).map((line) => h("li", null, h("code", null, line))))));
}

/** The reasons why runs stopped early. */
function stopNote(runs) {
  const said = runs.filter((run) => run.stopped);
  if (!said.length) return null;
  return h("div", { class: "panel damage", role: "note" }, said.map((run) => h("div", null, runs.length > 1 ? [h("b", null, run.name), ": "] : null, run.stopped)));
}

function nothingYet() {
  return h("p", { class: "empty" }, "No step has been measured yet: curves appear after the first one.");
}

function group(title, cards) {
  return cards.length ? [heading(2, title), h("div", { class: "grid" }, cards)] : null;
}

function figureCharts(runs, smooth) {
  const labels = Object.assign({}, ...runs.map((run) => run.labels || {}));
  return Object.entries(labels)
    .filter(([tag]) => !["correctness", "reward/mean", "cost/episode"].includes(tag))
    .map(([tag, name]) => lineChart({
      title: name[0] ? name[0].toUpperCase() + name.slice(1) : tag,
      note: "per episode",
      series: [...curves(runs, tag, { name: "train" }), ...(tag.startsWith("agent/") ? devCurves(runs, `dev/${tag.slice(6)}`) : [])],
      zero: true,
      smooth,
    }));
}

function stackedCharts(run, smooth) {
  const tags = run.metrics.tags, x = run.metrics.step, stages = stageLayers(run);
  const wide = (card) => { card?.classList.add("main"); return card; };
  return [
    wide(stackChart({ title: "Reward by term", note: "mean of episodes", x, layers: below(run, "reward/term/"), total: tags["reward/mean"] && { name: "reward", y: tags["reward/mean"] }, smooth })),
    stackChart({ title: "Actions", note: "calls per episode", x, layers: actionLayers(run), total: roundsOf(run), smooth }),
    stackChart({ title: "How episodes end", note: "share", x, layers: below(run, "agent/exit_"), format: percent, smooth }),
    wide(stackChart({ title: "Time", note: stages.note, x: stages.steps, layers: stages.layers, format: seconds, smooth })),
    lineChart({ title: "Sampled tokens per second", series: curves([run], "throughput/sampled_tokens_per_s", { of: "timings" }), zero: true, smooth }),
    lineChart({ title: "Cost of an episode", note: "as rewarded", series: curves([run], "cost/episode"), zero: true, smooth }),
  ];
}

function healthCharts(runs, smooth) {
  const share = runs.map((run, i) => ({ name: runs.length > 1 ? run.name : "zero variance", tone: tone(i), x: run.metrics.step, y: ratioOf(run, "groups/degenerate", "groups/total") }))
    .filter((one) => one.y);
  const reach = (tag) => curves(runs, `${tag}/mean`).map((one) => {
    const tags = runs[one.run].metrics.tags;
    return runs.length > 1 ? one : { ...one, name: "mean", band: () => ({ low: tags[`${tag}/min`] || [], high: tags[`${tag}/max`] || [] }) };
  });
  const span = runs.length > 1 ? "mean of episodes" : "band: least to most";
  return [
    lineChart({ title: "Zero-variance groups", note: "all rewards equal", series: share, zero: true, format: percent, smooth }),
    lineChart({ title: "Spread of rewards", note: "standard deviation", series: curves(runs, "reward/std"), zero: true, smooth }),
    lineChart({ title: "Sampled tokens", note: span, series: reach("response_len"), zero: true, smooth }),
    lineChart({ title: "Turns with tools", note: span, series: reach("tool_turns"), zero: true, smooth }),
  ].filter(Boolean);
}

function runsTable(runs) {
  const keys = ["reward/mean", "correctness"];
  const last = (run, tag) => num(mean(known(run.metrics.tags[tag] || []).slice(-5)));
  return h("div", { class: "panel scroll" }, h("table", { class: "figures runs" },
    h("thead", null, h("tr", null, ["run", "task", "environment", "model", "steps", "reward", "correctness", "verdict"].map((t) => h("th", { scope: "col" }, t)))),
    h("tbody", null, runs.map((run, i) => h("tr", { class: tone(i) }, h("th", { scope: "row" }, h("i", { class: "key" }), run.name), h("td", null, run.task || NONE),
      h("td", null, run.agent || NONE), h("td", null, run.model || NONE), h("td", { class: "n" }, num(run.steps_done)), keys.map((k) => h("td", { class: "n" }, last(run, k))),
      h("td", null, verdictPill(run.verdict) || (run.finished ? NONE : run.stopped ? h("span", { title: run.stopped }, "stopped") : "under way")))))));
}

function allMetrics(runs) {
  const tags = [...new Set(runs.flatMap((run) => Object.keys(run.metrics.tags)))].sort();
  if (!tags.length) return null;
  const box = h("div", { class: "sparks" }), input = h("input", { type: "search", placeholder: "find a metric", "aria-label": "Find a metric", autocomplete: "off", spellcheck: "false", value: state.find });
  const card = (tag) => {
    const found = runs.findIndex((run) => run.metrics.tags[tag]), run = runs[found], values = run.metrics.tags[tag];
    const cell = h("div", { class: "sparkcell" });
    const open = () => {
      cell.className = "sparkcell open";
      replace(cell, lineChart({ title: tag, series: curves(runs, tag), smooth: () => state.smooth }) || h("p", null, "nothing was measured"));
      cell.querySelector(".plot")?.focus();
    };
    return add(cell, [button([h("span", null, tag), spark(run.metrics.step, values, tone(found)), h("b", null, num(known(values).at(-1)))], open, { "aria-label": `${tag}: draw it large` })]);
  };
  const show = () => {
    const text = input.value.trim().toLowerCase();
    replace(box, tags.filter((tag) => tag.toLowerCase().includes(text)).map(card));
  };
  input.addEventListener("input", () => { note({ find: input.value }); show(); });
  return details(`All ${tags.length} metrics`, () => { show(); return [input, box]; }, { class: "all", open: Boolean(state.find) });
}
