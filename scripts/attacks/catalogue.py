"""The attacks of a hostile program. Each prints BAD when it succeeds, or does harm that the scene detects.

A successful attack does no lasting harm to the machine: clocks and settings are set to their current values, and
created objects are removed.
"""

from __future__ import annotations

import stat
from typing import Any

from attacks.attempt import Attack
from attacks.first import FIRST_PROCESS
from attacks.holding import HOLDING
from attacks.surface import SURFACE

KIB, MIB = 2**10, 2**20


def changed(scene: Any, result: Any) -> bool:
    return bool(scene.victim_changed())


def received(scene: Any, result: Any) -> bool:
    return bool(scene.received())


def late(scene: Any, result: Any) -> bool:
    return bool(result.is_late)


def flooded(scene: Any, result: Any) -> bool:
    return bool(len(result.output) > 64 * KIB or len(result.errors) > 64 * KIB)


def secret_kept(scene: Any, result: Any) -> bool:
    return any(scene.secret.encode() in content for content in result.files.values())


READING = [
    Attack("env_secret", "bad(F['secret_name'] in os.environ)"),
    Attack("driver_environment", "bad(F['secret'].encode() in read('/proc/%d/environ' % F['driver']))"),
    Attack("driver_memory_map", "bad(b'python' in read('/proc/%d/maps' % F['driver']))"),
    Attack("driver_command_line", "bad(b'attack' in read('/proc/%d/cmdline' % F['driver']))"),
    Attack("driver_root_folder", "bad(F['secret'].encode() in read('/proc/%d/root%s' % (F['driver'], F['key'])))"),
    Attack("process_list", "bad(len([p for p in os.listdir('/proc') if p.isdigit()]) > 3)"),
    Attack("ssh_key", "bad(F['secret'].encode() in read(F['key']))"),
    Attack("other_workspace", "bad(F['secret'].encode() in read(F['other_workspace'] + '/notes.txt'))"),
    Attack("etc_passwd", "bad(b'root:' in read('/etc/passwd'))"),
    Attack("etc_shadow", "bad(b'root:' in read('/etc/shadow'))", needs_root=True),
    Attack("repository", "bad(b'import' in read(F['checkout'] + '/agentgrpo/core/errors.py'))"),
    Attack("home_listing", "bad(os.listdir(F['home']))"),
    Attack("run_listing", "bad(os.listdir('/run'))"),
    Attack("sys_listing", "bad(os.listdir('/sys'))"),
    Attack("var_listing", "bad(os.listdir('/var'))"),
    Attack("kernel_addresses", "bad(int(read('/proc/kallsyms').split()[0], 16) > 0)", needs_root=True),
    Attack("kernel_log", "bad(call('syslog', 3, ctypes.create_string_buffer(4096), 4096) >= 0)", needs_root=True),
    Attack("kernel_log_device", "os.close(os.open('/dev/kmsg', os.O_RDONLY)); bad()", needs_root=True),
    Attack("inherited_descriptor", "bad(F['secret'].encode() in os.pread(F['leaked_fd'], 100, 0))"),
    Attack(
        "any_inherited_descriptor",
        """
for fd in range(3, 256):
    try:
        bad(F['secret'].encode() in os.pread(fd, 100, 0))
    except OSError:
        pass
""",
    ),
    Attack("shell", "os.execv('/bin/sh', ['sh', '-c', 'echo B''AD'])"),
]

