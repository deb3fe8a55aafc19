"""User-defined terms: metrics of the environment, by name, and functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from agentgrpo.core.errors import BadValue, ConfigError, EpisodeError, RewardError, boundary, did_you_mean
from agentgrpo.core.numbers import named, number
from agentgrpo.core.outside import call_once, called, holding
from agentgrpo.core.types import Episode, Task
from agentgrpo.judges.judger import source_of, trace_of
from agentgrpo.rewards.base import TermScore
from agentgrpo.rewards.calling import (
    ATTEMPT,
    GROUP,
    SHAPES,
    Calling,
    Handed,
    numbers_in,
    reason_of,
    shape_of,
    texts_in,
)
from agentgrpo.tasks.columns import columns_of

DIMENSION = "environment"


class EnvironmentTerm:
    """weight · a metric of the episode: `reward.terms.tests.name=environment.tests_passed`. `environment.reward` is the
    sum of the environment's rewards, for turns and at the end, separately for each seat. Implements
    rewards.base.TurnTerm and BranchTerm."""

    dimension = DIMENSION

    def __init__(self, metric: str, *, weight: float, is_cost: bool = False) -> None:
        self.metric, self._weight, self.is_cost = metric, weight, is_cost

    def __call__(self, episode: Episode, correctness: float) -> float:
        """Raises BadValue if the environment has not given the metric for this episode."""
        if self.metric not in episode.metrics:
            known = ", ".join(sorted(episode.metrics)) or "nothing"
            raise BadValue(
                f"a reward term reads environment.{self.metric}, and the environment {episode.environment} has given "
                f"no number for it (perhaps get_reward or score returned None); it has {known}; name one of these, or "
                f"let get_reward or score return a number.{did_you_mean(self.metric, episode.metrics)}",
                kind="reward",
            )
        return self._weight * episode.metrics[self.metric]

    def per_turn(self, episode: Episode) -> Sequence[float]:
        """See rewards.base.TurnTerm: the metric's numbers if it has one per turn, else zeros."""
        by_turn = episode.metrics_by_turn.get(self.metric, ())
        if len(by_turn) != len(episode.turns):
            return [0.0] * len(episode.turns)
        return [self._weight * value for value in by_turn]

    def per_branch(self, episode: Episode) -> Sequence[float] | None:
        """See rewards.base.BranchTerm: each branch gets the reward of its seat."""
        if self.metric != "reward" or not episode.seats:
            return None
        return [self._weight * episode.metrics[f"reward/{branch.seat}"] for branch in episode.branches]


