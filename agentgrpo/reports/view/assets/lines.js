// Curves over steps, with bands, and single points with intervals.

/**
 * series: [{name, tone, x, y, band?: () => {low, high}, sparse?}]; marks(): [{x, y, low, high, tone, name}], called at every draw.
 * smooth(): number of steps to average; the raw values stay visible behind the mean.
 */
function lineChart({ title, note: text, series, marks = () => [], zero = false, format = num, smooth = () => 1 }) {
  const shown = series.filter((one) => known(one.y).length);
  if (!shown.length) return null;
  const steps = allSteps(shown);
  const reach = () => [
    ...shown.flatMap((one) => [...one.y, ...(one.band ? [...one.band().low, ...one.band().high] : [])]),
    ...marks().flatMap((m) => [m.low, m.high, m.y]),
  ];
  return chartCard({
    title,
    note: text,
    format,
    steps: () => steps,
    label: () => shown.map((one) => `${one.name}: from ${format(known(one.y)[0])} to ${format(known(one.y).at(-1))}`).join("; "),
    domain: () => domainOf(reach(), { zero }),
    rows: (step) => [
      ...shown.map((one) => [one.tone, one.name, format(valueAt(one.x, one.sparse ? one.y : smoothed(one.y, smooth()), step))]),
      ...marks().map((m) => [`${m.tone} mark`, m.name, `${format(m.y)}${Number.isFinite(m.low) ? ` [${format(m.low)}, ${format(m.high)}]` : ""}`]),
    ],
    layers: (g, x, y, width) => {
      for (const one of shown) drawBand(g, one, x, y, width);
      for (const one of shown) drawLine(g, one, x, y, width, smooth());
      for (const m of marks()) drawMark(g, m, x, y);
    },
  });
}

function drawBand(g, one, x, y, width) {
  const band = one.band ? one.band() : null;
  if (!band) return;
  const highs = stretches(one.x, band.high), lows = stretches(one.x, band.low);
  highs.forEach((top, i) => {
    const place = ([a, b]) => [x(a), y(b)];
    const edge = thinned(top.map(place), width), back = thinned(lows[i].map(place), width).reverse();
    g.append(s("path", { class: `band ${one.tone}`, d: `${path([...edge, ...back])}Z` }));
  });
}

function drawLine(g, one, x, y, width, window) {
  const curve = (values, name) => {
    for (const points of stretches(one.x, values)) {
      const placed = thinned(points.map(([a, b]) => [x(a), y(b)]), width);
      if (placed.length === 1) g.append(s("circle", { class: `dot ${name}`, cx: placed[0][0], cy: placed[0][1], r: 3 }));
      else g.append(s("path", { class: `line ${name}`, d: path(placed) }));
    }
  };
  if (one.sparse) {
    const points = stretches(one.x, one.y).flat().map(([a, b]) => [x(a), y(b)]);
    if (points.length > 1) g.append(s("path", { class: `line sparse ${one.tone}`, d: path(points) }));
    for (const [a, b] of points) g.append(s("circle", { class: `dot ${one.tone}`, cx: a, cy: b, r: 4 }));
    return;
  }
  if (window > 1) {
    curve(one.y, `${one.tone} faint`);
    curve(smoothed(one.y, window), one.tone);
  } else curve(one.y, one.tone);
}

function drawMark(g, m, x, y) {
  const a = x(m.x);
  if (Number.isFinite(m.low)) {
    g.append(s("line", { class: `whisker ${m.tone}`, x1: a, x2: a, y1: y(m.low), y2: y(m.high) }));
    for (const end of [m.low, m.high]) g.append(s("line", { class: `whisker ${m.tone}`, x1: a - 4, x2: a + 4, y1: y(end), y2: y(end) }));
  }
  g.append(s("path", { class: `diamond ${m.tone}`, d: `M${a} ${y(m.y) - 5}L${a + 5} ${y(m.y)}L${a} ${y(m.y) + 5}L${a - 5} ${y(m.y)}Z` }));
}

/** A curve without axes. */
function spark(xs, ys, tone = "s0") {
  const width = 150, height = 34, values = known(ys);
  const x = linear([xs[0], xs.at(-1) === xs[0] ? xs[0] + 1 : xs.at(-1)], [1, width - 1]), y = linear(domainOf(values), [height - 2, 2]);
  const svg = s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", preserveAspectRatio: "none" });
  for (const points of stretches(xs, ys)) svg.append(s("path", { class: `line ${tone}`, d: path(thinned(points.map(([a, b]) => [x(a), y(b)]), width)) }));
  return svg;
}
