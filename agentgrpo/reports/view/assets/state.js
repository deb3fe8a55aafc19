// The state of the view, stored entirely in the URL: a link opens the same view.
//
//   #overview?smooth=5        #episodes?exit=answered&step=10..20&sort=-reward&at=512
//   #episode/512?color=ratio&exit=answered        #group/512        #settings?find=lr

const FACETS = ["run", "source", "kind", "exit", "status", "error", "dropped"];
const RANGES = ["step", "reward", "correctness"];
const VIEWS = ["overview", "episodes", "episode", "group", "settings"];
const COLORS = ["mask", "advantage", "logprob", "ratio"];

function emptyFilter() {
  return { task: "", facets: {}, ranges: {} };
}

/** "#episodes?step=1-2" -> the state; unknown parts are left out. */
function parseHash(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?", 2);
  const [view, number] = path.split("/");
  const given = new URLSearchParams(query);
  const state = {
    view: VIEWS.includes(view) ? view : "overview",
    episode: /^\d{1,9}$/.test(number || "") ? Number(number) : 0,
    at: /^\d{1,9}$/.test(given.get("at") || "") ? Number(given.get("at")) : null,
    color: COLORS.includes(given.get("color")) ? given.get("color") : null,
    sort: given.get("sort") || "",
    smooth: Number(given.get("smooth")) || 1,
    find: given.get("find") || "",
    tab: given.get("tab") || "",
    to: /^\d{1,9}$/.test(given.get("to") || "") ? Number(given.get("to")) : null,
    filter: emptyFilter(),
  };
  state.filter.task = given.get("task") || "";
  for (const name of FACETS) if (given.has(name)) state.filter.facets[name] = given.getAll(name);
  for (const name of RANGES) {
    const match = /^(-?[\d.eE+-]*)\.\.(-?[\d.eE+-]*)$/.exec(given.get(name) || "");
    if (!match) continue;
    const low = match[1] === "" ? NaN : Number(match[1]), high = match[2] === "" ? NaN : Number(match[2]);
    if (!(Number.isNaN(low) && Number.isNaN(high))) state.filter.ranges[name] = [low, high];
  }
  return state;
}

function formatHash(state) {
  const query = new URLSearchParams();
  const keep = (key, value, unless) => { if (value !== unless && value !== null && value !== "") query.set(key, value); };
  if (["episodes", "episode", "group"].includes(state.view)) {
    keep("task", state.filter.task, "");
    for (const [name, values] of Object.entries(state.filter.facets)) for (const v of values) query.append(name, v);
    for (const [name, [low, high]] of Object.entries(state.filter.ranges)) {
      query.set(name, `${Number.isNaN(low) ? "" : low}..${Number.isNaN(high) ? "" : high}`);
    }
    keep("sort", state.sort, "");
  }
  if (state.view === "episodes") keep("at", state.at, null);
  if (state.view === "episode" || state.view === "group") keep("color", state.color, null);
  if (state.view === "episode") keep("tab", state.tab, "");
  if (state.view === "group") keep("to", state.to, null);
  if (state.view === "overview") keep("smooth", state.smooth, 1);
  if (state.view === "settings" || state.view === "overview") keep("find", state.find, "");
  const path = ["episode", "group"].includes(state.view) ? `${state.view}/${state.episode}` : state.view;
  const text = query.toString();
  return `#${path}${text ? `?${text}` : ""}`;
}

let state = parseHash("");

/** Change the view and add an entry to the browser's history. */
function go(change) {
  location.hash = formatHash({ ...state, tab: "", to: null, ...change });
}

/** Change the state of the same view, without a history entry and without redrawing. */
function note(change) {
  state = { ...state, ...change };
  const hash = formatHash(state);
  if (hash !== location.hash) history.replaceState(null, "", hash);
}

function linkTo(change) {
  return formatHash({ ...state, tab: "", to: null, ...change });
}
