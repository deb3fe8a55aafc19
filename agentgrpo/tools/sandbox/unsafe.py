"""Programs in a bare process: no isolation, only limits. Use it only for programs that you trust like your own."""

from __future__ import annotations

import logging
import os
import sys

from agentgrpo.tools.sandbox.base import Finished, SandboxLimits, SandboxProgram
from agentgrpo.tools.sandbox.process import INSIDE, Process, order
from agentgrpo.tools.workspace import Workspaces, remove_tree

_LOG = logging.getLogger(__name__)


class UnsafeSubprocess:
    """Implements base.Sandbox without isolation: a program can do anything that the trainer's user can."""

    def __init__(self, limits: SandboxLimits, *, python: str | None = None) -> None:
        self._limits = limits
        self._folders = Workspaces()  # after a kill, the next start removes the leftovers
        self._run_inside = [python or os.path.realpath(sys.executable), "-s", "-S", "-B", "-c", INSIDE]
        _LOG.warning(
            "sandbox=unsafe_subprocess: programs that the model writes run as user %d, with its files, its network and "
            "its processes; install bubblewrap and say sandbox=bubblewrap",
            os.geteuid(),
        )

    async def run(self, program: SandboxProgram) -> Finished:
        home = self._folders.new_directory()

        def argv(control: int, source: int, extra: int) -> list[str]:
            return [*self._run_inside, str(control), str(source)]

        try:
            return await Process(argv, order=order(program, self._limits, str(home)), limits=self._limits).run()
        finally:
            remove_tree(home)

    async def close(self) -> None:
        await self._folders.close()
