// A difference and its interval, on a line with a zero.

/** Rows with the same `span`, the largest absolute end, share a scale. */
function intervalMark([center, low, high], span) {
  const width = 132, height = 18, x = linear([-span, span], [6, width - 6]), y = height / 2;
  const sure = low > 0 || high < 0;
  return s("svg", { class: `interval ${sure ? "sure" : "unsure"}`, width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    s("line", { class: "axis", x1: x(0), x2: x(0), y1: 1, y2: height - 1 }),
    s("line", { class: "reach", x1: x(low), x2: x(high), y1: y, y2: y }),
    s("circle", { cx: x(center), cy: y, r: 3.6 }));
}

function intervalText([center, low, high]) {
  return `${signed(center)} [${num(low)}, ${num(high)}]`;
}
