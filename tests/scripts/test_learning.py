"""The learning curve: both sides are paid alike for the same episode, and what is said of two curves can be counted."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import learning
import pytest
from learning_curves import Curve, Step, agreement, curve, levels, smooth
from react_for_trl import CHAT_TEMPLATE, OBSERVATION, RESPONSE_TEMPLATE, calculator, reward
from transformers.utils.chat_parsing import parse_response

from agentgrpo.core.types import Task
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.renderers.react import ReactRenderer
from tests.renderers.families import QWEN25_ADDED, SPECIAL, build

END = "<|im_end|>"
OPENING = f"<|im_start|>system\nSolve the problem.{END}\n<|im_start|>user\n9 + 9?{END}\n<|im_start|>assistant\n"
TOKENIZER = build(SPECIAL["chatml"], eos=END, added=QWEN25_ADDED)
RENDERER = ReactRenderer(tokenizer=TOKENIZER)
CALL = 'Action: calculator\nAction Input: {"expression": "9+9"}\nObservation:'


def one_step(reward: float, cpu_s: float = 1.0) -> Step:
    return Step(reward, cpu_s)


def flat(*rewards: float, half: float = 0.0) -> Curve:
    return Curve(mean=rewards, half=[half] * len(rewards), cpu_s=[1.0 + i for i in range(len(rewards))])


# --- The same episode, in the words of both sides.


@pytest.mark.parametrize(
    ("turns", "paid"),
    [
        ([CALL, f"Final Answer: 18{END}"], 1.0),
        ([CALL, f"Final Answer: 17{END}"], 0.0),
        ([f"Final Answer: 18{END}"], 1.0),
        ([f"so it is\nFinal Answer: 18.{END}"], 1.0),
        ([f"18{END}"], 0.0),
        (["Final Answer: 18"], 0.0),
        ([f"Final Answer:{END}"], 0.0),
        ([CALL, CALL, f"Final Answer: 18{END}"], 1.0),
        ([CALL, CALL], 0.0),
    ],
)
async def test_both_sides_pay_the_same(turns: list[str], paid: float) -> None:
    task = Task(id="t", messages=(), references=("18",))
    answer = RENDERER.parse(RENDERER.encode_action(turns[-1])).answer
    grade = 0.0 if answer is None else (await ExactMatch().grade(task, [answer]))[0].score
    assert grade == paid

    completion: list[dict[str, Any]] = []
    said = OPENING
    for turn in (text.removesuffix(":") if text == CALL else text for text in turns):
        parsed = parse_response(turn, RESPONSE_TEMPLATE, prefix=said, tools=[calculator])
        completion.append({"content": "", **parsed})  # as TRL does
        said += turn
        for call in parsed.get("tool_calls", ()):
            completion.append({"role": "tool", "content": calculator(**call["function"]["arguments"])})
            said += f": {completion[-1]['content']}\n"
    if turns[-1] == CALL:  # no further turn
        completion.pop()
    assert sum(message["role"] == "tool" for message in completion) == turns[:-1].count(CALL)
    assert reward(completion, ended=turns[-1].endswith(END), references=task.references, renderer=RENDERER) == paid


def test_an_episode_reads_the_same_on_both_sides() -> None:
    asked = [{"role": "system", "content": "Solve the problem."}, {"role": "user", "content": "9 + 9?"}]
    call = {"type": "function", "function": {"name": "calculator", "arguments": {"expression": "9+9"}}}
    called = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
    replied = [*called, {"role": "tool", "name": "calculator", "content": "18"}]

    def text(messages: list[dict[str, Any]], *, opened: bool) -> str:
        rendered = TOKENIZER.apply_chat_template(
            messages, chat_template=CHAT_TEMPLATE, tokenize=False, add_generation_prompt=opened
        )
        assert isinstance(rendered, str)
        return rendered

    assert text(asked, opened=True) == OPENING
    assert text(called, opened=False) == f"{OPENING}{CALL.removesuffix(':')}{END}"
    assert text(replied, opened=True) == f"{OPENING}{CALL.removesuffix(':')}{END}: 18\n"
    assert f'Action: calculator\nAction Input: {{"expression": "9+9"}}{OBSERVATION}:' == CALL


# --- What is said of two curves.


def test_a_curve_is_smoothed_within_a_run_and_then_averaged_over_seeds() -> None:
    assert smooth([0.0, 3.0, 6.0, 6.0]) == [1.5, 3.0, 5.0, 6.0]
    found = curve([[one_step(0.0), one_step(0.5, 2.0)], [one_step(0.5, 3.0), one_step(1.0, 4.0)]])
    assert found.mean == [0.5, 0.5]
    assert found.half == pytest.approx([0.5, 0.5])  # 2 * sqrt(0.125) / sqrt(2)
    assert found.cpu_s == [2.0, 5.0]


def test_a_single_seed_has_no_band() -> None:
    assert curve([[one_step(0.25)]]).half == [0.0]


def test_the_sides_agree_where_a_mean_lies_in_the_band_of_the_other() -> None:
    wide, narrow = flat(0.1, 0.2, 0.3, 0.4, half=0.1), flat(0.1, 0.3, 0.45, 0.6, half=0.01)
    assert agreement(wide, narrow, mutual=False) == agreement(narrow, wide, mutual=False) == 0.5
    assert agreement(wide, narrow, mutual=True) == agreement(narrow, wide, mutual=True) == 0.25
    assert agreement(wide, wide, mutual=True) == 1.0


def test_seconds_are_compared_at_rewards_that_both_have_learned_to_reach() -> None:
    slow, quick = flat(0.1, 0.3, 0.6, 0.7), flat(0.2, 0.6, 0.9, 0.8)
    assert levels(slow, quick) == [0.25, 0.5, 0.7]
    assert [slow.seconds_to(level) for level in (0.1, 0.2, 0.45, 0.7)] == pytest.approx([1.0, 1.5, 2.5, 4.0])
    assert quick.seconds_to(0.7) == pytest.approx(2 + 1 / 3)
    assert slow.seconds_to(0.75) is None
    assert levels(flat(0.6, 0.9), flat(0.1, 0.8)) == [0.75, 0.8]


# --- The runs.


def test_a_seed_that_has_ended_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []

    def run(side: str, seed: int, out: Path) -> None:
        ran.append((side, seed))
        learning.write(out, [{"step": 0, "reward": 0.5, "cpu_s": 3.0 if side == "TRL" else 1.0, "sampled": 7}])

    monkeypatch.setattr(learning, "FOLDER", tmp_path / "learning")
    monkeypatch.setattr(learning, "learn_ours", lambda seed, steps, out: run("ours", seed, out))
    monkeypatch.setattr(learning, "learn_theirs", lambda seed, out: run("TRL", seed, out))
    first = learning.learned(2, 1)
    assert ran == [("ours", 0), ("TRL", 0), ("ours", 1), ("TRL", 1)]
    (tmp_path / "learning" / "TRL-1-1.jsonl").unlink()
    assert learning.learned(2, 1) == first
    assert ran[4:] == [("TRL", 1)]
    assert learning.summary(first) == {
        "seeds": 2,
        "curves": {
            "ours": {"mean": [0.5], "half": [0.0], "cpu_s": [1.0]},
            "TRL": {"mean": [0.5], "half": [0.0], "cpu_s": [3.0]},
        },
        "agreement": 1.0,
        "mutual_agreement": 1.0,
        "cpu_s_per_step": [1.0, 3.0],
        "sampled_per_step": [7.0, 7.0],
        "mean_reward": [[0.5, 0.5], [0.5, 0.5]],
        "cpu_s_to": [[0.5, 1.0, 3.0]],
    }
    assert learning.table(learning.summary(first)).row_count == 5
    alone = {side: runs[:1] for side, runs in first.items()}
    assert learning.table(learning.summary(alone)).row_count == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "--seeds 0 was given; 1 or more is allowed"),
        ([], r"there is no peer in .*; `make bench-learning` installs it"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["learning.py", *arguments])
    monkeypatch.setattr(learning, "PEER", Path("/nowhere/peer/bin/python"))
    monkeypatch.setattr(learning, "find_spec", lambda name: name)
    with pytest.raises(SystemExit) as stopped:
        learning.main()
    assert stopped.value.code == 2
    assert re.fullmatch(f"bench: {message}\n", capsys.readouterr().err)
