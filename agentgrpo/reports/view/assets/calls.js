// A tool call: its arguments, result, duration and cost.

const GOOD = ["success", "ok"];

function argumentText(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function callCard(call) {
  const good = GOOD.includes(call.outcome);
  const facts = [
    call.num_results ? count(call.num_results, "result") : null,
    call.seconds === null || call.seconds === undefined ? null : seconds(call.seconds),
    call.cost ? `price ${num(call.cost)}` : null,
    call.cached ? "from the cache" : null,
    call.was_cut ? "cut" : null,
  ].filter(Boolean);
  return h("div", { class: `call ${good ? "good" : "bad"}` },
    h("div", { class: "row" },
      h("code", { class: "toolname" }, call.name), h("span", { class: `pill ${good ? "plain" : "bad"}` }, String(call.outcome).replaceAll("_", " ")),
      h("span", { class: "soft" }, facts.join(" \u00b7 "))),
    h("dl", { class: "arguments" }, Object.entries(call.arguments || {}).filter(([, v]) => v !== null && v !== "")
      .map(([key, value]) => h("div", null, h("dt", null, key), h("dd", { dir: "auto" }, argumentText(value))))),
    call.detail ? h("p", { class: "detail" }, call.detail) : null,
    call.result_ids && call.result_ids.length ? h("p", { class: "ids" }, call.result_ids.map((id) => h("code", null, id))) : null);
}

/** Calls by turn: a call's turn is the index of the sampled message that made it. */
function callsByTurn(episode) {
  const found = new Map();
  for (const call of episode.tools || []) {
    if (!found.has(call.turn)) found.set(call.turn, []);
    found.get(call.turn).push(call);
  }
  return found;
}
