// One episode: its messages, their roles, and its rewards.

const FOLD = 700;

async function episodeView() {
  const number = state.episode, columns = await indexed();
  if (!(number < columns.total)) throw new Error(`there is no episode ${number}: the page has ${columns.total}`);
  const episode = await episodeOf(number), colors = colorsOf(episode);
  const mode = colors.some(([name]) => name === state.color) ? state.color : telling(episode, colors);
  const hasMemory = Array.isArray(episode.memory) && episode.memory.length > 0;
  const tab = hasMemory && state.tab !== "talk" ? "memory" : "talk";
  const body = h("div", { class: "talk" }), scale = h("span", { class: "legendline" });
  const draw = (name) => replace(body, name === "memory" ? memoryTab(episode, state.color) : conversation(episode, state.color));
  const paintAll = (name) => {
    note({ color: name });
    replace(scale, legendOf(name));
    recolor(body, name);
  };
  state = { ...state, color: mode };
  draw(tab);
  replace(scale, legendOf(mode));
  return h("article", { class: "episode" },
    episodeHead(episode, columns, number),
    h("div", { class: "row colors" },
      hasMemory ? choice("Show", [["memory", "memory"], ["talk", "conversation"]], tab, (name) => { note({ tab: name }); draw(name); }) : null,
      choice("Colour tokens by", colors, mode, paintAll), scale, ratioNote(columns, number, colors)),
    h("div", { class: "split" }, body, factsPanel(episode, columns, number)));
}

/** The most useful colouring; advantages are skipped if all are 0. */
function telling(episode, colors) {
  const names = colors.map(([name]) => name).filter((name) => name !== "advantage" || episode.messages.some((m) => m.advantage));
  return names.find((name) => name === "advantage") || names.find((name) => name === "logprob") || "mask";
}

function ratioNote(columns, number, colors) {
  const run = overview.runs[overview.files[columns.file[number]].run];
  if (colors.some(([name]) => name === "ratio") && run.ratio_of) return h("span", { class: "soft small" }, `ratio: ${run.ratio_of} over the policy that sampled`);
  if (colors.length === 1 && !run.has_tokens) return h("span", { class: "soft small" }, "the run kept no tokens (run.record_tokens)");
  return null;
}

function episodeHead(episode, columns, number) {
  const { found } = rowsOf(columns), place = found.indexOf(number), file = overview.files[columns.file[number]];
  const siblings = groupOf(columns, number);
  const to = (i, text, label) => (i >= 0 && i < found.length && place >= 0
    ? h("a", { class: "button", href: linkTo({ view: "episode", episode: found[i] }), "aria-label": label }, text)
    : h("span", { class: "button off", "aria-hidden": "true" }, text));
  return h("header", { class: "episodehead" },
    h("div", { class: "row spread" },
      h("nav", { class: "crumbs", "aria-label": "Where" },
        h("a", { href: linkTo({ view: "episodes", at: number }) }, "episodes"), " / ", overview.runs.length > 1 ? `${overview.runs[file.run].name} / ` : "", placeName(file)),
      h("div", { class: "row tight" }, to(place - 1, "\u2191 k", "previous episode"), to(place + 1, "\u2193 j", "next episode"),
        place >= 0 ? h("span", { class: "soft" }, `${num(place + 1)} of ${num(found.length)}`) : null,
        siblings.length > 1 ? h("a", { class: "button main", href: linkTo({ view: "group", episode: number }) }, `compare its ${siblings.length}`) : null)),
    h("h1", { dir: "auto" }, titleOf(episode)),
    h("p", { class: "soft small" }, h("code", null, episode.id)),
    chips(episode));
}

/** The title: a memory task's id, because its question is only the first chunk to read. */
function titleOf(episode) {
  return Array.isArray(episode.memory) && episode.memory.length ? episode.task : episode.question || episode.task;
}

function conversation(episode, mode) {
  const calls = callsByTurn(episode), shown = [];
  let turn = -1, branch = null;
  for (const message of episode.messages) {
    if (message.branch !== branch) {
      branch = message.branch;
      if (episode.messages.some((m) => m.branch !== 0)) shown.push(h("h3", { class: "branch" }, `Branch ${branch}`));
    }
    if (message.sampled) turn++;
    shown.push(messageCard(message, mode, turn));
    if (message.sampled && calls.has(turn)) {
      shown.push(h("div", { class: "calls" }, calls.get(turn).map(callCard)));
      calls.delete(turn);
    }
  }
  const left = [...calls.values()].flat();
  if (left.length) shown.push(h("div", { class: "calls" }, left.map(callCard)));
  if (!shown.length) shown.push(h("p", { class: "empty" }, "No message was recorded."));
  return shown;
}

function messageCard(message, mode, turn) {
  const n = message.pieces ? count(message.pieces.length, "token") : null, lps = known(message.logprobs || []);
  const facts = message.sampled
    ? [`turn ${turn}`, n, message.version === null || message.version === undefined ? null : `weights v${message.version}`,
      Number.isFinite(message.advantage) && message.advantage !== null ? `advantage ${signed(message.advantage)}` : null,
      lps.length ? `least p ${num(Math.exp(Math.min(...lps)))}` : null]
    : [n];
  const head = h("div", { class: "row who" }, h("b", null, message.role), h("span", { class: `badge ${message.sampled ? "sampled" : "injected"}` }, message.sampled ? "sampled" : "injected"),
    h("span", { class: "soft" }, facts.filter(Boolean).join(" \u00b7 ")), message.cut_short ? h("span", { class: "pill bad" }, "cut short") : null);
  const long = !message.sampled && message.text.length > FOLD;
  const text = () => tokenText(message, state.color || mode);
  return h("section", { class: `message ${message.sampled ? "sampled" : "injected"}`, "aria-label": `${message.role}, ${message.sampled ? "sampled" : "injected"}` }, head,
    long ? [h("p", { class: "start", dir: "auto" }, message.text.slice(0, 220).trim(), "\u2026"), details(`whole text, ${count(message.text.length, "character")}`, text)] : text());
}
