"""Ctrl-C while nothing is under way yet, which is while libraries are imported: one line, and the process ends at once.

Python would raise KeyboardInterrupt in the middle of an import, and some libraries take that for a module that is not
there and go on. Nothing but what is said here is imported, so that it holds from the first moment.
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
SAID = "agentgrpo: interrupted"


class _AtOnce:
    """A handler of SIGINT."""

    tidy: Callable[[], None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.tidy is not None:
            self.tidy()
        if os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")) == "0":  # as hardware.speaks
            os.write(2, f"{SAID}\n".encode())
        os._exit(INTERRUPTED)


def end_at_once() -> None:
    """From now on SIGINT ends the process, unless somebody else has chosen what it does. For the main thread."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _AtOnce())


def tidy_before(tidy: Callable[[], None]) -> None:
    """Where SIGINT ends the process at once, `tidy` is called first. It must not raise."""
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _AtOnce):
        handler.tidy = tidy


def raise_again() -> None:
    """SIGINT is KeyboardInterrupt again, as Python has it: what is under way is left as its code says."""
    if isinstance(signal.getsignal(signal.SIGINT), _AtOnce):
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_of_interrupt(error: BaseException) -> bool:
    """Whether it is KeyboardInterrupt, or came of one: a library may have made another error of it."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, KeyboardInterrupt):
            return True
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return False
