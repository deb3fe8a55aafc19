"""The attacks by a policy whose agent has a shell: they run as a child of the command of environment=program."""

from __future__ import annotations

import asyncio
import secrets
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from attacks.holding import HOLDING

from agentgrpo.core.errors import EnvironmentFailure
from agentgrpo.environments.program.program import Call, CommandProgram
from agentgrpo.environments.program.sandbox import CommandSandbox
from agentgrpo.tools.sandbox.base import SandboxLimits

_AGENT = """
import json, subprocess, sys
task = json.load(sys.stdin)
try:
    command = [sys.executable, "-I", "-S", "-c", task["code"]]
    done = subprocess.run(command, capture_output=True, timeout=task["limit_s"])
    output, errors = done.stdout, done.stderr
except subprocess.TimeoutExpired as e:
    output, errors = e.stdout or b"", e.stderr or b""
print(json.dumps({"output": output[:60000].decode("latin-1"), "errors": errors[:2000].decode("latin-1")}))
"""

_HOLDING_KEPT = {"hidden_memory_file", "event_contexts", "last_to_go", "no_longer_first_to_go", "posix_message_queue"}
OF_AN_AGENT = frozenset(
    [
        # public files and programs of the system, and the code on sys.path, here this checkout
        *("etc_passwd", "shell", "repository"),
        # programs that would become root if the kernel did not ignore their setuid bit here (no_new_privs)
        "setuid_programs",
        # the agent's own sockets and terminals
        *("listen", "new_terminal", "terminal_set"),
        # memory of a process, counted by data written; files of the workspace, a real folder
        *("memory", "memory_map", "memory_file", "first_process_unbounded", "first_process_unlimited"),
        *("disk", "disk_in_parts", "disk_anywhere", "sparse_file", "inodes"),
        # calls of interpreters other than Python
        *("own_filter", "own_rules_of_access", "memory_keys", "splice", "tee", "pages_into_pipe", "scheduling"),
        *("priority_of_disk", "reading_ahead", "pages_in_memory", "memory_policy", "capabilities_asked"),
        *("waiting_for_many", "signals_as_file", "realtime_scheduling"),
        *(attack.name for attack in HOLDING if attack.name not in _HOLDING_KEPT),
    ]
)
"""Attacks on promises that only the python tool makes: an agent may do all this."""


class AgentSandbox:
    """Call `run` for each attack, and `close` at the end."""

    def __init__(self, interpreter: str, *, limit_s: float) -> None:
        """Raises ConfigError."""
        self._limit_s = limit_s
        self._files = tempfile.TemporaryDirectory(prefix="agentgrpo-agent-")
        Path(self._files.name).chmod(0o755)
        place = Path(self._files.name, "place")
        place.mkdir(mode=0o700)
        agent = Path(self._files.name, "agent.py")
        agent.write_text(_AGENT, encoding="utf-8")
        agent.chmod(0o644)
        self._program = CommandProgram(f"{interpreter} {agent}")
        limits = SandboxLimits(timeout_s=60.0, memory_mb=1024, disk_mb=64, max_files=8192, processes=64, open_files=256)
        self._program.sandbox = CommandSandbox(_unserved, self._program.argv, place, limits)
        self.no_groups = f"agent, {self._program.sandbox.no_groups or 'grouped'}"

    def run(self, code: str) -> tuple[Path, Mapping[str, str], float]:
        """Return the folder that the program leaves, its output and the seconds it took."""
        home = Path(tempfile.mkdtemp(prefix="agentgrpo-agent-"))
        port = 20_000 + secrets.randbelow(10_000)
        call = Call(
            task={"code": code, "limit_s": self._limit_s},
            base_url=f"http://127.0.0.1:{port}/v1",
            api_key="none",
            workspace=home,
            reward_url="",
            secret=frozenset({"code"}),  # the code holds the scene's own secret
        )
        began = time.monotonic()
        try:
            said = asyncio.run(self._program.run(call))
        except EnvironmentFailure as e:  # the attack has ended its own agent
            said = {"output": "", "errors": str(e)}
        if not isinstance(said, Mapping):  # the attack has kept the agent from printing
            said = {"output": "", "errors": repr(said)}
        return home, said, time.monotonic() - began

    def close(self) -> None:
        if self._program.sandbox is not None:
            self._program.sandbox.close()
        self._files.cleanup()


@asynccontextmanager
async def _unserved(opened: socket.socket) -> AsyncIterator[None]:
    with opened:
        yield
