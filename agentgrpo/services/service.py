"""The one seam to whatever is asked over a boundary: a search, a page, a model that judges, a tool of a server.

    await service.ask(Request(kind, body, live, form)) -> Answer

A part that asks (retrieval.services, tools.services, judges.llm.completer, engines.remote.openai) makes the request;
everything that must hold for all of them is a layer before it, in one order (layers.layered)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from agentgrpo.core.errors import EpisodeError
from agentgrpo.services.asking import asking_on

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[T]):
    """How the answers of one kind of service are written down, and what they cost."""

    write: Callable[[T], Any]
    """As JSON."""
    read: Callable[[Any], T]
    error: type[EpisodeError]
    facts: frozenset[str] = frozenset()
    """Kinds of failure that are facts of the world (see cassette)."""
    unbilled: frozenset[str] = frozenset()
    """Kinds of failure that cost no more than the price of the call: what was set aside beside it is given back."""
    cost: Callable[[T], float] | None = None
    """What an answer has cost beside the price of the call, where that is known only afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[T]):
    """One question to a service. `kind` and `body` decide the answer; where the service is, is no part of it."""

    kind: str
    """By which it is priced and limited (budget.KINDS)."""
    body: Mapping[str, Any]
    """As JSON."""
    live: Callable[[], Awaitable[T]] = field(compare=False)
    """Asks the service itself."""
    form: Form[T] = field(compare=False)
    estimate: float = 0.0
    """The most that form.cost may come to."""
    has_effects: bool = False
    """Asking twice is not the same as asking once."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    value: T
    paid: bool = True
    """False: replayed."""


class Service(Protocol):
    async def ask(self, request: Request[T]) -> Answer[T]:
        """Raises what `request.live` raises, and what a layer refuses: see there."""
        ...


class Direct:
    """The service itself. What its client does, it does in this order: a turn among the calls at once, the rate, a
    deadline over all attempts, an attempt (client.JsonClient). counts: what the client adds to (refused)."""

    def __init__(self, counts: MutableMapping[str, float]) -> None:
        self._counts = counts

    async def ask(self, request: Request[T]) -> Answer[T]:
        with asking_on(self._counts):
            return Answer(await request.live())
