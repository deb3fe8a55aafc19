"""The type of an attack, and the helpers of its program.

`F` holds the facts of the scene: paths, ports and pids of the host that an attacker may have guessed. `call` makes any
system call by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    code: str
    harm: Callable[[Any, Any], bool] | None = None
    """(scene, result) -> whether there is harm beyond a printed BAD."""
    needs_root: bool = False
    """Without the sandbox the attack needs root."""
    needs_group: bool = False
    """Only a control group contains it."""


PRELUDE = """
import ctypes, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def bad(what=True):
    if what:
        print("BAD", flush=True)

def call(name, *given):
    kinds = {bytes: ctypes.c_char_p, int: ctypes.c_long}
    given = [kinds[type(g)](g) if type(g) in kinds else g for g in given]
    result = libc.syscall(ctypes.c_long(F["numbers"][name] if isinstance(name, str) else name), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), str(name))
    return result

def permitted(name, *given):
    # Refused for what was asked, not for asking.
    try:
        call(name, *given)
    except OSError as e:
        return e.errno not in (1, 13, 38)
    return True

def read(path):
    with open(path, "rb") as file:
        return file.read(1 << 20)

def first():
    # The process that waits for this program: in the sandbox the first, or the agent; else one made for the purpose.
    if not F["is_bare"]:
        return os.getppid() if F["is_agent"] else 1
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)
    return os.getppid()

def in_children(work, count):
    # How many of them could do it, and hold what it returns at the same time.
    results, theirs = os.pipe()
    seconds = 2 if F["is_bare"] else 0.8
    for _ in range(count):
        if os.fork() == 0:
            try:
                held = work()
                os.write(theirs, b"x")
                time.sleep(seconds)
            except (OSError, MemoryError):
                pass
            os._exit(0)
    os.set_blocking(results, False)
    done, until = 0, time.monotonic() + seconds
    while done < count and time.monotonic() < until:
        try:
            done += len(os.read(results, count))
        except BlockingIOError:
            time.sleep(0.01)
    return done

def own_user_namespace(more=0):
    # Where root is needed, an ordinary user is root in a namespace of his own.
    call("unshare", 0x10000000 | more if os.getuid() else more or 0x00020000)
"""
