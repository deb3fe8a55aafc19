"""Durable writes: every operation is a crash point, every byte is checked, every full disk is one clear error."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentgrpo.core import durable
from agentgrpo.core.durable import Operation
from agentgrpo.core.errors import CheckpointError, RunDirectoryError, StorageError


class Crash(BaseException):
    """The power fails: nothing in the program may catch it."""


class Machine:
    """A computer that dies before operation `at` (1-based), or in the middle of it where it is a write and `torn`."""

    def __init__(self, root: Path, at: int, *, torn: bool = False) -> None:
        self.root, self.at, self.torn = root, at, torn
        self.count = 0
        self.dying = False
        self.syncing: Path | None = None
        self.synced = {p.stat().st_ino: p.stat().st_size for p in root.rglob("*") if p.is_file()}

    def __call__(self, op: Operation) -> int | None:
        if self.syncing is not None:
            self.synced[self.syncing.stat().st_ino] = self.syncing.stat().st_size
        self.syncing = op.path if op.kind == "fsync" else None
        self.count += 1
        if self.count == self.at and self.torn and op.kind == "write" and op.size > 1:
            self.dying = True
            return op.size // 2
        if self.dying or self.count == self.at:
            raise Crash
        return None

    def lose_power(self) -> None:
        """Half of what was written to a file and not synced is lost."""
        for path in self.root.rglob("*"):
            if path.is_file():
                size = path.stat().st_size
                kept = min(size, self.synced.get(path.stat().st_ino, 0))
                os.truncate(path, kept + (size - kept) // 2)


def crashes(root: Path, begin: Callable[[Path], None], act: Callable[[Path], object]) -> Iterator[Path]:
    """Directories in which `act` died, once at every operation (torn and not) and once not at all."""
    at, died = 0, True
    while died:
        at += 1
        for torn in (False, True):
            directory = root / f"{at}-{torn}"
            directory.mkdir()
            begin(directory)
            machine = Machine(directory, at, torn=torn)
            died = False
            try:
                with durable.injected(machine):
                    act(directory)
            except Crash:
                died = True
                machine.lose_power()
            yield directory
    assert at > 2, "no operation was announced"


def names(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*"))


# --- files ---


def test_write_atomic_creates_parents_and_replaces(tmp_path: Path) -> None:
    durable.write_atomic(tmp_path / "a" / "b" / "file", b"one")
    durable.write_atomic(tmp_path / "a" / "b" / "file", b"two!")
    assert (tmp_path / "a" / "b" / "file").read_bytes() == b"two!"
    assert names(tmp_path) == ["a", "a/b", "a/b/file"]


@pytest.mark.usefixtures("no_fsync")
def test_a_crash_in_write_atomic_leaves_old_or_new_bytes(tmp_path: Path) -> None:
    seen = set()
    for directory in crashes(
        tmp_path,
        lambda d: (d / "file").write_bytes(b"old old old") and None,
        lambda d: durable.write_atomic(d / "file", b"new new"),
    ):
        seen.add((directory / "file").read_bytes())
        durable.sweep_leftovers(directory)
        assert names(directory) == ["file"]
    assert seen == {b"old old old", b"new new"}


@pytest.mark.usefixtures("no_fsync")
def test_a_crash_in_writing_several_files_leaves_each_old_or_new(tmp_path: Path) -> None:
    seen = set()
    for directory in crashes(
        tmp_path,
        lambda d: (d / "a").write_bytes(b"old old old") and None,
        lambda d: durable.write_each_atomic({d / "a": b"new new", d / "b": b"more"}),
    ):
        durable.sweep_leftovers(directory)
        seen.add(tuple((name, (directory / name).read_bytes()) for name in names(directory)))
    assert seen == {
        (("a", b"old old old"),),
        (("a", b"new new"),),
        (("a", b"new new"), ("b", b"more")),
    }


def _stream(path: Path, error: type[BaseException] | None = None) -> None:
    with durable.atomic_stream(path) as write:
        write(b"new ")
        if error is not None:
            raise error
        write(b"new")


@pytest.mark.usefixtures("no_fsync")
def test_a_crash_in_a_stream_leaves_old_or_new_bytes(tmp_path: Path) -> None:
    seen = set()
    for directory in crashes(
        tmp_path, lambda d: (d / "file").write_bytes(b"old old old") and None, lambda d: _stream(d / "file")
    ):
        seen.add((directory / "file").read_bytes())
        durable.sweep_leftovers(directory)
        assert names(directory) == ["file"]
    assert seen == {b"old old old", b"new new"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_an_error_while_a_stream_is_written_leaves_nothing_of_it(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(StorageError if error is OSError else error):
        _stream(tmp_path / "file", error)
    assert (names(tmp_path), (tmp_path / "file").read_bytes()) == (["file"], b"old")


def test_several_files_are_synced_before_any_appears_and_their_directory_once(tmp_path: Path) -> None:
    seen: list[Operation] = []
    with durable.injected(seen.append):
        durable.write_each_atomic({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert [(op.kind, op.path.name.split("-", 2)[-1] if op.path != tmp_path else "") for op in seen] == [
        ("write", "a"),
        ("fsync", "a"),
        ("write", "b"),
        ("fsync", "b"),
        ("rename", "a"),
        ("rename", "b"),
        ("fsync", ""),
    ]


def test_files_of_several_directories_are_not_written_together(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="files that are written together lie in one directory"):
        durable.write_each_atomic({tmp_path / "a" / "x": b"1", tmp_path / "b" / "x": b"2"})
    assert names(tmp_path) == []


def test_appends_return_the_offset_and_go_through_short_writes(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    assert durable.append_lines(log, ["one", "zwei ü"]) == 12
    with durable.injected(lambda op: min(op.size, 3) if op.kind == "write" else None):
        assert durable.append_lines(log, ["three", "four"]) == 23
        durable.write_atomic(tmp_path / "whole", b"0123456789")
    assert log.read_text(encoding="utf-8") == "one\nzwei ü\nthree\nfour\n"
    assert (tmp_path / "whole").read_bytes() == b"0123456789"


def test_a_line_end_inside_a_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds a line end"):
        durable.append_lines(tmp_path / "log", ["a\nb"])
    assert not (tmp_path / "log").exists()


def test_nothing_is_appended_to_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"step":1}\n{"ste')
    with pytest.raises(StorageError, match="the last line is torn"):
        durable.append_lines(tmp_path / "log", ["{}"])
    assert (tmp_path / "log").read_bytes() == b'{"step":1}\n{"ste'


@pytest.mark.usefixtures("no_fsync")
def test_a_crash_in_append_is_undone_by_truncation(tmp_path: Path) -> None:
    for directory in crashes(
        tmp_path,
        lambda d: (d / "log").write_bytes(b"one\ntwo\n") and None,
        lambda d: durable.append_lines(d / "log", ["three", "four"]),
    ):
        assert b"one\ntwo\nthree\nfour\n".startswith((directory / "log").read_bytes())
        durable.truncate_to(directory / "log", 8, directory / "orphans")
        assert (directory / "log").read_bytes() == b"one\ntwo\n"


@pytest.mark.usefixtures("no_fsync")
def test_unsynced_rows_outlive_a_power_failure_from_the_next_sync_on(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def append_and_fail(*, synced: bool) -> bytes:
        log.write_bytes(b"one\n")
        machine = Machine(tmp_path, at=99)
        with durable.injected(machine):
            assert durable.append_lines(log, ["two", "three"], synced=False) == 14
            if synced:
                durable.sync(log)
                durable.append_lines(log, ["four"], synced=False)
        assert log.read_bytes() == (b"one\ntwo\nthree\nfour\n" if synced else b"one\ntwo\nthree\n")
        machine.lose_power()
        return log.read_bytes()

    assert append_and_fail(synced=False) == b"one\ntwo\nt"
    assert append_and_fail(synced=True) == b"one\ntwo\nthree\nfo"


def test_a_sync_reaches_the_file_and_its_entry(tmp_path: Path) -> None:
    seen: list[Operation] = []
    durable.append_lines(tmp_path / "log", ["one"], synced=False)
    with durable.injected(seen.append):
        durable.sync(tmp_path / "log")
        durable.sync(tmp_path / "missing")
    assert seen == [Operation("fsync", tmp_path / "log"), Operation("fsync", tmp_path)]


def test_truncation_keeps_what_it_cuts(tmp_path: Path) -> None:
    log, orphans = tmp_path / "metrics.jsonl", tmp_path / "orphans"
    log.write_bytes(b"one\ntwo\nthree\nto")
    durable.truncate_to(log, 8, orphans)
    assert log.read_bytes() == b"one\ntwo\n"
    assert [p.read_bytes() for p in orphans.iterdir()] == [b"three\nto"]
    durable.truncate_to(log, 8, orphans)
    durable.truncate_to(log, 0, orphans)
    assert log.read_bytes() == b""
    assert sorted(p.read_bytes() for p in orphans.iterdir()) == [b"one\ntwo\n", b"three\nto"]


def test_an_offset_that_does_not_fit_the_file_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\n")
    with pytest.raises(CheckpointError, match=r"log: 8 bytes, but the checkpoint was taken at 9"):
        durable.truncate_to(log, 9, tmp_path / "orphans")
    with pytest.raises(CheckpointError, match="byte 6 is not the end of a row"):
        durable.truncate_to(log, 6, tmp_path / "orphans")
    with pytest.raises(CheckpointError, match="missing: 0 bytes"):
        durable.truncate_to(tmp_path / "missing", 1, tmp_path / "orphans")
    durable.truncate_to(tmp_path / "missing", 0, tmp_path / "orphans")
    assert names(tmp_path) == ["log"]


@pytest.mark.usefixtures("no_fsync")
def test_a_crash_in_truncation_loses_no_row(tmp_path: Path) -> None:
    def cut(directory: Path) -> None:
        durable.truncate_to(directory / "log", 4, directory / "orphans")

    for directory in crashes(tmp_path, lambda d: (d / "log").write_bytes(b"one\ntwo\nthree\n") and None, cut):
        durable.sweep_leftovers(directory / "orphans")
        cut(directory)
        assert (directory / "log").read_bytes() == b"one\n"
        assert [p.read_bytes() for p in (directory / "orphans").iterdir()] == [b"two\nthree\n"]


def test_set_aside_never_overwrites(tmp_path: Path) -> None:
    for content in (b"first", b"second", b"third"):
        (tmp_path / "file").write_bytes(content)
        durable.set_aside(tmp_path / "file", tmp_path / "orphans")
    assert [p.read_bytes() for p in sorted((tmp_path / "orphans").iterdir())] == [b"first", b"second", b"third"]
    assert not (tmp_path / "file").exists()


# --- full disks ---


def full(number: int, at: int) -> durable.Hook:
    """A disk that fails at operation `at` and ever after; a write takes what still fits and complains the next time."""
    count = 0

    def hook(op: Operation) -> int | None:
        nonlocal count
        count += 1
        if count == at and op.kind == "write":
            return op.size // 2
        if count >= at:
            raise OSError(number, os.strerror(number))
        return None

    return hook


def operations(act: Callable[[], object]) -> int:
    seen: list[Operation] = []
    with durable.injected(seen.append):
        act()
    return len(seen)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_failing_disk_is_one_clear_error_at_every_operation(tmp_path: Path, number: int) -> None:
    log, whole, folder = tmp_path / "log", tmp_path / "whole", tmp_path / "folder"
    for act in (
        lambda: durable.append_lines(log, ["a row"]),
        lambda: durable.append_lines(log, ["a row"], synced=False),
        lambda: durable.sync(log),
        lambda: durable.write_atomic(whole, b"some bytes"),
        lambda: durable.write_each_atomic({whole: b"some bytes", tmp_path / "other": b"more"}),
        lambda: seal(folder, "text"),
    ):
        act()
        count = operations(act)
        rows, before = log.read_bytes(), names(tmp_path)
        for at in range(1, count + 1):
            with durable.injected(full(number, at)), pytest.raises(StorageError) as caught:
                act()
            assert caught.value.exit_code == 5
            assert caught.value.errno == number
            assert str(caught.value).startswith(str(tmp_path))
            assert os.strerror(number) in str(caught.value)
            assert ("bytes free" in str(caught.value)) is (number != errno.EIO), "a broken disk is not a full one"
            durable.sweep_leftovers(tmp_path)
            assert log.read_bytes() == rows
            assert names(tmp_path) == before
    assert log.read_bytes() == b"a row\n" * 4
    assert whole.read_bytes() == b"some bytes"
    durable.verify_directory(folder)


def test_a_file_size_limit_leaves_the_log_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    durable.append_lines(log, ["x" * 400])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StorageError, match=r"log: File too large: 901 bytes needed, \d+ bytes free; free space"):
            durable.append_lines(log, ["y" * 900])
        with pytest.raises(StorageError, match="File too large"):
            durable.write_atomic(tmp_path / "whole", b"z" * 1001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.read_bytes() == b"x" * 400 + b"\n"
    assert names(tmp_path) == ["log"]


def test_free_space_is_required_beforehand(tmp_path: Path) -> None:
    durable.require_free_space(tmp_path / "not" / "there" / "yet", 1)
    with pytest.raises(
        StorageError, match=r"yet: not enough free space: 1000000000000000 bytes needed, \d+ bytes free"
    ):
        durable.require_free_space(tmp_path / "yet", 10**15)


# --- directories ---


def fill(directory: Path, text: str) -> None:
    (directory / "weights.bin").write_bytes(text.encode() * 10)
    (directory / "trainer").mkdir()
    (directory / "trainer" / "state.json").write_text(f'"{text}"')


def seal(path: Path, text: str) -> None:
    with durable.atomic_directory(path) as directory:
        fill(directory, text)


def test_a_directory_appears_whole_with_its_manifest(tmp_path: Path) -> None:
    old_mask = os.umask(0o022)
    try:
        with durable.atomic_directory(tmp_path / "d") as directory:
            assert directory.parent == tmp_path
            fill(directory, "ab")
            (directory / "weights.bin").chmod(0o600)
            assert not (tmp_path / "d").exists()
    finally:
        os.umask(old_mask)
    assert names(tmp_path) == ["d", "d/manifest.json", "d/trainer", "d/trainer/state.json", "d/weights.bin"]
    assert durable.verify_directory(tmp_path / "d") == {"weights.bin", "trainer/state.json"}
    assert (tmp_path / "d" / "weights.bin").stat().st_mode & 0o777 == 0o644
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_text())
    assert sorted(manifest) == ["files", "format", "sha256"]
    assert manifest["format"] == 1
    assert manifest["files"] == {
        "trainer/state.json": {"sha256": hashlib.sha256(b'"ab"').hexdigest(), "size": 4},
        "weights.bin": {"sha256": hashlib.sha256(b"ab" * 10).hexdigest(), "size": 20},
    }


def test_an_error_in_the_block_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with durable.atomic_directory(tmp_path / "d") as directory:
            fill(directory, "ab")
            raise KeyError("bug")

    with pytest.raises(KeyError):
        fail()
    assert names(tmp_path) == []


@pytest.mark.usefixtures("no_fsync")
@pytest.mark.parametrize("replaces", [False, True])
def test_a_crash_in_atomic_directory_leaves_a_valid_one_or_none(tmp_path: Path, replaces: bool) -> None:
    seen = set()
    for directory in crashes(
        tmp_path, lambda d: seal(d / "d", "old") if replaces else None, lambda d: seal(d / "d", "new")
    ):
        durable.sweep_leftovers(directory)
        if (directory / "d").exists():
            durable.verify_directory(directory / "d")
            seen.add((directory / "d" / "trainer" / "state.json").read_text())
            assert [p.name for p in directory.iterdir()] == ["d"]
        else:
            seen.add("none")
            assert names(directory) == []
    assert seen == ({'"old"', '"new"'} if replaces else {"none", '"new"'})


@pytest.mark.usefixtures("no_fsync")
def test_a_crash_in_sweeping_is_swept_again(tmp_path: Path) -> None:
    def begin(directory: Path) -> None:
        seal(directory / "d", "old")
        (directory / "d").rename(directory / ".old-00000000-d")
        (directory / ".tmp-00000001-d").mkdir()
        (directory / ".tmp-00000002-file").write_bytes(b"x")
        (directory / ".tmp-not-ours").write_bytes(b"x")

    for directory in crashes(tmp_path, begin, durable.sweep_leftovers):
        durable.sweep_leftovers(directory)
        assert sorted(p.name for p in directory.iterdir()) == [".tmp-not-ours", "d"]
        durable.verify_directory(directory / "d")


@pytest.mark.usefixtures("no_fsync")
def test_a_crash_in_removal_leaves_a_whole_directory_or_none(tmp_path: Path) -> None:
    for directory in crashes(tmp_path, lambda d: seal(d / "d", "old"), lambda d: durable.remove_directory(d / "d")):
        if (directory / "d").exists():
            durable.verify_directory(directory / "d")
        durable.sweep_leftovers(directory)
        assert {p.name for p in directory.iterdir()} <= {"d"}


def test_nothing_becomes_visible_before_it_is_synced(tmp_path: Path) -> None:
    operations: list[tuple[str, str]] = []
    with durable.injected(lambda op: operations.append((op.kind, op.path.name.split("-", 2)[-1]))):
        seal(tmp_path / "d", "text")
    assert operations == [
        ("mkdir", "d"),
        ("fsync", "state.json"),
        ("fsync", "weights.bin"),
        ("fsync", "trainer"),
        ("fsync", "d"),
        ("write", "manifest.json"),
        ("fsync", "manifest.json"),
        ("rename", "manifest.json"),
        ("fsync", "d"),
        ("rename", "d"),
        ("fsync", tmp_path.name.split("-", 2)[-1]),
    ]


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    seal(tmp_path / "d", "some weights, quite a lot of them")
    files = sorted(p for p in (tmp_path / "d").rglob("*") if p.is_file())
    chance = random.Random(0)
    for _ in range(300):
        path = chance.choice(files)
        good = path.read_bytes()
        at = chance.randrange(len(good))
        path.write_bytes(good[:at] + bytes([good[at] ^ chance.randrange(1, 256)]) + good[at + 1 :])
        with pytest.raises(CheckpointError, match=f"{path.name}: (damaged|expected)"):
            durable.verify_directory(tmp_path / "d")
        path.write_bytes(good)
    durable.verify_directory(tmp_path / "d")


def test_every_truncation_extension_and_deletion_is_found(tmp_path: Path) -> None:
    seal(tmp_path / "d", "some weights")
    for path in sorted(p for p in (tmp_path / "d").rglob("*") if p.is_file()):
        good = path.read_bytes()
        for bad in (*(good[:n] for n in range(len(good))), good + b"\n", good + b"\0"):
            path.write_bytes(bad)
            with pytest.raises(CheckpointError):
                durable.verify_directory(tmp_path / "d")
        path.unlink()
        with pytest.raises(CheckpointError, match=f"{path.name}: .*No such file"):
            durable.verify_directory(tmp_path / "d")
        path.write_bytes(good)


def test_the_error_names_file_and_hashes(tmp_path: Path) -> None:
    seal(tmp_path / "d", "a")
    (tmp_path / "d" / "weights.bin").write_bytes(b"b")
    with pytest.raises(CheckpointError) as caught:
        durable.verify_directory(tmp_path / "d")
    assert str(caught.value) == (
        f"{tmp_path}/d/weights.bin: expected sha256 bf2cb58a68f684d95a3b78ef8f661c9a4e5b09e82cc8f9cc88cce90528caeb27 "
        "(10 bytes), found 3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d (1 bytes)"
    )
    with pytest.raises(CheckpointError, match="does not list optimizer"):
        durable.verify_directory(tmp_path / "d", only=("optimizer",))
    durable.verify_directory(tmp_path / "d", only=("trainer/state.json",))


# --- the lock ---

HOLDER = """
import os, sys, time
from pathlib import Path
from agentgrpo.core.durable import RunLock
lock = RunLock(Path(sys.argv[1]))
if sys.argv[2] == "fork":
    hear, tell = os.pipe()
    child = os.fork()
    if child:
        os.read(hear, 1)  # the child runs, and has let go of what it inherited
    else:
        os.write(tell, b".")
