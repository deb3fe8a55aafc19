"""The system calls that a program in the sandbox may not make: a filter in classic BPF, as the kernel takes it.

The namespaces already take the power out of most of these; the filter takes them away as a surface of attack on the
kernel itself. What is refused fails with EPERM, or ENOSYS where libraries then take another way.

    wrong architecture -> killed;  x32 or a number newer than this table -> ENOSYS;  listed -> EPERM;  else allowed

Reference: Documentation/userspace-api/seccomp_filter.rst and include/uapi/linux/bpf_common.h of Linux.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from agentgrpo.core.errors import ConfigError

REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # keys
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # programs and watchers in the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "syslog": (103, 116),
    # namespaces and mounts
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # the machine
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "personality": (135, 92),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
}
"""name -> its number on x86_64 and on aarch64; None where it does not exist."""


class Architecture(NamedTuple):
    audit: int
    """AUDIT_ARCH_*: what the kernel says of a call."""
    column: int
    """Of REFUSED."""
    clone: int
    ioctl: int
    socket: int
    x32: bool
    """Numbers from 2^30 on are another table of the same calls."""


ARCHITECTURES = {
    "x86_64": Architecture(audit=0xC000003E, column=0, clone=56, ioctl=16, socket=41, x32=True),
    "aarch64": Architecture(audit=0xC00000B7, column=1, clone=220, ioctl=29, socket=198, x32=False),
}
CLONE3 = 435
NEWEST = 467
"""The last system call this table has been checked against (Linux 6.15)."""
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET."""
TYPING_FOR_OTHERS = (0x5412, 0x541C)
"""ioctls of terminals: TIOCSTI, TIOCLINUX."""
AF_UNIX = 1

EPERM, ENOSYS = 1, 38
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _AUDIT, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; an argument is 8 bytes, the low half first


def filter_for(machine: str) -> bytes:
    """The filter for `uname -m`, an array of struct sock_filter. Raises ConfigError for an unknown machine."""
    if machine not in ARCHITECTURES:
        raise ConfigError(f"there is no system call filter for {machine}; there is one for {', '.join(ARCHITECTURES)}")
    arch = ARCHITECTURES[machine]
    program = [
        *_load(_AUDIT),
        *_unless(_EQUAL, arch.audit, KILL),
        *_load(_NUMBER),
        *(_when(_AT_LEAST, 1 << 30, ERRNO | ENOSYS) if arch.x32 else ()),
        *_when(_AT_LEAST, NEWEST + 1, ERRNO | ENOSYS),
        *_when(_EQUAL, CLONE3, ERRNO | ENOSYS),  # its flags lie in memory, where no filter can look
    ]
    for numbers in REFUSED.values():
        number = numbers[arch.column]
        if number is not None:
            program += _when(_EQUAL, number, ERRNO | EPERM)
    typing = [each for request in TYPING_FOR_OTHERS for each in _when(_EQUAL, request, ERRNO | EPERM)]
    for number, argument, checks in (
        (arch.clone, 0, _when(_ANY_BIT, NEW_NAMESPACES, ERRNO | EPERM)),
        (arch.socket, 0, _unless(_EQUAL, AF_UNIX, ERRNO | EPERM)),
        (arch.ioctl, 1, typing),
    ):
        block = [*_load(_ARGUMENTS + 8 * argument), *checks, _return(ALLOW)]
        program += [_instruction(_EQUAL, number, 0, len(block)), *block]
    return b"".join((*program, _return(ALLOW)))


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
