"""Contexts of an episode that does not fit into one: which rounds are carried over, and how the others are summarised.

    P A0 E0 A1 E1 A2       and E2 would not fit
    drop      P' A1 E1 A2 E2 A3 ...     the newest rounds are kept, token by token; P' lists the older searches
    summary   ... A2 Q S, P' A2 E2 ...  Q asks for a summary S, an ordinary turn of the policy; P' has its text

Every context is a separate branch. A turn that a later context repeats is trained only where it was sampled. Labels
hold for the whole episode. If the policy repeats a search whose results have left the context, they are shown again
without a retriever call and without cost.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, cast

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolReply
from agentgrpo.core.types import Message, Piece
from agentgrpo.core.untrusted import unframed
from agentgrpo.environments.base import Turn
from agentgrpo.environments.conversation import counted, size_of
from agentgrpo.environments.search.grammar import QueryKey, normalise_query
from agentgrpo.environments.search.state import OpenedPage, SearchState
from agentgrpo.renderers.base import ToolRenderer

if TYPE_CHECKING:
    from agentgrpo.environments.search.options import SearchOptions

SHARE = 0.75
"""Share of environment.max_context that a context may fill if no max_tokens is set; the rest is room for a turn."""
MOST_LISTED, MOST_LABELS = 50, 3
"""Most searches listed, and most labels of each."""
END_SUMMARY = "</summary>"
ASK = (
    "The context is full and begins anew. Write <summary>all that you know by now and what is still missing, with the "
    "labels of the results</summary>."
)
NOTES = "Your summary of what was done so far:"
LISTED = "Searched so far, and no longer shown (search again to see it, at no cost):"
_SUMMARY = re.compile(r"<summary\s*>(.*?)(?:</summary\s*>|\Z)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRule:
    """When a fresh context is opened, and what it holds. Raises ConfigError for values out of range."""

    max_tokens: int | None
    """A fresh context is opened when a turn would follow more tokens than this; None = three quarters of
    environment.max_context."""
    keep_rounds: int
    """Newest rounds (turn and answer) that are carried over; fewer if they do not fit."""
    max_summary_tokens: int | None = None
    """Most tokens carried over of a summary that the policy is asked for; None = no summary is requested."""

    def __post_init__(self) -> None:
        for name, value in (("max_tokens", self.max_tokens), ("max_summary_tokens", self.max_summary_tokens)):
            if value is not None and value < 1:
                raise ConfigError(f"environment.context.{name} {value}: 1 or more is allowed; raise it")
        if self.keep_rounds < 1:
            raise ConfigError(
                f"environment.context.keep_rounds {self.keep_rounds}: 1 or more is allowed, because the newest turn "
                "is always kept; raise it"
            )

    @property
    def asks(self) -> bool:
        """Whether the policy is asked for summaries."""
        return self.max_summary_tokens is not None

    def most_tokens(self, max_context: int) -> int:
        """Return the tokens after which a fresh context is opened, for a context that holds `max_context`."""
        return min(max_context, int(SHARE * max_context) if self.max_tokens is None else self.max_tokens)


def dropping(*, max_tokens: int | None = None, keep_rounds: int = 2) -> ContextRule:
    """See ContextRule."""
    return ContextRule(max_tokens=max_tokens, keep_rounds=keep_rounds)


def summarising(*, max_tokens: int | None = None, keep_rounds: int = 1, max_summary_tokens: int = 512) -> ContextRule:
    """See ContextRule. A summary is a turn of the policy, of at most rollout.max_tokens; it does not count towards
    environment.max_turns."""
    return ContextRule(max_tokens=max_tokens, keep_rounds=keep_rounds, max_summary_tokens=max_summary_tokens)


@dataclass(slots=True, kw_only=True)
class _Round:
    """A turn in the context, and its answer."""

    turn: int
    num_tokens: int
    """Tokens of both."""
    documents: frozenset[str]
    """Ids of the documents that the answer shows."""
    pages: frozenset[OpenedPage]
    queries: tuple[QueryKey, ...]
    """Queries sent in this turn."""
    opened: tuple[OpenedPage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshContext:
    """The opening of the next context: see environments.base.Observation."""

    messages: Sequence[Message]
    repeats: Sequence[int]
    then: Sequence[Message | ToolReply]


class Contexts:
    """The contexts of one episode. The policy can see `documents` and `pages`."""

    def __init__(self, options: SearchOptions, rule: ContextRule, opening: Sequence[Message], *, max_context: int):
        """opening: the episode's. max_context: tokens that a context may have."""
        self._options, self._rule, self._opening = options, rule, opening
        self._max_context, self._most = max_context, rule.most_tokens(max_context)
        self._tokens = self._count(opening)
        self._rounds: list[_Round] = []
        self._asked: set[QueryKey] = set()
        self._fetched: set[OpenedPage] = set()
        self._left: list[QueryKey | OpenedPage] = []
        """Queries and pages of rounds that have left the context, in order."""
        self._said: Sequence[Message | ToolReply] = ()
        self.summary = ""
        self.num_contexts, self.num_summaries = 1, 0
        self.is_asking = False
        """The next turn is a summary."""
        self.documents: set[str] = set()
        self.pages: set[OpenedPage] = set()

    def after(
        self,
        turn: Turn,
        said: Sequence[Message | ToolReply],
        state: SearchState,
        *,
        documents: frozenset[str],
        pages: frozenset[OpenedPage],
    ) -> FreshContext | Message | None:
        """Add `turn` and its answer `said`, which shows these documents and pages. Return None if the context goes on,
        a message that asks for a summary (`summarised` follows), or a fresh context."""
        num_taken = len(turn.token_ids)
        round_ = _Round(
            turn=turn.index,
            num_tokens=num_taken + self._told(said, turn.token_ids),
            documents=documents,
            pages=pages,
            queries=tuple(key for key in state.asked if key not in self._asked),
            opened=tuple(page for page in state.fetched if page not in self._fetched),
        )
        self._rounds.append(round_)
        self._asked.update(round_.queries)
        self._fetched.update(round_.opened)
        self.documents |= documents
        self.pages |= pages
        if self._tokens + round_.num_tokens <= self._most:
            self._tokens += round_.num_tokens
            return None
        self._said = said
        if self._rule.max_summary_tokens is not None:
            ask = Message.of_pieces([Piece(ASK, True)])
            asked = self._tokens + num_taken + self._told([ask], turn.token_ids)
            if asked + self._rule.max_summary_tokens <= self._max_context:
                self.is_asking = True
                return ask
        return self._fresh(state)

    def summarised(self, turn: Turn, state: SearchState) -> FreshContext:
        """Take `turn` as the requested summary; return the fresh context."""
        assert self._rule.max_summary_tokens is not None
        self.is_asking = False
        self.num_summaries += 1
        text = self._options.planner.without_thoughts(turn.content)
        found = _SUMMARY.findall(text)
        self.summary = self._cut("\n".join(part.strip() for part in found) if found else text.strip())
        return self._fresh(state)

    def _fresh(self, state: SearchState) -> FreshContext:
        """Return a fresh context with the newest rounds that fit beside the opening, and a list of the other rounds'
        searches."""
        opening, kept = self._count(self._with_notes([])), self._rounds[-1:]
        for round_ in reversed(self._rounds[-self._rule.keep_rounds : -1]):
            if opening + sum(r.num_tokens for r in kept) + round_.num_tokens > self._most:
                break
            kept.insert(0, round_)
        for round_ in self._rounds[: -len(kept)]:
            self._left += [*round_.queries, *round_.opened]
        self._rounds = kept
        self.documents = {id_ for round_ in kept for id_ in round_.documents}
        self.pages = {page for round_ in kept for page in round_.pages}
        tokens = sum(round_.num_tokens for round_ in kept)
        messages = self._with_notes(self._listed(state, self._most - opening - tokens))
        self._tokens = self._count(messages) + tokens
        self.num_contexts += 1
        return FreshContext(messages=messages, repeats=[r.turn for r in kept], then=self._said)

    def _listed(self, state: SearchState, room: int) -> list[str]:
        """Return lines for the newest searches and pages that have left the context, as many as fit into `room`
        tokens."""
        texts = {normalise_query(text): text for text in state.previous_queries}
        lines: list[str] = []
        room -= self._tokens_of(f"\n\n{LISTED}")
        for left in reversed(self._left[-MOST_LISTED:]):
            if isinstance(left, OpenedPage):
                line = f"- page: {left.url}"
            else:
                source, words, _ = left
                markers = dict.fromkeys(state.labels.marker_of(p) for p in state.asked[left])
                first, more = [*markers][:MOST_LABELS], " ..." * (len(markers) > MOST_LABELS)
                line = f"- {source}: {texts[words]}: {' '.join(first) or 'nothing'}{more}"
            line = unframed(line, self._options.planner.tags.names)
            room -= self._tokens_of(f"\n{line}")
            if room < 0:
                break
            lines.insert(0, line)
        return lines

    def _with_notes(self, listed: Sequence[str]) -> list[Message]:
        """Return the opening, with notes on the earlier contexts after the question."""
        parts = [f"{NOTES}\n{unframed(self.summary, self._options.planner.tags.names)}"] if self.summary else []
        if listed:
            parts.append("\n".join([LISTED, *listed]))
        messages = list(self._opening)
        question = next(i for i in reversed(range(len(messages))) if messages[i].role == "user")
        content = "\n\n".join([messages[question].content, *parts])
        messages[question] = replace(messages[question], content=content)
        return messages

    def _cut(self, text: str) -> str:
        """Return the part of a summary that is carried over."""
        most = self._rule.max_summary_tokens or 0
        kept = bisect_left(range(1, len(text) + 1), True, key=lambda n: self._tokens_of(text[:n]) > most)
        return text[:kept].rstrip()

    def _tokens_of(self, text: str) -> int:
        return len(self._options.renderer.observe((Piece(text, False),)))

    def _count(self, messages: Sequence[Message]) -> int:
        return self._options.num_tokens(messages, self._max_context)

    def _told(self, said: Sequence[Message | ToolReply], sampled: Sequence[int]) -> int:
        """Return the tokens of the answer to the turn `sampled`, as environments.conversation appends it."""
        return counted(
            lambda: self._appended(said, sampled),
            size=size_of(said),
            most=self._max_context,
            renderer=self._options.renderer,
        )

    def _appended(self, said: Sequence[Message | ToolReply], sampled: Sequence[int]) -> int:
        renderer, count = self._options.renderer, 0
        for is_reply, group in groupby(said, key=lambda message: isinstance(message, ToolReply)):
            if is_reply:
                replies = cast(Sequence[ToolReply], list(group))
                count += len(cast(ToolRenderer, renderer).reply(replies, sampled=sampled))
                sampled = () if renderer.in_turns else sampled
                continue
            for message in cast(Sequence[Message], list(group)):
                count += len(renderer.tell(message.pieces, sampled=sampled))
                sampled = () if renderer.in_turns else sampled
        return count
