"""`agentgrpo diff`: hand-made runs, and every difference of theirs by value."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentgrpo.cli.main import main
from agentgrpo.core.types import Branch, Episode, Outcome, Segment, ToolRecord
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.screen import Screen
from agentgrpo.reports.diff import difference, episode_lines, first_episode, show
from tests import builders
from tests.run_folders import folder, graded, record, run_dir, searched

TASKS = [builders.task(f"Who is {i}?", id=f"t{i}", kind="ab"[i % 2]) for i in range(4)]
OF_A = {
    "config": {"reward": {"terms": {"retriever_cost": {"web": -0.1}}}, "old": {"key": 1}},
    "metrics": [
        {"step": 0, "reward/mean": 0.5, "reward/term/web": -0.25, "loss": 1.0},
        {"step": 1, "reward/mean": 1.0, "reward/term/web": -0.75, "loss": 2.0},
        {"step": 2, "reward/mean": 9.0},
    ],
    "state": {"start": {"sha256": "abc"}, "fingerprints": {"data": "d1"}},
    "environment": {"determinism": "exact", "versions": {"torch": "2.9", "numpy": "2.0"}, "machine": "here"},
}
OF_B = {
    "config": {"reward": {"terms": {"retriever_cost": {"web": -0.4}}}, "new": None},
    "metrics": [
        {"step": 0, "reward/mean": 0.5, "reward/term/web": -0.25, "loss": 1.0},
        {"step": 1, "reward/mean": 0.25, "reward/term/web": -0.25, "reward/term/vdb": -0.5, "loss": 2.0},
    ],
    "state": {"start": {"sha256": "abc"}, "fingerprints": {"data": "d2"}},
    "environment": {"determinism": "exact", "versions": {"torch": "2.10", "numpy": "2.0"}, "machine": "here"},
}


@pytest.fixture
def runs(tmp_path: Path) -> tuple[RunDir, RunDir]:
    return run_dir(tmp_path / "a", **OF_A), run_dir(tmp_path / "b", **OF_B)


def text_of(found: dict[str, Any], width: int = 200, terminal: bool = False) -> str:
    out = io.StringIO()
    show(Screen("quiet", Console(file=out, width=width, force_terminal=terminal, color_system=None)), found)
    return out.getvalue()


# --- settings, origins, rewards


def test_settings_that_differ_and_those_of_one_run_alone(runs: tuple[RunDir, RunDir]) -> None:
    assert difference(*runs)["settings"] == [
        {"key": "new", "b": None},
        {"key": "old.key", "a": 1},
        {"key": "reward.terms.retriever_cost.web", "a": -0.1, "b": -0.4},
    ]


def test_a_false_setting_is_not_zero_and_not_absent(tmp_path: Path) -> None:
    a, b = run_dir(tmp_path / "a", {"x": None, "y": 1}), run_dir(tmp_path / "b", {"y": 1.0})
    assert difference(a, b)["settings"] == [{"key": "x", "a": None}]


def test_versions_start_and_data(runs: tuple[RunDir, RunDir]) -> None:
    found = difference(*runs)
    assert found["environment"] == [{"key": "versions.torch", "a": "2.9", "b": "2.10"}]
    assert found["start"] == {"a": "abc", "b": "abc", "same": True}
    assert found["fingerprints"] == {"data": {"a": "d1", "b": "d2", "same": False}}


def test_rewards_over_the_steps_that_both_have(runs: tuple[RunDir, RunDir]) -> None:
    assert difference(*runs)["rewards"] == {
        "steps": {"a": 3, "b": 2, "common": 2},
        "last": {
            "reward/mean": {"a": 0.75, "b": 0.375, "difference": -0.375},
            "reward/term/vdb": {"a": None, "b": -0.5, "difference": None},
            "reward/term/web": {"a": -0.5, "b": -0.25, "difference": 0.25},
        },
        "all": {
            "reward/mean": {"a": 0.75, "b": 0.375, "difference": -0.375},
            "reward/term/vdb": {"a": None, "b": -0.5, "difference": None},
            "reward/term/web": {"a": -0.5, "b": -0.25, "difference": 0.25},
        },
    }


def test_the_last_steps_are_ten_of_those_in_common(tmp_path: Path) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        return [{"step": i, "reward/mean": float(i)} for i in range(count)]

    found = difference(run_dir(tmp_path / "a", metrics=rows(12)), run_dir(tmp_path / "b", metrics=rows(30)))["rewards"]
    assert found["last"] == {"reward/mean": {"a": 6.5, "b": 6.5, "difference": 0.0}}
    assert found["all"] == {"reward/mean": {"a": 5.5, "b": 5.5, "difference": 0.0}}


# --- the first step, episode and token


def test_the_first_step_that_differs_and_in_which_tags(runs: tuple[RunDir, RunDir]) -> None:
    assert difference(*runs)["first_difference"] == {
        "step": 1,
        "tags": [
            {"key": "reward/mean", "a": 1.0, "b": 0.25},
            {"key": "reward/term/vdb", "b": -0.5},
            {"key": "reward/term/web", "a": -0.75, "b": -0.25},
        ],
        "episode": {"what": "unknown", "reason": "a and b has no trajectories of the step"},
    }


def test_one_bit_is_a_difference_and_none_is_none(tmp_path: Path) -> None:
    rows = [{"step": 0, "loss": 0.1}, {"step": 1, "loss": 0.1 + 0.2}]
    a, same = (run_dir(tmp_path / name, metrics=rows) for name in ("a", "same"))
    assert difference(a, same)["first_difference"] is None
    other = run_dir(tmp_path / "other", metrics=[rows[0], {"step": 1, "loss": 0.3}])
    first = difference(a, other)["first_difference"]
    assert (first["step"], first["tags"]) == (1, [{"key": "loss", "a": 0.30000000000000004, "b": 0.3}])


def said(*token_ids: int, text: str = "", logprob: float = -0.5) -> Segment:
    logprobs = (logprob,) * len(token_ids)
    return Segment(
        role="assistant", token_ids=token_ids, sampled=True, logprobs=logprobs, policy_version=0, text=text or "said"
    )


def told(*token_ids: int, text: str = "told") -> Segment:
    return Segment(role="tool", token_ids=token_ids, sampled=False, text=text)


QUESTION = Segment(role="user", token_ids=(1, 2), sampled=False, text="Who?")
BASE = builders.episode(TASKS[0], QUESTION, said(3, 4), told(5, 6, 7), said(8))


def first(tmp_path: Path, a: Episode, b: Episode, **rewards: Any) -> dict[str, Any]:
    """Of two runs whose first episodes are the same."""
    shared = graded(builders.episode(TASKS[1]), 1.0)
    made = []
    for name, episode in (("a", a), ("b", b)):
        path = folder(tmp_path / name)
        record(path, "train-000003", [shared, graded(episode, 1.0, **(rewards if name == "b" else {}))], step=3)
        made.append(RunDir(path))
    return first_episode(*made, 3)


def with_segments(*segments: Segment) -> Episode:
    return replace(BASE, branches=(Branch(segments=segments),))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (
            with_segments(QUESTION, said(3, 4), told(5, 9, 7, text="else"), said(8)),
            {
                "what": "token", "branch": 0, "position": 5, "message": 2, "role": "tool", "sampled": False,
                "a": {"token": 6, "logprob": None, "text": "told"}, "b": {"token": 9, "logprob": None, "text": "else"},
            },
        ),
        (
            with_segments(QUESTION, said(3, 4), told(5, 6, 7), said(8), told(5)),
            {
                "what": "token", "branch": 0, "position": 8, "message": 4, "role": "tool", "sampled": False,
                "a": None, "b": {"token": 5, "logprob": None, "text": "told"},
            },
        ),
        (
            replace(BASE, branches=(*BASE.branches, Branch(segments=(said(3),)))),
            {
                "what": "token", "branch": 1, "position": 0, "message": 4, "role": "assistant", "sampled": True,
                "a": None, "b": {"token": 3, "logprob": -0.5, "text": "said"},
            },
        ),
        (
            with_segments(QUESTION, said(3, 4), told(5, 6, 7), said(8, logprob=-0.25)),
            {
                "what": "logprob", "branch": 0, "position": 7, "message": 3, "role": "assistant", "sampled": True,
                "a": {"token": 8, "logprob": -0.5, "text": "said"}, "b": {"token": 8, "logprob": -0.25, "text": "said"},
            },
        ),
        (replace(BASE, answer="Roka"), {"what": "answer", "a": "Castin", "b": "Roka"}),
        (
            replace(BASE, tool_records=(ToolRecord(name="web", arguments={}, outcome=Outcome.TIMEOUT, turn=0),)),
            {"what": "call", "call": 0, "a": None, "b": {"name": "web", "outcome": "timeout"}},
        ),
    ],
)  # fmt: skip
def test_the_first_token_or_what_else_differs(tmp_path: Path, other: Episode, expected: dict[str, Any]) -> None:
    found = first(tmp_path, BASE, other)
    if found["what"] == "call":
        found["b"] = {key: found["b"][key] for key in ("name", "outcome")}
    assert found == {**expected, "id": "t0/0"}


def test_a_token_comes_before_a_log_prob(tmp_path: Path) -> None:
    other = with_segments(QUESTION, said(3, 4, logprob=-0.25), told(5, 6, 7), said(9))
    assert first(tmp_path, BASE, other)["what"] == "token"


def test_a_reward_of_the_same_episode(tmp_path: Path) -> None:
    found = first(tmp_path, BASE, BASE, reward=0.5)
    assert found == {"what": "reward", "id": "t0/0", "a": 1.0, "b": 0.5}


def test_the_same_episodes_leave_the_update(tmp_path: Path) -> None:
    assert first(tmp_path, BASE, BASE) == {"what": "nothing"}
    assert episode_lines({"what": "nothing"}) == ["its episodes are the same: it was the update that differs"]


def test_other_tasks_and_fewer_episodes(tmp_path: Path) -> None:
    a, b, c = (folder(tmp_path / name) for name in "abc")
    groups = [graded(builders.episode(task), 1.0) for task in TASKS]
    record(a, "train-000000", groups[:2])
    record(b, "train-000000", [groups[0], groups[2]])
    record(c, "train-000000", groups[:1])
    assert first_episode(RunDir(a), RunDir(b), 0) == {"what": "id", "id": "t1/0", "a": "t1/0", "b": "t2/0"}
    assert first_episode(RunDir(c), RunDir(a), 0) == {"what": "id", "id": "t1/0", "a": None, "b": "t1/0"}


def test_texts_where_no_tokens_were_recorded(tmp_path: Path) -> None:
    made = []
    for name, text in (("a", "the capital of Roka"), ("b", "the city of Roka")):
        path = folder(tmp_path / name)
        file = record(path, "train-000000", [graded(with_segments(QUESTION, told(1, text=text)), 1.0)])
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines[1]["tokens"] = None
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        made.append(RunDir(path))
    assert first_episode(*made, 0) == {
        "what": "text", "branch": 0, "message": 1, "role": "tool", "sampled": False, "character": 5, "id": "t0/0",
        "a": "apital of Roka", "b": "ity of Roka",
    }  # fmt: skip


# --- evaluations


def evaluated(path: Path, *correct: float | None, web: int = 1, task_shift: int = 0) -> RunDir:
    groups = [searched(TASKS[i + task_shift], value, web=web, vdb=i) for i, value in enumerate(correct)]
    record(folder(path, environment={"figures": SEARCH_FIGURES.to_json()}), "eval-end-greedy", groups)
    return RunDir(path)


def test_the_end_weights_are_paired_by_task(tmp_path: Path) -> None:
    """b is right on one task more of three, and sends a web search less on each: its interval is a point."""
    a = evaluated(tmp_path / "a", 1.0, 0.0, 0.0, web=2)
    b = evaluated(tmp_path / "b", 1.0, 1.0, 0.0, 1.0, web=1)
    found = difference(a, b)["evaluations"]["greedy"]
    assert (found["n"], found["only"], found["renamed"], found["failed"]) == (3, {"a": 0, "b": 1}, 0, {"a": 0, "b": 0})
    assert found["metrics"]["web_searches"] == {"a": 2.0, "b": 1.0, "difference": [-1.0, -1.0, -1.0]}
    assert found["metrics"]["cost"]["difference"] == pytest.approx([-0.05, -0.05, -0.05])
    assert found["metrics"]["cost"]["a"] == pytest.approx(2 * 0.05 + (0 + 1 + 2) / 3 * 0.01)
    correctness = found["metrics"]["correctness"]
    assert (correctness["a"], correctness["b"]) == (1 / 3, 2 / 3)
    assert correctness["difference"] == [1 / 3, 0.0, 1.0]  # of 27 equal draws, 8 have no gain and 1 gains on all three
    assert found["headline"][0] == "correctness"
    assert found["kinds"] == {
        "a": {"n": 2, "a": 0.5, "b": 0.5, "difference": [0.0, 0.0, 0.0]},
        "b": {"n": 1, "a": 0.0, "b": 1.0, "difference": [1.0, 1.0, 1.0]},
    }
    assert difference(a, b)["evaluations"]["sampled"] == {
        "n": 0, "reason": "the end weights of a and b are not evaluated",
    }  # fmt: skip


def test_a_task_that_failed_in_one_is_left_out(tmp_path: Path) -> None:
    a, b = evaluated(tmp_path / "a", 1.0, None, 0.0), evaluated(tmp_path / "b", None, 1.0, 1.0)
    found = difference(a, b)["evaluations"]["greedy"]
    assert (found["n"], found["failed"], found["metrics"]["correctness"]["b"]) == (1, {"a": 1, "b": 1}, 1.0)


def test_runs_of_other_tasks_have_none_in_common(tmp_path: Path) -> None:
    a, b = evaluated(tmp_path / "a", 1.0), evaluated(tmp_path / "b", 1.0, task_shift=1)
    assert difference(a, b)["evaluations"]["greedy"]["reason"] == "no task in common"
    assert "evaluation, greedy: no task in common" in text_of(difference(a, b))


def test_a_task_of_one_id_that_asks_something_else_is_another(tmp_path: Path) -> None:
    a = evaluated(tmp_path / "a", 1.0, 1.0)
    other = replace(TASKS[0], references=("Roka",))
    record(folder(tmp_path / "b"), "eval-end-greedy", [searched(other, 1.0), searched(TASKS[1], 1.0)])
    found = difference(a, RunDir(tmp_path / "b"))["evaluations"]["greedy"]
    assert (found["n"], found["renamed"]) == (1, 1)


def test_trajectories_of_another_version_are_said_to_be(tmp_path: Path) -> None:
    a, b = evaluated(tmp_path / "a", 1.0), evaluated(tmp_path / "b", 1.0)
    file = b.trajectory_files()[0].path
    file.write_text(file.read_text().replace('"schema_version":5', '"schema_version":1'))
    assert "schema_version 1; this version reads 3 to 5" in difference(a, b)["evaluations"]["greedy"]["reason"]


# --- the command


def test_the_command(runs: tuple[RunDir, RunDir], capsys: pytest.CaptureFixture[str]) -> None:
    a, b = (str(run.path) for run in runs)
    assert main(["diff", a, b, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == difference(*runs)
    assert main(["diff", a, a]) == 0
    out = capsys.readouterr().out
    assert "the settings are the same" in out
    assert "the metrics of 3 steps are the same, bit for bit" in out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["no-such-run"], "no-such-run does not exist; give the directory of a run"),
        ([".", "."], "diff compares two runs, got 3: agentgrpo diff RUN_A RUN_B"),
    ],
)
def test_what_is_no_run(
    runs: tuple[RunDir, RunDir], capsys: pytest.CaptureFixture[str], given: list[str], message: str
) -> None:
    assert main(["diff", str(runs[0].path), *given]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_has_only_begun(tmp_path: Path, runs: tuple[RunDir, RunDir]) -> None:
    begun = run_dir(tmp_path / "begun")
    found = difference(begun, runs[1])
    assert (found["first_difference"], found["rewards"]["steps"]["common"]) == (None, 0)
    assert found["start"] == {"a": None, "b": "abc", "same": None}
    assert "start weights: unknown: a run has no checkpoint that says so" in text_of(found)


def test_it_is_readable_on_a_narrow_terminal_and_hostile_text_is_text(tmp_path: Path) -> None:
    hostile = "[red]x\x1b[31m\u202e\nB  forged"
    a, b = (
        run_dir(tmp_path / "a", {"task": {hostile: hostile}}, **{k: OF_A[k] for k in ("metrics",)}),
        run_dir(tmp_path / "b", metrics=OF_B["metrics"]),
    )
    text = text_of(difference(a, b), width=40, terminal=True)
    assert max(map(len, text.splitlines())) <= 40
    assert {"\x1b", "\u202e"} & {*text} == set()
    wide = text_of(difference(a, b))
    assert ("[red]x" in wide, "\nB  forged" in wide) == (True, False)


def test_it_loads_no_model(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a"), folder(tmp_path / "b")
    program = (
        "import sys; from agentgrpo.cli.main import main; "
        f"assert main(['diff', {str(a)!r}, {str(b)!r}, '--json']) == 0; "
        "print(sorted({'torch', 'transformers', 'faiss', 'hydra'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
