"""The search environment: the policy searches, reads, cites and answers, within limits.

    turn -> parse -> act -> observations

`grammar` parses turns, `tool_turns` executes searches, and this module runs an episode with both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from agentgrpo.core.concurrency import off_loop
from agentgrpo.core.messages import ToolReply
from agentgrpo.core.types import Episode, Exit, Message, Task, ToolRecord
from agentgrpo.environments.base import Observation, Scores, Turn
from agentgrpo.environments.conversation import size_of
from agentgrpo.environments.factory import Attempt, TurnLimits
from agentgrpo.environments.figures import Figures
from agentgrpo.environments.search import observations as say
from agentgrpo.environments.search.calls import CalledTurn
from agentgrpo.environments.search.context import END_SUMMARY, Contexts, FreshContext
from agentgrpo.environments.search.grammar import (
    AnswerAction,
    FetchAction,
    Query,
    RerankAction,
    SearchAction,
    SearchTurn,
    strip_markers,
)
from agentgrpo.environments.search.metrics import GOLD, OF_CONTEXTS, SEARCH_FIGURES, episode_metrics, gold_metrics
from agentgrpo.environments.search.observations import Block
from agentgrpo.environments.search.options import SearchOptions
from agentgrpo.environments.search.state import Ruling, SearchState, rule_on_answer
from agentgrpo.environments.search.tool_turns import ToolTurns
from agentgrpo.judges.base import close_judge
from agentgrpo.retrieval.base import Probed


class SearchEnvironments(SearchOptions):
    """Implements environments.factory.EnvironmentFactory.

    Searching too much, answering too early and writing no action are the policy's mistakes and are recorded in the
    Episode. A failing vdb retriever, reranker or evidence judge raises its EpisodeError; a failing web retriever is
    replaced by vdb and counted. A page that cannot be fetched is reported to the policy.
    """

    name = "search"

    @property
    def figures(self) -> Figures:
        return SEARCH_FIGURES

    @property
    def limits(self) -> TurnLimits:
        """The environment limits the turns itself, since after the last one it may ask for an answer once more."""
        ends = (END_SUMMARY,) if self.context is not None and self.context.asks else ()
        return TurnLimits(max_context=self.max_context, stop=(*self.planner.tags.stop_strings, *ends))

    @property
    def metrics(self) -> frozenset[str]:
        known = episode_metrics(SearchState(question=""), limit=1, answered=False)
        of_contexts = () if self.context is None else OF_CONTEXTS
        return frozenset({*known, *GOLD, *of_contexts, *(f"exit_{e.value}" for e in Exit)})

    def make(self, attempt: Attempt) -> SearchEnvironment:
        return SearchEnvironment(self, attempt)

    def counts(self) -> Mapping[str, float]:
        """Return the evidence judge's counts, if it keeps any."""
        return {f"evidence/{name}": n for name, n in getattr(self.evidence, "counts", dict)().items()}

    async def probe(self) -> None:
        """Raises JudgeError if the evidence judge's model does not reply."""
        if isinstance(self.evidence, Probed):
            await self.evidence.probe()

    async def close(self) -> None:
        """Close the evidence judge at the end of the run."""
        await close_judge(self.evidence)


