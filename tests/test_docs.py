"""What README and agentgrpo/docs show is run: commands in order, example files and programs, and what they print.

A block is run by what stands behind its three backticks, in the order of the page and in one folder:

    sh           commands, on a small world and two steps long (see `settled`); `sh long`: by make test-docs-long
    python       a program; `python FILE`, `yaml FILE` and `jsonl FILE` are files that commands need

Other blocks, and what is only indented, are not run: they need a server, a GPU or somebody's model.
"""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import agentgrpo
from agentgrpo.cli import verbs
from agentgrpo.cli.main import main
from agentgrpo.config.overrides import brought
from agentgrpo.core.commands import VERBS
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.dialogue import chunks_of, questions_of
from agentgrpo.tasks.jsonl import export, jsonl
from agentgrpo.tasks.memory_files.dataset import MemoryFiles
from agentgrpo.worlds.almanac.dataset import Almanac
from scripts import api_reference, pictures, settings_reference
from tests.e2e.conftest import SMALL_WORLD, start
from tests.training.several import free_port

__all__ = ["start"]  # a fixture

PACKAGE = Path(agentgrpo.__file__).parent
ROOT = PACKAGE.parent
README = ROOT / "README.md"
DOCS = PACKAGE / "docs"
MADE = (api_reference.PAGE, settings_reference.PAGE)
WRITTEN = [README, *sorted(set(DOCS.glob("*.md")) - set(MADE))]
PAGES = [*WRITTEN, *MADE]
SHORT = ["run.max_steps=2", "run.eval_every=0", "run.eval.tasks=4", "rollout.tasks_per_step=2", "rollout.group_size=2"]
QUIET = ["hardware.threads=1", "run.log_with=[]", "run.screen=quiet"]
EXITS = {"--gate": {0, 9, 10}, "plan": {0, 1}}
PROGRAMS = ("agentgrpo", "make", "accelerate", "python")


class Block(NamedTuple):
    kind: str
    about: str
    """What stands behind the kind: `long`, or the name of a file."""
    text: str

    @property
    def commands(self) -> list[str]:
        joined = self.text.replace("\\\n", " ") if self.kind == "sh" else ""
        return [command for line in joined.splitlines() if (command := re.split(r"(?:^|\s)#", line)[0].strip())]


def blocks(page: Path) -> list[Block]:
    found = re.findall(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(*block) for block in found]


def commands(page: Path) -> list[str]:
    return [command for block in blocks(page) for command in block.commands]


def is_long(block: Block) -> bool:
    return block.kind == "sh" and block.about == "long"


def settled(command: str, start: Path) -> tuple[str, list[str]]:
    """(the launcher's part, what agentgrpo is told) of a command line, so that it takes seconds: two steps on a small
    world, and the start weights for MODEL and for the warm start."""
    text = (
        command.replace("step-000150", "step-000002")
        .replace("max_steps=200", "max_steps=2")
        .replace("model.path=MODEL", f"model.path={start}")
    )
    launch, _, text = text.partition("agentgrpo ")
    arguments = shlex.split(text)
    verb = arguments[0] if arguments[0] in VERBS else ""
    if verb not in ("train", "sft", "doctor") or "--cfg" in arguments:
        return launch, arguments
    if "experiment=tools" in arguments:
        arguments += ["task.test_tasks=24", "model.worlds=10", "model.tokenizer_worlds=8"]  # hasty start weights
    elif {"experiment=memory", "experiment=memory_hard"} & {*arguments}:
        arguments += ["model.worlds=10", "model.tokenizer_worlds=4"]
    elif "environment=tools" in arguments:
        arguments += ["model.describe_tools=false"]  # the start weights have room for 512 tokens
    elif "experiment=none" not in arguments and not brought([word for word in arguments if "=" in word]):
        arguments += [*SMALL_WORLD, "model=path", f"model.path='{start}'"]
    short = [] if verb == "doctor" else SHORT  # the doctor would rightly complain
    return launch, [*arguments, *short, *QUIET]


def settled_program(text: str, start: Path) -> str:
    """As `settled`, of a program."""
    short = text.replace('"MODEL"', repr(str(start))).replace("steps=200", "steps=2")
    return short.replace("overrides=", f"overrides={[*SHORT, *QUIET]} + ")


