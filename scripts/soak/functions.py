"""Functions that a user might give as tools, good ones and bad ones. Every process that runs one imports this file, so
it imports next to nothing."""

from __future__ import annotations

import os
import signal
import time


def greet(name: str) -> str:
    """Greets."""
    return f"Hello {name}"


def trouble(kind: str) -> str:
    """Fails as it is told."""
    if kind == "raising_function":
        raise ValueError("no such thing")
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


def sleep_on(name: str) -> str:
    """Never comes back."""
    time.sleep(3600)
    return name
