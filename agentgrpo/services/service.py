"""The common interface to external services: a search, a page, a judge model, a server's tool.

    await service.ask(Request(kind, body, live, form)) -> Answer

The calling part (retrieval.services, tools.services, judges.llm.completer, engines.remote.openai) makes the request.
Rules that hold for all services are layers before it, in a fixed order (layers.layered)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from agentgrpo.core.errors import EpisodeError
from agentgrpo.services.asking import asking_on

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Generic[T]):
    """Serialisation and cost of the answers of one kind of service."""

    write: Callable[[T], Any]
    """Convert an answer to JSON."""
    read: Callable[[Any], T]
    error: type[EpisodeError]
    facts: frozenset[str] = frozenset()
    """Kinds of permanent failure (see cassette)."""
    unbilled: frozenset[str] = frozenset()
    """Kinds of failure that cost only the price of the call: the estimate set aside beyond it is given back."""
    cost: Callable[[T], float] | None = None
    """Cost of an answer beyond the price of the call, if it is known only afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[T]):
    """One request to a service. `kind` and `body` decide the answer; the service's address is not part of it."""

    kind: str
    """Kind for prices and limits (budget.KINDS)."""
    body: Mapping[str, Any]
    """Content as JSON."""
    live: Callable[[], Awaitable[T]] = field(compare=False)
    """Sends the request to the service itself."""
    form: Form[T] = field(compare=False)
    estimate: float = 0.0
    """Upper bound of form.cost."""
    has_effects: bool = False
    """Whether two equal requests differ in effect from one."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    value: T
    paid: bool = True
    """False for a replayed answer."""


class Service(Protocol):
    async def ask(self, request: Request[T]) -> Answer[T]:
        """Answer a request. Raises the errors of `request.live`, and the refusals of the layers (see layers)."""
        ...


class Direct:
    """The service itself. Its client (client.JsonClient) waits for a slot among concurrent calls and for the rate, then
    sets a deadline over all attempts, then makes an attempt. counts: the client adds to it (refused)."""

    def __init__(self, counts: MutableMapping[str, float]) -> None:
        self._counts = counts

    async def ask(self, request: Request[T]) -> Answer[T]:
        with asking_on(self._counts):
            return Answer(await request.live())
