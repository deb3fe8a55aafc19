"""Functions of a user's own as reward terms, in the shapes in which other trainers call them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Branch, Episode, Message, RewardResult, ScoredGroup, Segment
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.judger import JudgerJudge
from agentgrpo.rewards.own import EnvironmentTerm, FunctionTerm, as_term
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import Correctness
from agentgrpo.rollout.scoring import TooManyFailures, new_failures, refuse_failures
from tests.builders import episode, given, group, task

TEXTS = ("Castin", "Orlin it is", "")
TASK = task("Who?", "Castin", wanted="figs", extra_info={"index": 7}, data_source="shop")


def attempts(*texts: str, of: Any = TASK) -> list[Episode]:
    said = [
        Segment(
            role="assistant",
            token_ids=(5, 6),
            sampled=True,
            logprobs=(-0.5, -0.5),
            policy_version=0,
            text=f"{text}<|im_end|>",
            end="<|im_end|>",
        )
        for text in texts or TEXTS
    ]
    return [episode(of, given(1), turn, answer=turn.content, sample_index=i) for i, turn in enumerate(said)]


async def score(function: Callable[..., Any], *episodes: Episode, **settings: Any) -> ScoredGroup:
    terms = {"mine": FunctionTerm(function, **settings)}
    return await Reward(judge=ExactMatch(), terms=terms).score(group(*(episodes or attempts())))


def totals(scored: ScoredGroup) -> list[float | None]:
    return [None if result is None else result.total for result in scored.rewards]


def messages(scored: ScoredGroup) -> list[str]:
    return [f.message for f in scored.failures if f is not None]


def trl(prompts: list[str], completions: list[str], wanted: list[str], **kwargs: Any) -> list[float | None]:
    assert prompts == ["Who?"] * 3
    assert wanted == ["figs"] * 3
    assert kwargs["answer"] == ["Castin"] * 3
    assert kwargs["completion_ids"] == [[5, 6]] * 3
    return [None if not text else float(len(text)) for text in completions]


def trl_chat(completions: list[list[dict[str, str]]], **kwargs: Any) -> list[float]:
    assert completions[0] == [{"role": "assistant", "content": "Castin"}]
    return [float(len(said[-1]["content"])) for said in completions]


async def trl_later(completions: Sequence[str], answer: Sequence[str]) -> list[bool]:
    return [text == right for text, right in zip(completions, answer, strict=True)]


def verl(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    assert (data_source, extra_info["index"]) == ("shop", 7)
    return {"score": solution_str == ground_truth, "length": len(solution_str), "pred": solution_str}


def singular(completion: str, answer: str, **kwargs: Any) -> float:
    return float(completion == answer and kwargs["prompt"] == "Who?")


def of_environments(environments: Sequence[Any], **kwargs: Any) -> list[float]:
    return [environment.reward for environment in environments]


def of_ids(completion_ids: list[list[int]], **kwargs: Any) -> list[int]:
    return [len(ids) for ids in completion_ids]


def of_columns(wanted: list[str], **kwargs: Any) -> list[float]:
    assert wanted == ["figs"] * 3
    return [float(len(text)) for text in kwargs["completions"]]


def logging(
    completions: list[str], trainer_state: Any, log_metric: Any = None, log_extra: Any = None, **kwargs: Any
) -> list[float | None]:
    assert trainer_state.global_step == 0
    log_metric("share", 0.5)
    log_metric("share", True)
    log_extra("length", list(map(len, completions)))
    log_extra("seen", [text[:3] for text in completions])
    return [None if not text else 1.0 for text in completions]


class Orm:
    def __call__(self, completions: list[str], **kwargs: Any) -> tuple[float, ...]:
        return tuple(map(float, map(len, completions)))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda episode: episode.answer == "Castin", [1, 0, 0]),
        (lambda ep, scale=2: scale * len(ep.answer), [12, 22, 0]),
        (lambda *args: len(args), [1, 1, 1]),
        (trl_chat, [6, 11, 0]),
        (trl_later, [1, 0, 0]),
        (of_environments, [0.25, 0.25, 0.25]),
        (of_ids, [2, 2, 2]),
        (of_columns, [6, 11, 0]),
        (lambda **columns: [len(columns["prompts"])] * 3, [3, 3, 3]),
        (lambda episode, **more: len(episode.answer), [6, 11, 0]),
        (verl, [1, 0, 0]),
        (singular, [1, 0, 0]),
        (Orm(), [6, 11, 0]),
        (functools.partial(lambda completions, scale: [scale] * len(completions), scale=3), [3, 3, 3]),
    ],
)
async def test_each_shape_is_called_as_its_trainer_calls_it(function: Any, expected: list[float]) -> None:
    episodes = [replace(one, metrics={"reward": 0.25}) for one in attempts()]
    assert totals(await score(function, *episodes)) == expected


async def test_a_function_that_does_not_apply_leaves_the_other_terms() -> None:
    alone = await score(trl)
    assert totals(alone) == [6, 11, None]
    assert messages(alone) == ["task t0, sample 2: no term applies to the episode: mine returned None"]
    terms = {"mine": FunctionTerm(trl, weight=0.5), "right": Correctness(weight=1.0)}
    both = await Reward(judge=ExactMatch(), terms=terms).score(group(*attempts()))
    assert totals(both) == [4, 5.5, 0]
    assert both.rewards[2] is not None
    assert dict(both.rewards[2].terms) == {"right": 0.0}


async def test_further_numbers_are_kept() -> None:
    first: RewardResult | None = (await score(verl)).rewards[0]
    assert first is not None
    assert dict(first.parts) == {"mine/length": 6.0}
    assert first.reason == "mine: pred: Castin"


async def test_what_a_function_logs_is_kept() -> None:
    terms = {"mine": FunctionTerm(logging), "right": Correctness(weight=1.0)}
    rewards = (await Reward(judge=ExactMatch(), terms=terms).score(group(*attempts()))).rewards
    assert [one and (dict(one.parts), one.reason) for one in rewards] == [
        ({"mine/share": 0.75, "mine/length": 6.0}, "mine: seen: Cas"),
        ({"mine/share": 0.75, "mine/length": 11.0}, "mine: seen: Orl"),
        ({"mine/share": 0.75, "mine/length": 0.0}, ""),
    ]


def _logs_too_few(completions: list[str], log_extra: Any, **kwargs: Any) -> list[float]:
    log_extra("seen", completions[:2])
    return [1.0] * 3


def _logs_text(completions: list[str], log_metric: Any, **kwargs: Any) -> list[float]:
    log_metric("share", "all")
    return [1.0] * 3


def _asks_the_environment(environments: Sequence[Any], **kwargs: Any) -> list[float]:
    return [getattr(environment, "board", 0.0) for environment in environments]


def _asks_the_trainer(trainer_state: Any, **kwargs: Any) -> list[float]:
    return [trainer_state.global_step / trainer_state.max_steps] * 3


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_logs_too_few, "log_extra('seen') got 2 values for 3 completions; one for each is needed"),
        (_logs_text, "log_metric('share') is 'all'; a number is allowed"),
        (_asks_the_environment, "environments[0] has turns, and no board: an environment is closed by then; let get_"),
        (_asks_the_trainer, "trainer_state has global_step, and no max_steps: a reward is the same at every step"),
    ],
)
async def test_what_cannot_be_logged_or_asked_is_told(function: Any, message: str) -> None:
    scored = await score(function, *(replace(one, metrics={"turns": 1.0}) for one in attempts()))
    assert totals(scored) == [None] * 3
    assert message in messages(scored)[0]


async def test_without_a_verdict_an_attempt_is_left_out() -> None:
    silent = await score(lambda episode: episode.answer or None)
    assert messages(silent)[-1].endswith("returned None instead of a score")
    paid = EnvironmentTerm("reward", weight=1.0)
    first, second, _ = attempts()
    found = await Reward(judge=ExactMatch(), terms={"paid": paid}).score(
        group(replace(first, metrics={"reward": 0.5}), second)
    )
    assert totals(found) == [0.5, None]
    assert [f and f.kind for f in found.failures] == [None, "reward"]


def _fails_for_some(episode: Episode) -> float:
    return 1 / episode.sample_index


def _fails_for_all(completions: list[str], **kwargs: Any) -> list[float]:
    return [completion[0]["content"] for completion in completions]  # type: ignore[index]


async def test_an_error_is_a_line_with_its_place_and_data() -> None:
    some = await score(_fails_for_some)
    assert totals(some) == [None, 1.0, 0.5]
    place = f"test_functions.py:{_fails_for_some.__code__.co_firstlineno + 1} in _fails_for_some"
    [message] = messages(some)
    assert message.startswith("task t0, sample 0: reward term tests.rewards.test_functions:_fails_for_some: ZeroDiv")
    assert message.endswith(f"Error: division by zero ({place})")
    assert [f and f.kind for f in some.failures] == ["reward", None, None]
    told: set[str] = set()
    [line] = new_failures([some], told)
    assert line.startswith("1 of 3 episodes failed for infrastructure reasons (reward: 1); their groups are left out")
    assert new_failures([some], told) == []
    refuse_failures([some], max_error_fraction=0.5)
    every = await score(_fails_for_all)
    assert totals(every) == [None] * 3
    assert "which gets texts (messages=true or false): TypeError: string indices" in messages(every)[0]
    with pytest.raises(TooManyFailures, match=r"3 of 3 .* \(reward: 3\)"):
        refuse_failures([every], max_error_fraction=0.5)


class Odd:
    """A term of a user's own that returns no number."""

    dimension, is_cost = "mine", False

    def __init__(self, said: object) -> None:
        self.said = said

    def __call__(self, episode: Episode, correctness: float) -> Any:
        return self.said


