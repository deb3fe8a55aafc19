// Every token is a span, coloured by a measured value. The scale runs from orange (less, worse) through no colour to
// blue (more, better), which colour-blind readers can distinguish too.

const LEVELS = 8;
const MANY = 5000;
const RATIO_REACH = Math.log(1.5);
const SURPRISE_REACH = Math.log(100);
const COLOR_NAMES = [
  ["mask", "mask", "what is trained on"], ["advantage", "advantage", "how much better than its group"],
  ["logprob", "log-prob", "how surprising to the policy that sampled it"], ["ratio", "ratio", "new against old policy"],
];

let reach = 2;

/** Sets the advantage of the strongest colour: the 98th percentile of absolute values. */
function measureReach(columns) {
  const sizes = columns.advantage.filter((v) => !Number.isNaN(v)).map(Math.abs).sort();
  const found = sizes.length ? sizes[Math.floor((sizes.length - 1) * 0.98)] : 0;
  reach = found > 0 ? found : 2;
}

function level(value, most) {
  const n = Math.round(clamp(Math.abs(value) / most, 0, 1) * LEVELS);
  return n === 0 ? "z" : `${value < 0 ? "n" : "p"}${n}`;
}

/** The class of a token's colour. */
function colorClass(mode, message, i) {
  if (mode === "mask") return message.sampled ? "t m1" : "t";
  if (!message.sampled) return "t";
  if (mode === "advantage") return Number.isFinite(message.advantage) && message.advantage !== null ? `t ${level(message.advantage, reach)}` : "t";
  const value = (mode === "ratio" ? message.ratios : message.logprobs)?.[i];
  if (value === null || value === undefined) return "t";
  if (mode === "ratio") return `t ${level(Math.log(Math.max(value, 1e-6)), RATIO_REACH)}`;
  const n = Math.round(clamp(-value / SURPRISE_REACH, 0, 1) * LEVELS);
  return n ? `t l${n}` : "t z";
}

/** The colourings available for this episode. */
function colorsOf(episode) {
  const has = (key) => episode.messages.some((m) => m.sampled && m[key] !== null && m[key] !== undefined);
  return COLOR_NAMES.filter(([name]) => name === "mask" || has({ advantage: "advantage", logprob: "logprobs", ratio: "ratios" }[name]));
}

/** The text of a message. mark(i): a further class of its i-th token, or "". */
function tokenText(message, mode, mark = null) {
  const box = h("div", { class: "tokens", tabindex: "0", dir: "auto", role: "group", "aria-label": message.sampled ? "sampled text" : "injected text" });
  box.message = message;
  box.mark = mark;
  const pieces = message.pieces && message.pieces.length ? message.pieces : [message.text.length];
  let start = 0, i = 0;
  const more = (limit) => {
    const part = document.createDocumentFragment();
    for (; i < Math.min(limit, pieces.length); i++) {
      const el = document.createElement("span");
      el.textContent = visible(message.text.slice(start, start + pieces[i]));
      el.i = message.pieces ? i : -1;
      start += pieces[i];
      part.append(el);
    }
    box.append(part);
    if (i < pieces.length) {
      box.append(button(`${num(pieces.length - i)} more tokens`, (event) => { event.target.remove(); more(Infinity); recolor(box, mode); }, { class: "quiet" }));
    }
  };
  more(MANY);
  paintTokens(box, mode);
  return box;
}

function paintTokens(box, mode) {
  box.mode = mode;
  for (const el of box.children) {
    if (el.tagName !== "SPAN") continue;
    const extra = box.mark ? box.mark(el.i) : "";
    el.className = colorClass(mode, box.message, el.i) + (extra ? ` ${extra}` : "");
  }
}

function recolor(root, mode) {
  const boxes = root.matches(".tokens") ? [root] : root.querySelectorAll(".tokens");
  for (const box of boxes) paintTokens(box, mode);
}

