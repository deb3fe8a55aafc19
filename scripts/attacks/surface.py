"""System calls that no Python program needs: each is refused whatever its arguments are."""

from __future__ import annotations

from attacks.attempt import Attack

_CALLS = {
    "own_filter": "permitted('seccomp', 2, 0, ctypes.create_string_buffer(4))",
    "own_rules_of_access": "permitted('landlock_create_ruleset', 0, 0, 1)",
    "memory_keys": "permitted('pkey_alloc', 7, 0)",
    "splice": "permitted('splice', -1, 0, -1, 0, 0, 0)",
    "tee": "permitted('tee', -1, -1, 0, 0)",
    "pages_into_pipe": "permitted('vmsplice', -1, 0, 0, 0)",
    "scheduling": "permitted('sched_setattr', 0, 0, 0)",
    "priority_of_disk": "permitted('ioprio_set', 1, 0, 0)",
    "whole_disk_written": "permitted('syncfs', -1)",
    "reading_ahead": "permitted('readahead', -1, 0, 0)",
    "pages_in_memory": "permitted('mincore', 1, 0, 0)",
    "memory_policy": "permitted('get_mempolicy', 0, 0, 0, 0, 0)",
    "memory_bound_to_node": "permitted('mbind', 1, 0, 0, 0, 0, 0)",
    "pages_moved": "permitted('move_pages', 0, 0, 0, 0, 0, 0)",
    "pages_mapped_again": "permitted('remap_file_pages', 1, 0, 0, 0, 0)",
    "advice_to_other": "permitted('process_madvise', -1, 0, 0, 0, 0)",
    "processes_compared": "permitted('kcmp', os.getpid(), os.getpid(), 2, 0, 0)",
    "capabilities_asked": "permitted('capget', ctypes.create_string_buffer(b'\\0' * 8, 8), 0)",
    "waiting_for_many": "permitted('futex_waitv', 0, 0, 0, 0, 0)",
    "signals_as_file": "permitted('signalfd4', -1, 0, 8, 0)",
    "tree_of_mounts": "permitted('open_tree', -1, b'', 0)",
}
SURFACE = [
    *(Attack(name, f"bad({code})") for name, code in _CALLS.items()),
    Attack("new_terminal", "import pty; pty.openpty(); bad()"),
    Attack(
        "terminal_set",
        "import termios; fd = os.open('/dev/ptmx', 2); a = termios.tcgetattr(fd); termios.tcsetattr(fd, 0, a); bad()",
    ),
    Attack("own_socket", "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); bad()"),
    Attack("groups_of_control", "bad(os.listdir('/sys/fs/cgroup'))"),
]
