"""`agentgrpo view` as it is typed: the page, its line, and what is refused in one."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest

from agentgrpo.cli.main import configs_dir, main
from agentgrpo.core.durable import Operation, injected
from agentgrpo.reports.view import page
from tests.reports.view import made


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(page, "page_of", made.assets(tmp_path / "assets"))
    return made.make_run(tmp_path / "a run")


def test_a_page_and_where_it_is(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["view", str(run)]) == 0
    out = run / "view.html"
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out == f"{out}: 3 episodes, 0.0 MB; open it with a browser: {out.as_uri()}\n"
    blocks, _ = made.written(tmp_path, run)
    assert made.blocks_of(out.read_text()) == blocks
    assert main(["view", str(run)]) == 0  # in place of the page that is there


def test_while_a_page_is_made_it_is_said_how_far_it_is(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[tuple[object, ...]] = []
    monkeypatch.setattr("agentgrpo.records.screen.Bar.reached", lambda bar, *far: said.append(far))
    monkeypatch.setattr("agentgrpo.reports.view.embedding.CHUNK", 1)
    assert main(["view", str(run)]) == 0
    first, second = (
        (run / "trajectories" / f"{name}.jsonl").stat().st_size for name in ("train-000002", "eval-end-greedy")
    )
    far = [(1, 0), (2, 0), (2, first), (3, first), (3, first + second)]
    assert said == [("reading", done, behind, first + second) for done, behind in far]


def test_several_runs_and_a_place(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, out = made.make_run(tmp_path / "b" / "a run"), tmp_path / "both.html"
    assert main(["view", str(run), str(other), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{out}: 6 episodes, ")
    overview = made.blocks_of(out.read_text())["overview"]
    assert [r["name"] for r in overview["runs"]] == [f"{tmp_path.name}/a run", "b/a run"]
    assert [f["run"] for f in overview["files"]] == [0, 0, 1, 1]
    assert not (run / "view.html").exists()


def test_damage_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in range(3, 10):
        made.record(run, made.ANSWERED, name=f"train-{step:06d}").write_text("{}\n")
    assert main(["view", str(run)]) == 0
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert len(lines) == 6
    first = f"{run}/trajectories/train-000003.jsonl:1: schema_version None; this version reads 3 to 5"
    assert lines[0] == f"agentgrpo: {first} (what could be read is shown)"
    assert lines[5] == "agentgrpo: ... and 2 more, which the page names"
    assert said.out.startswith(f"{run}/view.html: 3 episodes, ")


def test_a_tokenizer_that_cannot_be_read_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "step-000002" / "tokenizer.json").write_text("{")
    assert main(["view", str(run)]) == 0
    assert re.fullmatch(
        r"agentgrpo: .*tokenizer\.json: .* \(texts are not divided into tokens\)\n", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["{tmp}/zzzz"], "{tmp}/zzzz does not exist; give the directory of a run, such as runs/x."),
        (["{run}", "{tmp}"], "{tmp} has no trajectories; give the directory of a run that has begun, such as runs/x"),
        (["{run}", "{run}/"], "{run} is given twice; give each run once"),
        (
            ["{run}", "--out", "{tmp}/no/x.html"],
            "--out {tmp}/no/x.html: there is no folder {tmp}/no; make it, or give a place in one that exists",
        ),
        (["{run}", "--out", "{tmp}"], "--out {tmp} is a folder; give a file, such as {tmp}/view.html"),
        (
            ["{run}", "--out", "{run}/metrics.jsonl"],
            "{run}/metrics.jsonl exists and is no page of agentgrpo view; remove it, or give another file with --out",
        ),
        (["{run}", "--out", "x.html", "--serve"], "--serve writes no file; leave out --serve or --out"),
        (["{run}", "--port", "1"], "--port 1 is for --serve; add --serve, or leave it out"),
        (
            ["{run}", "--serve", "--port", "x"],
            "--port x; allowed are 0 (any free port) to 65535",
        ),
        (
            ["{run}", "--serve", "--port", "65536"],
            "--port 65536; allowed are 0 (any free port) to 65535",
        ),
        (
            ["{run}", "--ratio", "{tmp}"],
            "--ratio {tmp} holds no model; give a checkpoint, such as RUN/checkpoints/step-000150",
        ),
    ],
)
def test_what_cannot_be_is_one_line(
    given: Sequence[str], expected: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["view", *(text.format(run=run, tmp=tmp_path) for text in given)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"agentgrpo: {expected.format(run=run, tmp=tmp_path)}\n")
    assert not (run / "view.html").exists()


def test_a_port_in_use_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["view", str(run), "--serve", "--port", str(port)]) == 2
    error = f"agentgrpo: --port {port} is in use; give another port, or omit --port for a free one\n"
    assert capsys.readouterr() == ("", error)


def test_a_disk_that_is_full_leaves_the_old_page(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not taken for a damaged file of the run."""
    assert main(["view", str(run)]) == 0
    before = (run / "view.html").read_bytes()
    made.record(run, *(replace(made.ANSWERED, sample_index=i) for i in range(70)), name="train-000003")
    capsys.readouterr()

    def full(operation: Operation) -> int | None:
        if operation.kind == "write" and operation.path.name.endswith("view.html"):
            raise OSError(28, "No space left on device")
        return None

    with injected(full):
        assert main(["view", str(run)]) == 5
    assert "No space left on device" in capsys.readouterr().err
    assert (run / "view.html").read_bytes() == before
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    run = made.make_run(tmp_path / "x")
    process = subprocess.Popen(
        [sys.executable, "-m", "agentgrpo", "view", str(run), "--serve"],
        cwd=configs_dir().parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_served_until_interrupted(served: subprocess.Popen[str]) -> None:
    assert served.stdout is not None
    line = served.stdout.readline()
    match = re.fullmatch(r"(http://127\.0\.0\.1:\d+/) shows x to browsers of this machine; Ctrl-C ends it\n", line)
    assert match, line
    with urlopen(f"{match[1]}block/overview", timeout=30) as answer:
        assert answer.status == 200
    served.send_signal(signal.SIGINT)
    out, err = served.communicate(timeout=30)
    assert (served.returncode, out, err) == (0, "\nstopped\n", "")


def test_without_ratios_it_is_light(tmp_path: Path) -> None:
    run = made.make_run(tmp_path / "x")
    program = f"""
import sys
from agentgrpo.cli.main import main
assert main(["view", {str(run)!r}]) == 0
assert not {{"torch", "hydra", "transformers"}} & set(sys.modules)
"""
    root, quiet = configs_dir().parent, {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env=quiet, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
