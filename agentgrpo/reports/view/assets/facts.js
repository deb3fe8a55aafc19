// Facts about an episode besides its text.

function chips(episode) {
  const chip = (name, value, kind = "") => h("div", { class: `chip ${kind}` }, h("span", null, name), h("b", null, value));
  const a = advantageOf(episode), right = episode.correctness;
  const total = Object.values(episode.costs || {}).reduce((x, y) => x + (y || 0), 0);
  return h("div", { class: "chips" },
    chip("reward", num(episode.reward)),
    chip("correctness", num(right), gradeName(right)),
    Number.isFinite(a) ? chip("advantage", signed(a), level(a, reach)) : null,
    chip("exit", String(episode.exit ?? NONE).replaceAll("_", " ")),
    episode.status && episode.status !== "completed" ? chip("status", episode.status, "wrong") : null,
    episode.dropped ? chip("dropped", episode.dropped, "partly") : null,
    chip("calls", num((episode.tools || []).length)),
    total ? chip("cost", num(total)) : null,
    episode.policy_version === null || episode.policy_version === undefined ? null : chip("weights", `v${episode.policy_version}`));
}

/** "" if the episode was not judged. */
function gradeName(correctness) {
  if (correctness === null || correctness === undefined || Number.isNaN(correctness)) return "";
  return correctness >= 1 ? "right" : correctness > 0 ? "partly" : "wrong";
}

/** The mean advantage of the sampled messages. */
function advantageOf(episode) {
  return mean((episode.messages || []).filter((m) => m.sampled).map((m) => m.advantage));
}

/** Signed bars from a common zero, and their sum. */
function termBars(terms, reward) {
  const rows = Object.entries(terms || {}).filter(([, v]) => typeof v === "number").sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  const some = rows.filter(([, v]) => v !== 0), none = rows.filter(([, v]) => v === 0);
  const low = Math.min(0, ...some.map(([, v]) => v)), high = Math.max(0, ...some.map(([, v]) => v)), span = high - low || 1;
  const bar = ([name, value]) => {
    const mark = set(set(h("i", { class: value < 0 ? "under" : "over" }), "from", ((value < 0 ? value : 0) - low) / span), "size", Math.abs(value) / span);
    return h("tr", null, h("th", { scope: "row" }, words(name)), h("td", { class: "barcell" }, set(h("span", { class: "meter" }, mark), "zero", -low / span)), h("td", { class: "n" }, signed(value)));
  };
  return [h("table", { class: "bars" }, h("tbody", null, some.map(bar)),
    reward === null || reward === undefined ? null : h("tfoot", null, h("tr", null, h("th", { scope: "row" }, "reward"), h("td"), h("td", { class: "n" }, num(reward))))),
  none.length ? h("p", { class: "soft small" }, `zero: ${none.map(([name]) => words(name)).join(", ")}`) : null];
}

function numbersList(values) {
  const rows = Object.entries(values || {}), some = rows.filter(([, v]) => v !== 0 && v !== null);
  const list = (part) => pairs(part.map(([key, v]) => [words(key), typeof v === "number" ? num(v) : typeof v === "object" ? JSON.stringify(v) : String(v)]));
  return [list(some), rows.length > some.length ? details(`${rows.length - some.length} that are zero`, () => list(rows.filter((row) => !some.includes(row)))) : null];
}

function factsPanel(episode, columns, number) {
  const section = (title, ...content) => h("section", { class: "panel fact" }, h("h3", null, title), content);
  const some = (object) => Object.keys(object || {}).length > 0;
  const { chunks, questions, facts, ...metadata } = episode.metadata || {};
  const others = elsewhere(columns, number);
  return h("aside", { class: "facts", "aria-label": "Facts of the episode" },
    questions && episode.memory?.length ? null : section("Answer", h("p", { class: "answer", dir: "auto" }, episode.answer === null || episode.answer === undefined || episode.answer === "" ? h("span", { class: "soft" }, "none") : String(episode.answer)),
      (episode.references || []).length ? [h("h4", null, "References"), h("ul", { class: "plain" }, episode.references.map((r) => h("li", { dir: "auto" }, r)))] : null),
    section("Reward", termBars(episode.terms, episode.reward), some(episode.dimensions) ? details("Dimensions", () => termBars(episode.dimensions, null)) : null),
    episode.reason ? section("Judge", h("p", { dir: "auto" }, episode.reason)) : null,
    episode.error ? section("Error", pairs(Object.entries(episode.error).map(([k, v]) => [k, typeof v === "object" ? JSON.stringify(v) : String(v)]))) : null,
    (episode.citations || []).length ? section("Citations", h("ul", { class: "plain" }, episode.citations.map((c) => h("li", null, h("code", null, c.marker || c.doc_id), " ", h("span", { dir: "auto" }, c.text || ""))))) : null,
    (episode.retrieved_ids || []).length ? section("Retrieved", h("p", { class: "ids" }, episode.retrieved_ids.map((id) => h("code", null, id)))) : null,
    some(episode.costs) ? section("Costs", numbersList(episode.costs)) : null,
    some(episode.timings) ? section("Time", pairs(Object.entries(episode.timings).filter(([, v]) => typeof v === "number").map(([k, v]) => [words(k).replace(/^time /, ""), seconds(v)]))) : null,
    some(episode.metrics) ? section("Metrics", numbersList(episode.metrics)) : null,
    some(metadata) ? section("Task", pairs(Object.entries(metadata).map(([k, v]) => [words(k), typeof v === "object" ? JSON.stringify(v) : String(v)]))) : null,
    others.length ? section("The same task elsewhere", h("ul", { class: "plain" }, others.slice(-12).map(([file, i]) => h("li", null,
      h("a", { href: linkTo({ view: "episode", episode: i }) }, overview.runs.length > 1 ? `${overview.runs[overview.files[file].run].name}, ` : "", placeName(overview.files[file])),
      h("span", { class: "soft" }, ` reward ${num(columns.reward[i])}`))))) : null);
}
