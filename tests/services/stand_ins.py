"""Parts without a socket that count who asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Message, Passage
from agentgrpo.judges.llm.completer import Reply
from agentgrpo.services.budget import Budget, CallLimits, EpisodeLimits, Prices, SpendingLimits
from agentgrpo.services.cassette import CassetteSettings
from agentgrpo.services.meter import Meter


def meter(
    folder: Path,
    mode: str = "live",
    *,
    prices: dict[str, float] | None = None,
    run: dict[str, Any] | None = None,
    step: dict[str, Any] | None = None,
    episode: dict[str, Any] | None = None,
    tape: str = "tape",
) -> Meter:
    """Of a run directory `folder`; limits as keywords: {"money": 1.0, "web": 2}."""
    budget = Budget(
        prices=Prices(**(prices or {})), per_run=limits(run), per_step=limits(step), per_episode=episode_limits(episode)
    )
    path = None if mode == "live" else folder / tape
    return Meter(cassette=CassetteSettings(mode=mode, path=path), budget=budget, run_dir=folder)  # type: ignore[arg-type]


def limits(given: dict[str, Any] | None) -> SpendingLimits:
    given = given or {}
    calls = {name: limit for name, limit in given.items() if name not in ("money", "seconds")}
    return SpendingLimits(calls=CallLimits(**calls), money=given.get("money"), seconds=given.get("seconds"))


def episode_limits(given: dict[str, Any] | None) -> EpisodeLimits:
    of_any = limits(given)
    return EpisodeLimits(calls=of_any.calls, money=of_any.money)


class Changing:
    """A search whose results change with every call."""

    identity = "Changing"

    def __init__(self, *failures: str, pause: float = 0.0) -> None:
        """failures: kinds of the first calls' failures, "" = none."""
        self.asked: list[str] = []
        self.live = self.most_live = 0
        self.begun = asyncio.Event()
        self._failures, self._pause = list(failures), pause

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        self.asked.append(query)
        number = len(self.asked)
        self.begun.set()
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        try:
            await asyncio.sleep(self._pause)
        finally:
            self.live -= 1
        if self._failures and (kind := self._failures.pop(0)):
            raise RetrieverError("no answer", kind=kind)
        return [Passage(id=f"{query}/{number}", text=f"{query}\ud800", score=1 / 3)][:top_k]

    async def close(self) -> None:
        """Nothing is open."""


class Pages:
    """A page for each URL, except those that a kind of failure is given for."""

    identity = "Pages"

    def __init__(self, **failures: str) -> None:
        self.asked: list[list[str]] = []
        self.failures = failures

    async def fetch(self, urls: Sequence[str]) -> list[Passage | RetrieverError]:
        self.asked.append(list(urls))
        return [
            RetrieverError(f"{url} is gone", kind=self.failures[url])
            if url in self.failures
            else Passage(id=url, url=url, text=f"page {len(self.asked)}")
            for url in urls
        ]


class Backwards:
    """A reranker that turns the order around."""

    identity = "Backwards"

    def __init__(self) -> None:
        self.asked = 0

    async def rerank(self, query: str, passages: Sequence[Passage], *, top_k: int) -> list[Passage]:
        self.asked += 1
        return [Passage(id=p.id, text=p.text, score=float(i)) for i, p in enumerate(reversed(passages))][:top_k]


class Parrot:
    """A model that says the last message; each of its words is a token."""

    identity, is_remote, max_tokens = "parrot", True, 10

    def __init__(self, *, tokens: Callable[[str], int] = lambda text: len(text.split()), pause: float = 0.0) -> None:
        self.asked = 0
        self._tokens, self._pause = tokens, pause

    async def complete(self, messages: Sequence[Message], schema: Any = None) -> Reply:
        self.asked += 1
        await asyncio.sleep(self._pause)
        text = messages[-1].content
        return Reply(text=text, prompt_tokens=self._tokens(text), completion_tokens=self._tokens(text))

    async def close(self) -> None:
        """Nothing is open."""


def said(text: str) -> list[Message]:
    return [Message(role="user", content=text)]
