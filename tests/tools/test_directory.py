"""No path reads or writes outside the workspace, whatever is swapped meanwhile, by either way of looking up."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgrpo.tools import directory
from agentgrpo.tools.directory import (
    DirectoryEntry,
    FileProblem,
    PathRefused,
    has_openat2,
    list_within,
    parts_of,
    read_within,
    write_within,
)
from tests.thorough import examples
from tests.tools import swapper

TRIES = int(os.environ.get("AGENTGRPO_RACE_TRIES", "4000"))
"""Of each way of looking up; 100000 for the long version."""


@pytest.fixture(params=["openat2", "walk"])
def lookup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways; has_openat2 is true on any Linux since 5.6."""
    if request.param == "openat2" and not has_openat2():
        pytest.skip("this kernel has no openat2")
    monkeypatch.setattr(directory, "has_openat2", lambda: request.param == "openat2")
    return str(request.param)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return workspace, tmp_path / "outside"


def read(workspace: Path, path: str, max_bytes: int = 100) -> bytes | str:
    try:
        return read_within(workspace, path, max_bytes=max_bytes)[0]
    except (PathRefused, FileProblem) as e:
        return f"{type(e).__name__}: {e}"


def write(workspace: Path, path: str, content: bytes = b"new", max_files: int = 100) -> str:
    try:
        write_within(workspace, path, content, max_files=max_files)
    except (PathRefused, FileProblem) as e:
        return f"{type(e).__name__}: {e}"
    return "written"


def test_paths() -> None:
    paths = ["a", " a/b.txt\n", "./a//b/.", ".", "", "...", "a b", "~", "a\\..\\b", "%2e%2e/a", "\u2025/a"]
    assert [parts_of(p) for p in paths] == [
        *[("a",), ("a", "b.txt"), ("a", "b"), (), (), ("...",), ("a b",), ("~",), ("a\\..\\b",), ("%2e%2e", "a")],
        ("\u2025", "a"),
    ]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/passwd", "/etc/passwd is absolute; paths are relative to the workspace"),
        ("//a", "//a is absolute; paths are relative to the workspace"),
        ("..", ".. has .. in it; paths stay in the workspace"),
        ("a/../../b", "a/../../b has .. in it; paths stay in the workspace"),
        ("a\0b", "'a\\x00b' is no path"),
        ("\ud800", "'\\ud800' is no path"),
        ("a/" * 17, "a/" * 17 + " is no path"),
        ("x" * 241, "x" * 100 + "...: a name is too long"),
        ("é" * 121, "é" * 100 + "...: a name is too long"),
        ("a" * 200 + "/" + "b" * 900, "a" * 100 + "... is no path"),
    ],
)
def test_paths_that_are_never_allowed(path: str, why: str) -> None:
    with pytest.raises(PathRefused) as error:
        parts_of(path)
    assert str(error.value) == why


def test_reading(lookup: str, places: tuple[Path, Path]) -> None:
    workspace, outside = places
    swapper.prepare(workspace, outside)
    (workspace / "d" / "e").mkdir()
    (workspace / "d" / "e" / "b").write_bytes(b"0123456789")
    (workspace / "up").symlink_to("..")
    (workspace / "inner").symlink_to("f")
    (workspace / "proc").symlink_to("/proc/self")
    os.link(outside / "secret", workspace / "h")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(workspace / "s"))
    server.close()
    link, over = "is a link; links are not followed", "leads over a file or a link; links are not followed"
    assert {p: read(workspace, p) for p in ("f", "d/secret", "d/e/b", "./d//e/b")} == {
        "f": b"inside",
        "d/secret": b"inside",
        "d/e/b": b"0123456789",
        "./d//e/b": b"0123456789",
    }
    names = ("no", "d/no", "f-link", "d-link/secret", "inner", "up/outside/secret", "f/x", "h", "p-pipe", "s", "d")
    assert {p: read(workspace, p) for p in (*names, "proc/root/etc/passwd", ".")} == {
        "no": "FileMissing: no file no",
        "d/no": "FileMissing: no file d/no",
        "f-link": f"FileProblem: f-link {over}",
        "d-link/secret": f"FileProblem: d-link/secret {over}",
        "inner": f"FileProblem: inner {over}",
        "up/outside/secret": f"FileProblem: up/outside/secret {over}",
        "f/x": f"FileProblem: f/x {over}",
        "h": f"FileProblem: h {link}",
        "p-pipe": "FileProblem: p-pipe is no file",
        "s": "FileProblem: s: No such device or address",
        "d": "FileProblem: d is a folder",
        "proc/root/etc/passwd": f"FileProblem: proc/root/etc/passwd {over}",
        ".": "PathRefused: the path is empty; name a file",
    }


