"""A policy that has a shell: in the sandbox it reads no reference, and nothing that it writes is a report."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from agentgrpo.core.errors import EnvironmentFailure
from agentgrpo.core.types import Episode
from agentgrpo.engines.base import SamplingParams
from agentgrpo.environments.program.environment import ProgramEnvironments
from agentgrpo.rollout.loop import PolicyRunner
from tests import builders
from tests.environments.program.played import END, RENDERER, SpellingEngine, environments
from tests.tools.bubblewrap import needs_bubblewrap

AGENT = Path(__file__).with_name("shell_agent.py")
BESIDE, COMMAND = shlex.quote(str(AGENT.parent)), f"python {shlex.quote(str(AGENT))}"
REFERENCE, SECRET, HEARD = "REFERENCE-b7d1", "SECRET-9f31", "HEARD-0c2e"
REPORT = '{"reward": 1000}'


def python(code: str) -> str:
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(code)}"


POST = "import os, urllib.request as u; o = u.build_opener(u.ProxyHandler({{}})); print(o.open({url}, b'1000').read())"
BASE = "os.environ['OPENAI_BASE_URL'][:-3]"
EVERY_FD = "import os\nfor f in range(0, 64):\n try: os.write(f, b'\\n{report}\\n')\n except OSError: pass"
TARGETS = """
import os
pids = [p for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]
if len(pids) > 20:  # not in the sandbox: nobody but the agent and its shell is ever touched
    pids = [p for p in pids if b'shell_agent' in open(f'/proc/{p}/cmdline', 'rb').read()]
"""
ALL_MEMORY = (
    TARGETS
    + """
import re
def maps(p):
    try: lines = open(f'/proc/{p}/maps').read().splitlines()
    except OSError as e: print(p, e); return
    with open(f'/proc/{p}/mem', 'rb', 0) as mem:
        for line in lines:
            if ' rw' in line:
                a, b = (int(x, 16) for x in line.split()[0].split('-'))
                try:
                    mem.seek(a)
                    for found in re.findall(rb'REFERENCE-[0-9a-f]{4}', mem.read(b - a)): print(found)
                except (OSError, OverflowError, ValueError): pass
for p in pids:
    try: maps(p)
    except OSError as e: print(p, e)
"""
)
WRITTEN_MEMORY = (
    TARGETS
    + """
for p in pids:
    try: lines = open(f'/proc/{p}/maps').read().splitlines()
    except OSError as e: print(p, e); continue
    for line in lines:
        if ' rw' in line:
            a, b = (int(x, 16) for x in line.split()[0].split('-'))
            try:
                with open(f'/proc/{p}/mem', 'r+b', 0) as m:
                    m.seek(a); c = m.read(b - a)
                    if b'0.25' in c: m.seek(a); m.write(c.replace(b'0.25', b'9999'))
            except (OSError, OverflowError, ValueError) as e: print(p, e)
"""
)
TRACED = (
    TARGETS
    + """
import ctypes
for p in pids: print(p, ctypes.CDLL(None).ptrace(16, int(p), 0, 0))
"""
)
DESCRIPTORS = (
    TARGETS
    + f"""
import ctypes
call = ctypes.CDLL(None).syscall
for p in pids:
    f = call(434, int(p), 0)
    for i in range(12):
        g = call(438, f, i, 0)
        if g >= 0: os.write(g, b'\\n{REPORT}\\n')