else:
    child = -1
if child:
    print(child, flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def holder(run_dir: Path, how: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, run_dir, how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if child > 0:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("how", ["alone", "fork"])
def test_a_second_process_is_refused_and_a_dead_one_never_blocks(tmp_path: Path, how: str) -> None:
    with holder(tmp_path / "run", how) as (process, _):
        with pytest.raises(RunDirectoryError, match=rf"run is in use by process {process.pid}; wait for it") as caught:
            durable.RunLock(tmp_path / "run")
        assert caught.value.exit_code == 3
        process.kill()
        process.wait()
        with durable.RunLock(tmp_path / "run"):
            pass


def test_a_lock_whose_file_was_taken_away_in_between_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def late(fd: int, how: int) -> None:
        (tmp_path / "run.lock").unlink()  # by a refused run that had the lock until now
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(RunDirectoryError, match="is in use by another process"):
        durable.RunLock(tmp_path)
    monkeypatch.undo()
    durable.RunLock(tmp_path).release()


def test_the_lock_is_free_again_after_release(tmp_path: Path) -> None:
    with durable.RunLock(tmp_path) as lock:
        with pytest.raises(RunDirectoryError, match=f"process {os.getpid()};"):
            durable.RunLock(tmp_path)
        lock.release()
        durable.RunLock(tmp_path).release()


def test_who_has_the_lock_sweeps_what_killed_writers_left(tmp_path: Path) -> None:
    left = tmp_path / ".tmp-0123abcd-environment.json"
    with durable.RunLock(tmp_path):
        left.write_text("half")
        with pytest.raises(RunDirectoryError):
            durable.RunLock(tmp_path)
        assert left.exists(), "it may be of the living"
    with durable.RunLock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


@pytest.mark.parametrize(
    ("text", "holder"),
    [('{"boot_id":"other","host":"node7","pid":12}', "process 12 on host node7"), ("", "another process")],
)
def test_the_holder_is_named_as_well_as_it_can_be(tmp_path: Path, text: str, holder: str) -> None:
    (tmp_path / "run.lock").write_text(text)
    with (tmp_path / "run.lock").open() as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        with pytest.raises(RunDirectoryError, match=f"is in use by {holder}; "):
            durable.RunLock(tmp_path)


HALF = """
import sys
from pathlib import Path
from agentgrpo.core.durable import atomic_directory
with atomic_directory(Path(sys.argv[1])) as directory:
    (directory / "half").write_text("x")
    print("writing", flush=True)
    sys.stdin.readline()
"""


def half_written(path: Path) -> subprocess.Popen[str]:
    """A process in the middle of writing the directory `path`."""
    writer = subprocess.Popen(
        [sys.executable, "-c", HALF, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    return writer


def test_what_a_killed_writer_left_goes_when_the_next_one_writes_there_and_a_living_one_s_stays(tmp_path: Path) -> None:
    (tmp_path / ".tmp-notes").mkdir()
    (tmp_path / ".tmp-0123abcd-file").touch()
    (tmp_path / "linked").mkdir()
    (tmp_path / ".tmp-0123abce-link").symlink_to(tmp_path / "linked")
    with half_written(tmp_path / "killed") as killed, half_written(tmp_path / "living") as living:
        killed.kill()
        killed.wait()
        assert len([*tmp_path.glob(".tmp-*-killed")]) == 1
        with durable.atomic_directory(tmp_path / "next") as directory:
            (directory / "x").touch()
        assert [*tmp_path.glob(".tmp-*-killed")] == []
        living.communicate("go on\n")
        assert living.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".tmp-0123abcd-file", ".tmp-0123abce-link", ".tmp-notes", "linked", "living", "next",
    ]  # fmt: skip
    assert (tmp_path / "living" / "half").read_text() == "x"


def test_ctrl_c_while_a_directory_is_written_leaves_nothing_of_it(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), durable.atomic_directory(tmp_path / "out"):
        raise KeyboardInterrupt
    assert [*tmp_path.iterdir()] == []
