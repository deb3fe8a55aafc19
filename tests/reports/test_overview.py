"""`agentgrpo show RUN`: a run on one screen, on terminals of all widths, in a pipe, and of runs that are not whole."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentgrpo.cli.main import configs_dir, main
from agentgrpo.core.commands import shell_line
from agentgrpo.core.errors import BudgetSpent, GuardHalt, Preempted
from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.records.curves import Curve, curve_lines, curves_of
from agentgrpo.records.run_dir import RunDir, stop_sentence, write_stop
from agentgrpo.records.screen import Screen
from agentgrpo.reports.overview import overview

CONFIG = (
    "task: {name: almanac}\nenvironment: {name: search}\nalgorithm: {max_staleness: 0}\nrun: {max_steps: 4, seed: 7}\n"
)


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "step": step,
            "reward/mean": step / 10,
            "correctness": 0.5,
            "agent/search_rounds": 3.0 - step,
            "cost/episode": None if step == 1 else 0.25,
            "episodes/total": 8.0,
        }
        for step in range(4)
    ]
    found[2] |= {"failures/timeout": 2.0, "failures/http_500": 1.0, "guard/fired": 1.0}
    found[3] |= {"failures/timeout": 1.0, "skipped": 1.0}
    return found


def result() -> dict[str, Any]:
    means = {"correctness": 0.5, "search_rounds": 2.0, "cost": 0.25, "reward": 0.125}
    mode = {
        "baseline": means,
        "trained": {**means, "correctness": 0.75, "search_rounds": 1.0},
        "difference": {name: [0.25, 0.125, 0.375] for name in means},
        "failures": {"baseline": 0, "trained": 2},
    }
    figures = SEARCH_FIGURES.to_json() | {"headline": ["correctness", "search_rounds", "cost"]}
    return {"verdict": "PASS", "reason": "better", "n": 8, "greedy": mode, "sampled": mode, "figures": figures}


def a_run(path: Path, **files: Sequence[Mapping[str, Any]] | Mapping[str, Any] | str) -> Path:
    """files: metrics_jsonl=[...] for metrics.jsonl."""
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        if not isinstance(content, str | Mapping):
            text = "".join(json.dumps(row) + "\n" for row in content)
        (path / name.replace("_", ".")).write_text(text)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    clocks = [{"step": s, "time/generation": 80.0, "time/train": 19.0, "time/reward": 1.0} for s in range(4)]
    made = a_run(
        tmp_path / "a run",
        config_yaml=CONFIG,
        metrics_jsonl=rows(),
        timings_jsonl=clocks,
        eval_json=result(),
    )
    for step in (0, 2, 4):
        (made / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    return made


def shown(run: Path, width: int, **console: Any) -> list[str]:
    out = io.StringIO()
    settings = {"force_terminal": True, "color_system": None, **console}
    overview(Screen("quiet", Console(file=out, width=width, highlight=False, **settings)), RunDir(run))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_in_a_pipe_it_is_ascii_curves_and_whole_lines(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run)]) == 0
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        str(run),
        "task almanac, environment search, seed 7",
        "trained: 4 of 4 steps; verdict: PASS",
        "",
        "steps 0 to 3; numbers: mean of the first 5 and of the last 5",
        "reward  0.050 -> 0.250                   correct  0.500 -> 0.500",
        " 0.300                         ...--''    0.500",
        "                      ....---''                 ...............................",
        "              ..---'''",
        " 0.000 ..--'''                            0.500",
        "rounds  2.500 -> 0.500                   cost  0.250 -> 0.250",
        " 3.000 ''--...                            0.250",
        "              ''---....                         ...............................",
        "                       '''---..",
        " 0.000                         '''--..    0.250",
        "",
        "held-out test, 8 tasks, greedy",
        "┏━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━┓",
        "┃ metric        ┃ before ┃ after ┃       change ┃    95 % interval ┃",
        "┡━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━┩",
        "│ correctness   │  0.500 │ 0.750 │ +25.0 points │ [+0.125, +0.375] │",
        "│ search_rounds │  2.000 │ 1.000 │        -50 % │ [+0.125, +0.375] │",
        "│ cost          │  0.250 │ 0.250 │         +0 % │ [+0.125, +0.375] │",
        "│ reward        │  0.125 │ 0.125 │         +0 % │ [+0.125, +0.375] │",
        "└───────────────┴────────┴───────┴──────────────┴──────────────────┘",
        "verdict: PASS (better)",
        "",
        "where the time of its steps went: 6:40",
        "┏━━━━━━━━━┳━━━━━━┳━━━━━━━┓",
        "┃         ┃ time ┃ share ┃",
        "┡━━━━━━━━━╇━━━━━━╇━━━━━━━┩",
        "│ rollout │ 5:20 │   80% │",
        "│ update  │ 1:16 │   19% │",
        "│ reward  │ 0:04 │    1% │",
        "└─────────┴──────┴───────┘",
        "",
        "failed episodes of training: timeout 3, http_500 1 (of 32)",
        "steps without an update: 1",
        "steps at which a guard fired: 1",
        "failed tasks of the evaluation: greedy 2, sampled 2",
        "checkpoints: 3, after steps 0, 2, 4",
        "",
        "how to go on",
        "  look at it in a browser",
        f"    {shell_line('view', str(run))}",
        "  train 50 steps more",
        f"    {shell_line('resume', str(run))} run.max_steps=54",
    ]


def test_a_run_that_was_stopped_says_by_what_and_how_it_goes_on(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "eval.json").unlink()
    spent = "the budget is spent: budget.per_run.calls.web=3, 3 calls were made"
    try:
        try:
            raise BudgetSpent(spent, "budget.per_run.calls.web=6")
        except BudgetSpent as e:
            raise BudgetSpent(f"{e}; the run stops; go on with: agentgrpo resume x {e.raised}", e.raised) from e
    except BudgetSpent as e:
        write_stop(run, e, step=3, max_steps=4)
    assert main(["show", str(run)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:4] == ["trained: 4 of 4 steps; not evaluated yet", f"stopped after step 3 of 4: {spent}"]
    assert lines[-1] == f"{shell_line('resume', str(run))} budget.per_run.calls.web=6"
    with (run / "config.yaml").open("a") as file:
        file.write("environment: {name: 'my_env:Shop'}\n")
    assert main(["show", str(run)]) == 0
    assert capsys.readouterr().out.endswith(" budget.per_run.calls.web=6 environment.name=my_env:Shop\n")


@pytest.mark.parametrize(
    ("step", "max_steps", "error", "said"),
    [
        (0, 4, BudgetSpent("spent"), "stopped before its first step: spent"),
        (4, 4, Preempted("stopped by SIGTERM; go on with: x"), "stopped after its last step, 4: SIGTERM"),
        (2, 4, KeyError("k"), "stopped after step 2 of 4: KeyError: 'k'"),
        (None, None, GuardHalt("kl is\n2"), "stopped: kl is 2"),
    ],
)
def test_why_a_run_was_stopped(
    step: int | None, max_steps: int | None, error: Exception, said: str, tmp_path: Path
) -> None:
    write_stop(tmp_path, error, step=step, max_steps=max_steps)
    stopped = RunDir(a_run(tmp_path, config_yaml=CONFIG)).stopped
    assert stopped is not None
    assert stop_sentence(stopped) == said


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_it_fits_its_terminal(run: Path, width: int) -> None:
    lines = shown(run, width)
    assert max(map(len, lines)) <= max(width, len("verdict: PASS (better)"))
    [heads] = [line for line in lines if line.startswith("rew") and "\u2192" in line]
    assert heads.count("\u2192") == {20: 1, 40: 1, 80: 2, 200: 4}[width]


def test_a_terminal_without_unicode_has_no_braille(run: Path) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    overview(Screen("quiet", Console(file=file, width=80, force_terminal=True, color_system=None)), RunDir(run))
    file.seek(0)
    assert "0.050 -> 0.250" in file.read()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"config_yaml": CONFIG},
            ["trained: 0 of 4 steps; not evaluated yet", "checkpoints: none"],
        ),
        (
            {"config_yaml": CONFIG, "metrics_jsonl": '{"step":0,"reward/mean":0.5}\n{"step":1,"rew'},
            ["trained: 1 of 4 steps; not evaluated yet", "reward  0.500 -> 0.500"],
        ),
        ({"config_yaml": CONFIG, "eval_json": {"verdict": "FAIL", "reason": "old"}}, ["verdict: FAIL (old)"]),
        (
            {"config_yaml": "environment: {name: \"\\e[2J[b]x\\n\"}\n", "metrics_jsonl": [{"step": 0}]},
            ["environment [2J[b]x", "trained: 1 step; not evaluated yet"],
        ),
    ],
)  # fmt: skip
def test_runs_that_are_not_whole(files: dict[str, Any], expected: Sequence[str], tmp_path: Path) -> None:
    lines = shown(a_run(tmp_path, **files), 80, force_terminal=False)
    assert [line for line in expected if line not in lines] == []


def test_an_evaluation_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = result()
    del broken["greedy"]["difference"]
    a_run(tmp_path, config_yaml=CONFIG, eval_json=broken)
    assert main(["show", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"agentgrpo: {tmp_path / 'eval.json'}: KeyError: 'difference'; evaluate again: agentgrpo eval\n"
    )


def test_a_profiled_run_tells_its_stages_and_an_overlap_is_named(run: Path) -> None:
    stages = [{"step": s, "generation": 3.0, "backward": 1.0, "tools": 0.0, "total": 4.0} for s in range(4)]
    a_run(run, profile_jsonl=stages, config_yaml=CONFIG.replace("staleness: 0", "staleness: 1"))
    lines = shown(run, 80, force_terminal=False)
    at = lines.index("where the time of its steps went: 0:16, rollout beside the update")
    assert [line.split("│")[1:-1] for line in lines[at + 4 : at + 6]] == [
        [" generation ", " 0:12 ", "   75% "],
        [" backward   ", " 0:04 ", "   25% "],
    ]


def test_a_curve_is_where_its_values_are() -> None:
    """Two cells wide and four high, from corner to corner: dots 0, 1-5, 6-10 and 11-15 of 16 in its four columns."""
    rising = Curve("x", [(0, 0.0), (1, 1.0)])
    _, *drawn = curve_lines([rising], width=10, has_unicode=True)
    cells = ((0x00, 0xB8), (0x00, 0x4E), (0xA0, 0x03), (0x78, 0x00))
    labels = ("1.000", "     ", "     ", "0.000")
    assert drawn == [f" {x} " + "".join(chr(0x2800 + c) for c in row) for x, row in zip(labels, cells, strict=True)]
    plain = list(curve_lines([Curve("x", [(0, 2.0), (5, 4.0)])], width=20, has_unicode=False))
    assert plain == [
        "x  2.000 -> 4.000",
        " 4.000          .-'",
        "             .-'",
        "          .-'",
        " 2.000 .-'",
    ]


def test_many_steps_share_a_column_and_a_flat_curve_lies_in_the_middle() -> None:
    saw = Curve("saw", [(step, float(step % 2)) for step in range(2400)])
    assert list(curve_lines([saw], width=14, has_unicode=False))[1:] == [" 1.000", "       ......", "", " 0.000"]
    flat = Curve("flat", [(step, 0.25) for step in range(3)])
    assert list(curve_lines([flat], width=14, has_unicode=False))[1:] == [" 0.250", "       ......", "", " 0.250"]


def test_what_no_step_measured_has_no_curve_and_what_is_not_finite_no_point() -> None:
    measured = [{"step": 0, "a": 1.0, "b": None}, {"step": 5, "a": None}, {"step": 6, "a": 3.0}]
    assert curves_of(measured, {"a": "A", "b": "B", "c": "C"}) == [Curve("A", [(0, 1.0), (6, 3.0)])]
    assert list(curve_lines([], width=80, has_unicode=True)) == []


def test_to_show_a_run_is_light(run: Path) -> None:
    program = f"""