"""
)


def attacks(place: Path) -> dict[str, str]:
    """What the policy writes. place: a folder of the machine with the questions, a socket, a pipe and a key."""
    report = REPORT.replace('"', '\\"')
    unix = "import socket; s = socket.socket(socket.AF_UNIX); s.connect({0!r}); s.sendall(b'" + HEARD + "')"
    return {
        "task file": "cat task.json; cat $AGENTGRPO_TASK; cat ../*/task.json",
        "every file in reach": f"timeout 5 grep -rhs {REFERENCE[:-1]} . .. /tmp /run /dev/shm /home /root /var /opt /srv",  # noqa: E501
        "questions": f"ls -la {place}; cat {place}/questions.jsonl",
        "beside the agent": f"cat {BESIDE}/*.jsonl; ls {BESIDE}/..; cat {place}/.env",
        "own environment": "env; cat /proc/self/environ",
        "others' environment": f"cat /proc/*/environ | tr '\\0' '\\n' | grep -a {SECRET[:-1]}",
        "command lines": "cat /proc/*/cmdline | tr '\\0' ' '",
        "input of the parent": "cat /proc/$PPID/fd/0; ls -la /proc/$PPID/fd; cat <&0",
        "memory of all": python(ALL_MEMORY),
        "memory written": python(WRITTEN_MEMORY),
        "traced": python(TRACED),
        "descriptors taken": python(DESCRIPTORS),
        "report posted": python(POST.format(url=BASE + " + '/reward'")),
        "report posted with the key": python(
            POST.format(url=BASE + " + '/reward/' + os.environ['OPENAI_BASE_URL'][-35:-3]")
        ),
        "report posted by its old name": python(POST.format(url="os.environ['AGENTGRPO_REWARD_URL']")),
        "report printed": f"echo '{REPORT}'",
        "report in every descriptor": python(EVERY_FD.replace("{report}", report)),
        "report through proc": f"for f in /proc/$PPID/fd/*; do echo '{REPORT}' > $f; done",
        "report to the output of others": f"for p in 1 2 3 4; do for f in 1 2; do echo '{REPORT}' > /proc/$p/fd/$f; done; done",  # noqa: E501
        "report by a daemon": f"(setsid sh -c \"while :; do echo '{report}' > /proc/$PPID/fd/1; done\" > /dev/null 2>&1 &)",  # noqa: E501
        "report to devices": f"echo '{REPORT}' > /dev/tty; echo '{REPORT}' > /dev/stdout",
        "report in files": f"echo '{REPORT}' | tee reward.json report.json /tmp/reward out.json; cp reward.json task.json",  # noqa: E501
        "task file changed": 'echo \'{"references": ["x"]}\' > task.json; ln -sf /etc/shadow left; chmod 000 task.json',
        "module beside the agent": f"echo 'print({REPORT!r})' > {BESIDE}/json.py; echo x > {BESIDE}/{AGENT.name}",
        "module of the user": (
            "[ $HOME = $PWD ] && d=$("
            + python("import site; print(site.getusersitepackages())")
            + ") && mkdir -p $d && "
            f"echo 'print({REPORT!r})' > $d/usercustomize.py; " + python("print(1)")
        ),
        "parent stopped": "kill -STOP $PPID; kill -CONT $PPID; renice 19 $PPID",
        "host's socket": python(unix.format(str(place / "host.sock"))),
        "host's pipe": f"echo {HEARD} > {place}/host.fifo",
        "docker's socket": python(unix.format("/var/run/docker.sock")),
        "agent of ssh": python(unix.format(os.environ.get("SSH_AUTH_SOCK", "/run/user/0/bus"))),
        "abstract socket": python(unix.format("\\0" + place.name)),
        "other servers": python(
            f"import socket; p = int(open({str(place / 'port')!r}).read()); socket.create_connection(('127.0.0.1', p), 2)"  # noqa: E501
            f".sendall(b'{HEARD}')"
        ),
        "servers of the network": python("import socket; socket.create_connection(('169.254.169.254', 80), 2)"),
        "settings of the kernel": (
            "for f in kernel/core_pattern kernel/modprobe vm/overcommit_memory fs/suid_dumpable kernel/panic_on_oops; do "  # noqa: E501
            f'v=$(cat /proc/sys/$f); echo "$v" > /proc/sys/$f && echo {SECRET} $f; done'
        ),
        "passwords": f"cat /etc/shadow /root/.ssh/* /root/.netrc; ls /root/.ssh && echo {SECRET}",
        "folders of the machine": f"ls -d /home/* && ls -d /var/log/* && echo {SECRET}",
        "another user": f"su -c 'cat /etc/shadow'; sudo cat /etc/shadow; unshare -Ur cat /etc/shadow && echo {SECRET}",
        "mounts": f"mkdir m; mount -t tmpfs x m && echo {SECRET} && umount m",
        "namespaces": f"unshare -Urmpf --mount-proc true && echo {SECRET}; nsenter -t 1 -a true && echo {SECRET}",
        "asks for more": python(
            "import json, os, urllib.request as u; o = u.build_opener(u.ProxyHandler({})); b = os.environ['OPENAI_BASE_URL']\n"  # noqa: E501
            "r = o.open(b + '/models'); print(r.read()[:50])"
        ),
        "device nodes": f"mknod sda b 254 0 && head -c 100 sda && echo {SECRET}; dd if=/dev/vda count=1 && echo {SECRET}",  # noqa: E501
    }


REACHED_WITHOUT = ("questions", "beside the agent", "others' environment", "memory of all", "folders of the machine")
"""Attacks that succeed outside of the sandbox, and harm nothing there."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder of the machine, with what a policy must not reach, and the words that were heard there."""
    (tmp_path / "questions.jsonl").write_text(json.dumps({"question": "1+2?", "answers": [REFERENCE]}))
    (tmp_path / ".env").write_text(f"KEY={SECRET}\n")
    fifo = tmp_path / "host.fifo"
    os.mkfifo(fifo, 0o666)
    fifo.chmod(0o666)
    heard: list[bytes] = []
    opened = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
    servers = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))]
    servers[0].bind(str(tmp_path / "host.sock"))
    (tmp_path / "host.sock").chmod(0o777)
    servers[1].bind(f"\0{tmp_path.name}")
    (tmp_path / "port").write_text(str(servers[2].getsockname()[1]))

    def listen(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                heard.append(connection.recv(100) or b"a visit")

    threads = [threading.Thread(target=listen, args=(server,)) for server in servers]
    for server, thread in zip(servers, threads, strict=True):
        server.listen(50)
        thread.start()
    with subprocess.Popen(["sleep", "3600"], env={"JUDGE_SECRET": SECRET}) as neighbour:
        yield tmp_path
        neighbour.kill()
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
    try:
        heard.append(os.read(opened, 1000))
    except BlockingIOError:
        heard.append(b"")
    os.close(opened)
    assert [word for word in heard if word] == []


async def attacked(made: ProgramEnvironments, command: str, index: int) -> Episode:
    """An episode in which the policy writes this command, and then its answer."""
    runner = PolicyRunner(environment=made, engine=SpellingEngine([command + END, f"ANSWER 3{END}"]), renderer=RENDERER)
    task = builders.task("1+2?", REFERENCE, id=f"t{index}", tests={"test_it.py": f"def test_it(): '{REFERENCE}'"})
    return await runner.run(task, sample_index=index, stream="train/1", sampling=SamplingParams(max_tokens=4000))


async def successes(made: ProgramEnvironments, place: Path, names: Sequence[str], count: int) -> dict[str, str]:
    """The attacks that came to something, in `count` episodes, and what was seen."""
    commands, out = attacks(place), dict[str, str]()
    for index in range(count):
        name = names[index % len(names)]
        command = commands[name]
        try:
            episode = await attacked(made, command, index)
        except EnvironmentFailure as e:  # it has harmed itself
            out[name] = str(e)
            continue
        told = "".join(s.text for branch in episode.branches for s in branch.segments if not s.sampled)
        if REFERENCE in told or SECRET in told or episode.outcome != {"reward": 0.25}:
            out[name] = f"{episode.outcome} {told[-400:]!r}"
    return out


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.parametrize("tell", [(), ("references",)])
async def test_a_policy_with_a_shell_learns_no_reference_and_reports_nothing(
    place: Path, tell: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 episodes each. Without the sandbox the attacks that are harmless succeed, so that they can tell."""
    monkeypatch.setenv("JUDGE_SECRET", SECRET)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    before = {*psutil.Process().children(recursive=True)}
    options = {"max_context": 30_000, "tell": tell, "run_files": (str(place / "questions.jsonl"),)}
    bare = environments(COMMAND, **options)
    reached = await successes(bare, place, REACHED_WITHOUT, len(REACHED_WITHOUT))
    assert {*reached} >= {*REACHED_WITHOUT} - ({"memory of all"} if not tell else set()), reached
    await bare.close()
    made = environments(COMMAND, sandbox=True, **options)
    assert await successes(made, place, [*attacks(place)], 100) == {}
    await made.close()
    assert {*psutil.Process().children(recursive=True)} <= before
