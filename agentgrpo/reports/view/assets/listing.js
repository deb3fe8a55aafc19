// The list of episodes. Only visible rows exist in the document, so that 100,000 rows scroll like a hundred.

const LIST = [
  { key: "file", label: "where", sort: "step", text: (c, i) => (overview.runs.length > 1 ? `${c.run.values[c.run.codes[i]]} \u00b7 ` : "") + placeName(overview.files[c.file[i]]) },
  { key: "task", label: "task", sort: "task", text: (c, i) => c.task.values[c.task.codes[i]] },
  { key: "sample", label: "#", sort: "sample", text: (c, i) => num(c.sample[i]) },
  { key: "kind", label: "kind", sort: "kind", text: (c, i) => facetKey(c.kind.values[c.kind.codes[i]]) },
  { key: "reward", label: "reward", sort: "reward", text: (c, i) => num(c.reward[i]) },
  { key: "correctness", label: "right", sort: "correctness", text: (c, i) => num(c.correctness[i]) },
  { key: "advantage", label: "adv.", sort: "advantage", text: (c, i) => (Number.isNaN(c.advantage[i]) ? NONE : signed(Number(c.advantage[i].toFixed(2)))) },
  { key: "exit", label: "exit", sort: "exit", text: (c, i) => facetKey(c.exit.values[c.exit.codes[i]]).replaceAll("_", " ") },
  { key: "turns", label: "turns", sort: "turns", text: (c, i) => num(c.turns[i]) },
  { key: "tokens", label: "tokens", sort: "tokens", text: (c, i) => num(c.tokens[i]) },
  { key: "calls", label: "calls", sort: "calls", text: (c, i) => num(c.calls[i]) },
  { key: "cost", label: "cost", sort: "cost", text: (c, i) => num(c.cost[i]) },
  { key: "seconds", label: "time", sort: "seconds", text: (c, i) => seconds(c.seconds[i]) },
  { key: "flag", label: "note", sort: "dropped", text: (c, i) => facetKey(c.error.values[c.error.codes[i]]) || facetKey(c.dropped.values[c.dropped.codes[i]]) },
];

let list = null;
let rows = null;

function isNarrow() {
  return matchMedia("(max-width: 760px)").matches;
}

/** The numbers of the episodes that the state selects, in its order; cached until state or data changes. */
function rowsOf(columns) {
  const key = formatHash({ ...state, view: "episodes", at: null });
  if (rows && rows.key === key && rows.columns === columns) return rows;
  const sifted = sift(columns, state.filter);
  rows = { key, columns, sifted, found: select(columns, sifted.mask, state.sort) };
  return rows;
}

async function listingView() {
  const columns = await indexed();
  const said = h("p", { class: "said", role: "status" }), spacer = h("div", { class: "spacer", role: "rowgroup" });
  const body = h("div", { class: "viewport" }, spacer);
  const heads = LIST.map((col) => h("div", { role: "columnheader", class: `c-${col.key}` }, button(col.label, () => sortBy(col.sort))));
  const grid = h("div", { class: "listing", role: "grid", tabindex: "0", "aria-label": "Episodes", "aria-colcount": LIST.length },
    h("div", { class: "head", role: "row" }, heads), body);
  const filters = filterPanel(columns, (filter, again) => { note({ filter, at: null }); list.refresh(); if (again) body.scrollTop = 0; });
  list = { columns, body, spacer, grid, pool: [], at: 0, refresh, move, show: paint, open: () => openAt(list.at) };

  function sortBy(key) {
    // Numbers are first sorted from the largest.
    const down = `-${key}`, isNumber = NUMBERS.includes(key) && key !== "step" && key !== "sample";
    const order = isNumber ? [down, key, ""] : [key, down, ""];
    note({ sort: order[(order.indexOf(state.sort) + 1) % 3] });
    refresh();
  }

  function refresh() {
    const { sifted, found } = rowsOf(columns);
    filters.update(sifted);
    set(spacer, "rows", found.length);
    put(grid, "aria-rowcount", found.length + 1);
    said.replaceChildren(...summary(columns, found));
    heads.forEach((head, i) => put(head, "aria-sort", state.sort === LIST[i].sort ? "ascending" : state.sort === `-${LIST[i].sort}` ? "descending" : "none"));
    const place = state.at === null ? -1 : found.indexOf(state.at);
    list.at = Math.max(0, place);
    for (const row of list.pool) row.shown = -1;
    paint();
  }

  function move(by) {
    const { found } = rowsOf(columns);
    if (!found.length) return;
    list.at = clamp(list.at + by, 0, found.length - 1);
    note({ at: found[list.at] });
    const high = rowHeight(), top = list.at * high;
    if (top < body.scrollTop) body.scrollTop = top;
    else if (top + high > body.scrollTop + body.clientHeight) body.scrollTop = top + high - body.clientHeight;
    paint();
  }

  body.addEventListener("scroll", paint, { passive: true });
  new ResizeObserver(() => { for (const row of list.pool) row.shown = -1; paint(); }).observe(body);
  requestAnimationFrame(() => { if (state.at !== null) body.scrollTop = (list.at - 4) * rowHeight(); });
  refresh();
  return h("div", { class: "episodes" }, filters.el, h("div", { class: "listbox" }, said, grid));
}

