"""Workspaces: lazily made, filled from the task, always removed, also after a kill."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agentgrpo.core.errors import DataError, ToolError
from agentgrpo.tools.workspace import PREFIX, Workspaces, remove_tree, sweep
from tests import builders

FILES = {"prices.txt": "nut 4\n", "data/deep/a.csv": "x,y\n"}


def left(parent: Path) -> list[str]:
    return sorted(p.name for p in parent.iterdir())


async def test_made_when_asked_for_and_gone_after(tmp_path: Path) -> None:
    workspaces = Workspaces(tmp_path)
    task = builders.task(files=FILES)
    async with workspaces.open(task, seed="train/0|t0|1") as workspace:
        assert (workspace.task, workspace.seed, workspace.key) == (task, "train/0|t0|1", "train/0|t0|1|0")
        assert left(tmp_path) == [], "nothing is made for an episode that needs nothing"
        path = workspace.path
        assert workspace.path is path
        files = {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}
        assert files == FILES
        root = path.parent
        assert left(tmp_path) == [root.name]
        assert root.name.startswith(f"{PREFIX}{os.getpid()}-")
        assert [stat.S_IMODE(p.stat().st_mode) for p in (root, path)] == [0o700, 0o700]
    assert not path.exists()
    with pytest.raises(ToolError, match="is over"):
        _ = workspace.path
    await workspaces.close()
    assert left(tmp_path) == []


async def test_two_episodes_share_nothing(tmp_path: Path) -> None:
    workspaces = Workspaces(tmp_path)
    async with workspaces.open(builders.task(), seed="a") as a, workspaces.open(builders.task(), seed="b") as b:
        assert a.path != b.path
        assert (left(a.path), left(b.path)) == ([], [])
    await workspaces.close()


async def test_a_second_attempt_has_another_key_and_the_same_seed(tmp_path: Path) -> None:
    """Whatever a tool keeps by the key, the second attempt finds nothing of it; what it draws is the same."""
    workspaces, kept = Workspaces(tmp_path), dict[str, str]()
    for attempt in (0, 1):
        async with workspaces.open(builders.task(), seed="train/0|t0|1", attempt=attempt) as workspace:
            assert (workspace.seed, kept.get(workspace.key)) == ("train/0|t0|1", None)
            kept[workspace.key] = "the table of this attempt"
    assert list(kept) == ["train/0|t0|1|0", "train/0|t0|1|1"]
    await workspaces.close()


@pytest.mark.parametrize("end", [KeyError, asyncio.CancelledError, KeyboardInterrupt])
def test_gone_however_the_episode_ends(tmp_path: Path, end: type[BaseException]) -> None:
    workspaces = Workspaces(tmp_path)
    made: list[Path] = []

    async def episode() -> None:
        async with workspaces.open(builders.task(files=FILES), seed="a") as workspace:
            made.append(workspace.path)
            raise end

    with pytest.raises(end):
        asyncio.run(episode())
    assert [path.exists() for path in made] == [False]


@pytest.mark.parametrize(
    "name", ["../a", "a/../../b", "/etc/passwd", "", ".", "a//b", "a/./b", "a/", "a\0b", "x" * 256, "..", "a/.."]
)
def test_no_name_leads_out_of_the_workspace(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="a relative path inside the workspace is allowed"):
        Workspaces(tmp_path).open(builders.task(files={name: "text"}), seed="a")
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["a"], "is a list; {name: text} is needed"),
        ({"a": 1}, "names and contents must be texts"),
        ({"\ud800": "a"}, "names and contents must be texts"),
        ({"a": "1", "a/b": "2"}, "file 'a/b' lies in 'a', which is a file too"),
    ],
)
def test_files_of_another_shape_are_refused(tmp_path: Path, files: object, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        Workspaces(tmp_path).open(builders.task(files=files), seed="a")
    assert problem in str(caught.value)


async def test_a_full_disk_is_no_fault_of_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", full)
    workspaces = Workspaces(tmp_path)
    async with workspaces.open(builders.task(files=FILES), seed="a") as workspace:
        with pytest.raises(ToolError, match="No space left on device"):
            _ = workspace.path
        [root] = left(tmp_path)
        assert left(tmp_path / root) == [], "what was begun is removed"
        monkeypatch.setattr(Path, "write_bytes", write)
        assert (workspace.path / "prices.txt").read_text() == FILES["prices.txt"], "and begun anew"


# --- after a kill

CHILD = """
import sys, time
from pathlib import Path
from agentgrpo.tools.workspace import Workspaces
from tests import builders
workspaces = Workspaces(Path(sys.argv[1]))
workspace = workspaces.open(builders.task(files={"a/b.txt": "x"}), seed="k")
print(workspace.path, flush=True)
(workspace.path / "locked").mkdir(mode=0)
if sys.argv[2] == "exits":
    raise SystemExit
