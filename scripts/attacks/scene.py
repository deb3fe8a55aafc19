"""The targets that an attack could reach: a driver with secrets, servers, another process, other users' files. They are
created for the battery in a separate folder, so that successful attacks harm nothing else."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from attacks.numbers import CLONE, NUMBERS

from agentgrpo.tools.sandbox.seccomp import ARCHITECTURES

SECRET_NAME = "BATTERY_SECRET"
CHECKOUT = Path(__file__).parents[2]


class Scene:
    """The process must have been started with SECRET_NAME in its environment. Call `close` at the end."""

    def __init__(self, interpreter: str) -> None:
        self.secret, self.nonce = os.environ[SECRET_NAME], f"nonce{secrets.token_hex(8)}"
        self.folder = Path(tempfile.mkdtemp(prefix="agentgrpo-attack-"))
        self._interpreter = interpreter
        self._datagrams: list[bytes] = []
        self._servers: list[Any] = []
        self._key = self._file(".ssh/id_ed25519", self.secret)
        self._other = self._file("other/notes.txt", self.secret).parent
        self._victim = self._file("victim.txt", "untouched")
        self._new_file = Path(tempfile.gettempdir(), f"new-{self.nonce}")
        self._leaked = os.open(self._key, os.O_RDONLY)
        os.set_inheritable(self._leaked, True)
        self._shm_key = secrets.randbits(30) | 1
        self._bait = self._new_bait()
        ports = self._serve()
        column = ARCHITECTURES[os.uname().machine].column
        self.facts = {
            **ports,
            "secret_name": SECRET_NAME,
            "secret": self.secret,
            "nonce": self.nonce,
            "driver": os.getpid(),
            "key": str(self._key),
            "home": str(self.folder),
            "other_workspace": str(self._other),
            "checkout": str(CHECKOUT),
            "victim": str(self._victim),
            "new_file": str(self._new_file),
            "leaked_fd": self._leaked,
            "shm_key": self._shm_key,
            "numbers": {name: numbers[column] for name, numbers in NUMBERS.items()},
            "clone": CLONE[column],
        }

    @property
    def leaked(self) -> int:
        return self._leaked

    def facts_now(self, *, is_bare: bool = False, is_agent: bool = False) -> dict[str, object]:
        return {**self.facts, "bait": self._bait.pid, "is_bare": is_bare, "is_agent": is_agent}

    def reset(self) -> None:
        """Restore the initial state."""
        self._victim.write_text("untouched", encoding="utf-8")
        self._datagrams.clear()
        for path in (self._new_file, Path("/dev/shm", self.nonce)):
            path.unlink(missing_ok=True)
        for pid in self._with_nonce():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        shm = self._libc().shmget(self._shm_key, 0, 0)
        if shm >= 0:
            self._libc().shmctl(shm, 0, None)
        if self._bait_state() != "S":
            self._end_bait()
            self._bait = self._new_bait()

    def close(self) -> None:
        self.reset()
        self._end_bait()
        for server in self._servers:
            server.shutdown()
            server.server_close()
        os.close(self._leaked)
        shutil.rmtree(self.folder)

    # --- harm

    def victim_changed(self) -> bool:
        return not self._victim.exists() or self._victim.read_text(encoding="utf-8") != "untouched"

    def received(self) -> bool:
        threading.Event().wait(0.05)  # loopback is fast, but the server is a thread
        return any(self.nonce.encode() in each for each in self._datagrams)

    def new_file_exists(self) -> bool:
        return self._new_file.exists()

    def shm_file_exists(self) -> bool:
        return Path("/dev/shm", self.nonce).exists()

    def shm_segment_exists(self) -> bool:
        return bool(self._libc().shmget(self._shm_key, 0, 0) >= 0)

    def bait_is_dead(self) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._bait.wait(0.2)
        return self._bait.returncode is not None

    def bait_is_stopped(self) -> bool:
        return self._bait_state() == "T"

    def daemon_lives(self) -> bool:
        return bool(self._with_nonce())

    # --- parts

    def _file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    def _new_bait(self) -> subprocess.Popen[bytes]:
        program = "import time\ntime.sleep(3600)"
        bait = subprocess.Popen([self._interpreter, "-I", "-S", "-c", program], start_new_session=True)
        while self._state_of(bait.pid) not in "SZX":
            threading.Event().wait(0.01)
        return bait

    def _end_bait(self) -> None:
        self._bait.kill()
        self._bait.wait()

    def _bait_state(self) -> str:
        return self._state_of(self._bait.pid)

    @staticmethod
    def _state_of(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except OSError:
            return "X"

    def _with_nonce(self) -> list[int]:
        """Processes with the nonce in their command line: only attacks start such processes."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if self.nonce.encode() in words:
                    found.append(int(path.parent.name))
        return found

    @staticmethod
    def _libc() -> ctypes.CDLL:
        return ctypes.CDLL(None, use_errno=True)

    def _serve(self) -> dict[str, object]:
        """Start servers on loopback that send the secret to every client; return their addresses."""
        secret, datagrams = self.secret.encode(), self._datagrams

        class Tells(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.sendall(secret)

        class Hears(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                datagrams.append(self.request[0])

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(secret)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        class Tcp6(socketserver.TCPServer):
            address_family = socket.AF_INET6

        class Unix(socketserver.ThreadingUnixStreamServer):
            pass

        path, abstract = str(self.folder / "socket"), f"\0{self.nonce}"
        tcp = socketserver.TCPServer(("127.0.0.1", 0), Tells)
        http, udp = HTTPServer(("127.0.0.2", 0), Answers), socketserver.UDPServer(("127.0.0.1", 0), Hears)
        self._servers = [tcp, http, udp, Unix(path, Tells), Unix(abstract, Tells)]
        ports: dict[str, object] = {
            name: server.server_address[1] for name, server in (("tcp", tcp), ("http", http), ("udp", udp))
        }
        with suppress(OSError):  # not every machine has IPv6
            six = Tcp6(("::1", 0), Tells)
            self._servers.append(six)
            ports["tcp6"] = six.server_address[1]
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return {"tcp6": 1, **ports, "unix": path, "abstract": abstract}
