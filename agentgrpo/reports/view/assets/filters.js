// The filters of the list of episodes.

const FACET_NAMES = { run: "Run", source: "From", kind: "Kind", exit: "Exit", status: "Status", error: "Error", dropped: "Dropped" };
const ABSENT = { error: "no error", dropped: "not dropped" };
const GRADES = [["", "any"], ["..0", "wrong"], ["1e-9..0.999999999", "partly"], ["1..", "right"]];

function facetText(name, value) {
  return facetKey(value) === "" ? ABSENT[name] || "none" : String(value);
}

/** {el, update(sifted)}: `changed` is called with a new filter. */
function filterPanel(columns, changed) {
  const filter = () => state.filter;
  const edit = (change) => { const next = structuredClone(filter()); change(next); changed(next); };
  const task = h("input", { type: "search", id: "task", placeholder: "part of a task's id", autocomplete: "off", spellcheck: "false", value: filter().task });
  task.addEventListener("input", () => edit((f) => { f.task = task.value; }));
  const facets = FACETS.filter((name) => columns[name].values.length > 1).map((name) => facetBox(name, columns[name], edit));
  const ranges = ["step", "reward"].map((name) => rangeBox(name, edit));
  const grade = choice("Correctness", GRADES, gradeOf(filter()), (key) => edit((f) => {
    delete f.ranges.correctness;
    if (key) f.ranges.correctness = bounds(key);
  }));
  const bars = s("svg", { class: "bins", viewBox: `0 0 ${BINS} 24`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const clear = button("Clear", () => changed(emptyFilter(), true), { class: "quiet" });
  const byName = (name) => facets.find((one) => one.name === name)?.el;
  const el = h("details", { class: "filters", open: !isNarrow() }, h("summary", null, "Filters"),
    h("div", { class: "row spread" }, h("label", { for: "task" }, "Task"), clear), task,
    byName("run"), byName("source"), ranges[0].el,
    h("fieldset", null, h("legend", null, "Reward"), bars, ranges[1].el), h("fieldset", null, h("legend", null, "Correctness"), grade),
    ["kind", "exit", "status", "error", "dropped"].map(byName));
  const update = (sifted) => {
    for (const one of facets) one.update(sifted.counts[one.name]);
    for (const one of ranges) one.update();
    if (document.activeElement !== task) task.value = filter().task;
    for (const b of grade.children) put(b, "aria-pressed", String(b.getAttribute("data-value") === gradeOf(filter())));
    drawBins(bars, sifted.bins);
    clear.disabled = formatHash({ ...state, view: "episodes", sort: "", at: null }) === "#episodes";
  };
  return { el, update };
}

function bounds(text) {
  return text.split("..").map((t) => (t === "" ? NaN : Number(t)));
}

/** The entry of GRADES that matches a filter; "other" for any other range. */
function gradeOf(filter) {
  const range = filter.ranges.correctness;
  if (!range) return "";
  return GRADES.find(([key]) => key && bounds(key).every((v, i) => Object.is(v, range[i])))?.[0] || "other";
}

function facetBox(name, column, edit) {
  const rows = column.values.map((value) => {
    const key = facetKey(value), box = h("input", { type: "checkbox" }), number = h("span", { class: "count" });
    box.addEventListener("change", () => edit((f) => {
      const chosen = new Set(f.facets[name] || []);
      if (box.checked) chosen.add(key);
      else chosen.delete(key);
      if (chosen.size) f.facets[name] = [...chosen];
      else delete f.facets[name];
    }));
    return { key, box, number, el: h("label", { class: "option" }, box, h("span", { class: "value", title: facetText(name, value) }, facetText(name, value)), number) };
  });
  const update = (counts) => rows.forEach((row, code) => {
    row.box.checked = (state.filter.facets[name] || []).includes(row.key);
    row.number.textContent = num(counts[code]);
    row.el.className = counts[code] || row.box.checked ? "option" : "option nothing";
  });
  return { name, update, el: h("fieldset", null, h("legend", null, FACET_NAMES[name]), h("div", { class: "options" }, rows.map((row) => row.el))) };
}

function rangeBox(name, edit) {
  const field = (side) => {
    const input = h("input", { type: "number", step: name === "step" ? "1" : "any", "aria-label": `${name}, ${side ? "most" : "least"}`, placeholder: side ? "most" : "least" });
    input.addEventListener("input", () => edit((f) => {
      const range = f.ranges[name] || [NaN, NaN];
      range[side] = input.value === "" ? NaN : Number(input.value);
      if (range.every(Number.isNaN)) delete f.ranges[name];
      else f.ranges[name] = range;
    }));
    return input;
  };
  const fields = [field(0), field(1)];
  const update = () => fields.forEach((input, side) => {
    const value = (state.filter.ranges[name] || [NaN, NaN])[side];
    if (document.activeElement !== input) input.value = Number.isNaN(value) ? "" : String(value);
  });
  const inner = h("div", { class: "range" }, fields[0], "\u2013", fields[1]);
  return { update, el: name === "step" ? h("fieldset", null, h("legend", null, "Step"), inner) : inner };
}

function drawBins(svg, { bins, low, width }) {
  const most = Math.max(...bins, 1);
  svg.replaceChildren(...Array.from(bins, (n, i) => {
    const tall = n ? Math.max(1, (22 * n) / most) : 0;
    const bar = s("rect", { x: i + 0.08, width: 0.84, y: 24 - tall, height: tall });
    bar.append(s("title", null, `${num(low + i * width)} to ${num(low + (i + 1) * width)}: ${num(n)}`));
    return bar;
  }));
}
