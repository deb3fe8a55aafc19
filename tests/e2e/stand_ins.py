"""The services that a search agent asks, as stand-ins on this machine: a vector database, a web search, a judge model.
They serve SMALL_WORLD."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agentgrpo.retrieval.embedded import embedded
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.judges.llm.models import honest, server_in_a_thread
from tests.retrieval.server import Server
from tests.services.services import in_a_thread, stand_in


class Services(NamedTuple):
    vdb: Server
    web: Server
    judged: list[str]
    """Every question that has reached the judge model."""
    arguments: list[str]


@contextmanager
def services() -> Iterator[Services]:
    world = embedded(corpora=Almanac(num_companies=40, dev_companies=5, test_companies=40).corpora())
    judged: list[str] = []

    def judging(system: str, user: str) -> str:
        judged.append(f"{system}\n{user}")
        return honest(system, user)

    with (
        in_a_thread(stand_in(world["vdb"])) as vdb,
        in_a_thread(stand_in(world["web"])) as web,
        server_in_a_thread(judging) as judge,
    ):
        yield Services(vdb, web, judged, asking(vdb.url, web.url, judge))


def asking(vdb: str, web: str, judge: str) -> list[str]:
    return [
        "retriever=http",
        f"retriever.url={vdb}",
        f"retriever.web_url={web}",
        "judge=llm",
        f"judge.completer.base_url={judge}",
        "judge.completer.model=stand-in",
        "judge.completer.api_key_env=JUDGE_KEY",
        "judge.cache=null",
        "judge.prompt_price=0.5",
        "budget.prices.web=0.015",
        "budget.prices.vdb=0.001",
    ]
