"""What it means to run a program that nobody has read: what it may use, and how it ended."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from agentgrpo.core.errors import ConfigError

MIB = 2**20


class End(StrEnum):
    """Why a program is no longer running."""

    EXITED = "exited"
    """By itself, or killed by the kernel; see exit_code."""
    TIMEOUT = "timeout"
    """Of wall time or of CPU time."""
    FLOODED = "flooded"
    """It printed more than max_output_bytes."""
    OVERFULL = "overfull"
    """It ended, and its files and their names were more than anybody is told of: four times disk_mb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one program may use. Memory is bounded for each process; for all of them together, with their files, by a
    control group of memory_mb + disk_mb, where this machine lets one be made (bounds.py says what holds here)."""

    timeout_s: float = 5.0
    """Wall time from its first instruction on; CPU time is the same, rounded up to seconds."""
    memory_mb: int = 256
    """Address space of each process."""
    disk_mb: int = 16
    """Of the working directory and /tmp together; also the largest file."""
    max_files: int = 4096
    """Files, folders and links there."""
    processes: int = 16
    """Processes and threads."""
    open_files: int = 64
    max_output_bytes: int = 64 * 1024
    """Of what it prints, and again of its error messages."""

    def __post_init__(self) -> None:
        least = {"timeout_s": 0.01, "memory_mb": 64, "disk_mb": 1, "processes": 2, "open_files": 16}
        for key, bound in (*least.items(), ("max_output_bytes", 1)):
            if not getattr(self, key) >= bound:
                raise ConfigError(f"sandbox: {key}={getattr(self, key)}; {bound} or more is allowed")

    @property
    def rlimits(self) -> dict[int, int]:
        return {
            resource.RLIMIT_CPU: int(self.timeout_s) + 1,
            resource.RLIMIT_AS: self.memory_mb * MIB,
            resource.RLIMIT_FSIZE: self.disk_mb * MIB,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_NPROC: self.processes,
            resource.RLIMIT_CORE: 0,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxProgram:
    """What to run. Equal programs give equal output, but for the clock, the system's entropy and addresses."""

    code: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Copies of these lie in its working directory."""
    is_reported: bool = False
    """Whether its files are wanted back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    end: End
    exit_code: int
    """128 + n where signal n killed it."""
    output: bytes
    errors: bytes
    files: Mapping[str, bytes] | None = None
    """What lies in its working directory now, links left out; None where that was not asked for or is not known. As
    little to be trusted as the output, names included."""


class Sandbox(Protocol):
    async def run(self, program: SandboxProgram) -> Finished:
        """Ends within the limits and leaves nothing behind, also when cancelled. Raises ToolError for a failure that is
        not the program's."""
        ...

    async def close(self) -> None:
        """Once, at the end of the run, on any event loop."""
        ...