function legendOf(mode) {
  const cells = (names) => h("span", { class: "scale", "aria-hidden": "true" }, names.map((name) => h("i", { class: `t ${name}` })));
  const both = [8, 6, 4, 2].map((n) => `n${n}`).concat("z", [2, 4, 6, 8].map((n) => `p${n}`));
  if (mode === "mask") return h("span", { class: "scalebox" }, h("i", { class: "t m1 swatch" }), "sampled, trained on", h("i", { class: "swatch injected" }), "injected, masked");
  if (mode === "advantage") return h("span", { class: "scalebox" }, num(-reach, 2), cells(both), signed(reach, 2));
  if (mode === "ratio") return h("span", { class: "scalebox" }, "\u2264 0.67", cells(both), "\u2265 1.5");
  return h("span", { class: "scalebox" }, "p = 1", cells(["z", "l1", "l2", "l3", "l4", "l5", "l6", "l7", "l8"]), "p \u2264 0.01");
}

/** The facts about a token, for the hint. */
function tokenFacts(message, i, text) {
  const facts = [["token", `\u201c${oneLine(text)}\u201d`]];
  if (i >= 0) facts.push(["place", `${i + 1} of ${message.pieces.length}`]);
  facts.push(["mask", message.sampled ? "sampled" : "injected"]);
  const lp = message.logprobs?.[i], ratio = message.ratios?.[i];
  if (lp !== null && lp !== undefined) facts.push(["log-prob", `${num(lp, 4)}  (p ${num(Math.exp(lp))})`]);
  if (ratio !== null && ratio !== undefined) facts.push(["ratio", num(ratio, 4)]);
  if (message.sampled && message.advantage !== null) facts.push(["advantage", signed(message.advantage)]);
  return facts;
}

function showHint(el) {
  const hint = document.getElementById("hint"), box = el.parentElement, message = box.message;
  const start = el.i < 0 ? 0 : message.pieces.slice(0, el.i).reduce((a, b) => a + b, 0);
  const text = el.i < 0 ? "whole message" : message.text.slice(start, start + message.pieces[el.i]);
  replace(hint, pairs(tokenFacts(message, el.i, text)));
  hint.hidden = false;
  const place = el.getBoundingClientRect(), size = hint.getBoundingClientRect();
  const above = place.top - size.height - 6;
  set(hint, "x", clamp(place.left, 8, Math.max(8, innerWidth - size.width - 8)));
  set(hint, "y", above > 8 ? above : place.bottom + 6);
}

function hideHint() {
  document.getElementById("hint").hidden = true;
}

/** Hover, tap and arrow keys over all tokens of the page. */
function watchTokens(root) {
  const token = (target) => (target instanceof Element && target.matches(".tokens > span") ? target : null);
  let held = null;
  const hold = (el) => {
    held?.classList.remove("held");
    held = el;
    if (!el) return hideHint();
    el.classList.add("held");
    return showHint(el);
  };
  root.addEventListener("pointerover", (event) => { const el = token(event.target); if (el) showHint(el); else if (held) showHint(held); else hideHint(); });
  root.addEventListener("pointerdown", (event) => { if (token(event.target)) hold(token(event.target)); });
  root.addEventListener("focusout", () => hold(null));
  root.addEventListener("keydown", (event) => {
    const box = event.target instanceof Element && event.target.matches(".tokens") ? event.target : null;
    if (!box || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    const spans = [...box.children], here = held && held.parentElement === box ? spans.indexOf(held) : -1;
    const next = spans[clamp(here + (event.key === "ArrowRight" ? 1 : -1), 0, spans.length - 1)];
    event.preventDefault();
    if (!token(next)) return;
    hold(next);
    next.scrollIntoView({ block: "nearest" });
    announce(tokenFacts(box.message, next.i, next.textContent).map((f) => f.join(" ")).join(", "));
  });
  addEventListener("scroll", () => { if (!held) hideHint(); }, { passive: true, capture: true });
}
