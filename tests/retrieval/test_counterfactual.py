"""What a counterfactual shows instead of what was found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage, Task
from agentgrpo.retrieval.base import Probed
from agentgrpo.retrieval.counterfactual import blank, other_answers, shuffled, swapped
from tests.builders import passage, task

FOUNDED = passage("f1", "Velmor was founded by Castin.", title="Velmor", url="http://a/castin", score=0.5)
BORN = passage("b1", "Castin was born in New Roka, not in Roka.", score=0.25)
PRICED = passage("p1", "The price of Dorin is 60, not 602.")


class Found:
    """What is found by query, at most top_k of it; the queries, as they came."""

    def __init__(self, **rows: Sequence[Passage]) -> None:
        self._rows = {query.replace("_", " "): row for query, row in rows.items()}
        self.asked: list[str] = []
        self.closed = self.probed = False

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        self.asked.append(query)
        if query == "broken":
            raise RetrieverError("it is")
        await asyncio.sleep(0)
        return list(self._rows.get(query, ()))[:top_k]

    async def probe(self) -> None:
        self.probed = True

    async def close(self) -> None:
        self.closed = True


def tasks(*rows: tuple[str, str, str]) -> list[Task]:
    return [task(question, answer, id=question, kind=kind) for question, answer, kind in rows]


PEOPLE = tasks(("who", "Castin", "person"), ("whom", "Halvar", "person"), ("where", "New Roka", "city"))


async def test_blank_shows_as_many_passages_with_nothing_in_them() -> None:
    found = await blank()(Found(q=[FOUNDED, BORN])).search("q", top_k=1)
    assert found == [passage("f1", "", score=0.5)]


async def test_shuffled_shows_what_another_question_finds_and_nothing_of_the_querys_own() -> None:
    behind = Found(a=[FOUNDED], b=[FOUNDED, BORN, PRICED])
    retriever = shuffled(tasks=tasks(("a", "x", ""), ("b", "y", "")))(behind)
    assert await retriever.search("a", top_k=3) == [BORN, PRICED]
    assert sorted(behind.asked) == ["a", "b"]


async def test_shuffled_looks_on_where_another_question_finds_nothing_else() -> None:
    rows = tasks(*((name, name, "") for name in "abcdefgh"))
    everything = {name: [FOUNDED] for name in "abcdefg"} | {"h": [BORN]}
    behind = Found(**everything)
    found = [await shuffled(tasks=rows)(behind).search(name, top_k=1) for name in "abcdefg"]
    assert {row[0].id if row else None for row in found} == {"b1", None}
    assert len(behind.asked) <= 7 * 5


async def test_shuffled_depends_on_the_query_alone() -> None:
    rows = tasks(*((str(i), str(i), "") for i in range(9)))
    finds = {str(i): [passage(f"p{i}", str(i))] for i in range(9)} | {"q": [passage("q", "")], "r": [passage("r", "")]}
    one, other = shuffled(tasks=rows)(Found(**finds)), shuffled(tasks=rows)(Found(**finds))
    first = await asyncio.gather(*(one.search(query, top_k=1) for query in ("q", "r", "3")))
    again = [await other.search(query, top_k=1) for query in ("3", "r", "q")]
    assert first == again[::-1]
    assert first[2] != [passage("p3", "3")]


async def test_a_failure_is_the_retrievers_own() -> None:
    for made in (blank(), shuffled(tasks=PEOPLE), swapped(tasks=PEOPLE)):
        with pytest.raises(RetrieverError, match="it is"):
            await made(Found()).search("broken", top_k=1)


def test_the_other_answer_is_one_of_the_same_kind_and_never_one_that_is_accepted() -> None:
    rows = [
        *PEOPLE,
        task("how much", "60", "60 crowns", id="p", kind="price"),
        task("how many", "70", id="n", kind="price"),
        task("symbol", "(c)", id="s", kind="symbol"),
    ]
    others = other_answers(rows)
    assert {a: b for a, b in others.items() if a in ("Castin", "Halvar")} == {"Castin": "Halvar", "Halvar": "Castin"}
    assert (others["60"], others["60 crowns"]) == ("70", "70")
    assert others["70"] in ("60", "60 crowns")
    assert others["New Roka"] not in ("New Roka", "(c)")  # no other city: that of another kind
    assert "(c)" not in others


async def test_swapped_exchanges_whole_answers_in_text_and_title_but_not_what_the_query_names() -> None:
    rows = tasks(
        ("1", "Castin", "person"), ("2", "Halvar", "person"), ("3", "New Roka", "city"), ("4", "Roka", "city"),
        ("5", "60", "price"), ("6", "75", "price"), ("7", "Velmor", "firm"), ("8", "Tarn", "firm"),
    )  # fmt: skip
    behind = Found(Who_founded_Velmor=[FOUNDED], Castin=[BORN], price=[PRICED])
    retriever = swapped(tasks=rows)(behind)
    [founded] = await retriever.search("Who founded Velmor", top_k=1)
    assert founded == passage("f1", "Velmor was founded by Halvar.", title="Velmor", score=0.5)
    [born] = await retriever.search("Castin", top_k=1)
    assert born.text == "Castin was born in Roka, not in New Roka."
    [priced] = await retriever.search("price", top_k=1)
    assert priced.text == "The price of Dorin is 75, not 602."


@pytest.mark.parametrize("make", [shuffled, swapped])
def test_one_task_has_no_other(make: type) -> None:
    with pytest.raises(ConfigError, match="use counterfactual=blank"):
        make(tasks=PEOPLE[:1])


async def test_what_is_behind_is_probed_and_closed() -> None:
    behind = Found()
    retriever = swapped(tasks=PEOPLE)(behind)
    assert isinstance(retriever, Probed)
    await retriever.probe()
    await retriever.close()
    assert (behind.probed, behind.closed) == (True, True)


async def test_what_the_query_names_it_names_in_whole_words() -> None:
    rows = tasks(("1", "60", "price"), ("2", "75", "price"))
    retriever = swapped(tasks=rows)(Found(price_in_1960=[PRICED], is_it_60=[PRICED]))
    for query, price in (("price in 1960", "75"), ("is it 60", "60")):
        [found] = await retriever.search(query, top_k=1)
        assert found.text == f"The price of Dorin is {price}, not 602."
