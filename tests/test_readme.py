"""What README shows is run: its commands in order, its example files, its error message, its exit codes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.cli import main
from agentgrpo.commands import VERBS
from agentgrpo.dialogue import chunks_of, questions_of
from agentgrpo.tasks.almanac import Almanac
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.jsonl import export
from agentgrpo.tasks.memory_files import MemoryFiles
from tests.e2e.conftest import SMALL_WORLD, same_threads, start
from tests.training.several import free_port

__all__ = ["same_threads", "start"]  # fixtures

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for kind, block in BLOCKS
    if kind == "sh"
    for line in block.splitlines()
    if line.partition("#")[0].strip()
]
SHORT = ["run.max_steps=2", "run.eval_every=0", "run.eval.tasks=10", "rollout.tasks_per_step=2", "rollout.group_size=2"]
EXITS = {"--gate": {0, 9, 10}}


def test_there_is_something_to_run() -> None:
    assert [c for c in COMMANDS if c.startswith("make ")] == ["make train", "make test"]
    assert len([c for c in COMMANDS if c.startswith("agentgrpo ")]) >= 8
    assert all(c.startswith(("make ", "agentgrpo ", "accelerate launch ")) for c in COMMANDS)


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in COMMANDS:
        if command.startswith("make "):
            assert f"\n{command.removeprefix('make ')}:" in makefile, command


def launched(launch: str, arguments: list[str]) -> int:
    """The exit code of `accelerate launch ... -m agentgrpo ARGUMENTS`, on two processes without a GPU."""
    flags = re.sub(r"--num_processes \d+", f"--num_processes 2 --main_process_port {free_port()}", launch).split()[2:]
    command = [sys.executable, "-W", "ignore", "-m", "accelerate.commands.launch", *flags, "agentgrpo", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, "hardware.device=cpu"], check=False, env=environment).returncode


@pytest.mark.timeout(900)
def test_every_command_runs(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In order and in one directory, on a small world, two steps long; the start weights stand in for MODEL and for
    the warm start."""
    monkeypatch.chdir(tmp_path)
    export(Almanac(num_companies=12, dev_companies=4, test_companies=4), tmp_path)
    for command in COMMANDS:
        if command.startswith("make "):
            continue
        text = (
            command.replace("step-000150", "step-000002")
            .replace("max_steps=200", "max_steps=2")
            .replace("model.path=MODEL", f"model.path={start}")
        )
        launch, _, text = text.rpartition("agentgrpo ")
        arguments = shlex.split(text)
        verb = arguments[0] if arguments[0] in VERBS else ""
        if verb == "train" and "--cfg" not in arguments:
            if "experiment=tools" in arguments:
                arguments += ["task.test_tasks=24"]  # from its own start weights
            elif "experiment=memory" in arguments:
                arguments += ["model.worlds=10", "model.tokenizer_worlds=4"]  # from hasty ones of its own
            elif "agent=tool" in arguments:
                arguments += ["model.describe_tools=false"]  # the start weights have room for 512 tokens
            elif "experiment=none" not in arguments:
                arguments += [*SMALL_WORLD, "model=path", f"model.path='{start}'"]
            arguments += [*SHORT, "hardware.threads=1", "run.log_with=[]", "run.screen=quiet"]
        code = launched(launch, arguments) if launch else main(arguments)
        allowed = next((codes for flag, codes in EXITS.items() if flag in arguments), {0})
        assert code in allowed, f"{command}: exit code {code}\n{capsys.readouterr().err}"


def test_the_error_it_shows_is_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    [shown] = [block for kind, block in BLOCKS if kind == "text" and block.startswith("$ agentgrpo")]
    command, message = shown.splitlines()
    assert main(shlex.split(command)[2:]) == 2
    pattern = re.escape(message).replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, capsys.readouterr().err.strip())


def test_its_example_files_are_read(tmp_path: Path) -> None:
    from agentgrpo.tasks.jsonl import jsonl

    corpus, questions = (block for kind, block in BLOCKS if kind == "json")
    (tmp_path / "corpus.jsonl").write_text(corpus)
    (tmp_path / "questions.jsonl").write_text(questions)
    data = jsonl(questions=str(tmp_path / "questions.jsonl"), corpus=str(tmp_path / "corpus.jsonl"))
    assert [t.references for t in data.split("train")] == [("Castin",)]
    assert [p.title for p in data.corpora()["vdb"]] == ["Velmor"]


def test_its_example_conversations_are_read(tmp_path: Path) -> None:
    [rows] = (block for kind, block in BLOCKS if kind == "jsonl")
    (tmp_path / "chats.jsonl").write_text(rows)
    data = MemoryFiles(path=str(tmp_path / "chats.jsonl"))
    tasks = {task.id: task for split in SPLITS for task in data.split(split)}
    assert {id: chunks_of(task) for id, task in tasks.items()} == {
        "anna": ("Anna: I moved to Graz.\nassistant: How nice!",),
        "bob": ("Bob sold his car.", "Bob bought a boat."),
    }
    assert [q.metric for q in questions_of(tasks["bob"])] == ["contains", "choice"]


def test_the_tree_names_what_is_there() -> None:
    [tree] = [block for kind, block in BLOCKS if kind == "text" and block.startswith("agentgrpo/\n")]
    for line in tree.splitlines()[1:]:
        names = re.split(r"\s{2,}", line.strip())[0].split()
        for name in names:
            path = ROOT / "agentgrpo" / name if line.startswith("  ") else ROOT / name
            assert path.exists() or path.with_suffix(".py").exists(), name
