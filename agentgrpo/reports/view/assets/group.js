// The episodes of one task side by side, with the point where they diverge.

async function groupView() {
  const number = state.episode, columns = await indexed();
  if (!(number < columns.total)) throw new Error(`there is no episode ${number}: the page has ${columns.total}`);
  const numbers = groupOf(columns, number), episodes = await Promise.all(numbers.map(episodeOf));
  const file = overview.files[columns.file[number]], rewards = episodes.map((e) => e.reward);
  const first = numbers.includes(state.to) ? numbers.indexOf(state.to) : best(rewards);
  const mode = state.color || "advantage";
  state = { ...state, color: mode };
  const board = h("div", { class: "board", tabindex: "0", role: "region", "aria-label": "Episodes side by side" });
  const scale = h("span", { class: "legendline" }, legendOf(mode));
  const draw = (to) => {
    const streams = episodes.map(streamOf);
    set(board, "n", numbers.length);
    replace(board, episodes.map((episode, i) => sideCard(episode, numbers[i], i, { to, streams, choose: (place) => { note({ to: numbers[place] }); draw(place); } })));
  };
  draw(first);
  const colors = [...new Map(episodes.flatMap(colorsOf).map((c) => [c[0], c])).values()];
  return h("article", { class: "group" },
    h("header", { class: "episodehead" },
      h("nav", { class: "crumbs", "aria-label": "Where" }, h("a", { href: linkTo({ view: "episodes", at: number }) }, "episodes"), " / ", placeName(file), " / ",
        h("a", { href: linkTo({ view: "episode", episode: number }) }, episodes[numbers.indexOf(number)].id)),
      h("h1", { dir: "auto" }, titleOf(episodes[0])),
      (episodes[0].references || []).length ? h("p", { class: "soft", dir: "auto" }, `reference: ${episodes[0].references.join(" | ")}`) : null),
    h("div", { class: "panel groupfacts" }, rewardStrip(episodes), pairs([
      ["episodes", num(numbers.length)], ["mean reward", num(mean(rewards))], ["standard deviation", num(deviation(rewards))],
      ["right", `${num(episodes.filter((e) => e.correctness >= 1).length)} of ${num(numbers.length)}`],
      ["mean correctness", num(mean(episodes.map((e) => e.correctness)))]])),
    h("div", { class: "row colors" }, choice("Colour tokens by", colors, mode, (name) => { note({ color: name }); replace(scale, legendOf(name)); recolor(board, name); }), scale,
      h("span", { class: "soft small" }, h("i", { class: "t parts swatch" }), "first token that differs from the column marked \u2261; what they share is pale")),
    board,
    heading(2, "Reward by term"), termTable(episodes));
}

function best(rewards) {
  let found = 0;
  rewards.forEach((r, i) => { if ((r ?? -Infinity) > (rewards[found] ?? -Infinity)) found = i; });
  return found;
}

/** Sampled and injected tokens, in order, as texts. */
function streamOf(episode) {
  const found = [];
  for (const message of episode.messages) {
    let start = 0;
    for (const n of message.pieces || [message.text.length]) {
      found.push(message.text.slice(start, start + n));
      start += n;
    }
  }
  return found;
}

/** The length of the common prefix of two token streams. */
function shared(a, b) {
  let n = 0;
  while (n < Math.min(a.length, b.length) && a[n] === b[n]) n++;
  return n;
}

