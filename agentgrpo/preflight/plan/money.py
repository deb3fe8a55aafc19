"""The price of calls, as far as the configuration gives one: per call (budget.prices), and per token of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.preflight.plan.calls import PlannedCalls
from agentgrpo.run.services import IN_PROCESS

CHARS_PER_TOKEN = 3.0
INSTRUCTIONS = 400
"""A guess at the tokens of a prompt beside the text that it quotes."""
_PARTS: Mapping[str, str] = {"vdb": "retriever", "web": "web", "rerank": "reranker", "fetch": "fetcher"}
"""Kind of call -> the part that makes it."""


def is_counted(calls: PlannedCalls, config: Mapping[str, Any]) -> bool:
    """Whether the budget counts these calls: they go to a service outside this process and the cassette is not
    strict.
    """
    if config["cassette"]["mode"] == "strict":
        return False
    node = _node(calls.where, config)
    if "completer" in node:
        return node["completer"]["name"] not in IN_PROCESS["completer"]
    return node.get("name") not in IN_PROCESS.get(_PARTS.get(calls.kind, ""), ())


def price_of(calls: PlannedCalls, config: Mapping[str, Any]) -> tuple[float, str] | None:
    """(price per call, its source); None if no price is configured or the budget does not count the calls."""
    if not is_counted(calls, config):
        return None
    of_call = config["budget"]["prices"].get(calls.kind) or 0.0
    of_tokens, said = _tokens(calls, config)
    if not of_call + of_tokens:
        return None
    known = [*([f"budget.prices.{calls.kind}"] if of_call else []), *([said] if of_tokens else [])]
    return of_call + of_tokens, ", ".join(known)


def _tokens(calls: PlannedCalls, config: Mapping[str, Any]) -> tuple[float, str]:
    node = _node(calls.where, config)
    if not (node.get("prompt_price") or node.get("completion_price")):
        return 0.0, ""
    quoted = (node.get("max_answer_chars") or node.get("max_chars") or 0) * (node.get("top_k") or 1)
    prompt = INSTRUCTIONS + quoted / CHARS_PER_TOKEN
    reply = (node.get("completer") or {}).get("max_tokens") or 0
    cost = (prompt * node["prompt_price"] + reply * node["completion_price"]) / 1000
    return cost, f"some {prompt:.0f} tokens of prompt and {reply} of reply"


def _node(where: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration node at a dotted path, or {}."""
    node: Any = config
    for key in where.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}
