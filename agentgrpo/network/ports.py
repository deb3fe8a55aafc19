"""A port to listen on: any that is free, or a certain one, waited for while somebody else still holds it."""

from __future__ import annotations

import errno
import logging
import socket
import time
from contextlib import suppress
from pathlib import Path

from agentgrpo.errors import ConfigError

logger = logging.getLogger(__name__)


def listening_socket(
    host: str = "127.0.0.1", port: int = 0, *, attempts: int = 5, pause_s: float = 1.0
) -> socket.socket:
    """A socket that listens; port 0 = any that is free. A port that is in use is tried `attempts` times, pause_s apart:
    what a run before this one held is free a moment later. Raises ConfigError, naming who holds it where that can be
    known, and for an address that is not this machine's."""
    for attempt in range(1, attempts + 1):
        try:
            return socket.create_server((host, port), reuse_port=False)
        except OSError as e:
            if e.errno != errno.EADDRINUSE:
                raise ConfigError(f"cannot listen on {host}:{port}: {e.strerror}; choose another address") from e
            holder = _holder(port)
            if attempt == attempts:
                raise ConfigError(
                    f"port {port} of {host} is in use{holder}, also after {attempts} attempts; end that, or choose "
                    "another port (0 = any that is free)"
                ) from e
            logger.warning("port %d of %s is in use%s: attempt %d of %d", port, host, holder, attempt, attempts)
            time.sleep(pause_s)
    raise ConfigError(f"attempts={attempts}; at least 1 is allowed")


def _holder(port: int) -> str:
    """ " by process 12 (python)" or "", for one's own processes on Linux."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: it listens
                    inodes.add(f"socket:[{fields[9]}]")
    for link in Path("/proc").glob("[0-9]*/fd/*") if inodes else ():
        with suppress(OSError):
            if str(link.readlink()) in inodes:
                process = link.parent.parent
                return f" by process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""
