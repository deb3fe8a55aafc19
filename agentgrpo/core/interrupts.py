"""Signals while nothing is under way yet, which is while libraries are imported: one line, and the process ends.

For Ctrl-C Python would raise KeyboardInterrupt in the middle of an import, and some libraries take that for a module
that is not there and go on. A job that is asked to leave its machine (SIGTERM, SIGHUP) must end with the exit code that
says that it can go on, from its first second; one that is asked what it is at (SIGUSR1, SIGUSR2) must not end at all.
Nothing but what is said here is imported, so that it holds from the first moment.
"""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:  # as typing has it, which takes as long to import as all of this
    from collections.abc import Callable
    from types import FrameType

INTERRUPTED = 130
"""The exit code."""
PREEMPTED = 75
"""The exit code of what can go on (core.errors.Preempted)."""
SAID = "agentgrpo: interrupted"
_LOCAL_RANKS = ("LOCAL_RANK", "SUBMITIT_LOCAL_LOCALID", "SLURM_LOCALID")
"""The first that is there says whether this process speaks, as hardware.speaks has it."""
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
    """Not SIG_IGN, which programs that are started would inherit."""


def end_at_once() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end the process, and SIGUSR1 and SIGUSR2 do nothing, unless somebody else
    has chosen what they do. For the main thread."""
    at_once = _AtOnce()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, at_once)
    for number in (*LEAVES, *ASKS):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, at_once if number in LEAVES else _nothing)


def tidy_before(tidy: Callable[[], None]) -> None:
    """Where a signal ends the process at once, `tidy` is called first. It must not raise."""
    for number in (signal.SIGINT, *LEAVES):
        handler = signal.getsignal(number)
        if isinstance(handler, _AtOnce):
            handler.tidy = tidy


def raise_again(*, leaves: bool) -> None:
    """SIGINT is KeyboardInterrupt again, as Python has it: what is under way is left as its code says. leaves: so are
    SIGTERM and SIGHUP what they were; else they go on to end the process at once, until a run heeds them."""
    if isinstance(signal.getsignal(signal.SIGINT), _AtOnce):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in LEAVES:
        handler = signal.getsignal(number)
        if isinstance(handler, _AtOnce):
            handler.tidy = None  # from here on there is more than an empty directory
            if leaves:
                signal.signal(number, signal.SIG_DFL)


def is_of_interrupt(error: BaseException) -> bool:
    """Whether it is KeyboardInterrupt, or came of one: a library may have made another error of it. An EpisodeError
    without a cause came of none: code from outside may raise KeyboardInterrupt by itself."""
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
