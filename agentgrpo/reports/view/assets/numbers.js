// Formats numbers for people.

const MINUS = "\u2212";
const NONE = "\u2013";

/** Three significant digits; thousands with separators; a dash for a missing number. */
function num(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (!Number.isFinite(value)) return value > 0 ? "\u221e" : `${MINUS}\u221e`;
  const size = Math.abs(value);
  let text;
  if (size === 0) text = "0";
  else if (size >= 1e6 || size < 1e-4) text = size.toExponential(digits - 2).replace("e+", "e").replace("e-", `e${MINUS}`);
  else if (size >= 1000 || Number.isInteger(size)) text = size.toLocaleString("en", { maximumFractionDigits: 0 });
  else text = String(Number(size.toPrecision(digits)));
  return (value < 0 ? MINUS : "") + text;
}

function signed(value, digits = 3) {
  return (value > 0 ? "+" : "") + num(value, digits);
}

function percent(value) {
  return Number.isFinite(value) ? `${num(100 * value)}\u202f%` : NONE;
}

function count(n, one, many = `${one}s`) {
  return `${num(n)} ${n === 1 ? one : many}`;
}

function seconds(value) {
  if (!Number.isFinite(value)) return NONE;
  if (value < 1) return `${num(value * 1000, 3)}\u202fms`;
  if (value < 120) return `${num(value)}\u202fs`;
  if (value < 7200) return `${num(value / 60)}\u202fmin`;
  return `${num(value / 3600)}\u202fh`;
}

/** "agent/search_rounds" -> "search rounds". */
function words(tag) {
  return String(tag).split("/").pop().replaceAll("_", " ");
}

function known(values) {
  return values.filter((v) => v !== null && v !== undefined && Number.isFinite(v));
}

function mean(values) {
  const found = known(values);
  return found.length ? found.reduce((a, b) => a + b, 0) / found.length : NaN;
}

function deviation(values) {
  const found = known(values);
  if (found.length < 2) return NaN;
  const m = mean(found);
  return Math.sqrt(found.reduce((a, b) => a + (b - m) ** 2, 0) / (found.length - 1));
}

/** Half the width of a 95 % interval of the mean of n independent values (Student's t, Cornish-Fisher in z). */
function halfWidth(sd, n) {
  if (n < 2) return NaN;
  const z = 1.959964, f = n - 1;
  const t = f === 1 ? 12.706 : f === 2 ? 4.303 : z + (z ** 3 + z) / (4 * f) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * f * f);
  return (t * sd) / Math.sqrt(n);
}

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}
