"""The bounds on a program on this machine, and the resources without a bound; shown by the doctor and to the user of a
run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.tools.sandbox.base import MIB, SandboxLimits

NOTHING = "nothing"
_BUFFER = Path("/proc/sys/net/core/wmem_default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    what: str
    by: str
    """cgroup, rlimit, tmpfs, seccomp, driver, kernel; or NOTHING."""
    most: str
    """The limit, in words. With NOTHING: the most that the other bounds leave possible."""


def settings_of(limits: SandboxLimits) -> dict[str, str]:
    """Settings of the control group: it counts everything that the processes hold, files and buffers too, and
    bubblewrap's own processes.
    """
    total = (limits.memory_mb + limits.disk_mb) * MIB
    return {"memory.max": str(total), "pids.max": str(limits.processes + 4)}


def bounds_of(limits: SandboxLimits, *, has_group: bool, is_counted: bool) -> Iterator[Bound]:
    memory, disk = limits.memory_mb, limits.disk_mb
    yield Bound(what="memory of a process", by="rlimit", most=f"{memory} MiB of addresses")
    if has_group:
        yield Bound(what="memory in all", by="cgroup", most=f"{memory + disk} MiB, files and buffers too")
    else:
        yield Bound(what="memory in all", by=NOTHING, most=f"{_sum_mb(limits)} MiB a program: {_sum(limits)}")
    yield Bound(what="shared memory and queues", by="seccomp", most="none")
    yield Bound(
        what="processes and threads", by="cgroup, rlimit" if has_group else "rlimit", most=f"{limits.processes}"
    )
    yield Bound(what="bytes of files", by="tmpfs", most=f"{disk} MiB")
    if is_counted:
        yield Bound(what="number of files", by="tmpfs", most=f"{limits.max_files}")
    elif has_group:
        yield Bound(what="number of files", by="cgroup", most="by the memory they take")
    else:
        yield Bound(what="number of files", by=NOTHING, most="by the time there is, a kilobyte each")
    yield Bound(what="time", by="driver, rlimit", most=f"{limits.timeout_s:g} s")
    yield Bound(what="output", by="driver", most=f"{limits.max_output_bytes} bytes, and again of errors")
    yield Bound(what="where the machine runs out of memory", by="kernel", most="programs go first (oom_score_adj 1000)")


def bounds_of_command(limits: SandboxLimits, *, has_group: bool, is_counted: bool) -> Iterator[Bound]:
    """The bounds on an agent's command; the memory of its processes is counted by data written, not by addresses."""
    memory, disk = limits.memory_mb, limits.disk_mb
    total = f"{limits.processes} processes of {memory} MiB"
    yield Bound(what="memory of a process", by="rlimit", most=f"{memory} MiB of data")
    if has_group:
        yield Bound(what="memory in all", by="cgroup", most=f"{memory + disk} MiB, files and buffers too")
    else:
        yield Bound(what="memory in all", by=NOTHING, most=total)
    yield Bound(
        what="processes and threads", by="cgroup, rlimit" if has_group else "rlimit", most=f"{limits.processes}"
    )
    yield Bound(what="bytes in /tmp, and again in /dev/shm", by="tmpfs", most=f"{disk} MiB")
    yield Bound(what="number of files in /tmp", by="tmpfs" if is_counted else NOTHING, most=f"{limits.max_files}")
    yield Bound(what="bytes of files in the workspace", by=NOTHING, most="the free space of the temporary directory")
    yield Bound(what="other servers and sockets", by="namespace, seccomp", most="none but the endpoint")
    yield Bound(what="time", by="driver", most=f"{limits.timeout_s:g} s")
    yield Bound(what="output", by="driver", most=f"its last {limits.max_output_bytes} bytes, and again of errors")
    yield Bound(what="where the machine runs out of memory", by="kernel", most="commands go first (oom_score_adj 1000)")


def _sum_mb(limits: SandboxLimits) -> int:
    return limits.processes * (limits.memory_mb + _buffers_mb(limits)) + limits.disk_mb


def _sum(limits: SandboxLimits) -> str:
    each = f"{limits.memory_mb} and {_buffers_mb(limits)} in sockets"
    return f"{limits.processes} processes of {each}, files of {limits.disk_mb}"


def _buffers_mb(limits: SandboxLimits) -> int:
    """The most that the socket pairs of a process hold if all its descriptors are such sockets."""
    try:
        each = int(_BUFFER.read_text(encoding="ascii"))
    except (OSError, ValueError):
        each = 212_992  # the default of Linux
    return -(-limits.open_files * each // MIB)
