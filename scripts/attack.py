"""The battery of attacks: each must first succeed in a bare process, and then be contained by the sandbox, without
control groups and, if this machine has them, with them.

python scripts/attack.py [--only NAME ...] [--verbose]

Root runs the battery twice, with a root driver and with an ordinary user as the driver; another user runs it once. An
attack that fails on this machine even without the sandbox proves nothing: it is listed and not counted. The last line
says "N passed, N failed"; the exit status is 1 if any attack failed, or if fewer than 230 attacks succeeded in the bare
process of a driver.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import pty
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent)]

from attacks.agents import OF_AN_AGENT, AgentSandbox  # noqa: E402
from attacks.assertions import attempts  # noqa: E402
from attacks.attempt import PRELUDE, Attack  # noqa: E402
from attacks.catalogue import ATTACKS  # noqa: E402
from attacks.scene import SECRET_NAME, Scene  # noqa: E402

from agentgrpo.core.errors import ConfigError  # noqa: E402
from agentgrpo.tools.directory import FileProblem  # noqa: E402
from agentgrpo.tools.python import files_in, keep_files, plain_text  # noqa: E402
from agentgrpo.tools.sandbox.base import SandboxLimits, SandboxProgram  # noqa: E402
from agentgrpo.tools.sandbox.bubblewrap import BubblewrapSandbox, find_interpreter  # noqa: E402
from agentgrpo.tools.sandbox.isolation import NOBODY  # noqa: E402
from agentgrpo.tools.workspace import remove_tree  # noqa: E402

ORDINARY = 61_183
"""An unused user id for the driver that is not root."""
DEADLINE_S = 1.0
BARE_S = 6.0
"""Seconds that a careless driver waits: long enough for an attack to succeed on a busy machine or disk."""
START_S = 5.0
"""Seconds that the start and stop of a sandbox may add on a busy machine."""
MUCH = 1 << 22
"""Bytes of output after which a driver stops reading."""
LEAST = 230
"""Number of attacks that must succeed in each driver's bare process."""
_FORMS_STEP = 40
"""A solution that knows nothing tries one form of hidden tests in _FORMS_STEP."""


@dataclass
class Result:
    """The results that a driver holds when a program is over."""

    output: bytes
    errors: bytes
    text: str
    is_late: bool
    files: dict[str, bytes] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    """st_mode of each entry of the workspace."""
    largest: int = 0
    """Bytes of the largest file in the workspace."""


