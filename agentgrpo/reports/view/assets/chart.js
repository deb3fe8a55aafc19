// A chart's frame: title, legend with the values at the selected step, axes, keyboard.

const HEIGHT = 176;

/**
 * {card, plot, legend} and a `frame` to draw in. layout: {title, note, steps: [x], label: text for screen readers,
 * domain: () => [low, high], layers: (g, x, y, width) => draws, rows: (step) => [[class, name, text]], format}.
 */
function chartCard(layout) {
  const legend = h("ul", { class: "legend" });
  const plot = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": `${layout.title}. ${layout.label()}` });
  const stamp = h("span", { class: "stamp" });
  const card = h("figure", { class: "chart" },
    h("figcaption", null, h("span", { class: "title" }, layout.title), layout.note ? h("span", { class: "note" }, layout.note) : null, stamp),
    plot, legend);
  const chart = { box: plot, draw, at, layout };
  let scales = null, line = null;

  function draw() {
    const width = Math.max(200, plot.clientWidth || 420), [d0, d1] = layout.domain();
    const steps = layout.steps(), first = steps[0] ?? 0, last = steps.at(-1) ?? 1;
    const x = linear([first, last === first ? first + 1 : last], [PAD.left, width - PAD.right]);
    const y = linear([d0, d1], [HEIGHT - PAD.bottom, PAD.top]);
    scales = { x, y, width, steps };
    const svg = s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true", focusable: "false" });
    for (const t of ticks(d0, d1)) {
      svg.append(s("line", { class: t === 0 ? "axis" : "grid", x1: PAD.left, x2: width - PAD.right, y1: y(t), y2: y(t) }));
      svg.append(s("text", { class: "tick", x: PAD.left - 6, y: y(t) + 3.5, "text-anchor": "end" }, (layout.format || num)(t)));
    }
    const marks = ticks(first, last, Math.min(6, Math.floor(width / 80))).filter(Number.isInteger);
    for (const t of marks) {
      svg.append(s("text", { class: "tick", x: x(t), y: HEIGHT - 6, "text-anchor": "middle" }, num(t)));
    }
    const inner = s("g", null);
    svg.append(inner);
    layout.layers(inner, x, y, width - PAD.left - PAD.right);
    line = s("line", { class: "cursor", y1: PAD.top, y2: HEIGHT - PAD.bottom, x1: 0, x2: 0 });
    svg.append(line);
    plot.replaceChildren(svg);
    at(cursor);
  }

  function at(step) {
    if (!scales) return;
    line.setAttribute("visibility", step === null ? "hidden" : "visible");
    if (step !== null) {
      line.setAttribute("x1", scales.x(step).toFixed(1));
      line.setAttribute("x2", scales.x(step).toFixed(1));
    }
    const rows = layout.rows(step ?? scales.steps.at(-1) ?? 0);
    if (legend.children.length !== rows.length) {
      replace(legend, rows.map(([name, text]) => h("li", { class: name }, h("i", { class: "key" }), h("span", null, text), h("b", null, ""))));
    }
    rows.forEach(([name, text, value], i) => {
      legend.children[i].children[1].textContent = visible(text);
      legend.children[i].lastChild.textContent = visible(value);
    });
    stamp.textContent = step === null ? "" : `step ${step}`;
  }

  const stepAt = (event) => {
    const place = event.clientX - plot.getBoundingClientRect().left, { x, steps } = scales;
    return steps.reduce((best, step) => (Math.abs(x(step) - place) < Math.abs(x(best) - place) ? step : best), steps[0] ?? 0);
  };
  plot.addEventListener("pointermove", (event) => { if (scales.steps.length) point(stepAt(event)); });
  plot.addEventListener("pointerleave", () => point(null));
  plot.addEventListener("blur", () => point(null));
  plot.addEventListener("dblclick", (event) => openStep(stepAt(event)));
  plot.addEventListener("keydown", (event) => {
    const steps = scales.steps, move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    const here = cursor === null ? steps.length - 1 : steps.indexOf(cursor);
    if (move) point(steps[clamp(here + move, 0, steps.length - 1)]);
    else if (event.key === "Home" || event.key === "End") point(steps.at(event.key === "Home" ? 0 : -1));
    else if (event.key === "Enter") openStep(cursor ?? steps.at(-1));
    else return;
    event.preventDefault();
    announce(layout.rows(cursor ?? steps.at(-1)).map(([, text, value]) => `${text} ${value}`).join(", "));
  });
  charts.add(chart);
  sizes.observe(plot);
  card.chart = chart;
  return card;
}

/** Show the episodes of a training step. */
function openStep(step) {
  const filter = emptyFilter();
  filter.ranges.step = [step, step];
  filter.facets.source = ["train"];
  go({ view: "episodes", filter, sort: "", at: null });
}

/** The steps of several series, each once. */
function allSteps(series) {
  const found = new Set();
  for (const one of series) for (const x of one.x) found.add(x);
  return [...found].sort((a, b) => a - b);
}
