"""The first program in a new sandbox: it prints "holds", or the promises that do not hold."""

from __future__ import annotations

from pathlib import Path

from agentgrpo.tools.sandbox.base import MIB, SandboxLimits
from agentgrpo.tools.sandbox.isolation import View

SETTINGS = ("kernel/core_pattern", "kernel/modprobe", "vm/overcommit_memory", "vm/drop_caches", "fs/suid_dumpable")
"""Machine settings below /proc/sys with which root could take over or stop the machine."""

_PROGRAM = """
import ctypes, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)
with open("/proc/self/status") as file:
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
with open("/proc/net/dev") as file:
    networks = {line.split(":")[0].strip() for line in file if ":" in line}

def refused(act, *given):
    try:
        act(*given)
    except OSError:
        return True
    return False

def unshare_user():
    if libc.unshare(0x10000000) != 0:
        raise OSError

def fork_all():
    try:
        while len(children) < 4 * PROCESSES:
            children.append(os.fork())
            if children[-1] == 0:
                time.sleep(60)
    finally:
        for pid in children:
            os.kill(pid, 9)
        for pid in children:
            os.waitpid(pid, 0)

def share_memory():
    made = libc.shmget(0, 4096, 0o1600)
    if made < 0:
        raise OSError
    libc.shmctl(made, 0, None)

def attach():
    if libc.ptrace(16, os.getppid(), 0, 0) != 0:
        raise OSError

def closed_to_children():
    child = os.fork()
    if child == 0:
        path = f"/proc/{os.getppid()}/"
        os._exit(0 if all(refused(os.open, path + name, 0) for name in ("mem", "environ", "fd", "maps")) else 1)
    return os.waitpid(child, 0)[1] == 0

def limits_of(pid):
    with open(f"/proc/{pid}/limits") as file:
        return {line[:26].strip(): line[26:].split()[0] for line in file}

def written(path):
    return not refused(os.open, path, os.O_WRONLY)

children = []
checks = {
    "other processes can be seen": [p for p in os.listdir("/proc") if p.isdigit()] == ["1", "2"],
    "there are capabilities": int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0,
    "system calls are not filtered": (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1"),
    "there is a network": networks <= {"lo"},
    "sockets of this machine can be reached": refused(socket.socket, socket.AF_UNIX),
    "user namespaces can be made": refused(unshare_user),
    "processes can be traced": refused(attach),
    "processes are not bounded": refused(fork_all) and len(children) < PROCESSES,
    "files are not counted": os.statvfs("/tmp").f_files == FILES or not FILES,
    "it is root": os.getuid() != 0,
    "more is there than is shown": set(os.listdir("/")) <= TOP,
    **{f"{path} can be written": refused(os.mkdir, f"{path}/x") for path in ("", "/usr", "/dev", "/proc", *FOLDERS)},
    **{f"{path} can be written": not written(path) for path in FILES_SHOWN},
    **{f"/proc/sys/{name} can be written": not written("/proc/sys/" + name) for name in SETTINGS},
}
if IS_COMMAND:
    checks["memory of a process is not bounded"] = limits_of("self")["Max data size"] == str(MEMORY)
    checks["its children can read it"] = closed_to_children()
else:
    checks |= {
        "the first process can be changed": all(refused(os.open, f"/proc/1/{n}", 0) for n in ("mem", "maps", "fd")),
        "the first process is not bounded": limits_of(1)["Max address space"] == str(MEMORY),
        "there is an environment": set(os.environ) <= {"PYTHONHASHSEED", "PWD", "LC_CTYPE"},
        "sockets can be opened": refused(socket.socket),
        "memory can be shared": refused(share_memory) and refused(os.memfd_create, "m"),
        "it does not go first when memory runs out": open("/proc/self/oom_score_adj").read().strip() == "1000",
        "settings of processes can be written": not written("/proc/self/oom_score_adj"),
    }
print("; ".join(name for name, holds in checks.items() if not holds) or "holds")
"""


def self_test(view: View, limits: SandboxLimits, *, is_counted: bool, is_command: bool = False) -> str:
    """The self-test program for a sandbox of this view."""
    folders, files = ([p for p in view.shown if Path(p).is_dir() is kind] for kind in (True, False))
    facts = {
        "TOP": {"proc", "dev", "tmp", *view.top, *(("run",) if is_command else ())},
        "FOLDERS": sorted(folders),
        "FILES_SHOWN": sorted(files),
        "SETTINGS": SETTINGS,
        "PROCESSES": limits.processes,
        "MEMORY": limits.memory_mb * MIB,
        "FILES": limits.max_files if is_counted else 0,
        "IS_COMMAND": is_command,
    }
    return "\n".join((*(f"{name} = {value!r}" for name, value in facts.items()), _PROGRAM))


def fault_in(printed: bytes, exit_code: int) -> str | None:
    """Return the printed faults, or None if everything holds."""
    words = " ".join(printed.decode("utf-8", "replace").split()) or f"exit code {exit_code}"
    return None if words == "holds" else words
