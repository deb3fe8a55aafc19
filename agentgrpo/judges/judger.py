"""The judger contract: how your own code grades responses.

    class Judger:
        def preprocess(self, case): ...            # optional: a JudgeCase in, a JudgeCase out
        def judge(self, instruction, response, reward_model, extra_fields): ...    # {"score": 0.7, ...}
        def batch_judge(self, cases): ...          # optional: a whole group in one call, a list of such dicts
        def postprocess(self, case, result): ...   # optional: result in, result out

A function with the arguments of `judge` is a judger too. Every method may be `async`; no method runs on the event
loop's thread. A dotted path names the judger: judge.name=my_judges:Judger.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import Any

from agentgrpo.core.concurrency import Limiter
from agentgrpo.core.errors import BadValue, ConfigError, JudgeError, boundary, line_of
from agentgrpo.core.messages import AgentMessage, content_of, finish_reason_of
from agentgrpo.core.numbers import number
from agentgrpo.core.outside import OwnThread
from agentgrpo.core.types import Episode, Task, ToolCall
from agentgrpo.judges.base import Grade
from agentgrpo.judges.merging import merged_grade

# --- User code, off the event loop's thread: it may block, sleep or never return.

MOST_HANGING = 32
"""Number of hanging threads at which further calls are refused: each costs memory that is never freed."""


class OffLoop:
    """Runs at most max_concurrent calls at a time, each in a separate thread. A call that takes longer than timeout_s,
    without the wait for its turn, fails with JudgeError (timeout). Its thread cannot be stopped, only abandoned;
    `hanging` counts such threads."""

    def __init__(self, *, timeout_s: float, max_concurrent: int) -> None:
        if not timeout_s > 0 or max_concurrent < 1:
            raise ConfigError(
                f"timeout_s={timeout_s}, max_concurrent={max_concurrent}; more than 0 seconds and 1 call or more are "
                "allowed"
            )
        self._timeout_s = timeout_s
        self._limiter = Limiter(max_concurrent)
        self._late: list[_Call] = []

    @property
    def hanging(self) -> int:
        self._late = [call for call in self._late if not call.is_over]
        return len(self._late)

    async def run(self, name: str, function: Callable[[], Any]) -> Any:
        """Return or raise what the function returns or raises. An awaitable result is awaited in that thread."""
        async with self._limiter:
            if self.hanging >= MOST_HANGING:
                raise JudgeError(f"{name}: {self.hanging} of its calls hang; repair it", kind="timeout")
            call, thread = _Call(name, function), OwnThread(f"agentgrpo-{name}")
            try:
                async with asyncio.timeout(self._timeout_s):
                    answered = await thread.call(call)
            except TimeoutError as e:
                raise JudgeError(f"{name} has not answered within {self._timeout_s:g} s", kind="timeout") from e
            finally:
                thread.end()
                self._late.append(call)
        return answered.result()


class _Call:
    """A call in a thread."""

    def __init__(self, name: str, function: Callable[[], Any]) -> None:
        self.__qualname__, self._function = name, function
        self.is_over = False

    def __call__(self) -> Any:
        try:
            value = self._function()
            return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
        except (TimeoutError, StopIteration) as e:  # these would mean something else to the waiting task
            raise RuntimeError(line_of(e)) from e
        except Exception:
            raise
        except BaseException as e:  # SystemExit, KeyboardInterrupt: user code must not end the program
            raise RuntimeError(line_of(e)) from e
        finally:
            self.is_over = True


async def _awaited(value: Any) -> Any:
    return await value


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCase:
    """One completed response, as a judger sees it."""

    instruction: str
    """The task's question."""
    response: str
    """The answer."""
    reward_model: Mapping[str, Any]
    """The data set's own `reward_model`, unchanged. Without one: {"ground_truth": the first reference or None,
    "references": all references}."""
    extra_fields: Mapping[str, Any]
    """agent_messages: the whole trace, tool results included, as a tuple of AgentMessage; response_message: the message
    with the answer; environment: {"name", "metrics", "outcome"}; data_source, task_id and metadata of the task."""


