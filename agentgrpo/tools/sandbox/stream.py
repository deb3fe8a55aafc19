"""What comes out of a process, read as it comes and never more than allowed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_CHUNK = 64 * 1024


class Stream:
    """Reads a non-blocking descriptor while the event loop runs; `on_change` after every read."""

    def __init__(self, fd: int, max_bytes: int, on_change: Callable[[], None]) -> None:
        self.content = bytearray()
        self.is_over = False
        """More than max_bytes came; the rest stays unread."""
        self._fd, self._max_bytes, self._on_change = fd, max_bytes, on_change
        self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._read)

    def _read(self) -> None:
        if self._take() is not None:
            self.close()
        self._on_change()

    def _take(self) -> bool | None:
        """One chunk. None = there may be more later, else nothing more is read; True at the end."""
        try:
            chunk = os.read(self._fd, min(_CHUNK, self._max_bytes + 1 - len(self.content)))
        except BlockingIOError:
            return None
        except OSError:
            return True  # the other end is gone with unread bytes of ours
        self.content += chunk
        if len(self.content) > self._max_bytes:
            del self.content[self._max_bytes :]
            self.is_over = True
            return False
        return None if chunk else True

    def drain(self) -> None:
        """Read what is there already; the process has ended."""
        if self._loop is not None:
            self.close()
            before = -1
            while len(self.content) > before:
                before = len(self.content)
                if self._take() is not None:
                    break

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None
