"""Attacks on the first process of the sandbox, which reports a program's files and runs as the same user. An attacker
who writes to its memory can forge the files, and can run without the program's limits if it has no limits itself."""

from __future__ import annotations

from attacks.attempt import Attack

_FIND = """
p = first()
at = next(int(line.split(b'-')[0], 16) for line in read('/proc/%d/maps' % p).splitlines() if b'rw-p' in line)
"""

FIRST_PROCESS = [
    Attack(
        "first_process_write",
        _FIND + "fd = os.open('/proc/%d/mem' % p, os.O_RDWR); os.pwrite(fd, os.pread(fd, 8, at), at); bad()",
    ),
    Attack("first_process_read", _FIND + "bad(os.pread(os.open('/proc/%d/mem' % p, os.O_RDONLY), 8, at))"),
    Attack("first_process_map", "bad(read('/proc/%d/maps' % first()))"),
    Attack("first_process_blind_write", "os.open('/proc/%d/mem' % first(), os.O_WRONLY); bad()"),
    Attack("first_process_descriptors", "bad(os.listdir('/proc/%d/fd' % first()))"),
    Attack("first_process_descriptor_positions", "bad(os.listdir('/proc/%d/fdinfo' % first()))"),
    Attack("first_process_environment", "os.open('/proc/%d/environ' % first(), 0); bad()"),
    Attack("first_process_stack", "bad(read('/proc/%d/auxv' % first()))"),
    Attack("first_process_root", "bad(os.listdir('/proc/%d/root' % first()))"),
    Attack("first_process_executable", "bad(os.readlink('/proc/%d/exe' % first()))"),
    Attack("first_process_files_mapped", "bad(os.listdir('/proc/%d/map_files' % first()))"),
    Attack("first_process_oom_score", "os.open('/proc/%d/oom_score_adj' % first(), os.O_WRONLY); bad()"),
    Attack("first_process_name", "os.open('/proc/%d/comm' % first(), os.O_WRONLY); bad()"),
    Attack("first_process_traced", "call('ptrace', 0x4206, first(), 0, 0); bad()"),
    Attack("first_process_descriptor_taken", "call('pidfd_getfd', os.pidfd_open(first()), 1, 0); bad()"),
    Attack(
        "first_process_unbounded",
        """
limits = {line[:26].strip(): line[26:].split()[0] for line in read('/proc/%d/limits' % first()).decode().splitlines()}
bad('unlimited' in (limits['Max address space'], limits['Max cpu time']))
""",
    ),
    Attack(
        "first_process_unlimited",
        """
p = first()
words = (ctypes.c_uint64 * 2)()
call('prlimit64', p, 9, 0, ctypes.byref(words))
if words[0] < 1 << 62:
    words[0] = words[1] = 1 << 62
    call('prlimit64', p, 9, ctypes.byref(words), 0)
bad()
""",
    ),
    Attack(
        "protected_memory_by_file",  # /proc/self/mem writes even to pages that are mapped read-only
        """
line = next(line for line in read('/proc/self/maps').splitlines() if b'r--p' in line)
fd = os.open('/proc/self/mem', os.O_RDWR)
at = int(line.split(b'-')[0], 16)
os.pwrite(fd, os.pread(fd, 8, at), at)
bad()
""",
    ),
]
