// Stacked parts of a whole over steps: positive parts above zero, negative ones below.

const LAYERS = 8;

/** layers: [{name, y}] at x; all but the eight largest are merged into one. total: {name, y}? is drawn as a line. */
function stackChart({ title, note: text, x: steps, layers, total = null, format = num, smooth = () => 1 }) {
  const named = merged(layers.filter((one) => known(one.y).some((v) => v !== 0)), steps.length);
  if (!named.length) return null;
  const at = (values) => smoothed(values, smooth());
  const edges = () => stackedEdges(named.map((one) => at(one.y)), steps.length);
  const outline = (from, to, x, y) => {
    const top = steps.map((step, i) => [x(step), y(to[i])]), bottom = steps.map((step, i) => [x(step), y(from[i])]).reverse();
    if (steps.length === 1) {
      top.push([top[0][0] + 12, top[0][1]]);
      bottom.unshift([bottom[0][0] + 12, bottom[0][1]]);
    }
    return `${path([...top, ...bottom])}Z`;
  };
  return chartCard({
    title,
    note: text,
    format,
    steps: () => steps,
    label: () => named.map((one) => `${one.name}: from ${format(known(one.y)[0])} to ${format(known(one.y).at(-1))}`).join("; "),
    domain: () => domainOf([0, ...edges().flatMap(({ from, to }) => [...from, ...to])], { zero: true }),
    rows: (step) => [
      ...(total ? [["total", total.name, format(valueAt(steps, at(total.y), step))]] : []),
      ...named.map((one, i) => [`s${i}`, one.name, format(valueAt(steps, at(one.y), step))]),
    ],
    layers: (g, x, y) => {
      for (const { layer, from, to } of edges()) g.append(s("path", { class: `area s${layer}`, d: outline(from, to, x, y) }));
      if (total) for (const points of stretches(steps, at(total.y))) g.append(s("path", { class: "line total", d: path(points.map(([a, b]) => [x(a), y(b)])) }));
    },
  });
}

/** The lower and upper edge of each layer at each step, with separate shapes for positive and negative parts. */
function stackedEdges(values, length) {
  const shapes = [];
  for (const part of [Math.max, Math.min]) {
    const base = new Float64Array(length);
    values.forEach((ys, layer) => {
      const from = [], to = [];
      for (let i = 0; i < length; i++) {
        from.push(base[i]);
        base[i] += part(0, Number.isFinite(ys[i]) ? ys[i] : 0);
        to.push(base[i]);
      }
      if (from.some((v, i) => v !== to[i])) shapes.push({ layer, from, to });
    });
  }
  return shapes;
}

function merged(layers, length) {
  const size = (one) => known(one.y).reduce((a, b) => a + Math.abs(b), 0);
  const sorted = [...layers].sort((a, b) => size(b) - size(a));
  if (sorted.length <= LAYERS) return sorted;
  const rest = sorted.slice(LAYERS - 1);
  const y = Array.from({ length }, (_, i) => rest.reduce((sum, one) => sum + (one.y[i] || 0), 0));
  return [...sorted.slice(0, LAYERS - 1), { name: `${rest.length} smaller`, y }];
}