function rowHeight() {
  return isNarrow() ? 58 : 30;
}

function summary(columns, found) {
  let reward = 0, right = 0, n = 0, graded = 0;
  for (const i of found) {
    if (!Number.isNaN(columns.reward[i])) { reward += columns.reward[i]; n++; }
    if (!Number.isNaN(columns.correctness[i])) { right += columns.correctness[i]; graded++; }
  }
  const parts = [h("b", null, num(found.length)), found.length === columns.total ? " episodes" : ` of ${num(columns.total)} episodes`];
  if (n) parts.push(h("span", { class: "soft" }, ` \u00b7 mean reward ${num(reward / n)}`));
  if (graded) parts.push(h("span", { class: "soft" }, ` \u00b7 correctness ${num(right / graded)}`));
  return parts.map((part) => (typeof part === "string" ? document.createTextNode(part) : part));
}

function newRow() {
  const row = h("div", { class: "line", role: "row" });
  for (const col of LIST) row.append(h("div", { role: "gridcell", class: `c-${col.key}` }, col.key === "task" ? h("a", { href: "#", tabindex: "-1" }) : null));
  row.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    openAt(row.shown);
  });
  return row;
}

function openAt(place) {
  const { found } = rowsOf(list.columns);
  if (place >= found.length) return;
  note({ at: found[place] });
  go({ view: "episode", episode: found[place] });
}

function paint() {
  const { columns, body, spacer, pool, grid } = list, { found } = rowsOf(columns), high = rowHeight();
  const wanted = Math.ceil(body.clientHeight / high) + 12;
  while (pool.length < wanted) {
    pool.push(newRow());
    pool.at(-1).shown = -1;
  }
  const first = Math.max(0, Math.floor(body.scrollTop / high) - 6);
  for (let i = first; i < first + pool.length; i++) {
    const row = pool[i % pool.length];
    if (i >= found.length) { row.remove(); row.shown = -1; continue; }
    if (!row.isConnected) spacer.append(row);
    if (row.shown !== i) fillRow(row, columns, found[i], i);
    put(row, "aria-selected", String(i === list.at));
    if (i === list.at) put(grid, "aria-activedescendant", row.id);
  }
}

function fillRow(row, columns, episode, place) {
  row.shown = place;
  set(row, "y", place * rowHeight());
  put(row, "id", `row-${place}`);
  put(row, "aria-rowindex", place + 2);
  LIST.forEach((col, i) => {
    const cell = row.children[i], text = visible(col.text(columns, episode));
    if (col.key === "task") {
      cell.firstChild.textContent = text;
      put(cell.firstChild, "href", linkTo({ view: "episode", episode }));
      put(cell, "title", text);
    } else cell.textContent = text;
  });
  const reward = columns.reward[episode], right = columns.correctness[episode];
  set(row.children[4], "w", Number.isNaN(reward) ? 0 : clamp(Math.abs(reward), 0, 1.2) / 1.2);
  row.children[4].className = `c-reward ${reward < 0 ? "under" : "over"}`;
  row.children[5].className = `c-correctness ${gradeName(right)}`;
}
