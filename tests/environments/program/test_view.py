"""Which paths of this machine the command of an agent sees."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.environments.program.view import binary_of, files_named_in, view_of
from agentgrpo.tools.sandbox.isolation import View


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = ["agent.py", "helpers.py", "questions.jsonl", "answers.csv", ".env", "tools/search.py", "tools/key.txt"]
    files += [
        "data/train.jsonl",
        "web/agent.js",
        "web/node_modules/x/index.js",
        "runs/one/config.yaml",
        ".git/config.py",
    ]
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return tmp_path


def seen(view: View, project: Path) -> set[str]:
    return {os.path.relpath(path, project) for path in view.shown if Path(path).is_relative_to(project)}


def view(*argv: object, show: tuple[str, ...] = (), run_files: tuple[str, ...] = ()) -> View:
    return view_of([sys.executable, *map(str, argv)], show=show, run_files=run_files, replaced={})


def test_code_beside_a_script_is_shown_and_data_is_not(project: Path) -> None:
    shown = view(project / "agent.py")
    assert seen(shown, project) == {"agent.py", "helpers.py", "tools"}
    assert {"/usr", "/etc"} <= {*shown.shown}
    assert not {"/", "/root", "/home", "/var", "/run", str(Path.home())} & {*shown.shown}
    assert seen(view(project / "web" / "agent.js"), project) == {"web/agent.js"}


def test_what_a_user_shows_is_shown_and_what_the_run_reads_is_covered(project: Path) -> None:
    questions, tools = str(project / "questions.jsonl"), str(project / "tools" / "key.txt")
    shown = view(project / "agent.py", show=(str(project / "data"),), run_files=(questions, tools))
    assert seen(shown, project) == {"agent.py", "helpers.py", "tools", "data"}
    assert shown.covered == (tools,)
    assert view(project / "agent.py", show=(str(project),), run_files=(questions,)).covered == (questions,)
    assert view(project / "agent.py", show=(questions,), run_files=(questions,)).covered == ()
    with pytest.raises(ConfigError, match=r"environment\.show: /no/such is not there"):
        view(project / "agent.py", show=("/no/such",))


def test_files_that_a_configuration_names(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    config = {
        "task": {"questions": "questions.jsonl", "parts": [str(project / "data" / "*.jsonl"), "none.jsonl"]},
        "environment": {"command": "python agent.py", "show": ["tools"]},
        "run": {"dir": "runs/one", "seed": 3},
        "text": "x" * 5000,
    }
    named = {"questions.jsonl", str(project / "data" / "train.jsonl"), "runs/one"}
    assert {*files_named_in(config, but=("command", "show"))} == named


def test_the_program_behind_a_script(tmp_path: Path) -> None:
    python = os.path.realpath(sys.executable)
    for number, line in enumerate((f"#!{python} -u", f"#!/usr/bin/env -S {python} -u")):
        script = tmp_path / f"agent{number}"
        script.write_text(f"{line}\nprint(1)\n")
        assert binary_of(str(script)) == python
    outer = tmp_path / "outer"
    outer.write_text(f"#!{tmp_path / 'agent0'}\n")
    assert binary_of(str(outer)) == python
    assert binary_of(sys.executable) == python