import sys
from agentgrpo.cli.main import main
assert main(["show", {str(run)!r}]) == 0
assert not {{"torch", "hydra", "transformers"}} & set(sys.modules)
"""
    root = configs_dir().parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_baselines_what_fell_and_a_plateau_are_said_with_the_verdict(run: Path) -> None:
    learned = [
        {"step": s, "groups/informative": 0.1 if s >= 60 else 0.7, "reward/mean": 0.8 + s % 2 / 10} for s in range(90)
    ]
    found = result()
    found["fell"] = [{"kind": "hq", "mode": "sampled", "n": 40, "kinds": 4, "difference": [-0.25, -0.5, -0.125]}]
    trained = found["greedy"]["trained"]
    found["baselines"] = {"last_k": {}, "sft": {"greedy": dict.fromkeys(trained, 0.125), "sampled": {}}}
    a_run(run, metrics_jsonl=learned, eval_json=found)
    lines = shown(run, 120)
    head = next(line for line in lines if "before" in line)
    assert "sft_oracle" in head
    assert "last_k" not in head
    assert any("0.125" in line for line in lines if "correctness" in line)
    at = next(i for i, line in enumerate(lines) if line.startswith("fell: "))
    assert lines[at : at + 2] == [
        "fell: hq, sampled: correctness -0.250, 98.8 % interval [-0.500, -0.125] (40 tasks, 4 kinds)",
        "note: zero-variance groups 90 % since step 60; run.max_steps=70 would have shown the same",
    ]
    assert lines[at + 2].startswith("verdict: PASS")
