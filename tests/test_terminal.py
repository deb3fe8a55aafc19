"""What others have written reaches a terminal as text: their templates' errors, names, questions, servers' words."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentgrpo.cli.main import main
from tests.e2e.test_models import made
from tests.test_secrets import MCP, PROGRAM, base, model  # noqa: F401

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202ered\x1b[2J\r\x08\x00"
"""A title, a colour, a cleared screen, a text turned round, a line overwritten."""
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
NAME = EVIL.replace("\0", "")
SPEAKS = f'''
import sys, warnings
EVIL = {EVIL!r}
class _Acts:
    def act(self, x: str) -> str:
        """Acts.

        Args:
            x: What.
        """
        return "ok " + EVIL
class Raises(_Acts):
    def reset(self, **columns): raise ValueError("why: " + EVIL)
class Named(_Acts):
    def reset(self, **columns):
        raise type("E" + EVIL.replace(chr(0), ""), (Exception,), {{}})("x")
class Warns(_Acts):
    def reset(self, **columns):
        warnings.warn("look: " + EVIL)
        raise ValueError("x")
class Rewards(_Acts):
    def reset(self, **columns): return "go"
    def get_reward(self): return {{"reward": 1.0, "m" + EVIL: "no number " + EVIL}}
'''


def template(folder: Path) -> list[str]:
    (folder / "chat_template.jinja").write_text("{{ raise_exception(" + json.dumps("no: " + EVIL) + ") }}")
    return ["environment=speaks:Raises"]


def broken_template(folder: Path) -> list[str]:
    (folder / "chat_template.jinja").write_text("{{ messages | " + NAME + " }}{% " + NAME + " %}")
    return ["environment=speaks:Raises"]


def config(folder: Path) -> list[str]:
    (folder / "config.json").write_text(json.dumps({"model_type": NAME, NAME: 1}))
    return ["environment=speaks:Raises"]


def index(folder: Path) -> list[str]:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {NAME: "../" + NAME}}))
    return ["environment=speaks:Raises"]


def gguf(folder: Path) -> list[str]:
    Path(f"{NAME}.gguf").write_bytes(b"GGUF" + bytes(100))
    return [f"model.path='{NAME}.gguf'"]


def no_folder(folder: Path) -> list[str]:
    return [f"model.path='/{NAME}'"]


def questions(folder: Path) -> list[str]:
    rows = [{"id": NAME, "question": "x"}, {"id": NAME, NAME: "y"}, [NAME]]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + NAME)
    return ["environment=speaks:Raises"]


def alike(folder: Path) -> list[str]:
    rows = [{"id": NAME, "question": f"{NAME} {i}", "answers": [NAME]} for i in range(8)]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["environment=speaks:Raises"]


def tools(folder: Path) -> list[str]:
    Path("server.py").write_text(
        "import json, sys\nfor line in sys.stdin:\n    asked = json.loads(line)\n    if 'id' not in asked: continue\n"
        "    told = {'protocolVersion': '2025-06-18', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'x', "
        "'version': '1'}} if asked['method'] == 'initialize' else {'tools': [{'name': " + repr(NAME) + ", "
        "'inputSchema': {'type': 'object'}}]}\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], 'result': told}), flush=True)\n"
    )
    return [*MCP, "tools.mcp.command='python server.py'", "tools.mcp.allow=[act]"]


def last_words(folder: Path) -> list[str]:
    Path("server.py").write_text(f"import sys\nprint({NAME!r})\nprint({NAME!r}, file=sys.stderr)\nsys.exit(3)\n")
    return [*MCP, "tools.mcp.command='python server.py'"]


def program(folder: Path) -> list[str]:
    Path("server.py").write_text(f"import sys\nprint({NAME!r})\nprint({NAME!r}, file=sys.stderr)\nsys.exit(3)\n")
    return [*PROGRAM, "environment.command='python server.py'"]


SOURCES: dict[str, Callable[[Path], list[str]]] = {
    "a chat template's error": template,
    "a chat template that is none": broken_template,
    "the kind of a model": config,
    "the weights of an index": index,
    "a file": gguf,
    "a folder that is not there": no_folder,
    "malformed questions": questions,
    "questions": alike,
    "an exception": lambda _: ["environment=speaks:Raises"],
    "an exception's class": lambda _: ["environment=speaks:Named"],
    "a warning": lambda _: ["environment=speaks:Warns"],
    "the name of a metric": lambda _: ["environment=speaks:Rewards", "reward=environment"],
    "names of tools": tools,
    "a server's last words": last_words,
    "a program's last words": program,
    "a key": lambda _: [f"+run.'{NAME}'=1"],
    "a value": lambda _: [f"run.max_steps='{NAME}'"],
    "a preset": lambda _: [f"judge='{NAME}'"],
    "a class": lambda _: [f"environment=speaks:{NAME}"],
    "a flag": lambda _: [f"--{NAME}"],
}


@pytest.mark.parametrize("source", SOURCES)
def test_an_error_has_no_control_character(
    source: str,
    base: list[str],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AGENTGRPO_CACHE", str(tmp_path / "cache"))
    Path("speaks.py").write_text(SPEAKS)
    monkeypatch.delitem(sys.modules, "speaks", raising=False)
    own = made("llama", tmp_path / "own")
    capfd.readouterr()
    code = main(["train", *base, f"model.path={own}", *SOURCES[source](own)])
    told = capfd.readouterr()
    assert code != 0
    assert "no public methods" not in told.err
    assert re.findall(CONTROL, told.out + told.err) == []


def test_a_report_of_data_has_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": NAME, "question": NAME, NAME: "y"}, {"id": NAME, "question": NAME, "answers": [NAME]}, [NAME]]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + NAME)
    main(["data", "check", str(tmp_path / "q.jsonl")])
    main(["data", "check", str(tmp_path / NAME)])
    told = capfd.readouterr()
    assert told.out + told.err
    assert re.findall(CONTROL, told.out + told.err) == []


def test_a_run_directory_of_others_has_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    (run / "trajectories").mkdir(parents=True)
    for text in (f"{json.dumps(NAME)}: 1\nrun: {{}}\n", f"run: [{NAME}", f"run: {{{json.dumps(NAME)}: 1}}\n"):
        (run / "config.yaml").write_text(text)
        (run / "metrics.jsonl").write_text(NAME + "\n")
        (run / "trajectories" / "train-000000.jsonl").write_text(json.dumps({NAME: NAME}) + "\n")
        for words in (
            ["resume", str(run)],
            ["show", str(run)],
            ["diff", str(run), str(run)],
            ["show", str(run / NAME)],
        ):
            main(words)
    told = capfd.readouterr()
    assert told.err.count("agentgrpo: ") >= 9
    assert re.findall(CONTROL, told.out + told.err) == []
