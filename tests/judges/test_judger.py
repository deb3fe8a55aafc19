"""Judges of users' own: what they see, what they may return, and where they run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentgrpo.config.build import admit_user_code, build_node
from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.core.messages import MAX_REASON, AgentMessage
from agentgrpo.core.types import Exit, Failure, Outcome, Segment, Task, ToolCall, ToolRecord
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.base import Grade
from agentgrpo.judges.composed import Composite, Route, refuse_unjudged
from agentgrpo.judges.judger import GroundTruth, JudgeCase, JudgerJudge, Merged, as_judge, messages_of
from agentgrpo.judges.llm.judge import transcript
from agentgrpo.judges.llm.prompt import TOOL
from agentgrpo.rewards.registry import TERMS, Reward
from tests.builders import episode, given, group, sampled, task
from tests.thorough import late

REWARD_MODEL = {"style": "rule", "ground_truth": ["four", "4"], "weights": {"a": 1}}


def fixed(score: Any, **more: Any) -> Any:
    def judger(
        instruction: str, response: str, reward_model: Mapping[str, Any], extra_fields: Mapping[str, Any]
    ) -> Any:
        return {"score": score, **more}

    return judger


class Seen:
    """A judger that keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []

    def judge(self, **shown: Any) -> dict[str, Any]:
        self.shown.append(shown)
        return {"score": 0.5, "reason": "because"}


def turn(text: str, cut_short: bool = False) -> Segment:
    return replace(sampled(3, 4), text=text, cut_short=cut_short)


def two_arguments(question: str, answer: str) -> dict[str, float]:
    return {"score": 1.0}


class NoCases:
    def batch_judge(self) -> list[dict[str, float]]:
        return []


def test_a_judger_that_cannot_be_called_is_refused_before_the_first_answer() -> None:
    with pytest.raises(ConfigError) as caught:
        JudgerJudge(two_arguments)
    assert str(caught.value).startswith(
        "judger two_arguments: judge(question: 'str', answer: 'str') -> 'dict[str, float]' cannot be called with "
        "(instruction, response, reward_model, extra_fields): missing a required argument"
    )
    with pytest.raises(ConfigError, match=r"NoCases: batch_judge\(\) .* cannot be called with \(cases\): too many"):
        JudgerJudge(NoCases())


async def test_what_a_judger_sees_of_an_episode() -> None:
    of = task("What is 2 + 2?", "four", "4", reward_model=REWARD_MODEL, data_source="sums")
    call = ToolRecord(name="calculator", arguments={"x": "2+2"}, outcome=Outcome.SUCCESS, turn=0)
    told = replace(given(5, role="tool"), text="4, and again 1")
    done = replace(
        episode(of, given(1), turn("Let me see"), told, turn("It is 4"), answer="4"),
        tool_records=(call, replace(call, arguments={"x": "1"})),
        metrics={"tool_calls": 2.0},
        environment="tools",
        outcome={"files": 1.0},
    )
    seen = Seen()
    assert await JudgerJudge(seen).grade_episodes(of, [done]) == [Grade(score=0.5, reason="because")]
    answer = AgentMessage(content="4", finish_reason="stop", finish_info="answered", extra_info={"tool_calls": 2.0})
    calls = (ToolCall(name="calculator", arguments={"x": "2+2"}), ToolCall(name="calculator", arguments={"x": "1"}))
    assert seen.shown == [
        {
            "instruction": "What is 2 + 2?",
            "response": "4",
            "reward_model": REWARD_MODEL,
            "extra_fields": {
                "agent_messages": (
                    AgentMessage(content="Let me see", finish_reason="tool_calls", tool_calls=calls),
                    AgentMessage(content="4, and again 1", finish_reason="", role="tool"),
                    answer,
                ),
                "response_message": answer,
                "environment": {"name": "tools", "metrics": {"tool_calls": 2.0}, "outcome": {"files": 1.0}},
                "data_source": "sums",
                "task_id": "t0",
                "metadata": of.metadata,
            },
        }
    ]
    assert seen.shown[0]["reward_model"] is not REWARD_MODEL  # what it changes there, no other case sees


