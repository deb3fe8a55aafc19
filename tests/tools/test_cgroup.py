"""Where control groups are made, how they are bounded and that none is left: over a folder laid out as the kernel's,
and, where this machine has them, for real."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from agentgrpo.core.errors import ToolError
from agentgrpo.tools.sandbox.base import End, SandboxLimits, SandboxProgram
from agentgrpo.tools.sandbox.bounds import NOTHING, bounds_of, settings_of
from agentgrpo.tools.sandbox.bubblewrap import BubblewrapSandbox
from agentgrpo.tools.sandbox.cgroup import Groups, NoGroups
from tests.tools.bubblewrap import PROBLEM

SETTINGS = {"memory.max": "4096", "pids.max": "3"}
SESSION = "user.slice/app.slice/run.scope"


@pytest.fixture(autouse=True)
def rmdir_as_the_kernel_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a group go with it, its processes keep it."""
    remove = Path.rmdir

    def rmdir(path: Path) -> None:
        if (path / "busy").exists():
            raise OSError(16, "Device or resource busy")
        for file in path.iterdir():
            file.unlink()
        remove(path)

    monkeypatch.setattr(Path, "rmdir", rmdir)


class Hierarchy:
    """A root of groups, and the file that says which is this process's own."""

    def __init__(self, folder: Path, own: str = SESSION) -> None:
        self.root, self.own = folder / "cgroup", folder / "own"
        self.own.write_text(f"12:pids:/elsewhere\n0::/{own}\n")
        self.group("", enabled="cpu memory pids")
        for n in range(len(Path(SESSION).parts)):
            self.group("/".join(Path(SESSION).parts[: n + 1]))

    def group(self, path: str, *, enabled: str = "", memory: str = "max") -> None:
        folder = self.root / path
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory pids" if path == "" else "")
        (folder / "cgroup.subtree_control").write_text(enabled)
        (folder / "memory.max").write_text(f"{memory}\n")

    def groups(self) -> Groups:
        return Groups(SETTINGS, root=self.root, own=self.own)


def test_a_group_is_made_beside_this_process_and_bounded(tmp_path: Path) -> None:
    here = Hierarchy(tmp_path)
    here.group("user.slice/app.slice", enabled="memory pids")
    groups = here.groups()
    assert groups.parent == here.root / "user.slice/app.slice"
    group = groups.make()
    assert group.parent == groups.parent
    assert group.name.startswith(f"agentgrpo-{os.getpid()}-")
    assert {file.name: file.read_text() for file in group.iterdir()} == {**SETTINGS, "memory.swap.max": "0"}
    assert groups.make() != group
    for each in groups.parent.glob("agentgrpo-*"):
        groups.remove(each)
    groups.close()
    assert [*groups.parent.glob("agentgrpo-*")] == []


def test_the_root_is_the_last_that_is_asked(tmp_path: Path) -> None:
    here = Hierarchy(tmp_path)
    assert here.groups().parent == here.root