def bare(code: str, scene: Scene, interpreter: str) -> Result:
    """Run the program in an ordinary process, like a careless driver: it inherits environment, descriptors, terminal
    and folder, and gets only a SIGTERM when its time is up."""
    home = Path(tempfile.mkdtemp(dir=scene.folder))
    master, terminal = pty.openpty()
    out, err = scene.folder / "out", scene.folder / "err"
    with out.open("wb") as output, err.open("wb") as errors:
        process = subprocess.Popen(
            [interpreter, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=errors,
            cwd=home,
            pass_fds=[scene.leaked, terminal],
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(terminal),
        )
        deadline = time.monotonic() + BARE_S
        while process.poll() is None and time.monotonic() < deadline and _size(out) + _size(err) < MUCH:
            time.sleep(0.01)
        is_late = process.poll() is None and _size(out) + _size(err) < MUCH
        if is_late:
            process.terminate()
            time.sleep(0.05)
        elif process.poll() is None:
            process.kill()
    result = _left_in(home)
    result.output, result.errors, result.is_late = _start_of(out), _start_of(err), is_late
    result.text = result.output.decode("utf-8", "replace")
    if result.output.startswith(b"PICKLE"):
        pickle.loads(result.output.removeprefix(b"PICKLE"))
    process.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    os.close(master)
    os.close(terminal)
    shutil.rmtree(home)
    return result


def _take_terminal(fd: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(fd, termios.TIOCSCTTY, 0)


def _size(path: Path) -> int:
    return path.stat().st_size


def _start_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MUCH)


def _left_in(home: Path) -> Result:
    result = Result(b"", b"", "", is_late=False)
    for entry in os.scandir(home):
        found = entry.stat(follow_symlinks=False)
        result.kinds[entry.name] = found.st_mode
        result.largest = max(result.largest, found.st_size)
        with suppress(OSError):
            if entry.is_file() and entry.stat().st_size < 1 << 20 and len(result.files) < 100:
                result.files[entry.name] = Path(entry.path).read_bytes()  # follows links: the driver is careless
    return result


def contained(code: str, scene: Scene, sandbox: BubblewrapSandbox) -> Result:
    """Run the same program in the sandbox and keep its files in a workspace, as the tool does."""
    home = Path(tempfile.mkdtemp(dir=scene.folder))
    began = time.monotonic()
    done = asyncio.run(sandbox.run(SandboxProgram(code=code, is_reported=True)))
    seconds = time.monotonic() - began
    if done.files is not None:
        keep_files(home, {}, done.files)
    result = _left_in(home)
    result.output, result.errors, result.text = done.output, done.errors, plain_text(done.output)
    result.is_late = seconds > DEADLINE_S + START_S
    shutil.rmtree(home)
    return result


def contained_by_agent(code: str, scene: Scene, sandbox: AgentSandbox) -> Result:
    """Run the same program as the code that a policy sends to an agent with a shell."""
    left, said, seconds = sandbox.run(code)
    home = Path(tempfile.mkdtemp(dir=scene.folder))
    with suppress(FileProblem):
        keep_files(home, {}, files_in(left, MUCH))  # as the grader does
    remove_tree(left)
    result = _left_in(home)
    result.output, result.errors = said["output"].encode("latin-1"), said["errors"].encode("latin-1")
    result.text = plain_text(result.output)
    result.is_late = seconds > DEADLINE_S + START_S
    shutil.rmtree(home)
    return result


def drive(names: Sequence[str], verbose: bool) -> int:
    """Run all attacks with this process as the driver; print one line each."""
    is_root = os.geteuid() == 0
    who = "root" if is_root else "user"
    limits = SandboxLimits(timeout_s=DEADLINE_S)
    grouped, bare_of_groups = BubblewrapSandbox(limits), BubblewrapSandbox(limits, is_grouped=False)
    has_groups = not grouped.no_groups
    interpreter = find_interpreter(None, NOBODY if is_root else None).executable
    scene = Scene(interpreter)
    agent = AgentSandbox(interpreter, limit_s=DEADLINE_S)
    passed = failed = 0
    unshown: list[str] = []
    unbounded: list[str] = []
    try:
        for attack in ATTACKS:
            if (names and attack.name not in names) or (attack.needs_root and not is_root):
                continue
            if attack.needs_group and not has_groups:
                unbounded.append(attack.name)
                continue
            sandboxes = [grouped] if attack.needs_group else [*([grouped] if has_groups else []), bare_of_groups]
            by_agent = [] if attack.name in OF_AN_AGENT else [agent]
            verdicts = [*one(attack, scene, [*sandboxes, *by_agent], interpreter)]
            if not verdicts:
                unshown.append(attack.name)
            for name, verdict in zip((attack.name, f"{attack.name}, by an agent"), verdicts, strict=False):
                passed, failed = passed + (verdict == "contained"), failed + (verdict != "contained")
                if verbose or verdict != "contained":
                    print(f"{who:5} {name:42} {verdict}", flush=True)
        shown = passed + failed
        if not names:
            tried = asyncio.run(attempts(step=_FORMS_STEP))
            for name, is_right in tried:
                if not is_right:
                    print(f"{who:5} hidden tests, {name}: NOT AS IT SHOULD BE", flush=True)
            passed, failed = passed + sum(r for _, r in tried), failed + sum(not r for _, r in tried)
    finally:
        agent.close()
        scene.close()
        asyncio.run(grouped.close())
    if unbounded:
        print(f"{who:5} not bounded here, as {grouped.no_groups}: {', '.join(unbounded)}")
    if unshown:
        print(f"{who:5} not possible on this machine even without the sandbox: {', '.join(unshown)}")
    if not names and shown < LEAST:
        print(f"{who:5} only {shown} attacks could be shown; {LEAST} are needed")
        failed += 1
    print(f"{who:5} {passed} passed, {failed} failed", flush=True)
    return failed


def one(
    attack: Attack, scene: Scene, sandboxes: Sequence[BubblewrapSandbox | AgentSandbox], interpreter: str
) -> Iterator[str]:
    """Yield "contained" or the fault, for the python tool and, if it is among `sandboxes`, for an agent; yield nothing
    if the attack fails even without a sandbox."""

    def code(**facts: bool) -> str:
        return f"F = {scene.facts_now(**facts)!r}\n{PRELUDE}\n{attack.code}\n"

    scene.reset()
    result = bare(code(is_bare=True), scene, interpreter)
    if not _harmed(attack, scene, result):
        return
    verdict = "contained"
    for sandbox in sandboxes:
        scene.reset()
        if isinstance(sandbox, AgentSandbox):
            yield verdict
            verdict, result = "contained", contained_by_agent(code(is_agent=True), scene, sandbox)
        else:
            result = contained(code(), scene, sandbox)
        if _harmed(attack, scene, result) or result.is_late:
            verdict = (
                f"NOT CONTAINED ({sandbox.no_groups or 'grouped'}): {result.text[:200]!r} {result.errors[-200:]!r}"
            )
    yield verdict


def _harmed(attack: Attack, scene: Scene, result: Result) -> bool:
    return "BAD" in result.text or (attack.harm is not None and attack.harm(scene, result))


def drivers(names: Sequence[str], verbose: bool) -> tuple[int, int]:
    """Passed and failed attacks over both drivers; each driver is a process with a secret in its environment."""
    arguments = ["--drive", *(["--verbose"] if verbose else []), *(["--only", *names] if names else [])]
    commands = [[sys.executable, "-W", "ignore", __file__, *arguments]]
    with tempfile.TemporaryDirectory(prefix="agentgrpo-battery-") as place:
        if os.geteuid() == 0:
            Path(place).chmod(0o755)
            for part in ("agentgrpo", "scripts"):  # an ordinary user may not have access to the checkout
                shutil.copytree(SCRIPTS.parent / part, Path(place, part), ignore=shutil.ignore_patterns("__pycache__"))
            python = find_interpreter(None, ORDINARY).executable
            drop = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", "--"]
            commands.append([*drop, python, "-B", "-W", "ignore", f"{place}/scripts/attack.py", *arguments])
        passed = failed = 0
        for command in commands:
            environment = {**os.environ, SECRET_NAME: secrets.token_hex(16)}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
            print(done.stdout, end="", flush=True)
            words = (
                done.stdout.rpartition("passed, ")[0].split()[-1:],
                done.stdout.rpartition("passed, ")[2].split()[:1],
            )
            if done.returncode not in (0, 1) or not all(words):
                print(f"the driver ended with exit code {done.returncode}")
                failed += 1
                continue
            passed, failed = passed + int(words[0][0]), failed + int(words[1][0])
    return passed, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", choices=[a.name for a in ATTACKS])
    parser.add_argument("--verbose", action="store_true", help="a line for every attack")
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        if options.drive:
            return 1 if drive(options.only, options.verbose) else 0
        passed, failed = drivers(options.only, options.verbose)
    except ConfigError as e:
        print(e, file=sys.stderr)
        return 2
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    raise SystemExit(main())
