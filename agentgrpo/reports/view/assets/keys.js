// The keyboard.

const KEYS = [
  ["j, k or \u2193, \u2191", "next, previous episode"], ["Enter", "open it"], ["g", "its group side by side"], ["1 \u2026 4", "colour tokens by mask, advantage, log-prob, ratio"],
  ["Esc", "back: group, episode, list, overview"], ["/", "search"], ["o, e, c", "overview, episodes, configuration"], ["?", "this list"],
];

function helpDialog() {
  const box = h("dialog", { class: "help", "aria-label": "Keys" }, h("h2", null, "Keys"), pairs(KEYS.map(([k, text]) => [h("kbd", null, k), text])),
    button("close", () => box.close(), { class: "quiet" }));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
}

async function step(by) {
  if (state.view === "episodes") return list?.move(by);
  if (state.view !== "episode" && state.view !== "group") return undefined;
  const columns = await indexed(), { found } = rowsOf(columns);
  let place = found.indexOf(state.episode) + by;
  const here = new Set(state.view === "group" ? groupOf(columns, state.episode) : []);
  while (here.has(found[place])) place += by;
  if (place >= 0 && place < found.length) go({ view: state.view, episode: found[place] });
  return undefined;
}

function back() {
  if (state.view === "group") go({ view: "episode" });
  else if (state.view === "episode") go({ view: "episodes", at: state.episode });
  else if (state.view !== "overview") go({ view: "overview" });
}

const ACTS = {
  j: () => step(1),
  k: () => step(-1),
  ArrowDown: () => (state.view === "episodes" ? step(1) : false),
  ArrowUp: () => (state.view === "episodes" ? step(-1) : false),
  PageDown: () => (state.view === "episodes" ? step(20) : false),
  PageUp: () => (state.view === "episodes" ? step(-20) : false),
  Home: () => (state.view === "episodes" ? step(-1e9) : false),
  End: () => (state.view === "episodes" ? step(1e9) : false),
  Enter: () => (state.view === "episodes" ? list?.open() : false),
  g: () => (["episode", "episodes"].includes(state.view) ? openGroup() : false),
  o: () => go({ view: "overview" }),
  e: () => go({ view: "episodes", at: state.view === "episode" ? state.episode : state.at }),
  c: () => go({ view: "settings" }),
  "/": () => document.querySelector("#task, #find, .all input")?.focus() ?? true,
  "?": helpDialog,
  ...Object.fromEntries(COLORS.map((name, i) => [String(i + 1), () => document.querySelector(`.colors button[data-value="${name}"]`)?.click() ?? true])),
};

async function openGroup() {
  const columns = await indexed();
  const number = state.view === "episode" ? state.episode : rowsOf(columns).found[list.at];
  if (number !== undefined) go({ view: "group", episode: number });
}

function watchKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const at = event.target instanceof Element ? event.target : document.body;
    const typing = at.matches("input, textarea, select") && at.getAttribute("type") !== "checkbox";
    if (event.key === "Escape") {
      if (typing) at.blur();
      else back();
      return;
    }
    if (typing && event.key === "Enter" && state.view === "episodes") { at.blur(); list?.grid.focus(); return; }
    if (typing || (event.key === "Enter" && at.matches("a, button, summary, input"))) return;
    if (at.matches(".scroll, .board, .plot") && event.key.length > 1) return;
    const act = ACTS[event.key];
    if (act && act() !== false) event.preventDefault();
  });
}
