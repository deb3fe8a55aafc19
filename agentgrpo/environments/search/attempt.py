"""One search episode: sampled turns and observations in alternation, until an exit.

    turn := sample -> parse -> act -> observe

Everything sampled becomes a sampled segment with its log-probabilities, everything observed an injected one; the
context is their concatenation and nothing else. An observation that does not fit is dropped whole and ends the episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgrpo.core.types import Episode, Exit, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.search import observations as say
from agentgrpo.environments.search.grammar import (
    AnswerAction,
    FetchAction,
    Query,
    RerankAction,
    SearchAction,
    SearchTurn,
    strip_markers,
)
from agentgrpo.environments.search.metrics import episode_metrics
from agentgrpo.environments.search.observations import Block
from agentgrpo.environments.search.options import SearchOptions
from agentgrpo.environments.search.state import Ruling, SearchState, rule_on_answer
from agentgrpo.environments.search.tool_turns import ToolTurns
from agentgrpo.environments.transcript import Transcript


class Attempt:
    """Made for one episode, used once: `await run()`."""

    def __init__(
        self, options: SearchOptions, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams
    ) -> None:
        self.options, self.task, self.sample_index = options, task, sample_index
        self.tags = options.planner.tags
        self.transcript = Transcript(
            engine=options.engine,
            decode=options.renderer.decode,
            task=task,
            sample_index=sample_index,
            stream=stream,
            sampling=replace(
                sampling, stop=self.tags.stop_strings, stop_token_ids=tuple(options.renderer.stop_token_ids)
            ),
        )
        self.state = SearchState(question=task.question)
        self.tools = ToolTurns(options, task, self.state)
        self.shown: tuple[str, ...] = ()
        self.answer: str | None = None
        self.format_errors = 0  # in a row
        self.told_limit = False

    async def run(self) -> Episode:
        try:
            self.transcript.open(self.options.opening(self.task))
            exit = await self._turns()
        finally:
            self.transcript.release()
        metrics = episode_metrics(self.state, exit=exit, limit=self.tools.limit, answered=self.answer is not None)
        return Episode(
            task=self.task,
            sample_index=self.sample_index,
            branches=(self.transcript.branch,),
            answer=self.answer,
            exit=exit,
            metrics=metrics,
            metrics_by_turn={"evidence_gain_total": tuple(self.tools.gains.get(t, 0.0) for t in range(self._turn + 1))},
            citations=self.state.citations,
            retrieved_ids=self.shown,
            tool_records=tuple(self.tools.records),
            timings=self.transcript.timings,
        )

    async def _turns(self) -> Exit:
        for _ in range(self.options.max_turns):
            parsed = await self._sample()
            exit = Exit.CONTEXT_OVERFLOW if parsed is None else await self._act(parsed)
            if exit is not None:
                return exit
        return await self._dead_end(Exit.MAX_TURNS)

    # --- tokens

    async def _sample(self) -> SearchTurn | None:
        """The next turn; None where not one token would fit. A turn may be cut short by the end of the context."""
        segment = await self.transcript.sample()
        return None if segment is None else self.options.planner.parse(segment.text)

    def _observe(self, blocks: Sequence[Block]) -> Exit | None:
        """Append the blocks, if there is room for them and for one more token."""
        told = self.options.renderer.tell(say.pieces(blocks), sampled=self.transcript.sampled)
        if not self.transcript.observe(told, self.options.renderer.decode(told)):
            return Exit.CONTEXT_OVERFLOW
        self.shown = tuple(self.state.labels.documents)
        return None

    def _tell(self, tag: str, sentence: str) -> Exit | None:
        return self._observe(
            [Block(tag, [say.sentence(self.options.spelled(sentence)), *say.uncovered(self.state.uncovered)])]
        )

    @property
    def _turn(self) -> int:
        return self.transcript.turn

    # --- acts

    async def _act(self, parsed: SearchTurn) -> Exit | None:
        self.state.subquestions.update(parsed.subquestions)
        if parsed.action is None and not parsed.plans:
            return await self._format_error()
        self.format_errors = 0
        match parsed.action:
            case None:
                return self._plan_noted(parsed)
            case AnswerAction(text=text):
                return await self._offer(text, decided_to_answer=parsed.decision == "answer")
            case SearchAction(queries=queries):
                self.state.counts["tool_turns"] += 1
                return await self._search(queries)
            case RerankAction():
                self.state.counts["tool_turns"] += 1
                return self._observe(await self.transcript.timed(self.tools.rerank(self._turn)))
            case FetchAction(urls=urls):
                self.state.counts["tool_turns"] += 1
                return self._observe(await self.transcript.timed(self.tools.fetch(urls, self._turn)))

    def _plan_noted(self, parsed: SearchTurn) -> Exit | None:
        """A turn that only plans is no format error: it is told to go on."""
        if parsed.subquestions:
            return self._tell(self.tags.subquestions_feedback, say.SEARCH_NOW)
        advice = say.ANSWER_NOW if parsed.decision == "answer" else say.SEARCH_NOW
        return self._tell(self.tags.decision_feedback, advice)

    async def _format_error(self) -> Exit | None:
        options, state = self.options, self.state
        state.counts["format_error_turns"] += 1
        self.format_errors += 1
        if self.format_errors >= options.max_consecutive_format_errors:
            queries = options.planner.fallback(state.question).queries
            if options.auto_search_on_deadend and state.search_rounds == 0 and queries:
                self.format_errors = 0
                return await self._search(queries)
            return Exit.FORMAT_ERROR_LIMIT
        if state.evidence_sufficient or state.counts["answer_rejections"] >= options.max_answer_rejections:
            return Exit.NO_ACTION
        return self._tell(self.tags.decision_feedback, say.NO_ACTION)

    async def _search(self, queries: Sequence[Query]) -> Exit | None:
        searched = await self.transcript.timed(self.tools.search(queries, self._turn))
        if searched.sent and self.options.on_turn is not None:
            await self.options.on_turn(self._turn, "search", searched.num_shown)
        if (exit := self._observe(searched.blocks)) is not None:
            return exit
        if searched.plateau and self._turn < self.options.max_turns - 1:
            self.state.counts["early_stops"] += 1
            return await self._last_turn(Exit.SEARCH_LIMIT, self.tags.search_feedback, say.PLATEAU)
        if searched.over_limit and not searched.sent:
            if self.told_limit:  # and asks again all the same
                return await self._dead_end(Exit.SEARCH_LIMIT)
            self.told_limit = True
        return None

    async def _offer(self, text: str, *, decided_to_answer: bool) -> Exit | None:
        """An answer at the gate."""
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
                return self._tell(self.tags.decision_feedback, say.SEARCH_FIRST)
            return self._tell(self.tags.answer_feedback, say.INSUFFICIENT)
        state.counts["direct_answers"] += ruling is Ruling.DIRECT
        await self._accept(text, allowed=ruling is not Ruling.FORCE)
        return Exit.ANSWERED

    async def _accept(self, text: str, *, allowed: bool) -> None:
        self.state.counts["answer_allowed"] += allowed
        self.state.citations = self.state.labels.cite(text)
        self.answer = strip_markers(text)
        if self.options.on_turn is not None:
            await self.options.on_turn(self._turn, None, 0)

    # --- ends

    async def _dead_end(self, exit: Exit) -> Exit:
        """Turns or searches are used up: the policy is asked for an answer once, if there is any evidence."""
        if not self.options.force_answer_on_deadend:
            return exit
        ended = await self._last_turn(exit, self.tags.answer_feedback, say.LAST_CHANCE)
        self.state.counts["forced_final_answer"] += ended is Exit.ANSWERED
        return ended

    async def _last_turn(self, exit: Exit, tag: str, sentence: str) -> Exit:
        """One more turn, outside the gate, for the answer; `exit` where there is no evidence or no answer comes."""
        if not self.state.retrieved_docs:
            return exit
        if self._observe([Block(tag, [say.sentence(self.options.spelled(sentence))])]) is not None:
            return Exit.CONTEXT_OVERFLOW
        parsed = await self._sample()
        if parsed is None:
            return Exit.CONTEXT_OVERFLOW
        if not isinstance(parsed.action, AnswerAction):
            self.state.counts["format_error_turns"] += parsed.action is None and not parsed.plans
            return exit
        gate = self.options.require_sufficient_evidence_before_answer
        await self._accept(parsed.action.text, allowed=self.state.evidence_sufficient or not gate)
        return Exit.ANSWERED