class JudgerJudge:
    """A judger as the judge of answers: scores are used unchanged and must lie in [0, 1]."""

    def __init__(self, judger: Any, *, timeout_s: float = 60.0, max_concurrent: int = 8) -> None:
        """timeout_s: limit of one call, for a response or for a group. Raises ConfigError if it is not a judger."""
        self._judger = judger
        self._name = getattr(judger, "__name__", type(judger).__name__)
        self._judge = _method(judger, "judge") or (judger if callable(judger) else None)
        self._batch_judge = _method(judger, "batch_judge")
        if self._judge is None and self._batch_judge is None:
            raise ConfigError(
                f"judger {self._name} has neither judge nor batch_judge and cannot be called; give it "
                "judge(instruction, response, reward_model, extra_fields), which returns a dict with score"
            )
        if self._batch_judge is not None:
            self._refuse_unfit("batch_judge", self._batch_judge, "(cases)", None)
        elif self._judge is not None:
            case = dict.fromkeys(("instruction", "response", "reward_model", "extra_fields"))
            self._refuse_unfit("judge", self._judge, f"({', '.join(case)})", **case)
        self.canaries_per_eval = int(getattr(judger, "canaries_per_eval", 0))
        self.compares = self._batch_judge is not None
        self._threads = OffLoop(timeout_s=timeout_s, max_concurrent=max_concurrent)

    def _refuse_unfit(self, what: str, method: Callable[..., Any], needed: str, /, *args: None, **kwargs: None) -> None:
        """Raise ConfigError if the method cannot be called with these arguments."""
        try:
            signature = inspect.signature(method)
        except ValueError:  # a builtin has no signature
            return
        try:
            signature.bind(*args, **kwargs)
        except TypeError as e:
            raise ConfigError(
                f"judger {self._name}: {what}{signature} cannot be called with {needed}: {e}; rename its arguments"
            ) from e

    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        """Grade answers without episodes; agent_messages is then the message with the answer alone."""
        messages = [AgentMessage(content=answer, finish_reason="stop") for answer in answers]
        return await self._grade([_case(task, (message,)) for message in messages])

    async def grade_episodes(self, task: Task, episodes: Sequence[Episode]) -> list[Grade]:
        return await self._grade([_case(task, messages_of(episode), _measured(episode)) for episode in episodes])

    async def _grade(self, cases: Sequence[JudgeCase]) -> list[Grade]:
        if not cases:
            return []
        with boundary(JudgeError, f"judger {self._name}"):
            if self._batch_judge is not None:
                verdicts: list[Grade] = await self._threads.run(self._name, partial(self._batch, cases))
                return verdicts
            return await self._each(cases)

    async def judge_here(self, case: JudgeCase) -> Grade:
        """Grade one case in this thread, without a time limit, for a judger that calls other judgers."""
        return (await self._batch([case]))[0] if self._judge is None else await self._one(case)

    async def _each(self, cases: Sequence[JudgeCase]) -> list[Grade]:
        calls = (self._threads.run(self._name, partial(self._one, case)) for case in cases)
        found = await asyncio.gather(*calls, return_exceptions=True)
        for verdict in found:
            if isinstance(verdict, BaseException):
                raise verdict
        return [verdict for verdict in found if isinstance(verdict, Grade)]

    async def _one(self, case: JudgeCase) -> Grade:
        case = await self._preprocessed(case)
        assert self._judge is not None
        result = await _settled(
            self._judge(
                instruction=case.instruction,
                response=case.response,
                reward_model=case.reward_model,
                extra_fields=case.extra_fields,
            )
        )
        return await self._verdict(case, result)

    async def _batch(self, cases: Sequence[JudgeCase]) -> list[Grade]:
        cases = [await self._preprocessed(case) for case in cases]
        assert self._batch_judge is not None
        results = await _settled(self._batch_judge(cases))
        if not isinstance(results, Sequence) or len(results) != len(cases):
            raise JudgeError(
                f"judger {self._name}: batch_judge returned {_short(results)} for {len(cases)} cases; a list with one "
                "dict for each is needed",
                kind="bad_verdict",
            )
        return [await self._verdict(case, result) for case, result in zip(cases, results, strict=True)]

    async def _preprocessed(self, case: JudgeCase) -> JudgeCase:
        preprocess = _method(self._judger, "preprocess")
        changed = case if preprocess is None else await _settled(preprocess(case))
        if not isinstance(changed, JudgeCase):
            raise JudgeError(
                f"judger {self._name}: preprocess returned {_short(changed)}; return the JudgeCase, changed with "
                "dataclasses.replace",
                kind="bad_verdict",
            )
        return changed

    async def _verdict(self, case: JudgeCase, result: Any) -> Grade:
        postprocess = _method(self._judger, "postprocess")
        if postprocess is not None:
            result = await _settled(postprocess(case, result))
        if 0 <= (score := _score_of(result)) <= 1:
            return Grade(score=score, reason=content_of(result.get("reason")), parts=_parts_of(result))
        raise JudgeError(
            f"judger {self._name} returned {_short(result)}; a dict with a number from 0 to 1 under 'score' is needed",
            kind="bad_verdict",
        )


def _score_of(result: Any) -> float:
    """The score of the result, or nan if it has no score."""
    try:
        return number(result["score"], "score")
    except (TypeError, LookupError, BadValue):
        return math.nan


def _parts_of(result: Mapping[Any, Any]) -> dict[Any, Any]:
    """The other numbers of the result."""
    numbers = (int, float, Real, Decimal)
    return {k: v for k, v in result.items() if k != "score" and (isinstance(v, numbers) or hasattr(v, "item"))}


def as_judge(given: Any) -> Any:
    """Return a user's object as a judge of answers: unchanged if it has `grade`, else as a judger, with its attributes
    timeout_s and max_concurrent if it has them."""
    if _method(given, "grade") is not None:
        return given
    settings = {key: getattr(given, key) for key in ("timeout_s", "max_concurrent") if hasattr(given, key)}
    return JudgerJudge(given, **settings)