async def test_a_data_set_without_a_reward_model_gives_its_references() -> None:
    seen = Seen()
    await JudgerJudge(seen).grade(task("q", "a", "b"), ["x"])
    assert seen.shown[0]["reward_model"] == {"ground_truth": "a", "references": ("a", "b")}
    assert seen.shown[0]["extra_fields"]["agent_messages"] == (AgentMessage(content="x", finish_reason="stop"),)


def test_finish_reasons_of_the_messages() -> None:
    of = replace(episode(None, given(1), turn("a", cut_short=True), turn("b")), exit=Exit.MAX_TURNS, answer="forced")
    assert [(m.content, m.finish_reason, m.finish_info) for m in messages_of(of)] == [
        ("a", "length", ""),
        ("forced", "length", "max_turns"),
    ]


async def test_preprocess_judge_postprocess() -> None:
    class Careful:
        def preprocess(self, case: JudgeCase) -> JudgeCase:
            return replace(case, response=case.response.strip().lower())

        async def judge(self, *, response: str, **_: Any) -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"score": float(response == "castin")}

        def postprocess(self, case: JudgeCase, result: dict[str, Any]) -> dict[str, Any]:
            return {"score": result["score"] / 2, "reason": case.response}

    assert await JudgerJudge(Careful()).grade(task(), [" CASTIN ", "Orlin"]) == [
        Grade(score=0.5, reason="castin"),
        Grade(score=0.0, reason="orlin"),
    ]


async def test_a_batch_judge_gets_one_call_for_the_group() -> None:
    class Batch:
        def __init__(self) -> None:
            self.calls: list[list[str]] = []

        def batch_judge(self, cases: Sequence[JudgeCase]) -> list[dict[str, Any]]:
            self.calls.append([c.response for c in cases])
            return [{"score": i / 10} for i in range(len(cases))]

    judger = Batch()
    assert [v.score for v in await JudgerJudge(judger).grade(task(), ["a", "b", "c"])] == [0.0, 0.1, 0.2]
    assert judger.calls == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({}, "{}"),
        ({"scores": 1}, "{'scores': 1}"),
        ({"score": None}, "{'score': None}"),
        ({"score": "1"}, "{'score': '1'}"),
        ({"score": 1.5}, "{'score': 1.5}"),
        ({"score": -0.5}, "{'score': -0.5}"),
        ({"score": float("nan")}, "{'score': nan}"),
        (0.5, "0.5"),
        (None, "None"),
    ],
)
async def test_a_result_without_a_score_is_an_error(result: Any, shown: str) -> None:
    class Wrong:
        def judge(self, **_: Any) -> Any:
            return result

    with pytest.raises(JudgeError) as raised:
        await JudgerJudge(Wrong()).grade(task(), ["x"])
    assert raised.value.kind == "bad_verdict"
    assert str(raised.value) == (
        f"judger Wrong returned {shown}; a dict with a number from 0 to 1 under 'score' is needed"
    )


@pytest.mark.parametrize("results", [None, [], [{"score": 1}], "ab"])
async def test_a_batch_of_another_size_is_an_error(results: Any) -> None:
    class Wrong:
        def batch_judge(self, cases: Sequence[JudgeCase]) -> Any:
            return results

    with pytest.raises(JudgeError, match=r"batch_judge returned|a dict with a number") as raised:
        await JudgerJudge(Wrong()).grade(task(), ["x", "y"])
    assert raised.value.kind == "bad_verdict"


async def test_what_a_judger_raises_is_a_judge_error_that_says_who() -> None:
    def broken(**_: Any) -> Any:
        raise KeyError("ground_truth")

    with pytest.raises(JudgeError, match="judger broken: KeyError: 'ground_truth'"):
        await JudgerJudge(broken).grade(task(), ["x"])