class SearchEnvironment:
    """Implements environments.base.Environment."""

    def __init__(self, options: SearchOptions, attempt: Attempt) -> None:
        self.options, self.attempt = options, attempt
        self.tags = options.planner.tags
        self.state = SearchState(question=attempt.task.question)
        self.tools = ToolTurns(options, attempt.task, self.state)
        self.contexts: Contexts | None = None
        """None = the episode has one context, which only grows."""
        self.answer: str | None = None
        self.format_errors = 0  # in a row
        self.told_limit = False
        self.last_turn: Exit | None = None
        """How the episode ends unless the requested last turn answers; None = no last turn was requested."""
        self.is_forced = False
        """The last turn was requested at a dead end."""
        self.turn = -1
        self.num_acts = 0
        """Turns, except those requested as summaries."""
        self._said: list[Sequence[Block]] = []
        """Blocks that answer the current turn."""
        self._read = CalledTurn(said=SearchTurn())
        """The current turn."""
        self._replies: dict[int, Sequence[Block]] = {}
        """Replies to the current turn's calls, by position."""
        self._shown: tuple[str, ...] = ()
        """Documents that a context has shown."""

    async def reset(self, task: Task) -> Observation:
        opening = self.options.opening(task)
        if self.options.context is not None:
            room = self.options.room(self.attempt.max_context)
            self.contexts = Contexts(self.options, self.options.context, opening, max_context=room)
            self.tools.in_sight = self.contexts
        return Observation(messages=opening, tools=self.options.tool_specs, metrics=self._metrics())

    async def step(self, turn: Turn) -> Observation:
        if self.contexts is not None and self.contexts.is_asking:
            self.turn = turn.index
            return self._in_fresh_context(self.contexts.summarised(turn, self.state))
        self.turn, self._said, self._replies, self.num_acts = turn.index, [], {}, self.num_acts + 1
        self.tools.displayed, self.tools.opened = set(), set()
        already = len(self.tools.records)
        calls = self.options.calls
        self._read = CalledTurn(said=self.options.planner.parse(turn.text)) if calls is None else calls.read(turn)
        parsed = self._read.said
        if self.last_turn is not None:
            exit: Exit | None = await self._end(parsed, self.last_turn)
        else:
            exit = await self._act(parsed)
            if exit is None and self.last_turn is None and self.num_acts >= self.options.max_turns:
                exit = self._dead_end(Exit.MAX_TURNS)
        observation = Observation(
            messages=self._messages(turn, exit),
            done=exit,
            answer=self.answer,
            metrics=self._metrics(),
            calls=self.tools.records[already:],
            shown=tuple(self.state.labels.documents),
            citations=self.state.citations,
        )
        if exit is not None or self.contexts is None:
            return observation
        within = partial(self._within_context, self.contexts, turn, observation)
        return await off_loop(within, size=size_of(observation.messages))

    def _within_context(self, contexts: Contexts, turn: Turn, observation: Observation) -> Observation:
        """Return the answer to a turn: `observation`, or a fresh context or a request for a summary if it would outgrow
        the context."""
        next_ = contexts.after(
            turn,
            observation.messages,
            self.state,
            documents=frozenset(self.tools.displayed),
            pages=frozenset(self.tools.opened),
        )
        match next_:
            case FreshContext():
                return self._in_fresh_context(next_, calls=observation.calls)
            case Message():
                return replace(observation, messages=[next_], shown=self._shown)
        self._shown = tuple(observation.shown)
        return observation

    def _in_fresh_context(self, fresh: FreshContext, *, calls: Sequence[ToolRecord] = ()) -> Observation:
        self._shown = tuple(self.state.labels.documents)
        return Observation(
            messages=fresh.messages,
            tools=self.options.tool_specs,
            fresh_context=True,
            repeats=fresh.repeats,
            then=fresh.then,
            metrics=self._metrics(),
            calls=calls,
            shown=self._shown,
        )

    async def score(self, episode: Episode) -> Scores:
        return gold_metrics(episode)

    async def close(self) -> None:
        """There is nothing to close: its parts belong to the run."""

    def _metrics(self) -> Scores:
        gains = tuple(self.tools.gains.get(t, 0.0) for t in range(self.turn + 1))
        found = episode_metrics(self.state, limit=self.tools.limit, answered=self.answer is not None)
        return found | self._of_contexts() | {"evidence_gain_total": gains}

    def _of_contexts(self) -> dict[str, float]:
        if self.contexts is None:
            return {}
        counts = (self.contexts.num_contexts, self.contexts.num_summaries, self.state.counts["recalled_searches"])
        return dict(zip(OF_CONTEXTS, map(float, counts), strict=True))

    def _say(self, blocks: Sequence[Block]) -> None:
        self._said.append(blocks)

    def _answer_call(self, blocks: Sequence[Block]) -> None:
        """Answer the one call, or the tag, that the action consists of."""
        if self._read.done:
            self._replies[self._read.done[0]] = blocks
        else:
            self._say(blocks)

    def _messages(self, turn: Turn, exit: Exit | None) -> list[Message | ToolReply]:
        """Return the messages that answer the current turn."""
        if self.options.calls is None:
            return [Message.of_pieces(say.pieces(blocks, self.tags.names)) for blocks in self._said]
        if not turn.calls:
            return [Message.of_pieces(say.bare(blocks)) for blocks in self._said]
        if exit is not None and not (self._replies or self._said):
            return []
        texts = [
            _text(self._replies[place]) if place in self._replies else self._read.refused.get(place, "")
            for place in range(len(turn.calls))
        ]
        texts[-1] = "\n".join(filter(None, [texts[-1], *map(_text, self._said)]))
        return [ToolReply(call=call, text=text) for call, text in zip(turn.calls, texts, strict=True)]

    def _tell(self, tag: str, sentence: str) -> None:
        self._say([Block(tag, [say.sentence(self.options.spelled(sentence)), *say.uncovered(self.state.uncovered)])])

    # --- acts

    async def _act(self, parsed: SearchTurn) -> Exit | None:
        self.state.subquestions.update(parsed.subquestions)
        if parsed.action is None and not parsed.plans:
            return await self._format_error()
        self.format_errors = 0
        match parsed.action:
            case None:
                self._plan_noted(parsed)
            case AnswerAction(text=text):
                return await self._offer(text, decided_to_answer=parsed.decision == "answer")
            case SearchAction(queries=queries):
                self.state.counts["tool_turns"] += 1
                return await self._search(queries)
            case RerankAction():
                self.state.counts["tool_turns"] += 1
                self._answer_call(await self.tools.rerank(self.turn))
            case FetchAction():
                self.state.counts["tool_turns"] += 1
                self._answer_call(await self.tools.fetch(parsed.action, self.turn))
        return None

    def _plan_noted(self, parsed: SearchTurn) -> None:
        """Ask the policy to go on after a turn that only plans, which is no format error."""
        if parsed.subquestions:
            self._tell(self.tags.subquestions_feedback, say.SEARCH_NOW)
        else:
            advice = say.ANSWER_NOW if parsed.decision == "answer" else say.SEARCH_NOW
            self._tell(self.tags.decision_feedback, advice)

    async def _format_error(self) -> Exit | None:
        options, state = self.options, self.state
        state.counts["format_error_turns"] += 1
        self.format_errors += 1
        if self.format_errors >= options.max_consecutive_format_errors:
            queries = options.planner.fallback(state.question).queries
            if options.auto_search_on_deadend and state.search_rounds == 0 and queries:
                self.format_errors = 0
                return await self._search(queries, automatic=True)
            return Exit.FORMAT_ERROR_LIMIT
        if state.evidence_sufficient or state.counts["answer_rejections"] >= options.max_answer_rejections:
            return Exit.NO_ACTION
        self._tell(self.tags.decision_feedback, say.NO_ACTION)
        return None

    async def _search(self, queries: Sequence[Query], *, automatic: bool = False) -> Exit | None:
        places = () if automatic else self._read.done
        searched = await self.tools.search(queries, self.turn, automatic=automatic, numbered=not places)
        if searched.sent and self.options.on_turn is not None:
            await self.options.on_turn(self.turn, "search", searched.num_shown)
        for i, place in enumerate(places):
            lines = [*searched.shown.get(i, ()), *([searched.refused[i]] if i in searched.refused else [])]
            self._replies[place] = [Block(self.tags.information, lines)]
        if places:
            searched = replace(searched, shown={}, refused={})
        if blocks := searched.blocks(self.tags):
            self._say(blocks)
        if searched.plateau and self.num_acts < self.options.max_turns:
            self.state.counts["early_stops"] += 1
            return self._last_turn(Exit.SEARCH_LIMIT, self.tags.search_feedback, say.PLATEAU)
        if searched.over_limit and not searched.sent:
            if self.told_limit:  # the policy asks again anyway
                return self._dead_end(Exit.SEARCH_LIMIT)
            self.told_limit = True
        return None

    async def _offer(self, text: str, *, decided_to_answer: bool) -> Exit | None:
        """Accept or reject an answer."""
        options, state = self.options, self.state
        ruling = rule_on_answer(
            decided_to_answer=decided_to_answer,
            search_rounds=state.search_rounds,
            num_subquestions=len(state.subquestions),
            evidence_sufficient=state.evidence_sufficient,
            rejections=state.counts["answer_rejections"],
            max_rejections=options.max_answer_rejections,
            require_evidence=options.require_sufficient_evidence_before_answer,
            allow_direct=options.allow_internal_knowledge_answer,
        )
        if ruling is Ruling.REJECT:
            state.counts["answer_rejections"] += 1
            if state.search_rounds == 0:
                self._tell(self.tags.decision_feedback, say.SEARCH_FIRST)
            else:
                self._tell(self.tags.answer_feedback, say.INSUFFICIENT)
            return None
        state.counts["direct_answers"] += ruling is Ruling.DIRECT
        await self._accept(text, allowed=ruling is not Ruling.FORCE)
        return Exit.ANSWERED

    async def _accept(self, text: str, *, allowed: bool) -> None:
        self.state.counts["answer_allowed"] += allowed
        self.state.citations = self.state.labels.cite(text)
        self.answer = strip_markers(text)
        if self.options.on_turn is not None:
            await self.options.on_turn(self.turn, None, 0)

    # --- ends

    def _dead_end(self, exit: Exit) -> Exit | None:
        """Ask the policy for an answer once, if there is any evidence: turns or searches are used up."""
        if not self.options.force_answer_on_deadend:
            return exit
        self.is_forced = True
        return self._last_turn(exit, self.tags.answer_feedback, say.LAST_CHANCE)

    def _last_turn(self, exit: Exit, tag: str, sentence: str) -> Exit | None:
        """Ask for one more turn with the answer, which skips the rules for answers. Return `exit` if there is no
        evidence."""
        if not self.state.retrieved_docs:
            return exit
        self._say([Block(tag, [say.sentence(self.options.spelled(sentence))])])
        self.last_turn = exit
        return None

    async def _end(self, parsed: SearchTurn, exit: Exit) -> Exit:
        """Read the requested last turn; return `exit` if it is no answer."""
        if not isinstance(parsed.action, AnswerAction):
            self.state.counts["format_error_turns"] += parsed.action is None and not parsed.plans
            return exit
        gate = self.options.require_sufficient_evidence_before_answer
        self.state.counts["forced_final_answer"] += self.is_forced
        await self._accept(parsed.action.text, allowed=self.state.evidence_sufficient or not gate)
        return Exit.ANSWERED


def _text(blocks: Sequence[Block]) -> str:
    return "".join(piece.text for piece in say.bare(blocks))
