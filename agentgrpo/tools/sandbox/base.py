"""The sandbox interface: limits of a program, the program itself and how it ended."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from agentgrpo.core.errors import ConfigError

MIB = 2**20


class End(StrEnum):
    """The reason why a program is no longer running."""

    EXITED = "exited"
    """It ended by itself or was killed by the kernel; see exit_code."""
    TIMEOUT = "timeout"
    """It exceeded the limit of wall time or CPU time."""
    FLOODED = "flooded"
    """It printed more than max_output_bytes."""
    OVERFULL = "overfull"
    """It ended, but the report of its files and their names exceeded four times disk_mb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """The limits of one program. Memory is bounded for each process. The processes together, with their files, are
    bounded by a control group of memory_mb + disk_mb if this machine allows one (bounds.py lists the bounds that hold
    here)."""

    timeout_s: float = 5.0
    """Wall time from the program's first instruction on; the limit of CPU time is the same, rounded up to seconds."""
    memory_mb: int = 256
    """Address space of each process."""
    disk_mb: int = 16
    """Bytes in the working directory and /tmp together; also the size limit of one file."""
    max_files: int = 4096
    """Files, folders and links in these directories."""
    processes: int = 16
    """Processes and threads."""
    open_files: int = 64
    max_output_bytes: int = 64 * 1024
    """Bytes of printed output, and separately of error output."""

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
    """A program to run. Equal programs give equal output, except for the clock, the system's entropy and memory
    addresses.
    """

    code: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Copied into the working directory."""
    is_reported: bool = False
    """Whether the program's files are returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    end: End
    exit_code: int
    """128 + n if signal n killed the program."""
    output: bytes
    errors: bytes
    files: Mapping[str, bytes] | None = None
    """The files in the working directory at the end, without links; None if they were not requested or are unknown.
    Untrusted like the output, names included."""


class Sandbox(Protocol):
    async def run(self, program: SandboxProgram) -> Finished:
        """Run the program within the limits and leave nothing behind, even when cancelled. Raises ToolError for a
        failure that is not the program's."""
        ...

    async def close(self) -> None:
        """Called once, at the end of the run, on any event loop."""
        ...
