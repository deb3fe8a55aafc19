// The index as typed columns: a filter over 100,000 episodes is one pass over small integers.

const NUMBERS = ["step", "sample", "reward", "correctness", "advantage", "turns", "tokens", "calls", "cost", "seconds"];
const BIT = Object.fromEntries([...FACETS, ...RANGES, "task"].map((name, i) => [name, 1 << i]));
const BINS = 24;

function sourceName(file) {
  return file.policy === "train" ? "train" : `${file.policy} ${file.mode}`;
}

/** The origin of an episode for display: "step 12", "end greedy". */
function placeName(file) {
  return file.step === null || file.step === undefined ? sourceName(file) : `step ${file.step}`;
}

function dictionary(texts) {
  const values = [], seen = new Map();
  const codes = texts.map((text) => {
    if (!seen.has(text)) seen.set(text, values.push(text) - 1);
    return seen.get(text);
  });
  return { values, codes };
}

function columnsOf(raw, about) {
  const total = about.num_episodes;
  const columns = { total, order: new Map() };
  for (const name of NUMBERS) {
    columns[name] = Float64Array.from(raw[name] || new Array(total).fill(null), (v) => (v === null ? NaN : v));
  }
  columns.file = Uint32Array.from(raw.file);
  for (const name of ["task", "kind", "exit", "status", "error", "dropped"]) {
    columns[name] = { values: raw[name].values, codes: Uint32Array.from(raw[name].codes) };
  }
  const runs = dictionary(about.files.map((file) => about.runs[file.run].name));
  const sources = dictionary(about.files.map(sourceName));
  columns.run = { values: runs.values, codes: columns.file.map((f) => runs.codes[f]) };
  columns.source = { values: sources.values, codes: columns.file.map((f) => sources.codes[f]) };
  columns.lowered = columns.task.values.map((text) => String(text).toLowerCase());
  return columns;
}

/** A facet's value in the URL; an absent value is an empty string. */
function facetKey(value) {
  return value === null || value === undefined ? "" : String(value);
}

function failing(mask, codes, bad, bit) {
  for (let i = 0; i < codes.length; i++) if (bad[codes[i]]) mask[i] |= bit;
}

function outside(mask, column, [low, high], bit) {
  const least = Number.isNaN(low) ? -Infinity : low, most = Number.isNaN(high) ? Infinity : high;
  for (let i = 0; i < column.length; i++) if (!(column[i] >= least && column[i] <= most)) mask[i] |= bit;
}

/**
 * Returns a mask with a bit for every filter that excludes a row, counts of every facet's values among the rows that no
 * other filter excludes, and likewise a histogram of rewards.
 */
function sift(columns, filter) {
  const mask = new Uint16Array(columns.total);
  for (const name of FACETS) {
    const chosen = filter.facets[name];
    if (!chosen || !chosen.length) continue;
    const wanted = new Set(chosen);
    failing(mask, columns[name].codes, columns[name].values.map((v) => !wanted.has(facetKey(v))), BIT[name]);
  }
  for (const [name, range] of Object.entries(filter.ranges)) outside(mask, columns[name], range, BIT[name]);
  const text = filter.task.trim().toLowerCase();
  if (text) failing(mask, columns.task.codes, columns.lowered.map((task) => !task.includes(text)), BIT.task);
  const counts = {};
  for (const name of FACETS) counts[name] = tally(mask, columns[name], BIT[name]);
  return { mask, counts, bins: histogram(mask, columns.reward, BIT.reward) };
}

function tally(mask, column, bit) {
  const found = new Uint32Array(column.values.length), codes = column.codes, others = ~bit;
  for (let i = 0; i < mask.length; i++) if ((mask[i] & others) === 0) found[codes[i]]++;
  return found;
}