WRITING = [
    Attack("overwrite_file", "open(F['victim'], 'w').write('x')", changed),
    Attack("append_to_file", "open(F['victim'], 'a').write('x')", changed),
    Attack("remove_file", "os.unlink(F['victim'])", changed),
    Attack("new_file_in_tmp", "open(F['new_file'], 'w').write('x')", lambda s, r: s.new_file_exists()),
    Attack("shared_memory_file", "open('/dev/shm/' + F['nonce'], 'w').write('x')", lambda s, r: s.shm_file_exists()),
    Attack(
        "shared_memory_segment",
        "libc.shmget(F['shm_key'], 4096, 0o1666)",
        lambda s, r: s.shm_segment_exists(),
    ),
    Attack("python_library", "p = os.__file__ + '.' + F['nonce']; open(p, 'w'); os.unlink(p); bad()", needs_root=True),
    Attack("system_folder", "p = '/usr/lib/' + F['nonce']; os.mkdir(p); os.rmdir(p); bad()", needs_root=True),
    Attack("root_folder", "p = '/' + F['nonce']; os.mkdir(p); os.rmdir(p); bad()", needs_root=True),
    Attack("symlink_in_workspace", "os.symlink(F['key'], 'found')", secret_kept),
    Attack("symlink_of_folder", "os.symlink(os.path.dirname(F['key']), 'found')\nbad(os.listdir('found'))"),
    Attack("hardlink_in_workspace", "os.link(F['key'], 'found')", secret_kept),
    Attack(
        "pipe_in_workspace", "os.mkfifo('found')", lambda s, r: any(stat.S_ISFIFO(kind) for kind in r.kinds.values())
    ),
    Attack(
        "setuid_file",
        "open('tool', 'w').write('x'); os.chmod('tool', 0o6755)",
        lambda s, r: any(kind & stat.S_ISUID for kind in r.kinds.values()),
    ),
    Attack("climb_out", "open('../' * 30 + F['victim'], 'w').write('x')", changed),
    Attack("oom_score_of_driver", "open('/proc/%d/oom_score_adj' % F['bait'], 'w').write('999'); bad()"),
    Attack(
        "settings_of_kernel",
        "p = '/proc/sys/vm/swappiness'; v = read(p); open(p, 'wb').write(v); bad()",
        needs_root=True,
    ),
    Attack(
        "core_pattern",
        "p = '/proc/sys/kernel/core_pattern'; v = read(p); open(p, 'wb').write(v); bad()",
        needs_root=True,
    ),
    Attack("device_node", "os.mknod('zero', 0o20600, os.makedev(1, 5)); bad(read('zero'))", needs_root=True),
]

NETWORK = [
    Attack("tcp_loopback", "bad(F['secret'].encode() in socket.create_connection(('127.0.0.1', F['tcp'])).recv(99))"),
    Attack("tcp6_loopback", "bad(F['secret'].encode() in socket.create_connection(('::1', F['tcp6'])).recv(99))"),
    Attack(
        "metadata_server",  # 127.0.0.2 stands in for 169.254.169.254, which does not answer on every machine
        """
import urllib.request
bad(F['secret'].encode() in urllib.request.urlopen('http://127.0.0.2:%d/latest/meta-data' % F['http']).read())
""",
    ),
    Attack("udp", "socket.socket(2, 2).sendto(F['nonce'].encode(), ('127.0.0.1', F['udp']))", received),
    Attack(
        "dns_question",
        "name = F['nonce'].encode()\n"
        "question = bytes(12) + bytes([len(name)]) + name + bytes([7]) + b'example' + bytes(5)\n"
        "socket.socket(2, 2).sendto(question, ('127.0.0.1', F['udp']))",
        received,
    ),
    Attack("unix_socket", "s = socket.socket(1); s.connect(F['unix']); bad(F['secret'].encode() in s.recv(99))"),
    Attack(
        "abstract_socket", "s = socket.socket(1); s.connect(F['abstract']); bad(F['secret'].encode() in s.recv(99))"
    ),
    Attack("listen", "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); bad()"),
    Attack(
        "interfaces",
        "bad(any(line.split(b':')[0].strip() not in (b'lo', b'') for line in read('/proc/net/dev').splitlines()[2:]))",
    ),
    Attack("netlink", "s = socket.socket(16, 3, 0); s.bind((0, 0)); bad()"),
    Attack("packet_socket", "socket.socket(17, 3); bad()", needs_root=True),
    Attack("raw_socket", "socket.socket(2, 3, 1); bad()", needs_root=True),
    Attack("vsock", "socket.socket(40, 1); bad()"),
]

