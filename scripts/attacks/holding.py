"""Attacks that hold more memory than the sandbox allows, in places that no process limit counts. Each holds less than
half a gigabyte, for less than two seconds."""

from __future__ import annotations

from attacks.attempt import Attack

_CEILING_MB = 288
"""The memory that a program may hold, with its files (256 + 16 MiB), plus a margin."""
_SOCKETS = """
def fill(s, total=0):
    s.setblocking(False)
    try:
        while total < 1 << 24:
            total += s.send(bytes(65536))
    except BlockingIOError:
        pass
    return total

def pass_on(carrier, *fds):
    socket.send_fds(carrier, [b"x"], list(fds))
    for fd in fds:
        os.close(fd)
"""
_MANY = """
for n in range(10000):
    {}
bad()
"""

HOLDING = [
    Attack(
        "shared_segments",
        f"""
libc.shmat.restype, libc.shmat.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]
ids = []
try:
    for _ in range(5):
        ids.append(call('shmget', 0, 64 << 20, 0o1600))
        at = libc.shmat(ids[-1], None, 0)
        ctypes.memset(at, 1, 64 << 20)
        libc.shmdt(at)
    bad(64 * len(ids) > {_CEILING_MB})
finally:
    for each in ids:
        libc.shmctl(each, 0, None)
""",
    ),
    Attack(
        "memory_files_in_number",
        f"""
fds = []
for _ in range(40):
    fds.append(os.memfd_create('m'))
    os.posix_fallocate(fds[-1], 0, 8 << 20)
bad(8 * len(fds) > {_CEILING_MB})
""",
    ),
    Attack(
        "memory_files_of_children",
        f"""
def hold():
    fds = [os.memfd_create('m') for _ in range(5)]
    for fd in fds:
        os.posix_fallocate(fd, 0, 8 << 20)
bad(40 * in_children(hold, 8) > {_CEILING_MB})
""",
    ),
    Attack(
        "memory_files_in_flight",
        _SOCKETS
        + f"""
carrier, other = socket.socketpair()
for _ in range(20):
    fd = os.memfd_create('m')
    os.posix_fallocate(fd, 0, 16 << 20)
    pass_on(carrier, fd)
bad(320 > {_CEILING_MB})
""",
    ),
    Attack("hidden_memory_file", "bad(call('memfd_secret', 0) >= 0)"),
    Attack(
        "socket_buffers_enlarged",
        _SOCKETS
        + """
pairs, total = [socket.socketpair() for _ in range(20)], 0
for pair in pairs:
    for s in pair:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        total += fill(s)
bad(total > 16 << 20)
""",
    ),
    Attack(
        "socket_buffers_in_number",
        _SOCKETS + "pairs = [socket.socketpair() for _ in range(200)]\nbad(sum(fill(a) for a, b in pairs) > 24 << 20)",
    ),
    Attack(
        "sockets_in_flight",
        _SOCKETS
        + """
carrier, other = socket.socketpair()
total = 0
for _ in range(100):
    a, b = socket.socketpair()
    total += fill(a) + fill(b)
    pass_on(carrier, a.detach(), b.detach())
bad(total > 24 << 20)
""",
    ),
    Attack(
        "sockets_in_backlog",
        _SOCKETS
        + """
server = socket.socket(socket.AF_UNIX)
server.bind('door')
server.listen(4096)
total = 0
for _ in range(200):
    with socket.socket(socket.AF_UNIX) as s:
        s.connect('door')
        total += fill(s)
bad(total > 24 << 20)
""",
    ),
    Attack(
        "pipes_enlarged",
        """
import fcntl
ends, total = [], 0
for _ in range(12):
    ends.append(os.pipe())
    total += fcntl.fcntl(ends[-1][1], 1031, 1 << 20)
bad(total > 8 << 20)
""",
    ),
    Attack(
        "message_queues",
        """
queue = call('msgget', 0, 0o1600)
words = ctypes.create_string_buffer((1).to_bytes(8, 'little') + bytes(8192))
try:
    call('msgsnd', queue, words, 8192, 0o4000)
    bad()
finally:
    call('msgctl', queue, 0, 0)
""",
    ),
    Attack(
        "posix_message_queue",
        """
fd = call('mq_open', F['nonce'].encode(), 0o102, 0o600, 0)
call('mq_unlink', F['nonce'].encode())
bad(fd >= 0)
""",
    ),
    Attack("semaphores", "s = call('semget', 0, 200, 0o1600); call('semctl', s, 0, 0, 0); bad()"),
    Attack("files_in_number", _MANY.format("os.close(os.open('f%d' % n, 65))")),
    Attack("folders_in_number", _MANY.format("os.mkdir('d%d' % n)")),
    Attack("links_in_number", _MANY.format("os.symlink('x' * 1000, 'l%d' % n)")),
    Attack("names_in_number", "open('f', 'w')\n" + _MANY.format("os.link('f', 'n%d' % n)")),
    Attack("pipes_in_folder_in_number", _MANY.format("os.mkfifo('p%d' % n)")),
    Attack(
        "files_of_children_in_number",
        """
def hold():
    name = str(os.getpid())
    os.mkdir(name)
    for n in range(1500):
        os.close(os.open('%s/%d' % (name, n), 65))
bad(1500 * in_children(hold, 4) >= 6000)
""",
    ),
    Attack("attributes_of_files", "open('f', 'w'); os.setxattr('f', 'user.x', bytes(2000)); bad()"),
    Attack("event_contexts", "import ctypes as c; x = c.c_ulong(0); call('io_setup', 128, c.byref(x)); bad()"),
    Attack("watches", "bad(call('inotify_init1', 0) >= 0)"),
    Attack("locked_memory", "x = ctypes.create_string_buffer(8192); call('mlock', x, 8192); bad()"),
    Attack(
        "timers_in_number",
        """
x = ctypes.c_int()
for _ in range(1000):
    call('timer_create', 1, 0, ctypes.byref(x))
bad()
""",
    ),
    Attack(
        "signals_in_number",
        """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
words = (ctypes.c_int * 32)(40, 0, -1)  # SI_QUEUE
for _ in range(1000):
    call('rt_sigqueueinfo', os.getpid(), 40, words)
bad()
""",
    ),
    Attack("last_to_go", "bad(int(read('/proc/self/oom_score_adj')) < 500)"),
    Attack(
        "no_longer_first_to_go",
        "open('/proc/self/oom_score_adj', 'w').write('0'); bad(int(read('/proc/self/oom_score_adj')) == 0)",
    ),
    Attack(
        "memory_of_children",
        f"bad(48 * in_children(lambda: bytearray(b'x') * (48 << 20), 8) > {_CEILING_MB})",
        needs_group=True,
    ),
    Attack(
        "shared_maps_of_children",
        f"""
import mmap
def hold():
    m = mmap.mmap(-1, 48 << 20)
    m.write(b'x' * (48 << 20))
    return m
bad(48 * in_children(hold, 8) > {_CEILING_MB})
""",
        needs_group=True,
    ),
]