def launched(launch: str, arguments: list[str]) -> int:
    """The exit code of `accelerate launch ... -m agentgrpo ARGUMENTS`, on two processes without a GPU."""
    flags = re.sub(r"--num_processes \d+", f"--num_processes 2 --main_process_port {free_port()}", launch).split()[2:]
    command = [sys.executable, "-W", "ignore", "-m", "accelerate.commands.launch", *flags, "agentgrpo", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, "hardware.device=cpu"], check=False, env=environment).returncode


def exit_code(command: str, start: Path) -> int:
    if command.startswith("python "):
        script, *rest = shlex.split(command)[1:]
        return subprocess.run([sys.executable, "-W", "ignore", str(ROOT / script), *rest], check=False).returncode
    launch, arguments = settled(command, start)
    if arguments[0] == "train" and "run.dir=runs/first" in arguments:
        shutil.rmtree("runs/first")  # that of `desk`
    return launched(launch, arguments) if launch.startswith("accelerate ") else main(arguments)


def run(command: str, start: Path) -> None:
    if not command.startswith("make "):  # test_the_make_targets_exist
        allowed = next((codes for flag, codes in EXITS.items() if flag in command.split()), {0})
        code = exit_code(command, start)
        assert code in allowed, f"{command}: exit code {code}"


def run_page(page: Path, start: Path, *, long: bool) -> int:
    """Every program and command of it; how many were run."""
    count = 0
    for block in blocks(page):
        if block.kind in ("python", "yaml", "jsonl") and block.about:
            Path(block.about).parent.mkdir(parents=True, exist_ok=True)
            Path(block.about).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            exec(compile(settled_program(block.text, start), page.name, "exec"), {"__name__": "__main__"})
            count += 1
        elif long or not is_long(block):
            for command in block.commands:
                run(command, start)
                count += 1
    return count


