"""A program that is run in a new sandbox before any other: it says "holds", or what does not."""

from __future__ import annotations

from collections.abc import Iterable

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

children = []
checks = {
    "other processes can be seen": [p for p in os.listdir("/proc") if p.isdigit()] == ["1"],
    "there are capabilities": int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0,
    "system calls are not filtered": (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1"),
    "there is an environment": set(os.environ) <= {"PYTHONHASHSEED", "PWD", "LC_CTYPE"},
    "there is a network": networks <= {"lo"},
    "sockets can be opened": refused(socket.socket),
    "user namespaces can be made": refused(unshare_user),
    "processes are not bounded": refused(fork_all) and len(children) < PROCESSES,
    "it is root": os.getuid() != 0,
    "there is more than Python": set(os.listdir("/")) <= TOP,
    **{f"{path} can be written": refused(os.mkdir, f"{path}/x") for path in ("", "/usr", "/dev", "/proc", *SHOWN)},
}
print("; ".join(name for name, holds in checks.items() if not holds) or "holds")
"""


def self_test(shown: Iterable[str], links: Iterable[str], max_processes: int) -> str:
    """The program for a sandbox that shows these paths, and has these links."""
    top = {"proc", "dev", "tmp", *(path.split("/")[1] for path in (*shown, *links))}
    return f"TOP, SHOWN, PROCESSES = set({sorted(top)!r}), {sorted(shown)!r}, {max_processes}\n{_PROGRAM}"