time.sleep(60)
"""


def child(tmp_path: Path, how: str = "sleeps") -> tuple[subprocess.Popen[str], Path]:
    """A process with a workspace under way."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), how], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_swept_at_the_next_start(tmp_path: Path) -> None:
    process, workspace = child(tmp_path)
    try:
        assert (workspace / "a/b.txt").read_text() == "x"
        Workspaces(tmp_path)
        assert workspace.is_dir(), "its process lives"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert workspace.is_dir()
    Workspaces(tmp_path)
    assert left(tmp_path) == []


def test_the_pid_in_the_name_decides_nothing(tmp_path: Path) -> None:
    """A root named after a process that lives (this one: its pid came round again) is swept if nobody holds it, and one
    named after a process that never was is kept if somebody does."""
    orphan, held = tmp_path / f"{PREFIX}{os.getpid()}-1-x", tmp_path / f"{PREFIX}4194304-1-y"
    for root in (orphan, held):
        (root / "00000000").mkdir(parents=True)
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        sweep(tmp_path)
        assert left(tmp_path) == [held.name]
    finally:
        os.close(descriptor)
    sweep(tmp_path)
    assert left(tmp_path) == []


def test_only_directories_of_its_own_name_are_swept(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "keep.txt").write_text("x")
    (tmp_path / f"{PREFIX}link").symlink_to(victim)
    (tmp_path / f"{PREFIX}file").write_text("x")
    sweep(tmp_path)
    assert left(tmp_path) == sorted([f"{PREFIX}file", f"{PREFIX}link", "victim"])
    assert (victim / "keep.txt").read_text() == "x"


def test_only_this_users_roots_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, owner = tmp_path / f"{PREFIX}1-1-x", os.geteuid()
    root.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    sweep(tmp_path)
    assert left(tmp_path) == [root.name]
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    sweep(tmp_path)
    assert left(tmp_path) == []


def test_a_process_that_just_exits_leaves_nothing(tmp_path: Path) -> None:
    process, workspace = child(tmp_path, "exits")
    process.communicate(timeout=30)
    assert (process.returncode, workspace.exists(), left(tmp_path)) == (0, False, [])


def test_a_forked_child_leaves_its_parents_workspace_alone(tmp_path: Path) -> None:
    workspaces = Workspaces(tmp_path)
    workspace = workspaces.open(builders.task(), seed="a").path
    pid = os.fork()
    if pid == 0:
        ok = workspaces.new_directory().parent != workspace.parent
        asyncio.run(workspaces.close())
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert workspace.is_dir()
    assert left(tmp_path) == [workspace.parent.name]


# --- whatever is in it


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    outside.mkdir(mode=0o500)
    tree.mkdir()
    (tree / "to a directory").symlink_to(outside)
    (tree / "to itself").symlink_to(tree)
    (tree / "to nothing").symlink_to("nowhere")
    os.mkfifo(tree / "pipe")
    remove_tree(tree)
    assert (tree.exists(), stat.S_IMODE(outside.stat().st_mode)) == (False, 0o500)


@pytest.mark.slow
def test_deeper_than_any_path_may_be_long(tmp_path: Path) -> None:
    """`while true; do mkdir a; cd a; done`, 1,200 levels: no recursion, no long path, no pile of descriptors."""
    tree = tmp_path / "tree"
    tree.mkdir()
    here = os.open(tree, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("a" * 50, dir_fd=here)
        deeper = os.open("a" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    remove_tree(tree)
    assert not tree.exists()


CLOSED = """
import os, sys
from pathlib import Path
from agentgrpo.tools.workspace import remove_tree
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
tree = Path(sys.argv[1]) / "tree"
(tree / "a/b/c").mkdir(parents=True)
(tree / "a/b/c/.removing-0").write_text("x")
for path in ("a/b/c", "a/b", "a", ""):
    (tree / path).chmod(0)
try:
    list(tree.iterdir())
except PermissionError:
    remove_tree(tree)
    print("removed" if not tree.exists() else "still there")
"""


def test_directories_that_nobody_may_read() -> None:
    """By an ordinary user, whom modes bind; so not below pytest's own directory, which is the owner's alone."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        done = subprocess.run([sys.executable, "-c", CLOSED, place], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("removed\n", "")
