"""The tool `search` over scripted retrievers."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError, RetrieverError, ToolError
from agentgrpo.core.types import Outcome, Passage
from agentgrpo.tools.base import ToolResult
from agentgrpo.tools.search import SearchTool
from tests.tools.places import Place

PLACE = Place(Path("/nowhere"))


class Shelf:
    """A retriever that answers with what it was made with, and remembers what it was asked."""

    def __init__(self, answer: list[Passage] | Exception) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int]] = []
        self.closed = False

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        self.asked.append((query, top_k))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def close(self) -> None:
        self.closed = True


BOOKS = [
    Passage(id="a", text="One\nline\ud800", title="Title\tA"),
    Passage(id="b", text="x" * 12),
    Passage(id="c", text="not asked for"),
]


async def test_passages_are_labelled() -> None:
    shelf = Shelf(BOOKS)
    tool = SearchTool(retrievers={"vdb": shelf}, top_k=2, max_passage_chars=10)
    assert await tool.call({"query": " where \n is it?"}, PLACE) == ToolResult(
        outcome=Outcome.SUCCESS, text="[1] Title A: One line?\n[2] xxxxxxxxxx...", num_results=2, result_ids=("a", "b")
    )
    assert shelf.asked == [("where is it?", 2)]
    await tool.close()
    assert not shelf.closed, "who made it closes it"


async def test_nothing_found() -> None:
    assert await SearchTool(retrievers={"vdb": Shelf([])}).call({"query": "q"}, PLACE) == ToolResult.ok("nothing found")


async def test_queries_that_are_refused() -> None:
    shelf = Shelf(BOOKS)
    tool = SearchTool(retrievers={"vdb": shelf}, max_query_chars=3)
    assert [await tool.call({"query": q}, PLACE) for q in ("", " \n", "four")] == [
        ToolResult.refused("the query is empty"),
        ToolResult.refused("the query is empty"),
        ToolResult.refused("a query of 4 characters; at most 3 are allowed"),
    ]
    assert shelf.asked == []


async def test_a_failing_retriever_is_no_fault_of_the_policy() -> None:
    for error, kind in ((RetrieverError("late", kind="timeout"), "timeout"), (KeyError("x"), "RetrieverError")):
        with pytest.raises(ToolError) as raised:
            await SearchTool(retrievers={"vdb": Shelf(error)}).call({"query": "q"}, PLACE)
        assert raised.value.kind == kind


async def test_what_the_episode_can_no_longer_pay_for_is_told() -> None:
    spent = RetrieverError("budget.per_episode.calls.web=0 is spent", kind="over_budget")
    result = await SearchTool(retrievers={"web": Shelf(spent)}).call({"query": "q"}, PLACE)
    assert result == ToolResult.refused("the budget for these searches is spent")


async def test_the_policy_chooses_among_several() -> None:
    vdb, web = Shelf(BOOKS[:1]), Shelf(BOOKS[1:2])
    tool = SearchTool(retrievers={"vdb": vdb, "web": web})
    results = [await tool.call(a, PLACE) for a in ({"query": "q", "retriever": "web"}, {"query": "q"})]
    assert [r.result_ids for r in results] == [("b",), ("a",)]
    assert tool.spec.parameters["properties"]["retriever"]["enum"] == ["vdb", "web"]
    assert list(SearchTool(retrievers={"vdb": vdb}).spec.parameters["properties"]) == ["query"]


def test_mistakes_of_the_configuration() -> None:
    with pytest.raises(ConfigError, match="there is no retriever; configure one"):
        SearchTool(retrievers={})
    with pytest.raises(ConfigError, match="top_k=0"):
        SearchTool(retrievers={"vdb": Shelf([])}, top_k=0)
