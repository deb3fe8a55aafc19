"""The system call filter for programs in the sandbox, in classic BPF, the kernel's format.

Namespaces already make most of the refused calls harmless; the filter also removes them as attack surface of the kernel
and as ways to hold uncounted memory. A refused call fails with EPERM, or with ENOSYS if libraries then use another
call. No process is killed for a refused call.

    wrong architecture -> killed;  x32 or a number newer than this table -> ENOSYS;  a call whose arguments decide ->
    these;  in the table -> allowed;  else EPERM

Reference: Documentation/userspace-api/seccomp_filter.rst and include/uapi/linux/bpf_common.h of Linux.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from agentgrpo.core.errors import ConfigError
from agentgrpo.tools.sandbox.calls import ALLOWED, OF_COMMANDS


class Architecture(NamedTuple):
    audit: int
    """AUDIT_ARCH_*: the architecture that the kernel reports for a call."""
    column: int
    """Column of the tables in calls.py."""
    x32: bool
    """Whether numbers from 2^30 on form a second table of the same calls."""


ARCHITECTURES = {
    "x86_64": Architecture(audit=0xC000003E, column=0, x32=True),
    "aarch64": Architecture(audit=0xC00000B7, column=1, x32=False),
}
CLONE3 = 435
NEWEST = 467
"""The last system call for which this table has been checked (Linux 6.15)."""
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET."""
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
F_SETPIPE_SZ = 1031
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS and TIOCGWINSZ: whether it is a terminal, and its width; FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
TYPING = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal."""
PRCTLS = (1, 2, 3, 4, 15, 16, 39, 0x53564D41)
"""PR_SET_PDEATHSIG, GET_PDEATHSIG, GET_DUMPABLE, SET_DUMPABLE, SET_NAME, GET_NAME, GET_NO_NEW_PRIVS, SET_VMA."""

EPERM, ENOSYS = 1, 38
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _AUDIT, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; an argument is 8 bytes, the low half first


def filter_for(machine: str, *, is_command: bool = False) -> bytes:
    """Return the filter for `uname -m`: an array of struct sock_filter. is_command: the filter for an agent's command,
    which may also open network sockets, but no sockets that connect to a path of this machine (AF_UNIX). Raises
    ConfigError for an unknown machine."""
    if machine not in ARCHITECTURES:
        raise ConfigError(f"no system call filter for {machine}; supported machines: {', '.join(ARCHITECTURES)}")
    arch, table = ARCHITECTURES[machine], OF_COMMANDS if is_command else ALLOWED
    program = [
        *_load(_AUDIT),
        *_unless(_EQUAL, arch.audit, KILL),
        *_load(_NUMBER),
        *(_when(_AT_LEAST, 1 << 30, ERRNO | ENOSYS) if arch.x32 else ()),
        *_when(_AT_LEAST, NEWEST + 1, ERRNO | ENOSYS),
        *_when(_EQUAL, CLONE3, ERRNO | ENOSYS),  # its flags lie in memory, which a filter cannot read
    ]
    for name, argument, checks in _COMMAND_ARGUMENTS if is_command else _ARGUMENTS_CHECKED:
        number = table[name][arch.column]
        assert number is not None
        block = [*_load(_ARGUMENTS + 8 * argument), *checks]
        program += [_instruction(_EQUAL, number, 0, len(block)), *block]
    for first, last in _ranges(numbers[arch.column] for numbers in table.values()):
        program += [*_unless(_AT_LEAST, first, ERRNO | EPERM), *_unless(_AT_LEAST, last + 1, ALLOW)]
    return b"".join((*program, _return(ERRNO | EPERM)))


def _ranges(numbers: Iterable[int | None]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of consecutive numbers, in order."""
    rest = sorted({number for number in numbers if number is not None})
    while rest:
        last = next(n for n in rest if n + 1 not in rest)
        yield rest[0], last
        rest = [n for n in rest if n > last]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _load(offset: int) -> tuple[bytes]:
    return (_instruction(_LOAD, offset),)


def _return(action: int) -> bytes:
    return _instruction(_RETURN, action)


def _when(test: int, value: int, action: int) -> tuple[bytes, bytes]:
    return _instruction(test, value, 0, 1), _return(action)


def _unless(test: int, value: int, action: int) -> tuple[bytes, bytes]:
    return _instruction(test, value, 1, 0), _return(action)


def _only(values: Iterable[int]) -> tuple[bytes, ...]:
    return (*(each for value in values for each in _when(_EQUAL, value, ALLOW)), _return(ERRNO | EPERM))


def _but(values: Iterable[int]) -> tuple[bytes, ...]:
    return (*(each for value in values for each in _when(_EQUAL, value, ERRNO | EPERM)), _return(ALLOW))


# --- Calls that are decided by an argument: (name, position of the argument, instructions).

_BOTH = (
    ("clone", 0, (*_when(_ANY_BIT, NEW_NAMESPACES, ERRNO | EPERM), _return(ALLOW))),
    ("socketpair", 0, _only((AF_UNIX,))),
    ("fcntl", 1, _but((F_SETPIPE_SZ,))),
)
_ARGUMENTS_CHECKED = (*_BOTH, ("ioctl", 1, _only(IOCTLS)), ("prctl", 0, _only(PRCTLS)))
_COMMAND_ARGUMENTS = (*_BOTH, ("socket", 0, _only((AF_INET, AF_INET6))), ("ioctl", 1, _but(TYPING)))
