// Configurations: their differences, and a searchable list of all settings.

/** "a:\n  b: 1" -> [["a.b", "1"]]: parses YAML as agentgrpo writes it, with lists and folded texts on their key's line. */
function flatYaml(text) {
  const rows = [], path = [];
  for (const line of String(text).split("\n")) {
    if (!line.trim() || line.startsWith("#")) continue;
    const match = /^( *)("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#:'"-][^:]*|-[^\s:][^:]*):(?: (.*))?$/.exec(line);
    const indent = line.search(/\S/);
    if (!match || /^ *- /.test(line)) {
      if (rows.length) rows.at(-1)[1] = `${rows.at(-1)[1]} ${line.trim()}`.trim();
      continue;
    }
    while (path.length && path.at(-1).indent >= indent) path.pop();
    path.push({ indent, key: match[2] });
    rows.push([path.map((p) => p.key).join("."), match[3] || ""]);
  }
  const parents = new Set(rows.map(([key]) => key.slice(0, key.lastIndexOf("."))));
  return rows.filter(([key, value]) => value !== "" || !parents.has(key));
}

function settingsView() {
  const runs = overview.runs, flat = runs.map((run) => new Map(flatYaml(run.config || "")));
  const keys = [...new Set(flat.flatMap((one) => [...one.keys()]))];
  const differ = keys.filter((key) => new Set(flat.map((one) => one.get(key))).size > 1);
  const input = h("input", { type: "search", id: "find", placeholder: "find a key or a value", "aria-label": "Find a key or a value", autocomplete: "off", spellcheck: "false", value: state.find });
  const body = h("tbody"), said = h("span", { class: "soft", role: "status" });
  const show = () => {
    const text = input.value.trim().toLowerCase();
    const found = keys.filter((key) => !text || key.toLowerCase().includes(text) || flat.some((one) => (one.get(key) || "").toLowerCase().includes(text)));
    replace(body, found.map((key) => settingRow(key, flat, differ.includes(key))));
    said.textContent = `${count(found.length, "key")} of ${num(keys.length)}`;
  };
  input.addEventListener("input", () => { note({ find: input.value }); show(); });
  show();
  const head = h("thead", null, h("tr", null, h("th", { scope: "col" }, "key"), runs.map((run) => h("th", { scope: "col" }, run.name))));
  return h("div", { class: "settings" },
    runs.length > 1 ? [heading(2, "What differs"), differ.length
      ? h("div", { class: "panel scroll" }, h("table", { class: "config" }, head.cloneNode(true), h("tbody", null, differ.map((key) => settingRow(key, flat, false)))))
      : h("p", { class: "empty" }, "Nothing: the configurations are equal.")] : null,
    heading(2, "Configuration", input, said),
    h("div", { class: "panel scroll" }, h("table", { class: "config" }, head, body)),
    heading(2, "Environment"),
    h("div", { class: "cards" }, runs.map((run) => h("div", { class: "panel" }, h("h3", null, run.name), pairs([["path", run.path], ...environmentRows(run.environment || {})])))));
}

function settingRow(key, flat, differs) {
  return h("tr", { class: differs ? "differs" : null }, h("th", { scope: "row" }, key),
    flat.map((one) => h("td", null, one.has(key) ? one.get(key) || "(empty)" : h("span", { class: "soft" }, "absent"))));
}

function environmentRows(environment, prefix = "") {
  return Object.entries(environment).flatMap(([key, value]) => (value && typeof value === "object" && !Array.isArray(value)
    ? environmentRows(value, `${prefix}${key}.`) : [[prefix + key, Array.isArray(value) ? value.join(", ") : String(value)]]));
}