@pytest.mark.parametrize("error", [TimeoutError("mine"), StopIteration(), SystemExit(3), KeyboardInterrupt()])
async def test_no_exception_of_a_judger_passes_for_another_or_ends_the_program(error: BaseException) -> None:
    def broken(**_: Any) -> Any:
        raise error

    with pytest.raises(JudgeError, match=f"judger broken: RuntimeError: .*{type(error).__name__}") as raised:
        await JudgerJudge(broken).grade(task(), ["x"])
    assert raised.value.kind == "JudgeError"


def test_what_is_no_judger_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"judger int has neither judge nor batch_judge and cannot be called"):
        JudgerJudge(3)


# --- threads


async def test_judgers_run_side_by_side_in_threads_while_the_loop_goes_on() -> None:
    threads, beaten = set[int](), threading.Event()

    def slow(**_: Any) -> dict[str, Any]:
        threads.add(threading.get_ident())
        assert beaten.wait(60)
        return {"score": 1}

    judging = asyncio.create_task(JudgerJudge(slow).grade(task(), list("abcd")))
    while len(threads) < 4 and not judging.done():  # noqa: ASYNC110 - what is waited for is other threads'
        await asyncio.sleep(0.01)
    beaten.set()
    assert [v.score for v in await judging] == [1.0] * 4
    assert len(threads - {threading.get_ident()}) == 4


async def test_no_more_calls_at_once_than_allowed() -> None:
    lock, live, most = threading.Lock(), 0, 0

    def counting(**_: Any) -> dict[str, Any]:
        nonlocal live, most
        with lock:
            live += 1
            most = max(most, live)
        time.sleep(0.02)
        with lock:
            live -= 1
        return {"score": 1}

    await JudgerJudge(counting, max_concurrent=3).grade(task(), [str(n) for n in range(12)])
    assert (most, live) == (3, 0)


async def test_waiting_for_a_turn_is_no_timeout() -> None:
    def slow(**_: Any) -> dict[str, Any]:
        time.sleep(0.1)
        return {"score": 1}

    verdicts = await JudgerJudge(slow, max_concurrent=1, timeout_s=0.5).grade(task(), [str(n) for n in range(8)])
    assert [v.score for v in verdicts] == [1.0] * 8


@pytest.mark.clock
@pytest.mark.parametrize("kind", ["blocks", "never awaits", "batch"])
async def test_a_judger_that_hangs_is_a_timeout_of_its_episodes(kind: str) -> None:
    free = threading.Event()

    def hangs(**_: Any) -> dict[str, Any]:
        free.wait()
        return {"score": 1}

    async def never(**_: Any) -> dict[str, Any]:
        await asyncio.to_thread(free.wait)
        return {"score": 1}

    class Batch:
        def batch_judge(self, cases: Sequence[JudgeCase]) -> Any:
            free.wait()

    judge = JudgerJudge({"blocks": hangs, "never awaits": never, "batch": Batch()}[kind], timeout_s=0.1)
    reward = Reward(judge=judge, terms={"correctness": TERMS["correctness"](weight=1.0)})
    began = time.monotonic()
    scored = await reward.score(group(episode(answer="a"), episode(answer=None, sample_index=1)))
    assert not late(began, 1.1)  # deadline + 1 s
    name = {"blocks": "hangs", "never awaits": "never", "batch": "Batch"}[kind]
    message = f"{name} has not answered within 0.1 s"
    assert scored.failures == (Failure(kind="timeout", stage="judge", message=message), None)
    assert [r and r.total for r in scored.rewards] == [None, 0.0]
    assert judge._threads.hanging == 1
    free.set()
    for _ in range(100):
        if judge._threads.hanging == 0:
            break
        await asyncio.sleep(0.02)
    assert judge._threads.hanging == 0


