"""Programs behind bubblewrap: attacks are contained, calls end in time and leave nothing, no sandbox is no start."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError, ToolError
from agentgrpo.tools.python import plain_text
from agentgrpo.tools.sandbox.base import End, Finished, SandboxLimits, SandboxProgram
from agentgrpo.tools.sandbox.bounds import NOTHING
from agentgrpo.tools.sandbox.bubblewrap import NOBODY, BubblewrapSandbox, find_interpreter
from agentgrpo.tools.sandbox.disk import Counting
from agentgrpo.tools.sandbox.isolation import Home, Isolation
from agentgrpo.tools.sandbox.process import files_of
from agentgrpo.tools.sandbox.unsafe import UnsafeSubprocess
from agentgrpo.tools.workspace import PREFIX, Workspaces
from tests.thorough import late
from tests.tools.bubblewrap import PROBLEM, needs_bubblewrap
from tests.tools.leftovers import new_processes

CHECKOUT = Path(__file__).parents[2]
ATTACKS = (
    *("env_secret", "driver_environment", "process_list", "ssh_key", "other_workspace", "repository"),
    *("inherited_descriptor", "overwrite_file", "new_file_in_tmp", "symlink_in_workspace", "hardlink_in_workspace"),
    *("tcp_loopback", "udp", "abstract_socket", "kill_process", "ptrace_child", "daemon_past_deadline"),
    *("first_process_write", "first_process_unbounded", "shared_segments", "memory_files_of_children"),
    *("socket_buffers_enlarged", "sockets_in_backlog", "files_in_number", "no_longer_first_to_go", "pages_into_pipe"),
    *("fork_bomb", "disk_anywhere", "output_flood", "user_namespace", "mount", "ansi", "terminal"),
)
"""Of scripts/attack.py, which has them all: one or two of a kind."""


@pytest.fixture(scope="module")
def sandbox() -> BubblewrapSandbox:
    """For programs that end by themselves, however busy the machine is."""
    if PROBLEM:
        pytest.skip(PROBLEM)
    return BubblewrapSandbox(SandboxLimits(timeout_s=20))


@pytest.fixture(scope="module")
def impatient() -> BubblewrapSandbox:
    if PROBLEM:
        pytest.skip(PROBLEM)
    return BubblewrapSandbox(SandboxLimits(timeout_s=0.5))


async def printed(sandbox: BubblewrapSandbox, code: str) -> str:
    done = await sandbox.run(SandboxProgram(code=code))
    assert (done.end, done.exit_code, done.errors) == (End.EXITED, 0, b"")
    return done.output.decode()


@pytest.mark.slow
@needs_bubblewrap
def test_attacks_succeed_without_the_sandbox_and_fail_in_it() -> None:
    command = [sys.executable, "-W", "ignore", str(CHECKOUT / "scripts" / "attack.py"), "--only", *ATTACKS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    drivers = 2 if os.geteuid() == 0 else 1
    passed = re.fullmatch(r"(\d+) passed, 0 failed", done.stdout.splitlines()[-1])
    assert (bool(passed), done.returncode, done.stderr) == (True, 0, ""), done.stdout
    assert passed is not None
    assert int(passed[1]) > drivers * len(ATTACKS), "an attack has several ways in: a tool, a command"


async def test_what_a_program_finds(sandbox: BubblewrapSandbox) -> None:
    code = """
import os, sys
print(sorted(os.listdir(".")), os.getcwd(), sys.argv, dict(os.environ), __name__, sorted(globals())[:3])
print(os.getpid(), open("a/b.txt").read(), [os.path.exists(p) for p in ("/home", "/root", "/etc", "/opt", "/var")])
"""
    done = await sandbox.run(SandboxProgram(code=code, files={"a/b.txt": b"text", "a/c.txt": b"", "d": b"\0"}))
    environment = "{'PYTHONHASHSEED': '0', 'PWD': '/tmp/work', 'LC_CTYPE': 'C.UTF-8'}"
    first = f"['a', 'd'] /tmp/work ['program.py'] {environment} __main__ ['__annotations__', '__builtins__', '__doc__']"
    assert done.output.decode().splitlines() == [first, "1 text [False, False, False, False, False]"]


async def test_the_same_program_prints_the_same(sandbox: BubblewrapSandbox) -> None:
    code = "import random; print({'a', 'b', 'c', 'd'}, hash('x'), random.random(), random.sample(range(99), 3))"
    assert await printed(sandbox, code) == await printed(sandbox, code)


NEEDED = {
    "threads": """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as pool: print(sum(pool.map(abs, range(-9, 0))))
""",
    "an event loop": """
