"""`agentgrpo show`: an episode as a person reads it, on a terminal and elsewhere, and what it says without one."""

from __future__ import annotations

import dataclasses
import io
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentgrpo.cli.main import configs_dir, main
from agentgrpo.core.types import Branch, Episode, Exit, Failure, Outcome, RewardResult, ScoredGroup, Task, ToolRecord
from agentgrpo.records.screen import Screen
from agentgrpo.records.trajectories import write_trajectories
from agentgrpo.reports.show import episode_lines, find_episode, listing
from agentgrpo.tasks.dialogue import Question, join, memory_task
from tests import builders

LATEST = "eval-end-greedy.jsonl"
HOSTILE = "[bold red]not markup[/]\n  + fact: forged\x1b[31m\u202e"


def entry(text: str, *, id: str = "", kind: str = "fact", chunk: int = 0) -> dict[str, Any]:
    return {"id": id or " ".join(text.split()[:2]), "kind": kind, "text": text, "chunk": chunk}


def call(name: str, turn: int, outcome: Outcome = Outcome.SUCCESS, detail: str = "", **arguments: str) -> ToolRecord:
    return ToolRecord(name=name, arguments=arguments, outcome=outcome, turn=turn, detail=detail)


def after(chunk: int, *changes: tuple[str, Any, Any], tokens: int, entries: int, failed: Any = ()) -> dict[str, Any]:
    rows = [{"op": op, "before": before, "after": now} for op, before, now in changes]
    return {"chunk": chunk, "changes": rows, "failed": list(failed), "tokens": tokens, "entries": entries}


OLD, NEW = entry("Velmor lives in Castin"), entry("Velmor lives in Roka before Castin", chunk=1)
CORE = entry("Likes tea.", id="core", kind="core")
NOTE = entry("Dorin works for Halvar.", id="s1", kind="semantic")
DIARY = memory_task(
    "diary-3",
    chunks=("Monday.\nVelmor lives in Castin.", "Velmor now lives in Roka.", "Forget it.", "It rains."),
    questions=[
        Question(text="Velmor lives in ___", answers=("Roka", "Roca"), kind="current"),
        Question(text="Velmor lives before ___", answers=("Castin",), kind="history"),
        Question(text="Dorin works for ___", answers=("unknown",)),
    ],
    data_source="test",
    metadata={"kind": "dialogue"},
)
GROWN = Episode(
    task=DIARY,
    sample_index=0,
    branches=tuple(Branch(segments=(builders.given(1), builders.sampled(2))) for _ in range(4)),
    answer=join(["roka.", "Ardun", ""]),
    exit=Exit.ANSWERED,
    metrics={},
    tool_records=(
        call("insert", 0, content="Velmor lives in Castin"),
        call("memory_update", 0, memory_type="core", new_content="Likes tea."),
        call("insert", 0, content="Dorin works for Halvar."),
        call("delete", 1, Outcome.INVALID_ARGS, "there is no such entry", key="Zelt is"),
        call("update", 1, content="Velmor lives in Roka before Castin"),
        call("delete", 2, key="s1"),
    ),
    memory=(
        after(0, ("insert", None, OLD), ("core", None, CORE), ("insert", None, NOTE), tokens=11, entries=3),
        after(
            1,
            ("update", OLD, NEW),
            tokens=13,
            entries=3,
            failed=[{"call": 'delete {"key": "Zelt is"}', "detail": "there is no such entry"}],
        ),
        after(2, ("delete", NOTE, None), tokens=8, entries=2),
        after(3, tokens=1, entries=1),
    ),
)
REWARD = RewardResult(
    total=0.9,
    terms={"correctness": 1 / 3, "call_success": 0.6, "stray_text": -0.0333},
    dimensions={},
    correctness=1 / 3,
    branches=(1.0, 0.8, 0.9, 0.9),
)
GROWN_TEXT = """\
episode diary-3/0 (dialogue)
  memory, step 7, test: answered

chunk 0
    Monday.
    Velmor lives in Castin.
  > insert {"content": "Velmor lives in Castin"}
  > memory_update {"memory_type": "core", "new_content": "Likes tea."}
  > insert {"content": "Dorin works for Halvar."}
  + fact: Velmor lives in Castin
  + core: Likes tea.
  + semantic s1: Dorin works for Halvar.
  memory: 11 tokens, 3 entries; reward +1.000

chunk 1
    Velmor now lives in Roka.
  ! delete {"key": "Zelt is"}: there is no such entry
  > update {"content": "Velmor lives in Roka before Castin"}
  ~ fact: Velmor lives in Castin -> Velmor lives in Roka before Castin
  memory: 13 tokens, 3 entries; reward +0.800

chunk 2
    Forget it.
  > delete {"key": "s1"}
  - semantic s1: Dorin works for Halvar.
  memory: 8 tokens, 2 entries; reward +0.900

chunk 3
    It rains.
  no call
  memory: 1 token, 1 entry; reward +0.900

questions: 1 of 3 equal a reference; the judge's grade of all: 0.333
  right (current)  Velmor lives in ___  roka.
  wrong (history)  Velmor lives before ___  Ardun  [reference: Castin]
  wrong  Dorin works for ___  no answer  [reference: unknown]

reward +0.900, correctness 0.333
  +0.600  call_success
  +0.333  correctness
  -0.033  stray_text
"""
SEARCH = Episode(
    task=builders.task("Who founded Velmor?", "Castin", "Castyn", id="q", kind="2-hop"),
    sample_index=1,
    branches=(
        Branch(
            segments=(
                dataclasses.replace(builders.given(1, 2), text="Who founded Velmor?"),
                dataclasses.replace(builders.sampled(3), text="<search>Velmor</search>"),
                dataclasses.replace(builders.given(4, role="tool"), text="no\nmore"),
                dataclasses.replace(builders.sampled(5), text="<answer>Castin</answer>"),
            )
        ),
    ),
    answer="Castin",
    exit=Exit.ANSWERED,
    metrics={},
    tool_records=(
        ToolRecord(name="search", arguments={"query": "Velmor"}, outcome=Outcome.SUCCESS, turn=0, num_results=2),
        call("fetch", 0, Outcome.TIMEOUT, "took 3 s", url="http://x"),
    ),
)
SEARCH_TEXT = """\
episode q/1 (2-hop)
  memory, step 7, test: answered

user, 2 tokens
    Who founded Velmor?

assistant, 1 token, sampled
    <search>Velmor</search>
  > search {"query": "Velmor"}: 2 results
  ! fetch {"url": "http://x"}: timeout: took 3 s

tool, 1 token
    no
    more

assistant, 1 token, sampled
    <answer>Castin</answer>

answer: Castin
  reference: Castin | Castyn

reward +0.900, correctness 0.333
  +0.600  call_success
  +0.333  correctness
  -0.033  stray_text
"""