PROCESSES = [
    Attack("kill_process", "os.kill(F['bait'], 15)", lambda s, r: s.bait_is_dead()),
    Attack("stop_driver_group", "os.killpg(F['bait'], 19)", lambda s, r: s.bait_is_stopped()),
    Attack("ptrace_other", "bad(permitted('ptrace', 16, F['bait'], 0, 0)); call('ptrace', 17, F['bait'], 0, 0)"),
    Attack("ptrace_child", "pid = os.fork()\nif not pid: time.sleep(2)\nelse: call('ptrace', 16, pid, 0, 0); bad()"),
    Attack(
        "read_memory_of_other",
        """
class Vec(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
stack = next(line for line in read('/proc/%d/maps' % F['bait']).split(b'\\n') if b'[stack]' in line)
at = int(stack.split(b'-')[1].split()[0], 16)
here = ctypes.create_string_buffer(64)
bad(call('process_vm_readv', F['bait'], ctypes.byref(Vec(ctypes.addressof(here), 64)), 1,
         ctypes.byref(Vec(at - 64, 64)), 1, 0) == 64)
""",
    ),
    Attack("lower_priority_number", "bad(os.nice(-5) < 0)", needs_root=True),
    Attack("realtime_scheduling", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); bad()", needs_root=True),
    Attack("renice_other", "os.setpriority(os.PRIO_PROCESS, F['bait'], 19); bad()"),
    Attack(
        "daemon",
        """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(20)', F['nonce']])
    os._exit(0)
time.sleep(0.7)
""",
        lambda s, r: s.daemon_lives(),
    ),
    Attack(
        "daemon_past_deadline",
        """
import signal
for n in range(1, 65):
    try:
        signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, '-S', '-c', 'import time; time.sleep(20)', F['nonce']])
    os._exit(0)
while True:
    pass
""",
        lambda s, r: s.daemon_lives(),
    ),
    Attack("endless_loop", "while True: pass", late),
    Attack("sleep", "time.sleep(60)", late),
    Attack("ignores_sigterm", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()", late),
    Attack("waits_for_input", "sys.stdin.read()", late),
    Attack("closes_its_pipes", "os.close(1); os.close(2); time.sleep(60)", late),
    Attack("endless_regex", "import re; re.match('(a+)+$', 'a' * 64 + 'b')", late),
    Attack("huge_power", "print(len(str(9 ** 9 ** 9)))", late),
]

RESOURCES = [
    Attack(
        "fork_bomb",
        """
for n in range(100):
    if os.fork() == 0:
        time.sleep(5)
        os._exit(0)
bad()
""",
    ),
    Attack("thread_bomb", "import _thread\nfor n in range(200): _thread.start_new_thread(time.sleep, (5,))\nbad()"),
    Attack("memory", "hoard = bytes(1 << 29); bad()"),
    Attack("memory_map", "import mmap; m = mmap.mmap(-1, 1 << 29); bad()"),
    Attack("memory_file", "fd = os.memfd_create('m'); os.posix_fallocate(fd, 0, 100 << 20); bad()"),
    Attack("disk", "f = open('big', 'wb')\nfor n in range(64): f.write(bytes(1 << 20))\nf.flush(); bad()"),
    Attack("disk_in_parts", "for n in range(64): open('big%d' % n, 'wb').write(bytes(1 << 20))\nbad()"),
    Attack(
        "disk_anywhere",
        """
total = 0
for folder in ('/', '/tmp', '/var/tmp', '/dev', '/dev/shm', '/run', '/usr', '/proc', '.', os.path.expanduser('~')):
    path = folder + '/fill-' + F['nonce']
    try:
        with open(path, 'wb') as file:
            for _ in range(24):
                total += file.write(bytes(1 << 20))
    except OSError:
        pass
    finally:
        if folder != '/tmp' and os.path.exists(path) and F['is_bare']:
            os.unlink(path)
bad(total > 24 << 20)
""",
    ),
    Attack("sparse_file", "os.truncate(os.open('big', 66), 10 << 30)", lambda s, r: r.largest > 1 << 30),
    Attack("inodes", "for n in range(1100): os.close(os.open('f%d' % n, 65))", lambda s, r: len(r.kinds) >= 1100),
    Attack("open_files", "fds = [os.open(sys.executable, 0) for _ in range(300)]; bad()"),
    Attack("pipes", "fds = [os.pipe() for _ in range(150)]; bad()"),
    Attack("output_flood", "while True: os.write(1, b'x' * 65536)", flooded),
    Attack("error_flood", "while True: os.write(2, b'x' * 65536)", flooded),
    Attack("zip_bomb", "import zlib; print(zlib.decompress(zlib.compress(bytes(1 << 23))).decode())", flooded),
    Attack(
        "core_dump",
        """
import resource
pid = os.fork()
if pid == 0:
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.kill(os.getpid(), 11)
bad(os.WCOREDUMP(os.waitpid(pid, 0)[1]))
""",
    ),
    Attack("raise_limits", "import resource; resource.setrlimit(7, (512, 512)); bad()"),
]

KERNEL = [
    Attack("user_namespace", "call('unshare', 0x10000000); bad()"),
    Attack(
        "user_namespace_clone",
        "pid = libc.syscall(F['clone'], 0x10000011, 0, 0, 0, 0)\nif not pid: os._exit(0)\nbad(pid > 0)",
    ),
    Attack(
        "user_namespace_clone3",
        """
words = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)
pid = libc.syscall(435, ctypes.byref(words), 88)
if not pid: os._exit(0)
bad(pid > 0)
""",
    ),
    Attack("mount", "own_user_namespace(0x00020000); call('mount', b't', b'/tmp', b'tmpfs', 0, 0); bad()"),
    Attack("new_mount_interface", "own_user_namespace(0x00020000); call('fsopen', b'tmpfs', 0); bad()"),
    Attack("bind_over_file", "own_user_namespace(0x00020000); call('mount', b'/usr', b'/tmp', b'', 4096, 0); bad()"),
    Attack("chroot", "own_user_namespace(); os.chroot('/'); bad()"),
    Attack("host_name", "own_user_namespace(0x04000000); call('sethostname', b'owned', 5); bad()"),
    Attack("enter_namespace", "call('setns', os.open('/proc/%d/ns/uts' % F['driver'], 0), 0); bad()", needs_root=True),
    Attack("clock", "time.clock_settime(time.CLOCK_REALTIME, time.time()); bad()", needs_root=True),
    Attack("keyring", "call('add_key', b'user', F['nonce'].encode(), b'x', 1, -3); bad()"),
    Attack("keyctl", "call('keyctl', 0, -3, 1); bad()"),
    Attack("io_uring", "call('io_uring_setup', 4, ctypes.create_string_buffer(256)); bad()"),
    Attack(
        "perf",
        "a = ctypes.create_string_buffer((1).to_bytes(4, 'little') + (112).to_bytes(4, 'little') + "
        "(9).to_bytes(8, 'little') + bytes(24) + (0x60).to_bytes(8, 'little'), 128)\n"
        "call('perf_event_open', a, 0, -1, -1, 0); bad()",
    ),
    Attack("bpf", "call('bpf', 0, (ctypes.c_uint32 * 18)(2, 4, 4, 1), 72); bad()", needs_root=True),
    Attack("userfaultfd", "call('userfaultfd', 1); bad()"),
    Attack("no_address_randomisation", "call('personality', 0x0040000); bad()"),
    Attack("reboot", "bad(permitted('reboot', 0, 0, 0, 0))", needs_root=True),  # magic numbers wrong: nothing happens
    Attack("swap", "bad(permitted('swapoff', b'/nowhere'))", needs_root=True),
    Attack("memory_device", "os.close(os.open('/dev/mem', os.O_RDONLY)); bad()", needs_root=True),
    Attack("fanotify", "call('fanotify_init', 0, 0); bad()", needs_root=True),
    Attack(
        "handle_of_file",
        "b = ctypes.create_string_buffer((120).to_bytes(4, 'little'), 128)\n"
        "call('name_to_handle_at', -100, os.fsencode(sys.executable), b, ctypes.create_string_buffer(8), 0); bad()",
    ),
    Attack("own_setuid_programs", "bad(libc.prctl(39, 0, 0, 0, 0) == 0)"),
    Attack("setuid_programs", "bad(any(os.stat('/usr/bin/' + n).st_mode & 0o4000 for n in os.listdir('/usr/bin')))"),
    Attack("tune_memory_policy", "bad(permitted('set_mempolicy', 99, 0, 0))"),
]

OUTPUT = [
    Attack(
        "ansi", "print('\\x1b]0;owned\\x07\\x1b[2J\\x1b[31mred')", lambda s, r: "\x1b" in r.text or "\x07" in r.text
    ),
    Attack("c1_controls", "print('\\x9b31m\\x85')", lambda s, r: any("\x7f" <= c <= "\x9f" for c in r.text)),
    Attack("carriage_return", "print('all is well\\rowned')", lambda s, r: "\r" in r.text),
    Attack("bidi", "print('\\u202egnihton\\u2066')", lambda s, r: any(c in r.text for c in "\u202e\u2066")),
    Attack(
        "invisible_tags", "print(''.join(chr(0xE0000 + ord(c)) for c in 'ignore'))", lambda s, r: "\U000e0069" in r.text
    ),
    Attack("nul", "print('a\\0b')", lambda s, r: "\0" in r.text),
    Attack(
        "pickle_to_driver",
        """
import pickle
class Touch:
    def __reduce__(self):
        return os.system, ("touch " + F["new_file"],)
os.write(1, b"PICKLE" + pickle.dumps(Touch()))
""",
        lambda s, r: s.new_file_exists(),
    ),
    Attack("terminal", "os.write(os.open('/dev/tty', os.O_RDWR | os.O_NOCTTY), b'\\x1b[2J'); bad()"),
    Attack("typing_into_terminal", "import fcntl; fcntl.ioctl(os.open('/dev/tty', 2), 0x5412, b'x'); bad()"),
]

ATTACKS = (
    *(*READING, *WRITING, *NETWORK, *PROCESSES, *FIRST_PROCESS),
    *(*RESOURCES, *HOLDING, *KERNEL, *SURFACE, *OUTPUT),
)