import asyncio
async def double(n):
    await asyncio.sleep(0.001)
    return 2 * n
async def main(): return await asyncio.gather(asyncio.to_thread(int, "3"), double(21))
print(asyncio.run(main())[1] + 3)
""",
    "a program of its own": """
import subprocess, sys
print(subprocess.run([sys.executable, "-S", "-c", "print(45)"], capture_output=True, text=True, check=True).stdout)
""",
    "processes": """
import multiprocessing as m
def work(end): end.send(45)
here, there = m.Pipe()
child = m.get_context("fork").Process(target=work, args=(there,))
child.start(); print(here.recv()); child.join()
""",
    "a database": """
import sqlite3
table = sqlite3.connect("rows.db")
table.execute("create table rows (n)")
table.executemany("insert into rows values (?)", [(n,) for n in range(10)])
table.commit(); print(table.execute("select sum(n) from rows").fetchone()[0])
""",
    "files": """
import fcntl, mmap, os, pathlib, shutil, tempfile
with tempfile.TemporaryDirectory() as folder:
    first = pathlib.Path(folder, "a"); first.write_bytes(b"45" * 9000)
    shutil.copy2(first, first.with_name("b")); shutil.copytree(folder, "copy")
    with open("copy/b", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with mmap.mmap(file.fileno(), 0) as memory: memory.flush(); print(memory[:2].decode())
    os.chmod("copy/a", 0o600); os.utime("copy/a"); os.truncate("copy/a", 1); os.fsync(os.open("copy", 0))
""",
    "signals": """
import signal, time
signal.signal(signal.SIGALRM, lambda *_: print(45)); signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.1)
""",
    "what it runs on": """
import os, platform, resource, select, time, uuid
platform.platform(); os.cpu_count(); os.times(); uuid.uuid1(); uuid.uuid4(); os.urandom(4); time.tzset()
os.nice(1); os.sched_getaffinity(0); resource.getrusage(resource.RUSAGE_SELF); select.poll().poll(1); print(45)
""",
    "numbers": """
import decimal, fractions, json, statistics
print(json.loads(str(decimal.Decimal(40) + int(fractions.Fraction(5)))) + int(statistics.mean([0, 0])))
""",
    "foreign functions": "import ctypes; print(ctypes.CDLL(None).abs(-45))",
}
"""What programs do that the filter lets them: each prints 45."""


@pytest.mark.parametrize("what", NEEDED)
async def test_what_programs_need_is_there(sandbox: BubblewrapSandbox, what: str) -> None:
    done = await sandbox.run(SandboxProgram(code=NEEDED[what], is_reported=True))
    assert (done.output.split(), done.errors, done.exit_code) == ([b"45"], b"", 0)


REFUSED = {
    "shared memory": "import ctypes; print(ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600))",
    "memory files": "import os; os.memfd_create('m')",
    "sockets": "import socket; socket.socket(socket.AF_UNIX)",
    "buffers of sockets": "import socket; socket.socketpair()[0].setsockopt(1, 7, 1 << 20)",
    "buffers of pipes": "import fcntl, os; fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",
    "memory of itself by its file": "open('/proc/self/mem', 'r+b')",
    "being spared": "open('/proc/self/oom_score_adj', 'w')",
    "more files": "import os\nfor n in range(5000): os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY))",
}


@pytest.mark.parametrize("is_reported", [False, True])
@pytest.mark.parametrize("what", REFUSED)
async def test_what_no_limit_of_a_process_counts_is_refused(
    sandbox: BubblewrapSandbox, what: str, is_reported: bool
) -> None:
    if what == "more files" and not any(b.what == "number of files" and b.by == "tmpfs" for b in sandbox.bounds):
        pytest.skip("files cannot be counted here")
    done = await sandbox.run(SandboxProgram(code=REFUSED[what], is_reported=is_reported))
    said = done.output.strip() or done.errors.splitlines()[-1].split(b"]")[0]
    assert said in (b"-1", b"PermissionError: [Errno 1", b"OSError: [Errno 30", b"OSError: [Errno 28")


async def test_the_first_process_is_bounded_and_closed_to_the_program(sandbox: BubblewrapSandbox) -> None:
    code = """
import os
limits = {line[:26].strip(): line[26:].split()[0] for line in open("/proc/1/limits")}
print(os.getpid() != 1, [limits[key] for key in ("Max address space", "Max processes", "Max open files")])
for name in ("mem", "maps", "environ", "fd"):
    try:
        print(os.open(f"/proc/1/{name}", os.O_RDONLY))
    except PermissionError:
        print("closed")
