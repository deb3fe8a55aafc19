// Results before and after training, with intervals, and the run's verdict.

function verdictPill(verdict) {
  if (!verdict) return null;
  const kind = /pass/i.test(verdict) ? "good" : /fail/i.test(verdict) ? "bad" : "plain";
  return h("span", { class: `pill ${kind}` }, verdict);
}

function evaluationSection(runs) {
  const found = runs.filter((run) => run.evaluation);
  if (!found.length) return null;
  return h("section", { class: "wide", "aria-label": "Evaluation" },
    heading(2, "Before and after"), found.map((run) => evaluationPanel(run, runs.length > 1)));
}

function evaluationPanel(run, named) {
  const eval_ = run.evaluation;
  const modes = ["greedy", "sampled"].filter((mode) => eval_[mode] && typeof eval_[mode] === "object");
  const body = h("div", { class: "evaluation" });
  const show = (mode) => replace(body, modes.length ? evaluationTable(run, eval_, eval_[mode]) : null);
  show(modes[0]);
  return h("div", { class: "panel" },
    h("div", { class: "row spread" },
      h("p", { class: "lead" }, named ? h("b", null, run.name, " ") : null, verdictPill(eval_.verdict), " ", eval_.reason || "",
        Number.isFinite(eval_.n) ? h("span", { class: "soft" }, ` \u00b7 ${num(eval_.n)} held-out tasks, paired`) : null),
      modes.length > 1 ? choice("Decoding", modes.map((m) => [m, m]), modes[0], show) : null),
    body);
}

function figureName(run, key) {
  const labels = run.labels || {};
  return labels[key] || labels[`agent/${key}`] || words(key);
}

function evaluationTable(run, eval_, mode) {
  const { baseline = {}, trained = {}, difference = {} } = mode;
  const keys = [...new Set([...Object.keys(baseline), ...Object.keys(trained)])].filter((k) => typeof (trained[k] ?? baseline[k]) === "number");
  const oracle = eval_.oracle && typeof eval_.oracle === "object" ? eval_.oracle : null;
  const spanOf = (d) => Math.max(...d.map(Math.abs), 1e-12);
  const row = (key) => {
    const d = Array.isArray(difference[key]) && difference[key].length === 3 ? difference[key] : null;
    return h("tr", null, h("th", { scope: "row" }, figureName(run, key)), h("td", { class: "n" }, num(baseline[key])), h("td", { class: "n" }, num(trained[key])),
      h("td", { class: "n strong" }, d ? signed(d[0]) : NONE), h("td", { class: "n soft" }, d ? `[${num(d[1])}, ${num(d[2])}]` : ""),
      h("td", null, d ? intervalMark(d, spanOf(d)) : null), oracle ? h("td", { class: "n soft" }, num(oracle[key])) : null);
  };
  return [
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Evaluation table" }, h("table", { class: "figures" },
      h("thead", null, h("tr", null, ["", "before", "after", "change", "95 %", "from zero", ...(oracle ? ["ideal"] : [])].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", null, keys.map(row)))),
    otherBaselines(run, eval_), kindsTable(run, mode, "kinds", "kind of task"), kindsTable(run, mode, "sources", "data source")];
}

function otherBaselines(run, eval_) {
  const rows = Object.entries(eval_.baselines || {}).filter(([, figures]) => figures && typeof figures === "object");
  if (!rows.length) return null;
  const flat = rows.map(([name, figures]) => [name, figures.greedy?.trained || figures.figures || figures.greedy || figures]);
  const keys = [...new Set(flat.flatMap(([, f]) => Object.keys(f).filter((k) => typeof f[k] === "number")))].slice(0, 12);
  if (!keys.length) return null;
  return details(`Baselines (${rows.length})`, () => h("div", { class: "scroll" }, h("table", { class: "figures" },
    h("thead", null, h("tr", null, h("th"), keys.map((k) => h("th", { scope: "col" }, figureName(run, k))))),
    h("tbody", null, flat.map(([name, f]) => h("tr", null, h("th", { scope: "row" }, name), keys.map((k) => h("td", { class: "n" }, num(f[k])))))))));
}

function kindsTable(run, mode, of, called) {
  const kinds = Object.entries(mode[of] || {});
  if (kinds.length < 2) return null;
  const first = kinds[0][1].trained || {};
  const named = ["success", ...Object.keys(run.labels || {}).map((tag) => tag.split("/").pop())];
  const keys = Object.keys(first).filter((k) => typeof first[k] === "number" && (named.length === 1 || named.includes(k))).slice(0, 6);
  return details(`By ${called} (${kinds.length})`, () => h("div", { class: "scroll" }, h("table", { class: "figures" },
    h("thead", null, h("tr", null, h("th", { scope: "col" }, called.split(" ")[0] === "data" ? "source" : "kind"), keys.map((k) => h("th", { scope: "col" }, figureName(run, k))))),
    h("tbody", null, kinds.map(([kind, both]) => h("tr", null, h("th", { scope: "row" }, kind),
      keys.map((k) => h("td", { class: "n" }, h("span", { class: "soft" }, num(both.baseline?.[k])), " \u2192 ", num(both.trained?.[k])))))))), { open: !isNarrow() });
}

/** The main figures, shown first. */
function tiles(runs) {
  if (runs.length > 1) return null;
  const run = runs[0], eval_ = run.evaluation, mode = eval_ && (eval_.greedy || eval_.sampled);
  const made = [];
  const tile = (name, value, ...more) => made.push(h("div", { class: "tile" }, h("span", { class: "name" }, name), h("strong", null, value), h("span", { class: "more" }, more)));
  tile("Steps", `${num(run.steps_done)}`, run.max_steps ? `of ${num(run.max_steps)}` : "", run.finished ? "" : run.stopped ? [" \u00b7 ", h("span", { title: run.stopped }, "stopped")] : " \u00b7 under way");
  if (mode && mode.difference) {
    const keys = [...new Set(["correctness", "success", "reward", ...Object.keys(run.labels || {}).map((t) => t.split("/").pop()), "cost"])];
    for (const key of keys.filter((k) => Array.isArray(mode.difference[k])).slice(0, 7)) {
      const d = mode.difference[key];
      tile(figureName(run, key), num(mode.trained[key]), "was ", num(mode.baseline[key]), h("em", null, intervalText(d)));
    }
  } else {
    for (const tag of [...new Set(["reward/mean", "correctness", ...Object.keys(run.labels || {}), "cost/episode"])].filter((t) => run.metrics.tags[t]).slice(0, 7)) {
      const values = known(run.metrics.tags[tag]);
      if (values.length) tile(run.labels?.[tag] || (tag === "reward/mean" ? "reward" : words(tag)), num(mean(values.slice(-5))), "was ", num(mean(values.slice(0, 5))), h("em", null, "means of five steps"));
    }
  }
  tile("Episodes", num(overview.num_episodes), h("a", { href: linkTo({ view: "episodes", filter: emptyFilter(), at: null }) }, "look at them"));
  return h("div", { class: "tiles" }, made);
}
