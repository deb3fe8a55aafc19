// Groups a run's metrics into charts.

const ACTIONS = [
  [["agent/web_searches", "web"], ["agent/vdb_searches", "vdb"], ["agent/rerank_calls", "rerank"], ["agent/fetched_pages", "fetch"]],
  [["agent/inserts", "insert"], ["agent/updates", "update"], ["agent/deletes", "delete"], ["agent/skips", "skip"], ["agent/failed_calls", "failed"]],
];
const ROUNDS = [["agent/search_rounds", "search rounds"], ["agent/tool_turns", "tool turns"], ["tool_turns/mean", "tool turns"]];
const LEARNING = [
  ["loss", "Loss"], ["gradients/norm", "Gradient norm"], ["lr", "Learning rate"], ["policy/entropy", "Entropy"],
  ["policy/kl", "KL to the reference"], ["policy/clip_fraction", "Clipped share"], ["policy/ratio_max", "Largest ratio"],
  ["policy/logprob_gap_max", "Engine against trainer, largest log-prob gap"], ["tokens/trainable_ratio", "Share of tokens trained on"],
];

function tone(i) {
  return `s${i % 8}`;
}

/** One curve for each run that has the tag. */
function curves(runs, tag, { name = null, of = "metrics" } = {}) {
  return runs
    .map((run, i) => ({ name: runs.length > 1 ? run.name : name || words(tag), tone: tone(i), x: run[of].step, y: run[of].tags[tag], run: i }))
    .filter((one) => one.y);
}

/** The same figure from the run's dev evaluations, as points. */
function devCurves(runs, tag) {
  const several = runs.length > 1;
  return curves(runs, tag).map((one) => ({ ...one, name: several ? `${one.name}, dev` : "dev", tone: several ? one.tone : "s1", sparse: true }));
}

/** The held-out results of start and end weights, from their recorded episodes. */
function heldOut(runs, column) {
  const found = [];
  return {
    marks: () => found,
    load: (columns) => {
      found.length = 0;
      const means = meansByFile(columns, column, overview);
      overview.files.forEach((file, i) => {
        const isEnd = file.policy === "end";
        if (file.mode !== "greedy" || !(isEnd || file.policy === "start") || !Number.isFinite(means[i].center)) return;
        const run = runs[file.run], several = runs.length > 1;
        if (several && !isEnd) return;
        const name = several ? `${run.name}, held-out` : `held-out, ${file.policy}`;
        found.push({ x: isEnd ? Math.max(...run.metrics.step, 0) : run.metrics.step[0] ?? 0, y: means[i].center, low: means[i].low,
          high: means[i].high, name, tone: several ? tone(file.run) : "s2" });
      });
    },
  };
}

/** Intervals of the training means by step, available once the index is loaded. */
function trainBands(runs, column) {
  const bands = runs.map(() => null);
  return {
    band: (i, steps) => () => bands[i] && { low: steps.map((step) => bands[i].get(step)?.low ?? null), high: steps.map((step) => bands[i].get(step)?.high ?? null) },
    load: (columns) => {
      const means = meansByFile(columns, column, overview);
      runs.forEach((_, run) => {
        bands[run] = new Map(overview.files.flatMap((file, i) => (file.run === run && file.policy === "train" ? [[file.step, means[i]]] : [])));
      });
    },
  };
}

/** A labelled curve with its band, its dev evaluations and its held-out results. */
function outcomeChart(runs, title, tag, column, options) {
  const bands = trainBands(runs, column), held = heldOut(runs, column);
  const series = curves(runs, tag, { name: "train" });
  for (const one of series) {
    const band = bands.band(one.run, one.x);
    one.band = () => band() || { low: [], high: [] };
  }
  const card = lineChart({ title, note: "band: 95 %, over tasks", series: [...series, ...devCurves(runs, `dev/${column}`)], marks: held.marks, ...options });
  if (card) {
    card.classList.add("main");
    card.late = (columns) => {
      bands.load(columns);
      held.load(columns);
      card.chart.draw();
    };
  }
  return card;
}

/** [name, values] of all tags below a prefix. */
function below(run, prefix, of = "metrics") {
  return Object.entries(run[of].tags).filter(([tag]) => tag.startsWith(prefix)).map(([tag, y]) => ({ name: words(tag.slice(prefix.length)), tag, y }));
}

function actionLayers(run) {
  const tags = run.metrics.tags;
  const calls = below(run, "agent/calls/");
  if (calls.length) return calls;
  const group = ACTIONS.find((rows) => rows.some(([tag]) => known(tags[tag] || []).some((v) => v !== 0))) || [];
  return group.filter(([tag]) => tags[tag]).map(([tag, name]) => ({ name, y: tags[tag] }));
}

function roundsOf(run) {
  const found = ROUNDS.find(([tag]) => run.metrics.tags[tag]);
  return found ? { name: found[1], y: run.metrics.tags[found[0]] } : null;
}

/** Seconds of a step by stage: from the profile if the run kept one, else from its clocks. */
function stageLayers(run) {
  if (run.profile && run.profile.step.length) {
    return { steps: run.profile.step, note: "seconds of a step, by stage", layers: below(run, "", "profile").filter((one) => one.tag !== "total") };
  }
  const timings = run.timings || { step: [], tags: {} };
  const layers = ["time/generation", "time/train", "time/reward", "time/checkpoint", "time/sync"].filter((tag) => timings.tags[tag])
    .map((tag) => ({ name: words(tag), y: timings.tags[tag] }));
  return { steps: timings.step, note: "seconds of a step; stages may overlap", layers };
}

function ratioOf(run, part, whole) {
  const parts = run.metrics.tags[part], wholes = run.metrics.tags[whole];
  return parts && wholes ? parts.map((v, i) => (wholes[i] ? v / wholes[i] : null)) : null;
}