def recorded(
    run_dir: Path, *episodes: Episode, rewards: Sequence[RewardResult | None] = (), name: str = LATEST
) -> Path:
    path = run_dir / "trajectories" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    given = rewards or [REWARD] * len(episodes)
    scored = [ScoredGroup(group=builders.group(e), rewards=(r,)) for e, r in zip(episodes, given, strict=True)]
    unknown = [[None]] * len(scored)
    settings = {"step": 7, "seed": 0, "split": "test", "environment": "memory", "record_tokens": False}
    write_trajectories(path, scored=scored, advantages=unknown, dropped=[None] * len(scored), **settings)  # type: ignore[arg-type]
    return path


def shown(path: Path, id: str, **console: Any) -> str:
    out = io.StringIO()
    screen = Screen("quiet", Console(file=out, highlight=False, **console))
    for line in episode_lines(find_episode(path, id)):
        screen.text(line.text, style=line.style, indent=line.indent)
    return out.getvalue()


def test_how_a_memory_grew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path, SEARCH, GROWN)
    assert main(["show", str(tmp_path), "--episode", "diary-3/0"]) == 0
    assert capsys.readouterr().out == f"{path}\n{GROWN_TEXT}"


def test_what_was_said_and_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path, SEARCH, GROWN)
    assert main(["show", str(tmp_path), "--episode", "q/1"]) == 0
    assert capsys.readouterr().out == f"{path}\n{SEARCH_TEXT}"


