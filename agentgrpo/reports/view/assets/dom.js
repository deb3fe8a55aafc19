"use strict";
// Elements. All data of a run may be hostile: it enters the page only as text nodes and as the values of a few
// attributes. There is no markup in strings, and the only styles from data are numbers.

const SVG = "http://www.w3.org/2000/svg";
const ATTRIBUTES = new Set([
  "class", "id", "title", "role", "type", "for", "name", "value", "min", "max", "step", "tabindex", "placeholder", "href",
  "disabled", "open", "hidden", "checked", "selected", "colspan", "scope", "autocomplete", "spellcheck", "inputmode", "dir",
  "d", "x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "rx", "width", "height", "viewBox", "preserveAspectRatio",
  "text-anchor", "focusable", "datetime",
]);

// Characters that are invisible, or change the order or shape of others, are shown as escapes. Newline and tab stay, and
// so do two joiners, which scripts and emoji need.
const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
  "\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb\\u{e0000}-\\u{e0fff}\\p{Cs}]",
  "gu",
);

/** `text` with invisible characters as escapes. */
function visible(text) {
  return String(text).replace(UNSEEN, (c) => {
    const code = c.codePointAt(0);
    return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** A token's text on one line. */
function oneLine(text) {
  return visible(text).replace(/\n/g, "\u23ce").replace(/\t/g, "\u21e5");
}

function put(el, key, value) {
  if (!ATTRIBUTES.has(key) && !/^(aria|data)-[a-z-]+$/.test(key)) throw new Error(`attribute ${key}`);
  if (key === "href" && !String(value).startsWith("#")) throw new Error("a link leaves the page");
  if (value === false || value === null || value === undefined) el.removeAttribute(key);
  else el.setAttribute(key, value === true ? "" : visible(value));
}

function fill(el, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "on") for (const [type, f] of Object.entries(value)) el.addEventListener(type, f);
    else put(el, key, value);
  }
  add(el, children);
  return el;
}

function add(el, children) {
  for (const child of children.flat(9)) {
    if (child === null || child === undefined || child === false) continue;
    el.append(child instanceof Node ? child : document.createTextNode(visible(child)));
  }
  return el;
}

/** An element: h("p", {class: "x", on: {click: f}}, "text", h("b", null, "more")). */
function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function replace(el, ...children) {
  el.replaceChildren();
  return add(el, children);
}

/** A number that the style sheet reads as var(--key). */
function set(el, key, number) {
  el.style.setProperty(`--${key}`, String(Number(number) || 0));
  return el;
}

function button(text, click, attributes = {}) {
  return h("button", { type: "button", ...attributes, on: { click } }, text);
}

/** A group of buttons with one pressed. options: [[value, text]]; change(value). */
function choice(label, options, value, change) {
  const box = h("div", { class: "choice", role: "group", "aria-label": label });
  for (const [key, text, title] of options) {
    const one = button(text, () => {
      for (const other of box.children) put(other, "aria-pressed", String(other === one));
      change(key);
    }, { "aria-pressed": String(key === value), title, "data-value": key });
    box.append(one);
  }
  return box;
}

function details(summary, content, attributes = {}) {
  const box = h("details", attributes, h("summary", null, summary));
  // Folded content is built when it is opened, because a document may have thousands of tokens.
  let built = false;
  const build = () => {
    if (built) return;
    built = true;
    add(box, [content()]);
  };
  if (attributes.open) build();
  box.addEventListener("toggle", () => { if (box.open) build(); });
  return box;
}

function heading(level, text, ...more) {
  return h("div", { class: "heading" }, h(`h${level}`, null, text), ...more);
}

/** Label and value pairs. */
function pairs(rows) {
  return h("dl", { class: "pairs" }, rows.map(([key, ...value]) => h("div", null, h("dt", null, key), h("dd", null, value))));
}

let announcer = null;
/** Announce a change of the page to screen readers. */
function announce(text) {
  if (!announcer) {
    announcer = h("div", { class: "unseen", role: "status", "aria-live": "polite" });
    document.body.append(announcer);
  }
  announcer.textContent = text;
}