def test_what_a_group_has_but_does_not_hand_on_is_handed_on(tmp_path: Path) -> None:
    here = Hierarchy(tmp_path)
    (here.root / SESSION / "cgroup.controllers").write_text("memory pids")
    assert here.groups().parent == here.root / SESSION
    assert (here.root / SESSION / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_no_group_is_made_outside_of_one_that_is_bounded(tmp_path: Path) -> None:
    here = Hierarchy(tmp_path)
    here.group(SESSION, memory="17179869184")
    with pytest.raises(NoGroups, match=r"run\.scope has a memory\.max of its own, and cannot be divided"):
        here.groups()


def test_a_machine_without_them(tmp_path: Path) -> None:
    with pytest.raises(NoGroups, match=r"there is no cgroup v2 at "):
        Groups(SETTINGS, root=tmp_path)
    here = Hierarchy(tmp_path, own="../other")
    with pytest.raises(NoGroups, match="cannot be seen from here"):
        here.groups()
    here = Hierarchy(tmp_path)
    here.group("", enabled="cpu")
    (here.root / "cgroup.controllers").write_text("cpu")
    with pytest.raises(NoGroups, match="no control group above this process can be divided; "):
        here.groups()


def test_a_group_that_nobody_can_enter_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Hierarchy(tmp_path)

    def enter(group: Path, pid: int) -> None:
        raise PermissionError

    monkeypatch.setattr(Groups, "enter", staticmethod(enter))
    with pytest.raises(NoGroups, match="can be divided"):
        here.groups()
    assert [*here.root.glob("agentgrpo-*")] == []


def test_groups_that_are_busy_are_removed_later(tmp_path: Path) -> None:
    groups = Hierarchy(tmp_path).groups()
    busy, other = groups.make(), groups.make()
    (busy / "busy").touch()
    groups.remove(busy)
    assert busy.exists()
    (busy / "busy").unlink()
    groups.remove(other)
    assert [*groups.parent.glob("agentgrpo-*")] == []


def test_groups_of_killed_drivers_are_swept_and_those_of_others_are_not(tmp_path: Path) -> None:
    here = Hierarchy(tmp_path)
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = {f"agentgrpo-{gone.pid}-0", f"agentgrpo-{os.getppid()}-7", "agentgrpo-x-1", "other"}
    for name in names:
        (here.root / name).mkdir()
    here.groups()
    left = {path.name for path in here.root.iterdir() if path.is_dir()} - {"user.slice"}
    assert left == names - {f"agentgrpo-{gone.pid}-0"}


def test_a_group_that_cannot_be_made_is_nobodys_fault(tmp_path: Path) -> None:
    groups = Hierarchy(tmp_path).groups()
    groups.parent = tmp_path / "gone"
    with pytest.raises(ToolError, match=r"sandbox: no control group can be made in .*gone: No such file"):
        groups.make()


def test_what_is_bounded_and_by_what() -> None:
    limits = SandboxLimits(memory_mb=100, disk_mb=10, processes=4)
    assert settings_of(limits) == {"memory.max": str(110 << 20), "pids.max": "8"}
    bound = {b.what: b.by for b in bounds_of(limits, has_group=True, is_counted=True)}
    assert (bound["memory in all"], bound["number of files"]) == ("cgroup", "tmpfs")
    unbound = [b for b in bounds_of(limits, has_group=False, is_counted=False) if b.by == NOTHING]
    assert [b.what for b in unbound] == ["memory in all", "number of files"]
    assert unbound[0].most.startswith("4")


# --- for real


@pytest.fixture(name="grouped")
def real_sandbox(monkeypatch: pytest.MonkeyPatch) -> BubblewrapSandbox:
    monkeypatch.undo()
    if PROBLEM:
        pytest.skip(PROBLEM)
    sandbox = BubblewrapSandbox(SandboxLimits(timeout_s=20))
    if sandbox.no_groups:
        pytest.skip(sandbox.no_groups)
    return sandbox


CHILDREN = """
import os, time
results, theirs = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        held = bytearray(b"x") * (48 << 20)
        os.write(theirs, b"x")
        time.sleep(60)
os.close(theirs)
until = time.monotonic() + 10
died = 0
while time.monotonic() < until and not died:
    died = os.waitpid(-1, os.WNOHANG)[0]
    time.sleep(0.1)
print(died > 0)
"""


def test_all_processes_together_have_one_ceiling(grouped: BubblewrapSandbox) -> None:
    done = asyncio.run(grouped.run(SandboxProgram(code=CHILDREN, is_reported=True)))
    assert (done.end, done.output.strip()) == (End.EXITED, b"True"), done


def test_no_group_is_left_of_any_program(grouped: BubblewrapSandbox) -> None:
    async def run() -> None:
        codes = ("print(1)", "while True: pass", "bytes(10 ** 9)", CHILDREN)
        quick = BubblewrapSandbox(SandboxLimits(timeout_s=0.5))
        await asyncio.gather(*(quick.run(SandboxProgram(code=code)) for code in codes * 3))
        cancelled = asyncio.create_task(quick.run(SandboxProgram(code="while True: pass")))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await quick.close()

    asyncio.run(run())
    assert grouped._isolation._groups is not None
    assert [*grouped._isolation._groups.parent.glob(f"agentgrpo-{os.getpid()}-*")] == []
