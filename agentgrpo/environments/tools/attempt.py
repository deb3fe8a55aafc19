"""One tool episode: sampled turns and tool replies in alternation, until an exit.

    turn := sample -> parse -> call all, side by side -> reply

What a turn means is the renderer's business, what a call comes to the toolbox's; this is the loop between them. Replies
that do not fit into the context are dropped whole and end the episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentgrpo.core.messages import AnyCall
from agentgrpo.core.types import Episode, Exit, Piece, Segment, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.tools.options import ToolOptions
from agentgrpo.environments.tools.state import ToolState, episode_metrics
from agentgrpo.environments.transcript import Transcript
from agentgrpo.tools.base import Workspace

NO_ACTION = "No tool call and no final answer was found. Call a tool or give the final answer."


class Attempt:
    """Made for one episode, used once: `await run()`."""

    def __init__(
        self, options: ToolOptions, task: Task, *, sample_index: int, stream: str, sampling: SamplingParams
    ) -> None:
        self.options, self.task, self.sample_index, self.stream = options, task, sample_index, stream
        renderer = options.renderer
        self.transcript = Transcript(
            engine=options.engine,
            decode=renderer.decode,
            task=task,
            sample_index=sample_index,
            stream=stream,
            sampling=replace(
                sampling, stop=tuple(renderer.stop_strings), stop_token_ids=tuple(renderer.stop_token_ids)
            ),
            max_context=options.max_context,
        )
        self.state = ToolState()

    async def run(self) -> Episode:
        seed = f"{self.stream}|{self.task.id}|{self.sample_index}"
        try:
            async with self.options.environments.open(self.task, seed=seed) as workspace:
                self.transcript.open(self.options.opening(self.task))
                exit = await self._turns(workspace)
        finally:
            self.transcript.release()
        return Episode(
            task=self.task,
            sample_index=self.sample_index,
            branches=(self.transcript.branch,),
            answer=self.state.answer,
            exit=exit,
            metrics=episode_metrics(self.state, exit=exit, tools=self.options.toolbox.names),
            tool_records=tuple(self.state.records),
            timings=self.transcript.timings,
        )

    async def _turns(self, workspace: Workspace) -> Exit:
        for _ in range(self.options.max_turns):
            turn = await self.transcript.sample(at_least=self.options.min_context_left)
            exit = Exit.CONTEXT_OVERFLOW if turn is None else await self._act(turn, workspace)
            if exit is not None:
                return exit
        return Exit.MAX_TURNS

    async def _act(self, turn: Segment, workspace: Workspace) -> Exit | None:
        parsed = self.options.renderer.parse(turn.token_ids)
        if parsed.calls:
            self.state.format_errors = 0
            return await self._call(parsed.calls, turn, workspace)
        if parsed.answer is not None:
            self.state.answer = parsed.answer
            return Exit.ANSWERED
        self.state.counts["format_error_turns"] += 1
        self.state.format_errors += 1
        if self.state.format_errors >= self.options.max_consecutive_format_errors:
            return Exit.FORMAT_ERROR_LIMIT
        return self._observe(self.options.renderer.tell((Piece(NO_ACTION, True),), sampled=turn.token_ids))

    async def _call(self, calls: Sequence[AnyCall], turn: Segment, workspace: Workspace) -> Exit | None:
        """Make the calls, as far as the limit of calls allows, and show what came of all of them."""
        options, toolbox, index = self.options, self.options.toolbox, self.transcript.turn
        left = len(calls) if options.max_calls is None else max(0, options.max_calls - len(self.state.records))
        answers = await self.transcript.timed(
            toolbox.call_all(calls[:left], workspace, turn=index, parallel=options.parallel_calls)
        )
        why = f"the limit of {options.max_calls} calls is reached; give the final answer"
        answers += [toolbox.refuse(call, why, turn=index) for call in calls[left:]]
        self.state.note(calls, [record for _, record in answers], num_refused=len(calls[left:]))
        return self._observe(options.renderer.reply([reply for reply, _ in answers], sampled=turn.token_ids))

    def _observe(self, token_ids: Sequence[int]) -> Exit | None:
        fits = self.transcript.observe(token_ids, self.options.renderer.decode(token_ids))
        return None if fits else Exit.CONTEXT_OVERFLOW
