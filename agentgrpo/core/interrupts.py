"""Signals before any work is under way, while libraries are imported: the process prints one line and ends.

On Ctrl-C Python would raise KeyboardInterrupt in the middle of an import, and some libraries take that for a missing
module and continue. From its first second, a job that must leave its machine (SIGTERM, SIGHUP) has to end with the exit
code of a resumable job, and a job that is asked for its state (SIGUSR1, SIGUSR2) must not end at all. This module
imports little, so that it is in effect from the first moment.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # like typing.TYPE_CHECKING, without the slow import of typing
    from collections.abc import Callable
    from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C."""
PREEMPTED = 75
"""Exit code of a resumable job (core.errors.Preempted)."""
SAID = "agentgrpo: interrupted"
_LOCAL_RANKS = ("LOCAL_RANK", "SUBMITIT_LOCAL_LOCALID", "SLURM_LOCALID")
"""The first variable that is set decides whether this process prints, like hardware.speaks."""
LEAVES = (signal.SIGTERM, signal.SIGHUP)
ASKS = (signal.SIGUSR1, signal.SIGUSR2)


class _AtOnce:
    """A handler that ends the process."""

    tidy: Callable[[], None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.tidy is not None:
            self.tidy()
        is_asked, said = number != signal.SIGINT, SAID
        if is_asked:
            name = signal.Signals(number).name
            said = f"agentgrpo: stopped by {name} before its first step; the same command begins it again"
        known = (os.environ[name] for name in _LOCAL_RANKS if name in os.environ)
        if next(known, "0") == "0":
            os.write(2, f"{said}\n".encode())
        os._exit(PREEMPTED if is_asked else INTERRUPTED)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Ignore a signal. Unlike SIG_IGN, this is not inherited by programs that the process starts."""


def end_at_once() -> None:
    """Let SIGINT, SIGTERM and SIGHUP end the process from now on, and ignore SIGUSR1 and SIGUSR2. A signal that already
    has a handler keeps it. Only for the main thread."""
    at_once = _AtOnce()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, at_once)
    for number in (*LEAVES, *ASKS):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, at_once if number in LEAVES else _nothing)


def tidy_before(tidy: Callable[[], None]) -> None:
    """Call `tidy` before a signal ends the process at once. `tidy` must not raise."""
    for number in (signal.SIGINT, *LEAVES):
        handler = signal.getsignal(number)
        if isinstance(handler, _AtOnce):
            handler.tidy = tidy


def raise_again(*, leaves: bool) -> None:
    """Let SIGINT raise KeyboardInterrupt again, Python's default, so that running code can clean up. leaves: restore
    SIGTERM and SIGHUP too; otherwise they end the process at once until a run handles them."""
    if isinstance(signal.getsignal(signal.SIGINT), _AtOnce):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in LEAVES:
        handler = signal.getsignal(number)
        if isinstance(handler, _AtOnce):
            handler.tidy = None  # from here on the run directory is not empty
            if leaves:
                signal.signal(number, signal.SIG_DFL)


def is_of_interrupt(error: BaseException) -> bool:
    """Whether `error` is a KeyboardInterrupt or resulted from one: a library may have turned it into another error. An
    EpisodeError without a cause did not: external code may raise KeyboardInterrupt by itself."""
    from agentgrpo.core.errors import EpisodeError

    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, KeyboardInterrupt):
            return True
        seen.add(id(found))
        is_own = isinstance(found, EpisodeError) and found.__suppress_context__
        found = found.__cause__ or (None if is_own else found.__context__)
    return False