class Merged:
    """Several judgers as one: the mean of their scores by non-negative weights, sum w·score / sum w; 0.0 if all weights
    are 0. Raises ConfigError for a weight that is negative or not finite."""

    def __init__(self, *, parts: Mapping[str, tuple[Any, float]]) -> None:
        for name, (_, weight) in parts.items():
            if not (math.isfinite(weight) and weight >= 0):
                raise ConfigError(f"judger '{name}': weight {weight}; a finite number >= 0 is allowed; correct it")
        self._parts = dict(parts)

    async def judge(
        self, instruction: str, response: str, reward_model: Mapping[str, Any], extra_fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        case = JudgeCase(
            instruction=instruction, response=response, reward_model=reward_model, extra_fields=extra_fields
        )
        total = math.fsum(weight for _, weight in self._parts.values())
        if total == 0:
            return {"score": 0.0, "reason": "no judger has a weight"}
        verdicts = {name: await JudgerJudge(judger).judge_here(case) for name, (judger, _) in self._parts.items()}
        score = math.fsum(self._parts[name][1] * verdict.score for name, verdict in verdicts.items()) / total
        merged = merged_grade(score, verdicts)
        return {**merged.parts, "score": score, "reason": merged.reason}


class GroundTruth:
    """An example of a judger: 1 if the response equals reward_model["ground_truth"] or one of its entries, white space
    aside. In the format of Search-R1, {"target": [...]}, the targets are the entries."""

    def judge(
        self, instruction: str, response: str, reward_model: Mapping[str, Any], extra_fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        truth = reward_model.get("ground_truth")
        truth = truth.get("target") if isinstance(truth, Mapping) else truth
        given = truth if isinstance(truth, list | tuple) else [truth]
        accepted = [text.split() for text in map(content_of, given) if text.strip()]
        if not accepted:
            raise JudgeError(
                f"task {extra_fields['task_id']}: its reward_model has no ground_truth", kind="no_reference"
            )
        return {"score": float(response.split() in accepted)}


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the user's function unchanged, since a function is a judger."""
    return function


def trace_of(episode: Episode) -> list[AgentMessage]:
    """The sampled turns of an episode and the environment's messages after them. Each message has the tool calls of its
    author: calls that the environment made by itself are in the environment's message."""
    calls: dict[tuple[int, bool], list[ToolCall]] = {}
    for record in episode.tool_records:
        made = ToolCall(name=record.name, arguments=record.arguments)
        calls.setdefault((record.turn, record.by_environment), []).append(made)
    messages: list[AgentMessage] = []
    number = -1
    for segment in (s for branch in episode.branches for s in branch.segments):
        if segment.sampled:
            number += 1
            asked = tuple(calls.get((number, False), ()))
            reason = "tool_calls" if asked else "length" if segment.cut_short else "stop"
            messages.append(AgentMessage(content=segment.content, finish_reason=reason, tool_calls=asked))
        elif number >= 0:  # segments before the first turn are the instruction
            by_itself = tuple(calls.pop((number, True), ()))
            messages.append(AgentMessage(content=segment.text, finish_reason="", role="tool", tool_calls=by_itself))
    return messages


def messages_of(episode: Episode) -> tuple[AgentMessage, ...]:
    """The whole trace of an episode: its turns and the environment's messages. The last message is the policy's, with
    the answer as its content."""
    messages = trace_of(episode)
    if messages and messages[-1].role == "assistant":
        del messages[-1]
    answer = AgentMessage(
        content=episode.answer or "",
        finish_reason=finish_reason_of(episode.exit),
        finish_info=episode.exit.value,
        extra_info=episode.metrics,
    )
    return (*messages, answer)


def _case(task: Task, messages: Sequence[AgentMessage], environment: Mapping[str, Any] | None = None) -> JudgeCase:
    task, references = task.apart(), task.references
    own = {"ground_truth": references[0] if references else None, "references": references}
    return JudgeCase(
        instruction=task.question,
        response=messages[-1].content,
        reward_model=task.metadata.get("reward_model", own),
        extra_fields={
            "agent_messages": tuple(messages),
            "response_message": messages[-1],
            "environment": environment or {"name": "", "metrics": {}, "outcome": {}},
            "data_source": source_of(task),
            "task_id": task.id,
            "metadata": task.metadata,
        },
    )


def _measured(episode: Episode) -> dict[str, Any]:
    return {"name": episode.environment, "metrics": dict(episode.metrics), "outcome": dict(episode.outcome)}


def source_of(task: Task) -> str:
    """The data source of the task: the data set's own field data_source, if it has one."""
    return str(task.metadata.get("data_source") or task.data_source)


def _method(judger: Any, name: str) -> Callable[..., Any] | None:
    method = getattr(judger, name, None)
    return method if callable(method) else None


async def _settled(value: Any | Awaitable[Any]) -> Any:
    return await value if inspect.isawaitable(value) else value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