"""
    done = await sandbox.run(SandboxProgram(code=code, is_reported=True))
    assert done.output.decode().splitlines() == [f"True {[str(256 << 20), '16', '64']}", *["closed"] * 4]


async def test_the_first_process_imports_no_file_of_the_programs(sandbox: BubblewrapSandbox) -> None:
    shadow = b"import posix\nposix.write(1, b'by process %d\\n' % posix.getpid())\n"
    program = SandboxProgram(code="print('the program')", files={"_ctypes.py": shadow}, is_reported=True)
    done = await sandbox.run(program)
    assert (done.output, done.exit_code) == (b"the program\n", 0)


async def test_a_file_larger_than_the_memory_of_a_process_comes_back() -> None:
    if PROBLEM:
        pytest.skip(PROBLEM)
    small = BubblewrapSandbox(SandboxLimits(memory_mb=64, disk_mb=100))
    code = "with open('big', 'wb') as file:\n    for _ in range(80): file.write(bytes(1 << 20))"
    done = await small.run(SandboxProgram(code=code, is_reported=True))
    assert done.files is not None
    assert len(done.files["big"]) == 80 << 20


@pytest.mark.clock
@pytest.mark.parametrize(
    ("code", "end", "exit_code"),
    [
        ("raise SystemExit(3)", End.EXITED, 3),
        ("import os; os.kill(os.getpid(), 9)", End.EXITED, 0),  # the first process of its world cannot kill itself
        ("import os; os.abort()", End.EXITED, 139),
        ("1 / 0", End.EXITED, 1),
        ("import time; time.sleep(9)", End.TIMEOUT, 137),
        ("while True: pass", End.TIMEOUT, 137),
        ("print('x' * 70000)", End.FLOODED, None),
        ("import sys; sys.stderr.write('x' * 70000)", End.FLOODED, None),
        ("import os; os.close(1); os.close(2)", End.EXITED, None),
    ],
)
async def test_how_a_program_ends(impatient: BubblewrapSandbox, code: str, end: End, exit_code: int | None) -> None:
    began = time.monotonic()
    done = await impatient.run(SandboxProgram(code=code))
    assert (done.end, exit_code is None or done.exit_code == exit_code) == (end, True)
    assert not late(began, 0.5 + 1)


async def test_files_come_back_but_no_links(sandbox: BubblewrapSandbox) -> None:
    code = """
import os
os.mkdir("d")
open("d/new", "w").write("n")
open("kept", "a").write("+")
os.remove("gone")
os.symlink("/usr/lib/os-release", "link")
os.mkfifo("pipe")
os._exit(0)
"""
    done = await sandbox.run(SandboxProgram(code=code, files={"kept": b"k", "gone": b"g"}, is_reported=True))
    assert done.files == {"d/new": b"n", "kept": b"k+"}


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"3 1\nabcd",
        b"3 9\nabcdend\n",
        b"-1 4\nabcdend\n",
        b"99999999999 1\nend\n",
        b"3 1 1\nabcdend\n",
        b"3" * 100 + b"\n",
        b"\xb2 1\nend\n",
    ],
)
def test_a_report_that_is_not_whole_is_none(report: bytes) -> None:
    assert files_of(report) is None


def test_a_report_is_read_as_it_was_written() -> None:
    assert files_of(b"3 4\na/bend\n2 0\n..end\n") == {"a/b": b"end\n", "..": b""}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b]0;title\x07a\x1b[1;31mb\x1b[0m\x1b(Bc", "abc"),
        (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31m\u202eevil\u2066\u200b\ufeff\U000e0041".encode(), "31mevil"),
        (b"one\r\ntwo\rthree\tfour\0\x08\x7f", "one\ntwo\nthree\tfour"),
        (b"\xff\xfe caf\xc3\xa9", "\ufffd\ufffd café"),
        (b"\x1b", ""),
    ],
)
def test_output_is_plain_text(raw: bytes, shown: str) -> None:
    assert plain_text(raw) == shown


def test_plain_text_takes_no_time_over_hostile_output() -> None:
    began = time.process_time()
    for raw in (b"\x1b[" * 40_000, b"\x1b]" * 40_000, b"\x1b[" + b"0;" * 40_000, b"\x1b]" + b"x" * 80_000):
        plain_text(raw)
    assert time.process_time() - began < 1


def left_behind() -> tuple[set[str], set[str], int, set[str]]:
    """Children of this process, its descriptors, its threads, folders for temporary files of programs."""
    children = {str(process.pid) for process in new_processes()}
    descriptors = {fd.name for fd in Path("/proc/self/fd").iterdir() if fd.exists()}
    folders = {p.name for p in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/*")}
    return children, descriptors, threading.active_count(), folders


def roots_in(parent: Path) -> list[Path]:
    return [*parent.iterdir()]


@pytest.mark.parametrize("calls", [40, pytest.param(200, marks=pytest.mark.slow)])
async def test_many_calls_with_faults_leave_nothing(
    impatient: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, calls: int
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    unsafe = UnsafeSubprocess(SandboxLimits(timeout_s=0.5))
    programs = (
        "print(1)",
        "1 / 0",
        "while True: pass",
        "print('x' * 100000)",
        "import os\nfor _ in range(5):\n    if os.fork() == 0:\n        os.setsid(); import time; time.sleep(60)",
        "import os; os.abort()",
        "open('f', 'w').write('x' * 1000)",
        "import time; time.sleep(60)",
    )
    for runner in (impatient, unsafe):  # which has a folder for its folders from now on
        await runner.run(SandboxProgram(code="print(1)"))
    before = left_behind()
    slots = asyncio.Semaphore(8)

    async def call(n: int) -> None:
        program = SandboxProgram(code=programs[n % 8], is_reported=n % 3 == 0)
        async with slots:
            runner = unsafe if n % 8 in (2, 6, 7) and n % 3 == 1 else impatient
            if n % 5 == 4:  # cancelled at any point, twice
                task = asyncio.create_task(runner.run(program))
                await asyncio.sleep(0.01 * (n % 7))
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.done()
            else:
                assert isinstance(await runner.run(program), Finished)

    await asyncio.gather(*(call(n) for n in range(calls)))
    assert all(now <= then for now, then in zip(left_behind(), before, strict=True))
    await unsafe.close()
    assert roots_in(tmp_path) == []


async def test_a_cancelled_call_is_over_at_once(sandbox: BubblewrapSandbox) -> None:
    task = asyncio.create_task(sandbox.run(SandboxProgram(code="import time; time.sleep(60)")))
    await asyncio.sleep(0.2)
    before = left_behind()[0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (len(before) > 0, left_behind()[0]) == (True, set())


@needs_bubblewrap
def test_programs_die_with_a_killed_driver(tmp_path: Path) -> None:
    nonce = f"nonce{os.urandom(8).hex()}"
    driver = f"""