@pytest.mark.parametrize("said", [None, "good", [1.0], {}])
async def test_a_class_that_returns_no_number_ends_no_run(said: object) -> None:
    found = await Reward(judge=ExactMatch(), terms={"mine": Odd(said)}).score(group(*attempts()))
    assert totals(found) == [None] * 3
    assert "reward term 'mine' is" in messages(found)[0]


@pytest.mark.parametrize("said", [[1.0], 1.0, None, "abc", ["a", "b", "c"], {"rewards": [1, 1, 1]}])
async def test_lists_that_are_none_are_told(said: object) -> None:
    def wrong(completions: Any) -> object:
        return said

    assert totals(await score(wrong)) == [None] * 3


@pytest.mark.parametrize(
    "function",
    [
        lambda queries, prompts, labels: 0.0,
        lambda *args, **kwargs: 0.0,
        lambda max_length, penalty: None,
        lambda: 0.0,
        lambda a, b: 0.0,
    ],
)
def test_another_shape_is_refused_at_the_start_with_those_there_are(function: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes \(.*TRL's \(prompts, completions, \*\*columns\)"):
        FunctionTerm(function)


def _of_text(text: str) -> float:
    return len(text)


def _of_labels(completions: list[str], labels: list[str]) -> list[float]:
    return [0.0] * len(completions)


def test_a_column_that_the_data_lacks_is_told_at_the_start() -> None:
    with pytest.raises(ConfigError, match="_of_text takes"):
        FunctionTerm(_of_text)
    reward = Reward(judge=ExactMatch(), terms={"mine": FunctionTerm(_of_labels)})
    with pytest.raises(ConfigError, match="_of_labels asks for labels, and task t0 has no such column; it has answer"):
        reward.refuse_task(TASK)
    reward.refuse_task(task("q", "a", labels="x"))
    openrlhf = Reward(judge=ExactMatch(), terms={"mine": FunctionTerm(lambda queries, prompts, labels, **kwargs: [])})
    with pytest.raises(ConfigError, match=r"asks for queries, .*; a reward function takes \(episode\)"):
        openrlhf.refuse_task(TASK)


async def test_messages_are_chosen_by_annotation_setting_or_opening() -> None:
    def seen(completions, **kwargs):  # type: ignore[no-untyped-def]
        return [1.0 if isinstance(completion, str) else 2.0 for completion in completions]

    assert totals(await score(seen)) == [1, 1, 1]
    assert totals(await score(seen, messages=True)) == [2, 2, 2]
    chat = replace(TASK, messages=(Message(role="system", content="Be brief."), *TASK.messages))
    assert totals(await score(seen, *attempts(of=chat))) == [2, 2, 2]
    assert totals(await score(seen, *attempts(of=chat), messages=False)) == [1, 1, 1]
    assert totals(await score(seen, *attempts(of=replace(TASK, is_messages=True)))) == [2, 2, 2]


async def test_the_completion_is_all_that_follows_the_opening() -> None:
    first, second, _ = (e.turns[0] for e in attempts())
    shown = Segment(role="tool", token_ids=(9,), sampled=False, text="[3 apples]")
    of = replace(attempts()[0], branches=(Branch(segments=(given(1), second, shown, first)),))
    seen: list[Any] = []

    def look(completions, **kwargs):  # type: ignore[no-untyped-def]
        seen.extend(completions)
        return [0.0] * len(completions)

    await score(look, of)
    await score(look, of, messages=True)
    assert seen[0] == "Orlin it is[3 apples]Castin"
    assert [(m["role"], m["content"]) for m in seen[1]] == [
        ("assistant", "Orlin it is"),
        ("tool", "[3 apples]"),
        ("assistant", "Castin"),
    ]


def _counts_marks(instruction: str, response: str, reward_model: Any, extra_fields: Any) -> dict[str, float]:
    seen = "seen" in extra_fields["metadata"]
    extra_fields["metadata"]["seen"] = True
    return {"score": float(seen)}


async def test_what_a_judge_does_to_a_task_no_other_sees() -> None:
    terms = {"right": Correctness(weight=1.0)}
    of = task("q", "a")
    found = await Reward(judge=JudgerJudge(_counts_marks), terms=terms).score(group(*attempts(of=of)[:2]))
    assert totals(found) == [0.0, 0.0]
    assert of.metadata == {}


def test_an_object_that_can_be_called_is_a_function() -> None:
    assert isinstance(as_term(Orm()), FunctionTerm)
    odd = Odd(1.0)
    assert as_term(odd) is odd
