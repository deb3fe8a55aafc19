// Axes, curves and the step that is selected in all charts.

const NICE = [1, 2, 2.5, 5, 10];
const PAD = { left: 46, right: 12, top: 10, bottom: 22 };

/** About `wanted` round numbers that cover low..high. */
function ticks(low, high, wanted = 4) {
  const span = high - low || 1, rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const size = power * NICE.find((n) => n * power >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / size - 1e-9); i * size <= high + size * 1e-9; i++) found.push(Number((i * size).toPrecision(12)));
  return found;
}

/** A domain with a margin; it includes 0 if 0 is near or `zero` is set. */
function domainOf(values, { zero = false } = {}) {
  let low = Infinity, high = -Infinity;
  for (const v of values) {
    if (v === null || v === undefined || !Number.isFinite(v)) continue;
    if (v < low) low = v;
    if (v > high) high = v;
  }
  if (low > high) return [0, 1];
  if (zero || (low > 0 && low < 0.35 * high)) low = Math.min(0, low);
  if (zero) high = Math.max(0, high);
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    return low === 0 ? [0, room] : [low - room, high + room];
  }
  const room = (high - low) * 0.06;
  return [low === 0 ? 0 : low - room, high === 0 ? 0 : high + room];
}

function linear([d0, d1], [r0, r1]) {
  const slope = (r1 - r0) / (d1 - d0 || 1);
  return (v) => r0 + (v - d0) * slope;
}

const smooths = new WeakMap();

/** Moving mean over `width` steps; absent values stay absent. */
function smoothed(values, width) {
  if (width <= 1) return values;
  const kept = smooths.get(values);
  if (kept && kept.width === width) return kept.result;
  const half = Math.floor(width / 2);
  const result = values.map((v, i) => (Number.isFinite(v) && v !== null ? mean(values.slice(Math.max(0, i - half), i + half + 1)) : null));
  smooths.set(values, { width, result });
  return result;
}

/** A curve thinned to a few points per pixel: the first, lowest, highest and last of each stretch. */
function thinned(points, width) {
  if (points.length <= width * 2) return points;
  const size = Math.ceil(points.length / width), kept = [];
  for (let i = 0; i < points.length; i += size) {
    const part = points.slice(i, i + size);
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a)), high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...[...new Set([part[0], low, high, part.at(-1)])].sort((a, b) => a[0] - b[0]));
  }
  return kept;
}

function path(points) {
  let text = "";
  points.forEach(([x, y], i) => { text += `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`; });
  return text;
}

/** [[x, y]] of known values, split at absent values between known ones. */
function stretches(xs, ys) {
  const found = [];
  let current = null;
  xs.forEach((x, i) => {
    const y = ys[i];
    if (y === null || y === undefined || !Number.isFinite(y)) { current = null; return; }
    if (!current) found.push(current = []);
    current.push([x, y]);
  });
  return found;
}

/** The value at the last known step at or before `step`. */
function valueAt(xs, ys, step) {
  let low = 0, high = xs.length - 1, found = null;
  while (low <= high) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= step) { found = middle; low = middle + 1; } else high = middle - 1;
  }
  while (found !== null && found >= 0 && (ys[found] === null || ys[found] === undefined)) found--;
  return found === null || found < 0 ? null : ys[found];
}

const charts = new Set();
let cursor = null;

/** Show this step in all charts; null = the last step of each. */
function point(step) {
  cursor = step;
  for (const chart of charts) chart.at(step);
}

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) for (const chart of charts) if (chart.box === target) chart.draw();
});

function forgetCharts() {
  sizes.disconnect();
  charts.clear();
  cursor = null;
}
