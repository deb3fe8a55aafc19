// The entry point of the page, and the choice of its view.

const SHOW = { overview: overviewView, episodes: listingView, episode: episodeView, group: groupView, settings: settingsView };
const TABS = [["overview", "Overview"], ["episodes", "Episodes"], ["settings", "Configuration"]];
let drawn = 0;

function shown(error) {
  replace(document.getElementById("main"), h("div", { class: "panel problem", role: "alert" }, h("h2", null, "This cannot be shown"), h("p", null, error.message || String(error)),
    h("p", null, h("a", { href: "#overview" }, "to the overview"))));
}

function drawHead() {
  const runs = overview.runs, at = { episode: "episodes", group: "episodes" }[state.view] || state.view;
  const names = runs.map((run, i) => h("span", { class: `runname ${tone(i)}`, title: run.path }, runs.length > 1 ? h("i", { class: "key" }) : null, run.name));
  replace(document.getElementById("top"),
    h("div", { class: "bar" },
      h("a", { class: "brand", href: "#overview" }, "agentgrpo"),
      h("div", { class: "names" }, names, runs.length === 1 ? h("span", { class: "soft about" }, [runs[0].task, runs[0].agent, runs[0].algorithm].filter(Boolean).join(" \u00b7 ")) : null,
        runs.length === 1 ? verdictPill(runs[0].verdict) : null, served() ? h("span", { class: "live", role: "status" }, "live") : null),
      h("nav", { "aria-label": "Views" }, TABS.map(([view, text]) => h("a", { href: linkTo({ view }), "aria-current": view === at ? "page" : null }, text)),
        button("?", helpDialog, { class: "quiet", "aria-label": "Keys", title: "keys" }))));
}

/** again: redraw the same view with newer data, keeping scroll position and open sections. */
async function draw(again = false) {
  const turn = ++drawn, main = document.getElementById("main");
  const folds = () => [...main.querySelectorAll("details")];
  const kept = again ? { y: scrollY, top: list?.body.scrollTop, open: folds().map((d) => d.open) } : null;
  state = parseHash(location.hash);
  if (state.episode && state.at === null) state.at = state.episode;
  forgetCharts();
  hideHint();
  drawHead();
  document.documentElement.setAttribute("data-view", state.view);
  document.title = `${overview.runs.map((run) => visible(run.name)).join(", ")} \u00b7 agentgrpo view`;
  try {
    const view = await SHOW[state.view]();
    if (turn !== drawn) return;
    main.replaceChildren(view);
    for (const chart of charts) chart.draw();
    if (kept) {
      folds().forEach((d, i) => { if (i < kept.open.length) d.open = kept.open[i]; });
      scrollTo(0, kept.y);
      if (state.view === "episodes") list.body.scrollTop = kept.top;
    } else if (state.view === "episodes") {
      list.grid.focus({ preventScroll: true });
      list.show();
    } else {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  } catch (error) {
    if (turn === drawn) shown(error);
  }
  document.documentElement.setAttribute("data-drawn", String(turn));
}

async function start() {
  try {
    overview = await block("overview");
    watchKeys();
    watchTokens(document.getElementById("main"));
    addEventListener("hashchange", () => draw());
    await draw();
  } catch (error) {
    shown(error);
  }
  document.documentElement.setAttribute("data-ready", "");
  // Load the index before a view needs it.
  indexed().then(() => document.documentElement.setAttribute("data-indexed", "")).catch(shown);
  if (served()) follow();
}

/** Follow an active run without disturbing input or reading. */
function follow() {
  let stale = false;
  watch(() => { stale = true; rows = null; }, (lost) => {
    const live = document.querySelector(".live");
    live.textContent = lost ? "the server is gone" : "live";
    live.className = lost ? "live lost" : "live";
    if (stale && ["overview", "episodes"].includes(state.view) && !document.activeElement?.matches("input")) {
      stale = false;
      draw(true);
    }
  });
}

start();