import asyncio
from agentgrpo.tools.sandbox.base import SandboxLimits, SandboxProgram
from agentgrpo.tools.sandbox.bubblewrap import BubblewrapSandbox
sleep = "[sys.executable, '-S', '-c', 'import time; time.sleep(60)', '{nonce}']"
code = f"import os, sys; os.execv(sys.executable, {{sleep}})"
asyncio.run(BubblewrapSandbox(SandboxLimits(timeout_s=60)).run(SandboxProgram(code=code)))
"""
    process = subprocess.Popen([sys.executable, "-c", driver], cwd=CHECKOUT)
    try:
        assert wait_for(lambda: with_argument(nonce))
        process.send_signal(signal.SIGKILL)
        assert wait_for(lambda: not with_argument(nonce))
    finally:
        process.kill()
        process.wait()


def test_what_an_unsafe_program_of_a_killed_driver_left_is_swept(tmp_path: Path) -> None:
    driver = """
import asyncio
from agentgrpo.tools.sandbox.base import SandboxLimits, SandboxProgram
from agentgrpo.tools.sandbox.unsafe import UnsafeSubprocess
code = "import os, time; open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'started'); time.sleep(60)"
asyncio.run(UnsafeSubprocess(SandboxLimits(timeout_s=60)).run(SandboxProgram(code=code)))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", driver], cwd=CHECKOUT, env=environment, stderr=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: [*tmp_path.glob("**/started")])
        [started] = tmp_path.glob("**/started")
        program = int(started.read_text())
    finally:
        process.kill()
        process.wait()
    os.kill(program, signal.SIGKILL)  # nothing holds it but its name
    Workspaces(tmp_path)
    assert [*tmp_path.iterdir()] == []