async def test_too_many_that_hang_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgrpo.judges.judger.MOST_HANGING", 3)
    free, started = threading.Event(), []

    def hangs(**_: Any) -> dict[str, Any]:
        started.append(1)
        free.wait()
        return {"score": 1}

    judge = JudgerJudge(hangs, timeout_s=0.05)
    for _ in range(3):
        with pytest.raises(JudgeError, match="has not answered within"):
            await judge.grade(task(), ["x"])
    with pytest.raises(JudgeError, match="hangs: 3 of its calls hang; repair it") as raised:
        await judge.grade(task(), ["x"])
    assert (raised.value.kind, len(started)) == ("timeout", 3)
    free.set()


async def test_a_cancelled_caller_leaves_the_thread_to_itself() -> None:
    free = threading.Event()

    def hangs(**_: Any) -> dict[str, Any]:
        free.wait()
        return {"score": 1}

    judge = JudgerJudge(hangs)
    judging = asyncio.create_task(judge.grade(task(), ["x"]))
    await asyncio.sleep(0.05)
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging
    free.set()


@pytest.mark.parametrize("settings", [{"timeout_s": 0.0}, {"max_concurrent": 0}])
def test_limits_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="more than 0 seconds and 1 call or more are allowed"):
        JudgerJudge(fixed(1), **settings)


# --- ground truth, composition, routing


@pytest.mark.parametrize(
    ("truth", "response", "score"),
    [
        ("Castin Vel", " Castin\nVel ", 1.0),
        ("Castin", "castin", 0.0),
        (["four", "4"], "4", 1.0),
        (4, "4", 1.0),
        ({"target": ["four", "4"]}, "4", 1.0),
    ],
)
async def test_ground_truth(truth: object, response: str, score: float) -> None:
    of = task(reward_model={"ground_truth": truth})
    assert [v.score for v in await JudgerJudge(GroundTruth()).grade(of, [response])] == [score]


@pytest.mark.parametrize(
    "reward_model", [{"style": "rule"}, *({"ground_truth": t} for t in ("", " \n", None, [], [""]))]
)
@pytest.mark.parametrize("response", ["x", ""])
async def test_no_ground_truth_is_an_error(reward_model: Mapping[str, Any], response: str) -> None:
    with pytest.raises(JudgeError, match="task t0: its reward_model has no ground_truth") as raised:
        await JudgerJudge(GroundTruth()).grade(task(reward_model=reward_model), [response])
    assert raised.value.kind == "no_reference"


async def test_judgers_merge_by_weight() -> None:
    merged = Merged(parts={"a": (fixed(1.0), 3.0), "b": (fixed(0.0), 1.0), "c": (fixed(0.5), 0.0)})
    assert await JudgerJudge(merged).grade(task(), ["x"]) == [
        Grade(score=0.75, reason="a 1, b 0, c 0.5", parts={"a": 1.0, "b": 0.0, "c": 0.5})
    ]


@pytest.mark.parametrize("parts", [{}, {"a": (fixed(1.0), 0.0), "b": (fixed(1.0), 0.0)}])
async def test_judgers_that_weigh_nothing_give_0(parts: dict[str, Any]) -> None:
    assert await JudgerJudge(Merged(parts=parts)).grade(task(), ["x"]) == [
        Grade(score=0.0, reason="no judger has a weight")
    ]


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_bad_weights_are_refused(weight: float) -> None:
    with pytest.raises(ConfigError, match=f"judger 'a': weight {weight}; a finite number >= 0 is allowed"):
        Merged(parts={"a": (fixed(1.0), weight)})


async def test_each_source_has_its_judge() -> None:
    seen = Seen()
    judge = Route(routes={"test": ExactMatch(), "sums": JudgerJudge(seen)})
    assert [v.score for v in await judge.grade(task(), ["Castin"])] == [1.0]
    of = task(data_source="sums")
    assert [v.score for v in await judge.grade_episodes(of, [episode(of)])] == [0.5]
    assert seen.shown[0]["extra_fields"]["response_message"].finish_info == "answered"  # the episode itself


