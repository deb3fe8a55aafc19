"""The actions of the search environment as native tool calls, one or several in a turn.

    search(query, retriever, rerank, subquestion)    several calls are the queries of one round
    rerank()
    fetch(urls, part, find)

They mean the same as the tags (`grammar`): if a turn has calls of several kinds, only the first kind in the order
search, rerank, fetch is done. A turn without calls is the answer. Plans stay text, inside the turn: <search_decision>
and <subquestions>.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentgrpo.core.messages import AnyCall, MalformedCall, ParsedTurn, ToolSpec
from agentgrpo.core.types import ToolCall
from agentgrpo.environments.base import Turn
from agentgrpo.environments.search.grammar import (
    Action,
    AnswerAction,
    FetchAction,
    Planner,
    Query,
    RerankAction,
    SearchAction,
    SearchTurn,
    Tags,
    sanitised,
)
from agentgrpo.tools.schema import ArgumentSchema

NOT_DONE = "Not done: a turn searches, reranks or fetches, in this order."
ONCE = "Not done: once in a turn."


def specs_of(*, web: bool, rerank: bool, fetch: bool) -> list[ToolSpec]:
    """Return the tools on offer."""
    query: dict[str, Any] = {"query": {"type": "string", "description": "What to search for"}}
    if web:
        about = "vdb, the documents, if left out; web is dearer"
        query["retriever"] = {"type": "string", "enum": ["vdb", "web"], "description": about}
    if rerank:
        query["rerank"] = {"type": "boolean", "description": "Look at more results and show the best first"}
    query["subquestion"] = {"type": "string", "description": "Id of the part of the question it is for, such as T1"}
    specs = [ToolSpec(name="search", description="Searches; answers with labelled results.", parameters=_object(query))]
    if rerank:
        about = "Shows the best of all that was found."
        specs.append(ToolSpec(name="rerank", description=about, parameters=_object({}, needed=())))
    if fetch:
        page: dict[str, Any] = {
            "urls": {"type": "array", "items": {"type": "string"}, "description": "Of the pages"},
            "part": {"type": "integer", "minimum": 1, "description": "Of a long page; the first if left out"},
            "find": {"type": "string", "description": "Words: the part that has them"},
        }
        specs.append(ToolSpec(name="fetch", description="Shows pages.", parameters=_object(page, needed=("urls",))))
    return specs


def _object(properties: Mapping[str, Any], needed: Sequence[str] = ("query",)) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(needed),
        "additionalProperties": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledTurn:
    """A parsed turn."""

    said: SearchTurn
    done: tuple[int, ...] = ()
    """Places of the calls that form the action; a search has a call for each query."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """The reason why each other call is not done, by place."""


class Calls:
    """Reads turns of a policy that is offered `specs`."""

    def __init__(self, planner: Planner, specs: Sequence[ToolSpec]) -> None:
        self._planner = planner
        self._schemas = {spec.name: ArgumentSchema(spec.name, spec.parameters) for spec in specs}

    def read(self, turn: Turn) -> CalledTurn:
        """Parse a turn. Never raises, whatever the turn says."""
        answer = turn.answer or ""
        plan = self._planner.parse(turn.content if answer in turn.content else f"{turn.content}\n{answer}")
        if not turn.calls:
            return CalledTurn(said=self._planner.with_answer(plan, answer))
        refused: dict[int, str] = {}
        sound: dict[int, ToolCall] = {}
        for place, call in enumerate(turn.calls):
            problem = self._problem(call)
            if problem is None and isinstance(call, ToolCall):
                sound[place] = call
            else:
                refused[place] = problem or ""
        kind = next((name for name in ("search", "rerank", "fetch") if any(c.name == name for c in sound.values())), "")
        of_kind = [place for place, call in sound.items() if call.name == kind]
        refused |= {place: NOT_DONE for place in sound if place not in of_kind}
        if kind != "search":
            refused |= dict.fromkeys(of_kind[1:], ONCE)
            of_kind = of_kind[:1]
        action = _action(kind, [sound[place].arguments for place in of_kind])
        return CalledTurn(said=replace(plan, action=action), done=tuple(of_kind), refused=refused)

    def _problem(self, call: AnyCall) -> str | None:
        if isinstance(call, MalformedCall):
            return call.problem
        schema = self._schemas.get(call.name)
        if schema is None:
            return f"there is no tool {call.name!r}; there are {', '.join(self._schemas)}"
        if problem := schema.problem(call.arguments):
            return problem
        if call.name == "search" and not call.arguments["query"].split():
            return "the query is empty"
        if call.name == "fetch" and not any(url.strip() for url in call.arguments["urls"]):
            return "there is no URL"
        return None


def _action(kind: str, arguments: Sequence[Mapping[str, Any]]) -> Action | None:
    match kind:
        case "search":
            return SearchAction(queries=tuple(_query(one) for one in arguments))
        case "rerank":
            return RerankAction()
        case "fetch":
            page = arguments[0]
            urls = tuple(dict.fromkeys(url.strip() for url in page["urls"] if url.strip()))
            return FetchAction(urls=urls, part=page.get("part", 1), find=" ".join(page.get("find", "").split()))
    return None


def _query(arguments: Mapping[str, Any]) -> Query:
    return Query(
        text=" ".join(arguments["query"].split()),
        retriever=arguments.get("retriever", "vdb"),
        rerank=arguments.get("rerank", False),
        subquestion=sanitised(arguments.get("subquestion", "")),
    )


def as_calls(said: SearchTurn, tags: Tags) -> ParsedTurn:
    """Convert a turn of tags to one of a policy that calls tools: for demonstrations, and to keep both forms
    consistent."""
    content = ""
    if said.decision != "none":
        content += f"<{tags.search_decision}>{said.decision}</{tags.search_decision}>"
    if said.subquestions:
        lines = "".join(f"\n{id_}: {text}" for id_, text in said.subquestions)
        content += f"<{tags.subquestions}>{lines}\n</{tags.subquestions}>"
    match said.action:
        case AnswerAction(text=text):
            return ParsedTurn(answer=f"{content}{text}")
        case SearchAction(queries=queries):
            calls = [ToolCall(name="search", arguments=_written(query)) for query in queries]
        case RerankAction():
            calls = [ToolCall(name="rerank", arguments={})]
        case FetchAction(urls=urls, part=part, find=find):
            more: dict[str, Any] = ({"part": part} if part > 1 else {}) | ({"find": find} if find else {})
            calls = [ToolCall(name="fetch", arguments={"urls": list(urls), **more})]
        case None:
            calls = []
    return ParsedTurn(content=content, calls=tuple(calls)) if calls else ParsedTurn(answer=content)


def _written(query: Query) -> dict[str, Any]:
    arguments: dict[str, Any] = {"query": query.text}
    arguments |= {"retriever": query.retriever} if query.retriever != "vdb" else {}
    arguments |= {"rerank": True} if query.rerank else {}
    return arguments | ({"subquestion": query.subquestion} if query.subquestion is not None else {})