def with_argument(nonce: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if nonce.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


def wait_for(condition: object, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


@needs_bubblewrap
def test_it_is_made_on_a_running_loop() -> None:
    async def make() -> BubblewrapSandbox:
        return BubblewrapSandbox(SandboxLimits())

    assert isinstance(asyncio.run(make()), BubblewrapSandbox)


# --- where it cannot hold


def a_bwrap(folder: Path, script: str) -> None:
    for name in ("setpriv", "sh"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder of programs, open to every user."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setenv("PATH", name)
        yield Path(name)


@pytest.mark.usefixtures("folder")
def test_without_bubblewrap_it_does_not_start() -> None:
    with pytest.raises(ConfigError) as error:
        BubblewrapSandbox(SandboxLimits())
    assert str(error.value) == (
        "the python tool runs programs in bubblewrap, and there is no bwrap here; install it (apt-get install "
        "bubblewrap, dnf install bubblewrap), or, if every program may do what you may do, say "
        "tools.python.sandbox=unsafe_subprocess"
    )


def test_with_closed_user_namespaces_it_does_not_start(folder: Path) -> None:
    a_bwrap(folder, "echo 'bwrap: No permissions to create a new namespace' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"does not hold here: .*No permissions to create a new namespace.*user\.max"):
        BubblewrapSandbox(SandboxLimits())


def test_a_bubblewrap_that_isolates_nothing_is_found_out(folder: Path) -> None:
    a_bwrap(folder, 'while [ "$1" != -- ]; do shift; done; shift; mkdir -p /tmp/work; exec "$@"')
    with pytest.raises(ConfigError, match=r"other processes can be seen; .*system calls are not filtered"):
        BubblewrapSandbox(SandboxLimits())


class Breaking(Isolation):
    def __init__(self, bwrap: Path) -> None:
        self._bwrap, self._groups = str(bwrap), None

    def argv(self, home: Home, seccomp: int) -> list[str]:
        return [self._bwrap]


async def test_a_sandbox_that_breaks_later_is_no_fault_of_the_program(folder: Path) -> None:
    sandbox = object.__new__(BubblewrapSandbox)
    a_bwrap(folder, "echo 'bwrap: no space left' >&2; exit 1")
    sandbox._limits, sandbox._filter, sandbox._run_inside = SandboxLimits(), b"", []
    sandbox._isolation = Breaking(folder / "bwrap")
    with pytest.raises(ToolError, match="did not start: bwrap: no space left"):
        await sandbox.run(SandboxProgram(code="print(1)"))


async def test_a_program_that_cannot_be_bounded_does_not_begin(
    sandbox: BubblewrapSandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # in /tmp other tests have theirs

    class Full:
        def make(self) -> Path:
            return Path("/nowhere")

        def enter(self, group: Path, pid: int) -> None:
            raise OSError(28, "No space left on device")

        def remove(self, group: Path) -> None: ...

    monkeypatch.setattr(sandbox._isolation, "_groups", Full())
    before = left_behind()
    with pytest.raises(ToolError, match=r"did not start: it cannot be bounded: .*No space left on device"):
        await sandbox.run(SandboxProgram(code="print(1)"))
    assert all(now <= then for now, then in zip(left_behind(), before, strict=True))


@needs_bubblewrap
def test_files_are_counted_by_a_disk_that_is_mounted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for who is not root."""
    monkeypatch.setattr("agentgrpo.tools.sandbox.isolation.ways", lambda: [Counting.MOUNTED])
    sandbox = BubblewrapSandbox(SandboxLimits())
    done = asyncio.run(sandbox.run(SandboxProgram(code="import os; print(os.statvfs('/tmp').f_files)")))
    assert done.output == b"4096\n"


@needs_bubblewrap
def test_where_files_cannot_be_counted_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentgrpo.tools.sandbox.isolation.ways", lambda: [Counting.NONE])
    sandbox = BubblewrapSandbox(SandboxLimits(), is_grouped=False)
    assert [b.by for b in sandbox.bounds if b.what == "number of files"] == [NOTHING]


def test_the_unsafe_way_says_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    UnsafeSubprocess(SandboxLimits())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "its files, its network and its processes" in caplog.text


def test_an_interpreter_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match=r"no Python for the sandbox: /nowhere/python is not there\. Install one"):
        find_interpreter("/nowhere/python", None)
    with pytest.raises(ConfigError, match=r"/usr/bin/true does not run"):
        find_interpreter("/usr/bin/true", None)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A Python in a folder that this process cannot enter, who is nobody where it was root."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "python").touch()
    folder.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    yield folder / "python"
    os.seteuid(user)
    folder.chmod(0o700)


def test_an_interpreter_in_a_folder_that_cannot_be_entered(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = f"no Python for the sandbox: {re.escape(str(closed))} cannot be reached: Permission denied. Install one"
    for uid in (None, NOBODY):
        with pytest.raises(ConfigError, match=said):
            find_interpreter(str(closed), uid)
    monkeypatch.setattr(sys, "executable", str(closed))
    assert find_interpreter(None, None).executable != str(closed)  # the system's


def test_limits_have_bounds() -> None:
    with pytest.raises(ConfigError, match=r"sandbox: memory_mb=1; 64 or more is allowed"):
        SandboxLimits(memory_mb=1)