def test_a_file_is_read_up_to_its_limit(places: tuple[Path, Path]) -> None:
    workspace, _ = places
    (workspace / "a").write_bytes(b"0123456789")
    assert [read_within(workspace, "a", max_bytes=n) for n in (4, 9, 10, 11)] == [
        (b"0123", True),
        (b"012345678", True),
        (b"0123456789", False),
        (b"0123456789", False),
    ]


def test_devices_are_no_files(lookup: str) -> None:
    assert read(Path("/dev"), "zero") == "FileProblem: zero is no file"


def test_a_mount_is_not_entered(lookup: str) -> None:
    assert read(Path("/"), "proc/version") == (
        "FileProblem: proc/version leads over a file or a link; links are not followed"
    )


def test_writing(lookup: str, places: tuple[Path, Path]) -> None:
    workspace, outside = places
    swapper.prepare(workspace, outside)
    os.link(outside / "secret", workspace / "h")
    over = "leads over a file or a link; links are not followed"
    assert {p: write(workspace, p) for p in ("f", "d/new", "x/y/z", "h", "n" * 240)} == dict.fromkeys(
        ("f", "d/new", "x/y/z", "h", "n" * 240), "written"
    )
    assert [(workspace / p).read_text() for p in ("f", "d/new", "x/y/z", "h")] == ["new"] * 4
    assert {p: write(workspace, p) for p in ("f-link", "d-link/new", "p-pipe", "d", "f/new", "../new", "/new", "")} == {
        "f-link": "FileProblem: f-link is no file",
        "d-link/new": f"FileProblem: d-link/new {over}",
        "p-pipe": "FileProblem: p-pipe is no file",
        "d": "FileProblem: d is a folder",
        "f/new": f"FileProblem: f/new {over}",
        "../new": "PathRefused: ../new has .. in it; paths stay in the workspace",
        "/new": "PathRefused: /new is absolute; paths are relative to the workspace",
        "": "PathRefused: the path is empty; name a file",
    }
    assert {p.name: p.read_text() for p in outside.iterdir()} == {"secret": "SECRET"}
    assert sorted(p.name for p in workspace.iterdir()) == sorted(
        ["d", "d-link", "f", "f-link", "h", "n" * 240, "p", "p-pipe", "x"]
    )


def test_a_workspace_fills_up(places: tuple[Path, Path]) -> None:
    workspace, _ = places
    assert [write(workspace, p, max_files=3) for p in ("a", "b/c", "d", "a", "b/c")] == [
        "written",
        "written",
        "FileProblem: the workspace is full: at most 3 files",
        "written",
        "written",
    ]