function sideCard(episode, number, place, { to, streams, choose }) {
  const same = place === to ? Infinity : shared(streams[place], streams[to]);
  let offset = 0;
  const text = episode.messages.map((message) => {
    const start = offset;
    offset += message.pieces ? message.pieces.length : 1;
    const mark = (i) => (same === Infinity ? "" : start + Math.max(i, 0) < same ? "same" : start + Math.max(i, 0) === same ? "parts" : "");
    const box = tokenText(message, state.color, mark);
    return h("div", { class: `part ${message.sampled ? "sampled" : "injected"}` }, h("span", { class: "rolename" }, message.role), box);
  });
  const a = advantageOf(episode);
  return h("section", { class: `side ${place === to ? "chosen" : ""}`, "aria-label": `episode ${place}` },
    h("div", { class: "row spread" }, h("a", { href: linkTo({ view: "episode", episode: number }) }, `#${episode.id.split("/").pop()}`),
      button("\u2261", () => choose(place), { class: "pick", title: "compare the others to this one", "aria-label": "compare the others to this one", "aria-pressed": String(place === to) })),
    h("div", { class: "row tight" }, h("span", { class: `big ${gradeName(episode.correctness)}` }, num(episode.reward)),
      Number.isFinite(a) ? h("span", { class: `adv t ${level(a, reach)}` }, signed(a)) : null,
      h("span", { class: "soft small" }, String(episode.exit ?? "").replaceAll("_", " "), episode.dropped ? ` \u00b7 ${episode.dropped}` : "")),
    h("p", { class: "answer", dir: "auto" }, episode.answer === null || episode.answer === undefined ? h("span", { class: "soft" }, "no answer") : String(episode.answer)),
    h("p", { class: "soft small" }, callSummary(episode), same === Infinity ? "" : same >= streams[place].length && same >= streams[to].length ? " \u00b7 the same text" : ` \u00b7 parts at token ${same}`),
    text);
}

function callSummary(episode) {
  const counts = new Map();
  for (const call of episode.tools || []) {
    const name = call.arguments && typeof call.arguments.retriever === "string" ? call.arguments.retriever : call.name;
    counts.set(name, (counts.get(name) || 0) + 1);
  }
  return counts.size ? [...counts].map(([name, n]) => `${n}\u00d7 ${name}`).join(", ") : "no calls";
}

/** Each reward as a dot, their mean as a line. */
function rewardStrip(episodes) {
  const values = episodes.map((e) => e.reward), found = known(values);
  if (!found.length) return null;
  const width = 320, x = linear(domainOf(found), [12, width - 12]), at = mean(found);
  const seen = new Map();
  const dots = values.map((v, i) => {
    if (v === null || v === undefined) return null;
    const key = Math.round(x(v) / 9), stack = seen.get(key) || 0;
    seen.set(key, stack + 1);
    return [v, stack, i];
  }).filter(Boolean);
  const height = 42 + 8 * Math.max(...seen.values());
  const circle = ([v, stack, i]) => s("circle", { class: gradeName(episodes[i].correctness), cx: x(v), cy: height - 17 - stack * 8, r: 4 },
    s("title", null, `${episodes[i].id}: ${num(v)}`));
  return s("svg", { class: "strip", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Rewards from ${num(Math.min(...found))} to ${num(Math.max(...found))}` },
    s("line", { class: "axis", x1: 8, x2: width - 8, y1: height - 11, y2: height - 11 }), s("line", { class: "mean", x1: x(at), x2: x(at), y1: 4, y2: height - 8 }), dots.map(circle),
    s("text", { class: "tick", x: 8, y: height - 1 }, num(Math.min(...found))), s("text", { class: "tick", x: width - 8, y: height - 1, "text-anchor": "end" }, num(Math.max(...found))));
}

function termTable(episodes) {
  const names = [...new Set(episodes.flatMap((e) => Object.keys(e.terms || {})))].filter((name) => episodes.some((e) => e.terms?.[name]));
  const most = Math.max(...episodes.flatMap((e) => names.map((name) => Math.abs(e.terms?.[name] || 0))), 1e-9);
  return h("div", { class: "panel scroll" }, h("table", { class: "figures" },
    h("thead", null, h("tr", null, h("th"), episodes.map((e) => h("th", { scope: "col", class: "n" }, `#${e.id.split("/").pop()}`)))),
    h("tbody", null, names.map((name) => h("tr", null, h("th", { scope: "row" }, words(name)),
      episodes.map((e) => h("td", { class: `n t ${level(e.terms?.[name] || 0, most)}` }, e.terms?.[name] ? signed(e.terms[name], 2) : "0"))))),
    h("tfoot", null, h("tr", null, h("th", { scope: "row" }, "reward"), episodes.map((e) => h("td", { class: "n" }, num(e.reward)))))));
}