def test_on_a_terminal_it_has_colour_and_its_width(tmp_path: Path) -> None:
    path = recorded(tmp_path, GROWN)
    narrow = shown(path, "diary-3/0", width=30, force_terminal=True, color_system="standard")
    assert "\x1b[32m+ fact: Velmor lives in \x1b[0m" in narrow
    plain = shown(
        path, "diary-3/0", width=30, force_terminal=True, color_system=None, no_color=True, legacy_windows=False
    )
    assert max(map(len, plain.splitlines())) <= 30
    assert " ".join(plain.split()) == " ".join(GROWN_TEXT.split())
    assert shown(path, "diary-3/0", width=30) == GROWN_TEXT


def test_a_run_without_branch_rewards_shows_none(tmp_path: Path) -> None:
    path = recorded(tmp_path, GROWN, rewards=[dataclasses.replace(REWARD, branches=())])
    assert "  memory: 11 tokens, 3 entries\n" in shown(path, "diary-3/0")


def test_a_baseline_has_answers_and_no_chunk(tmp_path: Path) -> None:
    path = recorded(tmp_path, dataclasses.replace(GROWN, branches=(), tool_records=(), memory=()))
    head, _, rest = GROWN_TEXT.partition("\nchunk 0")
    assert shown(path, "diary-3/0") == f"{head}\nquestions{rest.partition('questions')[2]}"


def test_an_episode_that_failed(tmp_path: Path) -> None:
    failed = dataclasses.replace(
        SEARCH,
        answer=None,
        exit=Exit.ERROR,
        failure=Failure(kind="http_500", stage="RetrieverError", message="no\nway"),
    )
    text = shown(recorded(tmp_path, failed, rewards=[None]), "q/1")
    assert text.splitlines()[1:3] == ["  memory, step 7, test: error", "  failed: http_500 in RetrieverError: no\\nway"]
    assert text.endswith("answer: none\n  reference: Castin | Castyn\n\nreward none, correctness none\n")


def test_hostile_text_is_text(tmp_path: Path) -> None:
    """Neither markup nor control sequences, and no line that looks like one of ours: column 2 is ours alone."""
    task: Task = dataclasses.replace(DIARY, metadata={**DIARY.metadata, "chunks": [HOSTILE] * 4, "kind": HOSTILE})
    hostile = entry(HOSTILE, id=HOSTILE, kind=HOSTILE)
    of = dataclasses.replace(
        GROWN,
        task=task,
        answer=join([HOSTILE] * 3),
        tool_records=(call(HOSTILE, 0, content=HOSTILE), call("x", 0, Outcome.INVALID_ARGS, HOSTILE)),
        memory=(
            after(0, ("insert", None, hostile), tokens=1, entries=1, failed=[{"call": HOSTILE, "detail": HOSTILE}]),
            after(1, ("update", hostile, hostile), tokens=1, entries=1),
            after(2, ("delete", hostile, None), tokens=0, entries=0),
        ),
    )
    path = recorded(tmp_path, of)
    for console in ({}, {"force_terminal": True, "width": 400, "color_system": None}):
        text = shown(path, "diary-3/0", **console)  # type: ignore[arg-type]
        assert not {"\x1b", "\u202e"} & set(text)
        assert text.count("[bold red]not markup[/]") == 18
        ours = [line.strip() for line in text.splitlines() if line.startswith("  + ")]
        assert [line[:30] for line in ours] == ["+ [bold red]not markup[/]\\n  +"]


def test_the_episodes_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path, GROWN, SEARCH, rewards=[REWARD, None])
    recorded(tmp_path, SEARCH, name="train-000002.jsonl")
    assert main(["show", str(tmp_path), "--list"]) == 0
    assert listed(capsys.readouterr().out) == [
        [str(path)],
        ["2 episodes"],
        ["episode", "kind", "reward", "correctness", "calls", "entries"],
        ["diary-3/0", "dialogue", "+0.900", "0.333", "6", "1"],
        ["q/1", "2-hop", "none", "failed", "2", "none"],
    ]
    assert main(["show", str(tmp_path), "--step", "2"]) == 0  # implies it
    assert listed(capsys.readouterr().out)[2:] == [
        ["episode", "kind", "reward", "correctness", "calls"],
        ["q/1", "2-hop", "+0.900", "0.333", "2"],
    ]