def test_a_write_that_fails_leaves_what_was(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    workspace, _ = places
    (workspace / "a").write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    assert write(workspace, "a") == "FileProblem: a: No space left on device"
    assert {p.name: p.read_text() for p in workspace.iterdir()} == {"a": "old"}


def test_listing(lookup: str, places: tuple[Path, Path]) -> None:
    workspace, outside = places
    swapper.prepare(workspace, outside)
    assert list_within(workspace, ".", max_entries=6) == [
        DirectoryEntry("d", None, True),
        DirectoryEntry("d-link", None, False),
        DirectoryEntry("f", 6, False),
        DirectoryEntry("f-link", None, False),
        DirectoryEntry("p", 6, False),
        DirectoryEntry("p-pipe", None, False),
    ]
    assert list_within(workspace, "d", max_entries=6) == [DirectoryEntry("secret", 6, False)]
    for path, why in (("d-link", "leads over"), (".", "holds more than 5"), ("no", "no file no"), ("f", "leads over")):
        with pytest.raises(FileProblem, match=why):
            list_within(workspace, path, max_entries=5)


def test_no_descriptor_is_left(lookup: str, places: tuple[Path, Path]) -> None:
    workspace, outside = places
    swapper.prepare(workspace, outside)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("f", "d/secret", "no/no", "d-link/x", "f/x", "p-pipe", "d", "..", "d/e/f", "f-link"):
        read(workspace, path)
        write(workspace, path, max_files=7)
        write(workspace, path, max_files=1)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


# --- hostile paths and races

_WRITTEN = ("d/secret", "d/new", "f", "p", "h", "d-link/new", "f-link", "p-pipe", "d/../../outside/new", "/tmp/outside")
_NAMES = ("d", "f", "h", "p", "d-link", "f-link", "secret", "outside", "..", ".", "", "etc", "passwd", "proc", "self")


@settings(max_examples=examples(300), deadline=None)
@given(st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(_NAMES), st.text(max_size=5))).map("/".join)))
def test_no_path_escapes(path: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        workspace, outside = Path(folder, "workspace"), Path(folder, "outside")
        workspace.mkdir()
        swapper.prepare(workspace, outside)
        found = read(workspace, path)
        assert found in (b"inside", b"") or isinstance(found, str)
        write(workspace, path)
        assert {p.name: p.read_text() for p in outside.iterdir()} == {"secret": "SECRET"}
        assert sorted(p.name for p in Path(folder).iterdir()) == ["outside", "workspace"]


@pytest.fixture
def swapping(places: tuple[Path, Path]) -> Iterator[tuple[Path, Path]]:
    swapper.prepare(*places)
    with subprocess.Popen([sys.executable, str(swapper.__file__), *map(str, places)]) as process:
        yield places
        assert process.poll() is None, "the swapping stopped early"
        process.kill()


def hostile_paths(tries: int) -> Iterator[str]:
    draw = random.Random(0)
    races = ("d/secret", "f", "h", "p", "./d/secret", "d/../d/secret", "d-link/secret", "f-link", "p-pipe")
    for n in range(tries):
        yield races[n % len(races)] if n % 4 else "/".join(draw.choices(_NAMES, k=draw.randint(1, 6)))


def escapes(outside: Path, found: bytes | str) -> int:
    """How often this try has touched the outside; what it wrote there is undone."""
    count = int(isinstance(found, bytes) and b"SECRET" in found)
    for path in outside.iterdir():
        if path.name != "secret":
            path.unlink()
            count += 1
    if (outside / "secret").read_bytes() != b"SECRET":
        (outside / "secret").write_bytes(b"SECRET")
        count += 1
    return count


def test_nothing_escapes_a_race(lookup: str, swapping: tuple[Path, Path]) -> None:
    workspace, outside = swapping
    seen: Counter[str] = Counter()
    for n, path in enumerate(hostile_paths(TRIES)):
        if n % 5 == 0:
            found: bytes | str = write(workspace, _WRITTEN[n // 5 % len(_WRITTEN)], b"inside")
        else:
            found = read(workspace, path)
        seen["escapes"] += escapes(outside, found)
        seen["refused" if isinstance(found, str) and found != "written" else "done"] += 1
    print(f"{TRIES} tries by {lookup}: {dict(seen)}")
    assert seen["escapes"] == 0
    assert min(seen["done"], seen["refused"]) > TRIES / 20, "both sides of the swaps must have been met"


def test_a_name_that_is_another_once_it_is_open_is_refused(
    lookup: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hard link to a file outside that is unlinked as soon as it is open: its one link left is the one outside."""
    workspace, outside = places
    swapper.prepare(workspace, outside)
    to_open = os.open

    def replaced(path: object, *given: object, **named: object) -> int:
        fd = to_open(path, *given, **named)  # type: ignore[call-overload]
        if path == "h":
            (workspace / "h").unlink()
            (workspace / "f").replace(workspace / "h")
        return int(fd)

    os.link(outside / "secret", workspace / "h")
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", replaced)
        assert read(workspace, "h") == "FileProblem: h is being changed"
    assert read(workspace, "h") == b"inside"


def naive(workspace: Path, path: str) -> bytes | str:
    """The usual check: resolve the path, see that it is inside, open it."""
    target = (workspace / path).resolve()
    if not target.is_relative_to(workspace.resolve()) or not target.is_file():
        return "refused"
    fd = os.open(workspace / path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def by_descriptor_alone(workspace: Path, path: str) -> bytes | str:
    """No links followed, the number of names seen on the descriptor: a name unlinked in between gets through."""
    fd = os.open(workspace / path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return "refused" if os.fstat(fd).st_nlink != 1 else os.read(fd, 100)
    finally:
        os.close(fd)


@pytest.mark.parametrize(("attempt", "path"), [(naive, "f"), (naive, "d/secret"), (by_descriptor_alone, "h")])
def test_the_swaps_do_catch_what_checks_before_it_opens(
    swapping: tuple[Path, Path], attempt: Callable[[Path, str], bytes | str], path: str
) -> None:
    workspace, outside = swapping
    for _ in range(200_000):
        try:
            found = attempt(workspace, path)
        except OSError:
            continue
        if escapes(outside, found):
            return
    pytest.fail("no attempt was ever deceived: the swaps prove nothing")