async def test_a_source_without_a_judge_ends_the_run_and_says_what_to_add() -> None:
    reward = Reward(
        judge=Route(routes={"tests": ExactMatch()}), terms={"correctness": TERMS["correctness"](weight=1.0)}
    )
    with pytest.raises(ConfigError) as raised:
        await reward.score(group(episode()))
    assert str(raised.value) == (
        "task t0 is from 'test', and judge.routes has tests; add a judge for it: +judge.routes.test.name=exact_match. "
        "Did you mean 'tests'?"
    )
    with pytest.raises(ConfigError, match=r"judge\.routes is empty"):
        Route(routes={})


def test_a_source_without_a_judge_is_found_before_the_run_begins() -> None:
    inner = Route(routes={"sums": ExactMatch()})
    tasks = [task(id="a"), task(id="b", data_source="sums"), task(id="c", data_source="maps")]
    for judge in (ExactMatch(), Route(routes={"test": ExactMatch(), "sums": inner, "maps": ExactMatch()})):
        refuse_unjudged(judge, iter(tasks))
    for judge, stranger in (
        (Composite(parts={"a": (ExactMatch(), 1.0), "b": (inner, 1.0)}), "a is from 'test'"),
        (Route(routes={"test": ExactMatch(), "sums": ExactMatch(), "maps": inner}), "c is from 'maps'"),
        (Route(routes={"test": ExactMatch(), "sums": ExactMatch()}), "c is from 'maps'"),
    ):
        with pytest.raises(ConfigError, match=f"task {stranger}, and judge.routes has "):
            refuse_unjudged(judge, iter(tasks))


async def test_a_composite_hands_episodes_on_to_the_parts_that_want_them() -> None:
    seen = Seen()
    judge = Composite(parts={"own": (JudgerJudge(seen), 1.0), "exact": (ExactMatch(), 1.0)})
    assert [v.score for v in await judge.grade_episodes(task(), [episode()])] == [0.75]
    assert seen.shown[0]["extra_fields"]["response_message"].finish_info == "answered"


async def test_only_completed_episodes_with_an_answer_are_judged() -> None:
    seen = Seen()
    failed = replace(episode(answer="x"), failure=Failure(kind="http_500", stage="tool", message=""), exit=Exit.ERROR)
    reward = Reward(judge=JudgerJudge(seen), terms={"correctness": TERMS["correctness"](weight=1.0)})
    scored = await reward.score(group(episode(answer="a"), failed, episode(answer=None), episode(answer="b")))
    assert sorted(s["response"] for s in seen.shown) == ["a", "b"]
    assert [r and r.total for r in scored.rewards] == [0.5, None, 0.0, 0.5]


# --- from a configuration


class Lenient:
    """What a user writes: a class of the contract, with a setting."""

    timeout_s = 5.0

    def __init__(self, *, score: float = 0.25) -> None:
        self.score = score

    def judge(
        self, instruction: str, response: str, reward_model: Mapping[str, Any], extra_fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {"score": self.score}


def strict(
    instruction: str, response: str, reward_model: Mapping[str, Any], extra_fields: Mapping[str, Any]
) -> dict[str, Any]:
    return {"score": float(response == reward_model["ground_truth"])}


class OwnJudge:
    async def grade(self, task: Task, answers: Sequence[str]) -> list[Grade]:
        return [Grade(score=0.125) for _ in answers]


HERE = "tests.judges.test_judger"


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"name": f"{HERE}:Lenient"}, 0.25),
        ({"name": f"{HERE}:Lenient", "score": 0.75}, 0.75),
        ({"name": f"{HERE}:strict"}, 1.0),
        ({"name": f"{HERE}:strict", "timeout_s": 3.0, "max_concurrent": 2}, 1.0),
        ({"name": f"{HERE}:OwnJudge"}, 0.125),
        ({"name": "judger", "judger": {"name": "ground_truth"}}, 1.0),
        ({"name": "judger", "judger": {"name": f"{HERE}:Lenient", "score": 0.5}, "timeout_s": 9.0}, 0.5),
        ({"name": "judger", "judger": {"name": f"{HERE}:strict"}}, 1.0),
        ({"name": "route", "routes": {"test": {"name": f"{HERE}:Lenient"}}}, 0.25),
        (
            {
                "name": "composite",
                "parts": {
                    "own": {"judge": {"name": f"{HERE}:Lenient"}, "weight": 1.0},
                    "exact": {"judge": {"name": "exact_match"}, "weight": 1.0},
                },
            },
            0.625,
        ),
    ],
)
async def test_a_judger_by_its_dotted_path(node: dict[str, Any], expected: float) -> None:
    admit_user_code([f"{HERE}:{name}" for name in ("Lenient", "strict", "OwnJudge")])
    judge = build_node("judge", node)
    assert [v.score for v in await judge.grade(task(), ["Castin"])] == [expected]