@pytest.fixture(scope="module")
def first_run(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of first-run.md leave in runs/first."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    _, arguments = settled(f"agentgrpo train +reward=retriever_aware run.dir={shlex.quote(str(folder))}", start)
    assert main(arguments) == 0
    return folder


@pytest.fixture
def desk(first_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with data of one's own and a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as python has it for a program in it
    monkeypatch.setenv("PATH", sys.prefix + "/bin", prepend=os.pathsep)  # as an environment that is activated has it
    export(Almanac(num_companies=12, dev_companies=4, test_companies=4), tmp_path)
    shutil.copytree(first_run, tmp_path / "runs" / "first")
    return tmp_path


LENGTHY = {
    *("README", "algorithms", "cluster", "doctor", "environments", "judges", "openenv", "own-documents", "programs"),
    *("published-environments", "read-a-run", "rewards", "supervised", "tools"),
}
"""Pages with more trainings than a commit waits for; the other pages show the same verbs."""
NEEDED = {"openenv": ("openenv",), "published-environments": ("reasoning_gym", "textarena", "gymnasium")}
"""Packages of extras that make test does not need."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow if p.stem in LENGTHY else ()) for p in PAGES if commands(p)],
    ids=lambda p: p.stem,
)
def test_every_block_runs(page: Path, start: Path, desk: Path) -> None:
    del desk
    for package in NEEDED.get(page.stem, ()):
        pytest.importorskip(package)
    assert run_page(page, start, long=False) > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", [p for p in PAGES if any(map(is_long, blocks(p)))], ids=lambda p: p.stem)
def test_every_long_block_runs(page: Path, start: Path, desk: Path) -> None:
    del desk
    assert run_page(page, start, long=True) > 0


# --- what must be there


def test_only_these_programs_are_run() -> None:
    said = [command for page in PAGES for command in commands(page)]
    assert {command.split()[0].rpartition("/")[2] for command in said} == {*PROGRAMS}
    assert len(said) >= 40


def test_the_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = {m for page in WRITTEN for m in re.findall(r"\bmake ([a-z][a-z-]+)\b`?", " ".join(code_of(page)))}
    assert {"train", "test"} <= named
    assert [target for target in sorted(named) if f"\n{target}:" not in makefile] == []


def code_of(page: Path) -> list[str]:
    """Its commands, and what stands between backticks in a line."""
    return commands(page) + [f"{span} " for span in re.findall(r"`([^`\n]+)`", page.read_text("utf-8"))]


def test_every_verb_and_every_group_is_on_a_page() -> None:
    text = "\n".join(page.read_text("utf-8") for page in WRITTEN)
    assert [verb for verb in VERBS if f"agentgrpo {verb}" not in text] == []
    groups = sorted(folder.name for folder in (ROOT / "configs").iterdir() if folder.is_dir())
    assert [group for group in groups if not re.search(rf"\b{group}[.=]\w", text)] == []


def test_readme_is_short_and_knows_all_pages() -> None:
    text = README.read_text("utf-8")
    assert len(text.splitlines()) <= 200
    assert [page.name for page in PAGES[1:] if f"(agentgrpo/docs/{page.name})" not in text] == []


def test_every_picture_is_shown() -> None:
    text = re.sub(r"<!--.*?-->", "", "\n".join(page.read_text("utf-8") for page in WRITTEN), flags=re.DOTALL)
    pictures_there = sorted(path.name for path in (DOCS / "images").iterdir())
    assert pictures_there
    assert [name for name in pictures_there if f"images/{name})" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^    .*$|`[^`\n]*`", "", text, flags=re.MULTILINE)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        if not file.is_file() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("made", [api_reference, settings_reference], ids=lambda m: m.PAGE.stem)
def test_pages_that_are_made_are_up_to_date(made: object) -> None:
    assert made.PAGE.read_text("utf-8") == made.page(), "make docs"  # type: ignore[attr-defined]


def test_the_picture_of_the_screen_is_that_of_a_run(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "Screen", verbs.Screen)  # to have it back
    out = tmp_path / "screen.svg"
    settings = [*SMALL_WORLD, "model=path", f"model.path='{start}'", *SHORT, "run.max_steps=150"]
    assert pictures.screen(["--step", "1", "--out", str(out), *settings]) == 0
    text = html.unescape(re.sub(r"<[^>]+>", " ", out.read_text("utf-8"))).replace("\xa0", " ")
    assert "http" not in re.sub(r"xmlns=\S+|<!--.*?-->", "", out.read_text("utf-8"))
    assert "training" in text
    assert "2/150" in text
    assert "correct" in text


def test_every_contract_is_in_the_api() -> None:
    listed = {file for files in api_reference.PARTS.values() for file in files}
    assert {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("base.py")} - listed == set()


# --- what the pages say


def only(page: str, kind: str, begins: str = "") -> str:
    [found] = [b.text for b in blocks(DOCS / page) if b.kind == kind and b.text.startswith(begins)]
    return found


def test_the_error_it_shows_is_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    command, message = only("first-run.md", "text", "$ agentgrpo").splitlines()
    assert main(shlex.split(command)[2:]) == 2
    pattern = re.escape(message).replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, capsys.readouterr().err.strip())


def test_its_example_files_are_read(tmp_path: Path) -> None:
    corpus, questions = (b.text for b in blocks(DOCS / "own-documents.md") if b.kind == "json")
    (tmp_path / "corpus.jsonl").write_text(corpus)
    (tmp_path / "questions.jsonl").write_text(questions)
    data = jsonl(questions=str(tmp_path / "questions.jsonl"), corpus=str(tmp_path / "corpus.jsonl"))
    assert [t.references for t in data.split("train")] == [("Castin",)]
    assert [p.title for p in data.corpora()["vdb"]] == ["Velmor"]


def test_its_example_conversations_are_read(tmp_path: Path) -> None:
    (tmp_path / "chats.jsonl").write_text(only("memory.md", "jsonl"))
    data = MemoryFiles(path=str(tmp_path / "chats.jsonl"))
    tasks = {task.id: task for split in SPLITS for task in data.split(split)}
    assert {id: chunks_of(task) for id, task in tasks.items()} == {
        "anna": ("Anna: I moved to Graz.\nassistant: How nice!",),
        "bob": ("Bob sold his car.", "Bob bought a boat."),
    }
    assert [q.metric for q in questions_of(tasks["bob"])] == ["contains", "choice"]


def test_the_tree_names_what_is_there() -> None:
    for line in only("house.md", "text", "agentgrpo/\n").splitlines()[1:]:
        names = re.split(r"\s{2,}", line.strip())[0].split()
        for name in names:
            path = PACKAGE / name if line.startswith("  ") else ROOT / name
            assert path.exists() or path.with_suffix(".py").exists(), name
