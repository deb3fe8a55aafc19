// A memory as it grows: the changes and the contents after every chunk.

/** Entries after each chunk, from the changes: [[{id, kind, text, chunk}], ...]. */
function memoryStates(episode) {
  let entries = [];
  return episode.memory.map((written) => {
    for (const { before, after } of written.changes || []) {
      const place = before ? entries.findIndex((e) => e.id === before.id && e.kind === before.kind && e.text === before.text) : -1;
      entries = [...entries];
      if (after && place >= 0) entries[place] = after;
      else if (after) entries.push(after);
      else if (place >= 0) entries.splice(place, 1);
    }
    return entries;
  });
}

/** The words that two texts share at both ends, and the differing middle. */
function between(before, after) {
  const a = before.split(/(\s+)/), b = after.split(/(\s+)/);
  let head = 0, tail = 0;
  while (head < Math.min(a.length, b.length) && a[head] === b[head]) head++;
  while (tail < Math.min(a.length, b.length) - head && a.at(-1 - tail) === b.at(-1 - tail)) tail++;
  const cut = (words_) => [words_.slice(0, head).join(""), words_.slice(head, words_.length - tail).join(""), words_.slice(words_.length - tail).join("")];
  return [cut(a), cut(b)];
}

function changeLine({ op, before, after }) {
  const line = (sign, name, content) => h("li", { class: `change ${name}` }, h("b", { "aria-hidden": "true" }, sign), h("span", { class: "unseen" }, `${op}: `), h("span", { dir: "auto" }, content));
  if (before && after) {
    const [[a1, a2, a3], [b1, b2, b3]] = between(before.text, after.text);
    return [line(MINUS, "gone", [a1, h("del", null, a2), a3]), line("+", "new", [b1, h("ins", null, b2), b3])];
  }
  return after ? line("+", "new", after.text) : before ? line(MINUS, "gone", before.text) : null;
}

/** The size of the memory by chunk, as clickable bars. */
function growth(episode) {
  const most = Math.max(...episode.memory.map((m) => m.tokens || 0), 1);
  return h("ol", { class: "growth", "aria-label": "Memory after each chunk" }, episode.memory.map((written, i) => h("li", null,
    set(button([h("i"), h("span", null, String(i))], () => document.getElementById(`chunk-${i}`)?.scrollIntoView({ block: "start", behavior: "smooth" }),
      { title: `chunk ${i}: ${count(written.tokens || 0, "token")}, ${count(written.entries || 0, "entry", "entries")}` }), "h", (written.tokens || 0) / most))));
}

function memoryTab(episode, mode) {
  const states = memoryStates(episode), chunks = Array.isArray(episode.metadata?.chunks) ? episode.metadata.chunks : [];
  const calls = callsByTurn(episode), sampled = episode.messages.filter((m) => m.sampled);
  return h("div", { class: "memory" },
    h("div", { class: "panel" }, h("h3", null, "How it grows"), h("p", { class: "soft" }, "Tokens kept after each chunk; press one to go there."), growth(episode)),
    episode.memory.map((written, i) => h("section", { class: "chunk panel", id: `chunk-${i}` },
      h("div", { class: "row spread" }, h("h3", null, `Chunk ${written.chunk ?? i}`),
        h("span", { class: "soft" }, episode.branch_rewards?.length ? `reward ${num(episode.branch_rewards[i])} \u00b7 ` : "", `${count(written.tokens || 0, "token")} in ${count(written.entries || 0, "entry", "entries")}`)),
      h("div", { class: "columns" },
        h("div", null,
          chunks[written.chunk ?? i] === undefined ? null : h("blockquote", { dir: "auto" }, chunks[written.chunk ?? i]),
          sampled[i] ? tokenText(sampled[i], mode) : null,
          (written.failed || []).map((f) => h("p", { class: "failed" }, h("b", null, "failed "), h("code", null, f.call), " ", f.detail)),
          calls.get(i) ? details(count(calls.get(i).length, "call"), () => calls.get(i).map(callCard)) : null),
        h("div", null, h("h4", null, "Changes"),
          (written.changes || []).length ? h("ul", { class: "changes" }, written.changes.map(changeLine)) : h("p", { class: "soft" }, "none"),
          details(`Memory after it (${states[i].length})`, () => memoryList(states[i], i), { open: i === states.length - 1 }))))),
    questionTable(episode));
}

function memoryList(entries, chunk) {
  if (!entries.length) return h("p", { class: "soft" }, "empty");
  return h("ul", { class: "entries" }, entries.map((e) => h("li", { class: e.chunk === chunk ? "fresh" : null, dir: "auto" }, e.text,
    h("span", { class: "soft" }, ` ${e.kind || ""}${e.chunk === undefined || e.chunk === null ? "" : ` \u00b7 chunk ${e.chunk}`}`))));
}

function listOf(text) {
  try {
    const found = JSON.parse(text);
    return Array.isArray(found) ? found : null;
  } catch {
    return null;
  }
}

function plainWords(text) {
  return String(text).toLowerCase().replace(/\b(a|an|the)\b/g, " ").replace(/[^\p{L}\p{N}]+/gu, " ").trim();
}

function questionTable(episode) {
  const questions = Array.isArray(episode.metadata?.questions) ? episode.metadata.questions : [];
  if (!questions.length) return null;
  const answers = listOf(episode.answer) || [];
  return h("section", { class: "panel" }, h("h3", null, "What it is asked in the end"),
    h("p", { class: "soft" }, "A tick: the answer's words are those of a reference. The judge's grade is the correctness above."),
    h("div", { class: "scroll" }, h("table", { class: "figures questions" },
      h("thead", null, h("tr", null, ["", "question", "answer", "reference", "kind"].map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", null, questions.map((q, i) => {
        const references = Array.isArray(q.answers) ? q.answers : [];
        const answer = answers[i] ?? "", same = plainWords(answer) !== "" && references.some((r) => plainWords(r) === plainWords(answer));
        return h("tr", { class: same ? "same" : null }, h("td", null, same ? h("span", { class: "check", title: "equals a reference" }, "\u2713") : h("span", { class: "soft" }, "\u00b7")),
          h("td", { dir: "auto" }, q.question), h("td", { dir: "auto" }, answer === "" ? h("span", { class: "soft" }, "none") : String(answer)), h("td", { dir: "auto" }, references.join(" | ")), h("td", { class: "soft" }, q.kind || ""));
      })))));
}