function histogram(mask, column, bit) {
  let low = Infinity, high = -Infinity;
  for (let i = 0; i < column.length; i++) {
    if (column[i] < low) low = column[i];
    if (column[i] > high) high = column[i];
  }
  const bins = new Uint32Array(BINS), width = (high - low) / BINS || 1, others = ~bit;
  for (let i = 0; i < column.length; i++) {
    if ((mask[i] & others) === 0 && column[i] >= low) bins[Math.min(BINS - 1, Math.floor((column[i] - low) / width))]++;
  }
  return { bins, low, high, width };
}

/** Episodes sorted by a column, computed once per column; absent numbers come last. */
function ordered(columns, key) {
  if (columns.order.has(key)) return columns.order.get(key);
  const rows = Uint32Array.from({ length: columns.total }, (_, i) => i);
  if (key) {
    const column = columns[key];
    const ranks = column.codes ? rankOf(column) : column;
    rows.sort((a, b) => {
      const x = ranks[a], y = ranks[b];
      if (x === y) return a - b;
      if (Number.isNaN(x)) return Number.isNaN(y) ? a - b : 1;
      return Number.isNaN(y) || x < y ? -1 : 1;
    });
  }
  columns.order.set(key, rows);
  return rows;
}

function rankOf({ values, codes }) {
  const sorted = values.map((_, i) => i).sort((a, b) => {
    const x = facetKey(values[a]), y = facetKey(values[b]);
    return x < y ? -1 : x > y ? 1 : 0;
  });
  const rank = new Float64Array(values.length);
  sorted.forEach((code, place) => { rank[code] = place; });
  return codes.map((code) => rank[code]);
}

/** Numbers of the episodes that pass the filter, in the order that `sort` names ("reward", "-reward", "" = as recorded). */
function select(columns, mask, sort) {
  const down = sort.startsWith("-"), key = sort.replace("-", "");
  const order = ordered(columns, NUMBERS.includes(key) || (columns[key] && columns[key].codes) ? key : "");
  const rows = new Uint32Array(columns.total);
  let n = 0;
  if (!down) for (let i = 0; i < order.length; i++) { if (mask[order[i]] === 0) rows[n++] = order[i]; }
  else {
    // Rows without a number stay last in both directions.
    const column = columns[key], absent = column.codes ? () => false : (row) => Number.isNaN(column[row]);
    for (let i = order.length - 1; i >= 0; i--) if (mask[order[i]] === 0 && !absent(order[i])) rows[n++] = order[i];
    for (let i = 0; i < order.length; i++) if (mask[order[i]] === 0 && absent(order[i])) rows[n++] = order[i];
  }
  return rows.subarray(0, n);
}

/** The episodes of one task in one file, as numbers. */
function groupOf(columns, episode) {
  const { file, task: { codes } } = columns;
  const same = (i) => i >= 0 && i < columns.total && file[i] === file[episode] && codes[i] === codes[episode];
  let first = episode, last = episode;
  while (same(first - 1)) first--;
  while (same(last + 1)) last++;
  return Array.from({ length: last - first + 1 }, (_, i) => first + i);
}

/** The first episode of the same task in every other file. */
function elsewhere(columns, episode) {
  const found = new Map(), task = columns.task.codes[episode];
  for (let i = 0; i < columns.total; i++) {
    const file = columns.file[i];
    if (columns.task.codes[i] === task && file !== columns.file[episode] && !found.has(file)) found.set(file, i);
  }
  return [...found.entries()];
}

/** Mean and 95 % interval of a column in every file: over its tasks, because the episodes of a task are alike. */
function meansByFile(columns, name, about) {
  const column = columns[name];
  return about.files.map((file) => {
    const means = [];
    let sum = 0, n = 0;
    for (let i = file.first; i < file.first + file.count; i++) {
      if (!Number.isNaN(column[i])) { sum += column[i]; n++; }
      if (i + 1 === file.first + file.count || columns.task.codes[i + 1] !== columns.task.codes[i]) {
        if (n) means.push(sum / n);
        sum = n = 0;
      }
    }
    const center = mean(means), half = halfWidth(deviation(means), means.length);
    return { center, low: center - half, high: center + half, tasks: means.length };
  });
}