def listed(output: str) -> list[list[str]]:
    """The lines of a table's text: their cells."""
    lines = [[cell.strip() for cell in re.split("[│┃]", line) if cell.strip()] for line in output.splitlines()]
    return [line for line in lines if line and not set("".join(line)) <= set("━┏┳┓┡╇┩─└┴┘")]


@pytest.mark.parametrize(
    ("steps", "there"),
    [
        ((0, 1, 2), "has steps 0-2; give one of these"),
        ((0, 10, 20), "has steps 0-20, 3 of them; give one of these"),
        ((5,), "has step 5 alone; give one of these"),
    ],
)
def test_a_step_that_is_not_there(
    steps: Sequence[int], there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in steps:
        recorded(tmp_path, SEARCH, name=f"train-{step:06d}.jsonl")
    assert main(["show", str(tmp_path), "--step", "99"]) == 2
    assert capsys.readouterr().err == f"agentgrpo: --step 99: {tmp_path / 'trajectories'} {there}\n"


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_a_listing_fits_its_terminal(width: int, tmp_path: Path) -> None:
    columns, rows = listing(recorded(tmp_path, GROWN, SEARCH, rewards=[REWARD, None]))
    out = io.StringIO()
    Screen("quiet", Console(file=out, width=width, force_terminal=True, color_system=None)).table("two", columns, rows)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert [word in out.getvalue() for word in ("diary-3/0", "dialogue", "0.333", "failed")] == [True] * 4
    if width == 40:
        assert [line.rstrip() for line in lines] == [
            "two",
            "diary-3/0",
            "  kind dialogue  reward +0.900",
            "  correctness 0.333  calls 6  entries 1",
            "q/1",
            "  kind 2-hop  reward none",
            "  correctness failed  calls 2",
            "  entries none",
        ]


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ((), LATEST),
        (("--file", "eval-start-greedy.jsonl"), "eval-start-greedy.jsonl"),
        (("--file", "eval-start-greedy"), "eval-start-greedy.jsonl"),
        (("--step", "2"), "train-000002.jsonl"),
    ],
)
def test_which_file_is_shown(
    given: Sequence[str], file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (LATEST, "eval-start-greedy.jsonl", "train-000002.jsonl", "train-000010.jsonl"):
        recorded(tmp_path, SEARCH, name=name)
    assert main(["show", str(tmp_path), *given, "--episode", "q/1"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "trajectories" / file)
    if not given:
        (tmp_path / "trajectories" / LATEST).unlink()
        assert main(["show", str(tmp_path), "--episode", "q/1"]) == 0
        assert capsys.readouterr().out.splitlines()[0] == str(tmp_path / "trajectories" / "train-000010.jsonl")


NO_EPISODE = "eval-end-greedy.jsonl has no such episode"
ALL = "List them all with --list"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("--episode", "diary-4/0"), f"--episode diary-4/0: {NO_EPISODE}; the nearest are diary-3/0. {ALL}"),
        (("--episode", "zzzzzz"), f"--episode zzzzzz: {NO_EPISODE}; the first are diary-3/0, q/1. {ALL}"),
        (("--step", "x"), "--step x is not the number of a step; give one, such as 0"),
        (("--step", "1", "--file", "f"), "--file f and --step 1: give one of them"),
        (
            ("--file", "eval-end-gredy"),
            "{run} has no eval-end-gredy; it has eval-end-greedy. Did you mean 'eval-end-greedy'?",
        ),
        (("--step", "4"), "--step 4: {run} has no step of training; see what there is with --list"),
    ],
)
def test_what_is_not_there_is_one_line(
    given: Sequence[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, GROWN, SEARCH)
    assert main(["show", str(tmp_path), *given]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"agentgrpo: {expected.format(run=tmp_path / 'trajectories')}\n")


def test_a_run_that_has_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path / "x")]) == 2
    error = f"agentgrpo: {tmp_path}/x does not exist; give the directory of a run, such as runs/x.\n"
    assert capsys.readouterr().err == error


def test_to_show_is_light(tmp_path: Path) -> None:
    recorded(tmp_path, SEARCH)
    program = f"""
import sys
from agentgrpo.cli.main import main
assert main(["show", {str(tmp_path)!r}, "--episode", "q/1"]) == 0
assert not {{"torch", "hydra", "transformers"}} & set(sys.modules)
"""
    root = configs_dir().parent
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