def test_a_class_says_its_own_time_limit() -> None:
    assert as_judge(Lenient())._threads._timeout_s == 5.0
    own = OwnJudge()
    assert as_judge(own) is own


def test_a_key_that_a_judger_does_not_take_is_refused() -> None:
    admit_user_code([f"{HERE}:Lenient"])
    with pytest.raises(ConfigError, match=r"unknown key judge\.scroe; allowed are score\. Did you mean 'score'\?"):
        build_node("judge", {"name": f"{HERE}:Lenient", "scroe": 1.0})


def _fluent(instruction: str, response: str, reward_model: Any, extra_fields: Any) -> dict[str, Any]:
    return {"score": 0.5, "reason": f"so {response}", "fluency": 0.25, "words": len(response.split()), "notes": ["x"]}


async def test_the_reason_and_further_numbers_of_a_judger_are_kept() -> None:
    inner = JudgerJudge(_fluent)
    parts = {"fluency": 0.25, "words": 2.0}
    assert await inner.grade(task(), ["a b"]) == [Grade(score=0.5, reason="so a b", parts=parts)]
    routed = Route(routes={"test": Composite(parts={"style": (inner, 1.0), "words": (ExactMatch(), 1.0)})})
    assert await routed.grade(task(), ["a b"]) == [
        Grade(
            score=0.25,
            reason="style 0.5: so a b, words 0",
            parts={"style": 0.5, "words": 0.0, "fluency": 0.25, "style/words": 2.0},
        )
    ]
    merged = JudgerJudge(Merged(parts={"one": (_fluent, 1.0)}))
    assert await merged.grade(task(), ["a"]) == [
        Grade(score=0.5, reason="one 0.5: so a", parts={"one": 0.5, "fluency": 0.25, "words": 1.0})
    ]


def test_a_reason_is_bounded() -> None:
    assert Grade(score=0.0, reason="x" * 10_000).reason == "x" * MAX_REASON
    assert Grade(score=0.0, reason=None).reason == ""  # type: ignore[arg-type]


async def test_what_the_environment_did_by_itself_is_not_the_policys() -> None:
    def search(query: str, turn: int, by_environment: bool) -> ToolRecord:
        return ToolRecord(
            name="search",
            arguments={"query": query},
            outcome=Outcome.SUCCESS,
            turn=turn,
            by_environment=by_environment,
        )

    told = replace(given(5, role="tool"), text="results")
    done = replace(
        episode(task(), given(1), turn("hm"), told, turn("more"), told, turn("x"), answer="x"),
        tool_records=(search("all", 0, True), search("mine", 1, False)),
    )
    first, results, second, others, _ = messages_of(done)
    assert (first.tool_calls, first.finish_reason) == ((), "stop")
    assert (results.role, [call.arguments for call in results.tool_calls]) == ("tool", [{"query": "all"}])
    assert [call.arguments for call in second.tool_calls] == [{"query": "mine"}]
    assert others.tool_calls == ()
    assert transcript(done, 1000)[1] == (TOOL, 'by itself: search({"query": "all"})\nresults')