class FunctionTerm:
    """weight · the result of a function: `reward.terms.brief.name=my_terms:brief`. Implements rewards.base.GroupTerm.

        (episode)                           a core.types.Episode
        (completions, **columns)            as TRL calls it: lists with an entry for each attempt of the group, by the
                                            names prompts, completions, completion_ids and the task's columns; and
                                            log_metric, log_extra, environments, trainer_state (calling.Handed)
        (solution_str, ground_truth, ...)   as verl calls it: by name, of one attempt: solution_str or completion,
                                            completion_ids, and the task's columns, such as answer, question,
                                            data_source, ground_truth, extra_info

    The function may be async. It returns a number (true and false are 1 and 0), or a mapping with a number under
    "score", whose other numbers and texts are recorded. For None the attempt is left out, since it has no verdict. A
    function of lists returns a list; an entry None means that the function does not apply and other terms alone count.
    """

    dimension = DIMENSION

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        weight: float = 1.0,
        is_cost: bool = False,
        messages: bool | None = None,
    ) -> None:
        """messages: whether completions and prompts are lists of messages, not texts; null = by the function's
        annotation of completions, else by the prompt of the data. Raises ConfigError for a function that cannot be
        called in any of these ways."""
        self._function, self._weight, self.is_cost = function, weight, is_cost
        kind = function if inspect.isroutine(function) else type(function)
        self._where = f"reward term {kind.__module__}:{kind.__qualname__}"
        try:
            signature = inspect.signature(function)
        except ValueError:  # a builtin has no signature
            signature = inspect.Signature([inspect.Parameter("episode", inspect.Parameter.POSITIONAL_ONLY)])
        parameters = signature.parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        self._messages = _annotated(named) if messages is None else messages
        self._names = frozenset(p.name for p in named)
        self._needed = [p.name for p in named if p.default is p.empty]
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        shape = shape_of(signature)
        if shape is None:
            raise ConfigError(
                f"{self._where} takes {signature}; {SHAPES}; rename its arguments; a wrapper of a function keeps its "
                "names with functools.wraps, and a factory must be called in your module: brief = make_brief(100)"
            )
        self._shape = shape

    def refuse_task(self, task: Task) -> None:
        """Raise ConfigError if the task lacks a column that the function needs."""
        if self._shape is Calling.EPISODE:
            return
        known = self._columns(task).keys() | (GROUP if self._shape is Calling.GROUP else ATTEMPT)
        for name in self._needed:
            if name not in known:
                raise ConfigError(
                    f"{self._where} asks for {name}, and task {task.id} has no such column; it has "
                    f"{', '.join(sorted(known))}; {SHAPES}.{did_you_mean(name, known)}"
                )

    async def of_group(self, episodes: Sequence[Episode]) -> list[TermScore | EpisodeError]:
        """See rewards.base.GroupTerm."""
        if self._shape is not Calling.GROUP:
            return list(await asyncio.gather(*map(self._of_episode, episodes)))
        handed = Handed(episodes, self._where)
        try:
            said = await self._asked(self._lists(episodes, handed), episodes[0])
            rows = _rows(said, len(episodes), self._where)
            scores = [TermScore() if one is None else self._opinion(one) for one in rows]
            return [
                replace(score, parts={**parts, **score.parts}, reason=score.reason or reason)
                for score, parts, reason in zip(scores, handed.parts(), handed.reasons(), strict=True)
            ]
        except EpisodeError as e:
            return [e] * len(episodes)

    async def _of_episode(self, episode: Episode) -> TermScore | EpisodeError:
        try:
            said = await self._asked(None if self._shape is Calling.EPISODE else self._named(episode), episode)
            if said is None:
                raise RewardError(f"{self._where} returned None instead of a score")
            return self._opinion(said)
        except EpisodeError as e:
            return e

    async def _asked(self, arguments: Mapping[str, Any] | None, episode: Episode) -> Any:
        """The result of the function. Raises RewardError for any exception of the function."""
        stage = self._where
        if arguments is not None:
            stage += f", which gets {'messages' if self._is_chat(episode) else 'texts'} (messages=true or false)"
        name = f"task {episode.task.id}, sample {episode.sample_index}"
        with boundary(RewardError, stage), holding(f"{stage} ({name})"):
            call = partial(self._function, episode) if arguments is None else partial(self._function, **arguments)
            said = called(call).result()
        if not inspect.isawaitable(said):
            return said
        return await call_once(RewardError, stage, name, lambda: said)

    def _opinion(self, said: object) -> TermScore:
        if not isinstance(said, Mapping):
            return TermScore(value=self._weight * number(said, self._where))
        if said.get("score") is None:
            raise RewardError(f"{self._where} returned a mapping without a score; give a number under 'score'")
        score = self._weight * number(said["score"], f"{self._where}: score")
        rest = {key: value for key, value in said.items() if key != "score"}
        return TermScore(
            value=score, parts=named(numbers_in(rest), self._where, number), reason=reason_of(texts_in(rest))
        )

    def _named(self, episode: Episode) -> dict[str, Any]:
        completion = _completion(episode, chat=self._is_chat(episode))
        values = {
            **self._columns(episode.task),
            "completion": completion,
            "solution_str": _completion(episode, chat=False),
            "completion_ids": _ids(episode),
        }
        if not self._is_chat(episode):
            values["prompt"] = episode.task.question
        return self._taken(values)

    def _lists(self, episodes: Sequence[Episode], handed: Handed) -> dict[str, Any]:
        chat = self._is_chat(episodes[0])
        columns = [self._columns(e.task) for e in episodes]
        values: dict[str, Any] = {name: [of.get(name) for of in columns] for name in columns[0] if name != "prompt"}
        values["prompts"] = [of["prompt"] if chat else e.task.question for of, e in zip(columns, episodes, strict=True)]
        values["completions"] = [_completion(e, chat=chat) for e in episodes]
        values["completion_ids"] = [_ids(e) for e in episodes]
        return self._taken({**values, **handed.arguments})

    def _taken(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if self._takes_all or name in self._names}

    def _columns(self, task: Task) -> dict[str, Any]:
        ours, metadata = columns_of(task), task.metadata
        truth = ours["answer"] if len(task.references) < 2 else ours["references"]
        model = metadata.get("reward_model")
        if isinstance(model, Mapping):
            truth = model.get("ground_truth", truth)
        verl = {"data_source": source_of(task), "ground_truth": truth, "extra_info": dict(metadata)}
        return {**ours, **verl, **metadata}

    def _is_chat(self, episode: Episode) -> bool:
        return episode.task.is_chat if self._messages is None else self._messages


def as_term(built: Any) -> Any:
    """Return a user's object as a term: unchanged if it is a term or not callable, else as a function term."""
    return built if hasattr(built, "dimension") or not callable(built) else FunctionTerm(built)


def _annotated(parameters: Sequence[inspect.Parameter]) -> bool | None:
    """Whether completions are messages by their annotation; None if it does not say."""
    found = next((p for p in parameters if p.name in ("completions", "completion")), None)
    if found is None or found.annotation is found.empty:
        return None
    text = found.annotation if isinstance(found.annotation, str) else inspect.formatannotation(found.annotation)
    return None if text in ("list", "List", "Any") else "dict" in text.lower() or text.count("[") > 1


def _rows(said: object, count: int, where: str) -> list[Any]:
    is_row = (isinstance(said, Sequence) and not isinstance(said, str)) or getattr(said, "ndim", 0) > 0
    rows = list(islice(said, count + 1)) if is_row else []  # type: ignore[call-overload]
    if len(rows) != count:
        what = f"{len(rows)} or more" if is_row else f"a {type(said).__name__}"
        raise BadValue(
            f"{where} returned {what} for {count} completions; a list with a number or None for each is needed"
        )
    return rows


def _completion(episode: Episode, *, chat: bool) -> Any:
    """The trace after the prompt, as messages or as one text."""
    trace = trace_of(episode)
    if not chat:
        return "".join(message.content for message in trace)
    return [
        {"role": m.role, "content": m.content}
        | ({"tool_calls": [_call(c.name, c.arguments) for c in m.tool_calls]} if m.tool_calls else {})
        for m in trace
    ]


def _call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}


def _ids(episode: Episode) -> list[int]:
    return [token for turn in episode.turns for token in turn.token_ids]
