"""The settings of the search environment: its parts, and every limit and switch with its default."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias, cast

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Message, Task
from agentgrpo.environments.conversation import counted, size_of
from agentgrpo.environments.factory import EnvironmentDefaults
from agentgrpo.environments.search.calls import Calls, specs_of
from agentgrpo.environments.search.context import ContextRule
from agentgrpo.environments.search.grammar import Planner, Tags
from agentgrpo.environments.search.instructions import LEARNED, examples_for, how, instructions_for
from agentgrpo.judges.base import EvidenceJudge
from agentgrpo.renderers.base import Renderer, ToolRenderer
from agentgrpo.renderers.describe import put_first
from agentgrpo.renderers.plain import takes_system
from agentgrpo.retrieval.base import PageFetcher, Reranker, Retriever, TaskRetrievers

OnTurn: TypeAlias = Callable[[int, str | None, int], Awaitable[None]]

_LOG = logging.getLogger(__name__)
_AT_LEAST = {
    "max_turns": 1,
    "max_context": 2,
    "top_k": 1,
    "rerank_candidates": 1,
    "max_concurrent_queries": 1,
    "max_url_fetch": 1,
    "max_full_page_chars": 1,
    "max_answer_rejections": 0,
    "max_consecutive_format_errors": 1,
    "max_search_limit": 1,
    "max_search_limit_cap": 1,
    "search_budget_per_subquestion": 0,
    "evidence_plateau_min_gain": 0.0,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchOptions(EnvironmentDefaults):
    """The settings. Raises ConfigError for values out of range, for retrievers other than vdb and web, and if vdb is
    missing."""

    renderer: Renderer
    retrievers: Mapping[str, Retriever]
    """Retrievers by name: vdb, and optionally web. Without web, vdb serves the web searches."""
    evidence: EvidenceJudge
    training_retrievers: TaskRetrievers | None = None
    """Retrievers for tasks of the training split, with the same names; None = `retrievers`."""
    reranker: Reranker | None = None
    fetcher: PageFetcher | None = None
    context: ContextRule | None = None
    """How an episode that outgrows its context continues; None = the episode ends as context_overflow."""
    call_prices: Mapping[str, float] = field(default_factory=dict)
    """Price of one call by kind (web, vdb, rerank, fetch), for the records of calls; 0.0 for a missing kind."""
    on_turn: OnTurn | None = None
    """Awaited as on_turn(turn, "search", newly shown documents) after every search round and as on_turn(turn, None, 0)
    after an accepted or forced answer. Turns count from 0."""

    native_calls: bool = False
    """The policy calls the tools search, rerank and fetch as its model family does, instead of writing tags."""
    describe_tools: bool = True
    """Describe the actions and their format. False: the policy has learned them from demonstrations."""

    system_prompt: str | None = "auto"
    """A system message before the task's own messages; auto = instructions, or one line if the policy has learned them;
    null = no system message. The question follows as "Question: ..."."""
    examples: bool = True
    """Show whole example episodes before the question, if instructions are given."""
    tags: Mapping[str, str] | None = None
    """New names for tags, by default name: {search: find}; null = the default names."""
    max_turns: int = 5
    """Sampled turns; one more if an answer is requested at the end."""
    max_context: int | None = 8192
    """Most tokens of an episode, prompt included: about 1,000 of instructions and examples, and for each turn
    rollout.max_tokens and some 700 of passages. With `context`, most tokens of one context. null = as many as the
    engine holds."""
    top_k: int = 5
    """Passages shown for a query."""
    rerank_candidates: int = 20
    """Passages the reranker chooses top_k from; at least top_k."""
    max_concurrent_queries: int = 8
    """Concurrent retriever and reranker requests of one episode."""
    max_url_fetch: int = 3
    """Pages fetched in one turn."""
    max_full_page_chars: int = 4096
    """Characters of one part of a fetched page."""
    require_sufficient_evidence_before_answer: bool = True
    max_answer_rejections: int = 3
    """Answers rejected for insufficient evidence before the next one is accepted anyway."""
    max_consecutive_format_errors: int = 3
    max_search_limit: int | None = None
    """Queries an episode may send; null = max_turns."""
    search_budget_per_subquestion: int = 1
    """Further queries for every active subquestion after the first ..."""
    max_search_limit_cap: int = 10
    """... up to this limit, which never lowers max_search_limit."""
    allow_internal_knowledge_answer: bool = True
    """Accept an answer without a search if the policy decided so (search_decision) and set no subquestion."""
    deduplicate_search_results: bool = True
    """Show each document once in an episode; later results point to its label."""
    evidence_plateau_min_gain: float | None = None
    """Stop searching after a round with less evidence gain, and ask for the answer; null = never stop."""
    plateau_requires_sufficient: bool = True
    force_answer_on_deadend: bool = True
    """If turns or searches are used up without an answer, ask for one, provided that there is evidence."""
    auto_search_on_deadend: bool = True
    """At the limit of format errors, search for the question itself if nothing was searched yet."""
    show_search_evaluation: bool = True
    """Tell the policy after each round whether the evidence is sufficient."""

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"environment.{name} {value}: {least} or more is allowed; raise it")
        if self.rerank_candidates < self.top_k:
            raise ConfigError(
                f"environment.rerank_candidates {self.rerank_candidates}: at least top_k ({self.top_k}) is allowed; "
                f"raise it"
            )
        if "vdb" not in self.retrievers or not self.retrievers.keys() <= {"vdb", "web"}:
            given = ", ".join(self.retrievers) or "none"
            raise ConfigError(f"retrievers {given}: vdb is needed, and only web is allowed beside it; configure them")
        if "web" not in self.retrievers:
            _LOG.warning("no web retriever is configured: web searches will be served by vdb")
        _ = self.planner  # wrong tag names are an error of construction

    @cached_property
    def planner(self) -> Planner:
        return Planner(Tags.named(self.tags or {}))

    def retrievers_of(self, task: Task) -> Mapping[str, Retriever]:
        own = self.training_retrievers
        return self.retrievers if own is None or task.id not in own.task_ids else own.retrievers

    def opening(self, task: Task) -> list[Message]:
        """Return system message, examples and the task's own messages, with the question as "Question: ..."."""
        messages = list(task.messages)
        question = next(i for i in reversed(range(len(messages))) if messages[i].role == "user")
        messages[question] = replace(messages[question], content=f"Question: {messages[question].content}")
        if self._shows_examples:
            tags, in_turns = self.planner.tags, self.renderer.in_turns
            messages = [*examples_for(tags, evaluates=self.show_search_evaluation, in_turns=in_turns), *messages]
        text = self.system_message
        if text is not None and self.system_prompt == "auto" and not takes_system(self.renderer):
            messages = [*put_first(text, messages, system_role=False)]
        elif text is not None:
            messages.insert(0, Message(role="system", content=text))
        return messages

    def opened(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the token ids of an opening."""
        if self.tool_specs is None:
            return self.renderer.open(messages)
        return cast(ToolRenderer, self.renderer).open_with_tools(messages, self.tool_specs)

    def num_tokens(self, messages: Sequence[Message], most: int) -> int:
        """Return the tokens of a context that opens with `messages`; see environments.conversation.counted."""
        return counted(lambda: len(self.opened(messages)), size=size_of(messages), most=most, renderer=self.renderer)

    @cached_property
    def tool_specs(self) -> Sequence[ToolSpec] | None:
        """Tools on offer; None = the policy writes tags."""
        if not self.native_calls:
            return None
        has_pages = self.fetcher is not None
        return specs_of(web="web" in self.retrievers, rerank=self.reranker is not None, fetch=has_pages)

    @cached_property
    def calls(self) -> Calls | None:
        """Reads turns that call tools; None = the policy writes tags."""
        return None if self.tool_specs is None else Calls(self.planner, self.tool_specs)

    def room(self, max_context: int) -> int:
        """Tokens of a context in an engine that holds `max_context`."""
        return min(max_context, self.max_context or max_context)

    def rehearse(self, task: Task, *, max_context: int) -> None:
        """See environments.factory.EnvironmentFactory."""
        room = self.room(max_context)
        taken = self.opening_tokens(task, most=room)
        if self.context is not None and taken >= (most := self.context.most_tokens(room)):
            raise ConfigError(
                f"task {task.id} opens with {taken} tokens, and environment.context opens a fresh one after {most}, "
                "so each context would hold one turn; raise environment.context.max_tokens or environment.max_context, "
                "or shorten environment.system_prompt"
            )
        if taken >= room:
            held, key = ("the engine holds", "engine") if room == max_context else ("its limit is", "environment")
            raise ConfigError(
                f"task {task.id} opens with {taken} tokens, and {held} {room}: no room is left for a turn; raise "
                f"{key}.max_context (no model holds more than its own positions) or shorten "
                "environment.system_prompt (model.describe_tools=false does where the model has learned the tags)"
            )

    def opening_tokens(self, task: Task, *, most: int) -> int:
        """See environments.factory.EnvironmentFactory."""
        return self.num_tokens(self.opening(task), most)

    @cached_property
    def system_message(self) -> str | None:
        if self.system_prompt != "auto":
            return self.system_prompt
        if not self.describe_tools:
            return LEARNED
        return instructions_for(
            self.planner.tags,
            web="web" in self.retrievers,
            rerank=self.reranker is not None,
            fetch=self.fetcher is not None,
            evaluates=self.show_search_evaluation,
            gate=self.require_sufficient_evidence_before_answer,
            direct=self.allow_internal_knowledge_answer,
            max_turns=self.max_turns,
            max_queries=self.base_search_limit,
            native=self.native_calls,
        )

    def spelled(self, sentence: str) -> str:
        """Return `sentence`, with how to write the action it asks for unless the policy has learned that."""
        return sentence + how(self.planner.tags, sentence, native=self.native_calls) * self.describe_tools

    @property
    def _shows_examples(self) -> bool:
        is_told = self.describe_tools and self.system_prompt == "auto"
        return self.examples and is_told and not self.native_calls  # the examples are written in tags

    @property
    def base_search_limit(self) -> int:
        return self.max_turns if self.max_search_limit is None else self.max_search_limit
