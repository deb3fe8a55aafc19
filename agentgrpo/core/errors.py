"""One tree of errors.

    AgentGrpoError
    ├── ConfigError (ValueError)       the user's configuration; exit 2
    ├── DataError (ValueError)         the user's files; exit 2
    │   └── MalformedRows              several malformed rows: a line with their number, and a line for each
    ├── CheckpointError                no valid checkpoint, or drift refused; exit 4
    ├── RunDirectoryError              the run directory is in use; exit 3
    ├── StorageError (OSError)         disk full, quota, unreadable; exit 5
    ├── TrainingError                  a guard refused to go on (non-finite values); exit 6
    │   ├── TooManyFailures            infrastructure failures past the limit; exit 8
    │   │   └── NoServer               every server that samples is lost, resumable; exit 8
    │   ├── GuardHalt                  a guard ends the run; exit 6
    │   └── GuardRollback              a guard sends the weights back to the last good checkpoint
    ├── Preempted                      stopped by a signal, resumable; exit 75
    ├── BudgetSpent                    a limit of the step or run on paid calls, resumable; exit 11
    ├── ProcessError                   another process of the run is lost, resumable; exit 7
    └── EpisodeError                   infrastructure failed during an episode: data, not a crash
        ├── EngineError
        ├── EnvironmentFailure
        ├── BadValue (ValueError)      external code gave an invalid number, name or text
        ├── ToolError
        ├── RetrieverError             `kind`: timeout, http_500, http_429, http_4xx, transport, garbage, oversize,
        │                              over_budget (the episode's own limit: told to the policy)
        ├── JudgeError
        └── RewardError                a reward term failed

A message says what was given, what is allowed and what to do. Extension authors raise plain Python errors; `boundary`
attributes them to a stage; `rollout/groups.py` is the one place that captures an EpisodeError as a Failure.
"""

from __future__ import annotations

import asyncio
import difflib
import signal
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class ProcessExit(SystemExit):
    """End the process with this code. Any other SystemExit comes from user code and counts as an error of that code."""


class AgentGrpoError(Exception):
    exit_code = 1


class ConfigError(AgentGrpoError, ValueError):
    exit_code = 2


class DataError(AgentGrpoError, ValueError):
    exit_code = 2


class MalformedRows(DataError):
    pass


class CheckpointError(AgentGrpoError):
    exit_code = 4


class RunDirectoryError(AgentGrpoError):
    exit_code = 3


class StorageError(AgentGrpoError, OSError):
    exit_code = 5


class TrainingError(AgentGrpoError):
    exit_code = 6


class TooManyFailures(TrainingError):
    exit_code = 8


class NoServer(TooManyFailures):
    pass


class GuardHalt(TrainingError):
    pass


class GuardRollback(TrainingError):
    pass


class Preempted(AgentGrpoError):
    exit_code = 75


class BudgetSpent(AgentGrpoError):
    exit_code = 11

    def __init__(self, message: str, raised: str = "") -> None:
        """raised: an override for the command line that lets the run go on."""
        super().__init__(message)
        self.raised = raised


class ProcessError(AgentGrpoError):
    exit_code = 7


class EpisodeError(AgentGrpoError):
    """`kind` is the name under which failures are counted."""

    def __init__(self, message: str, *, kind: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind or type(self).__name__

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), str(self), self.kind)


def _rebuild(cls: type[EpisodeError], message: str, kind: str) -> EpisodeError:
    return cls(message, kind=kind)


class EngineError(EpisodeError):
    """The rollout backend failed."""


class EnvironmentFailure(EpisodeError):
    """A user's environment raised an error."""


class BadValue(EpisodeError, ValueError):
    """External code gave an invalid number, name or text (core.numbers, core.messages)."""

    def __init__(self, message: str, *, kind: str | None = "shape") -> None:
        super().__init__(message, kind=kind)


class ToolError(EpisodeError):
    """A tool failed in a way that is not the policy's fault."""


class RetrieverError(EpisodeError):
    """A retriever could not answer."""


class JudgeError(EpisodeError):
    """A judge failed or its verdict could not be parsed."""


class RewardError(EpisodeError):
    """A reward term failed, or has no verdict."""

    def __init__(self, message: str, *, kind: str | None = "reward") -> None:
        super().__init__(message, kind=kind)


@contextmanager
def boundary(cls: Callable[[str], EpisodeError], stage: str) -> Iterator[None]:
    """Attribute any error that escapes the block to `stage`, SystemExit too. An AgentGrpoError passes unchanged, and so
    does a requested end: Ctrl-C, or the cancellation of this task."""
    try:
        yield
        return
    except (AgentGrpoError, GeneratorExit):
        raise
    except BaseException as e:
        if is_asked_for(e):
            raise
        error = e
    # Only an Exception becomes the cause: a KeyboardInterrupt among the causes means that a person has pressed Ctrl-C.
    raise cls(f"{stage}: {line_of(error)}{place_of(error)}") from (error if isinstance(error, Exception) else None)


def is_asked_for(error: BaseException) -> bool:
    """Whether `error` is a requested end: Ctrl-C, if that raises KeyboardInterrupt, another signal, or the cancellation
    of the current task."""
    if isinstance(error, KeyboardInterrupt):
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if isinstance(error, asyncio.CancelledError) and asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, ProcessExit)


_OURS = (str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), "<frozen")


def place_of(error: BaseException) -> str:
    """Return " (shop.py:12 in add)", the innermost line of external code in the traceback, libraries left out; "" if
    the traceback has none."""
    frames = [(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    places = [(code, line) for code, line in frames if not code.co_filename.startswith(_OURS)]
    return f" ({Path(places[-1][0].co_filename).name}:{places[-1][1]} in {places[-1][0].co_name})" if places else ""


_LONGEST = 1000
"""Maximum number of characters of an error's text in a message."""


def line_of(error: BaseException) -> str:
    """Return `Class: text` of an error that external code has raised, with the text from `text_of`."""
    return ": ".join(filter(None, (_name_of(error), text_of(error))))


def text_of(error: BaseException) -> str:
    """Return the beginning of an error's text as one printable line. External code may define `__str__`: the text may
    have any content and length, and asking for it may raise."""
    try:
        return _printable(str(error))
    except BaseException as refusal:  # even SystemExit: the error to report came before it
        return f"it has no text, for asking it raises {_name_of(refusal)}"


def _name_of(error: BaseException) -> str:
    return _printable(type.__dict__["__name__"].__get__(type(error)))  # a metaclass may give another name


def _printable(text: str) -> str:
    """Control characters, halves of surrogate pairs and line ends become spaces; spaces in a row become one."""
    beginning = str.__getitem__(text, slice(8 * _LONGEST))  # a subclass may slice in another way
    line = " ".join("".join(c if c.isprintable() else " " for c in beginning).split())
    return line if len(line) <= _LONGEST and len(beginning) == str.__len__(text) else f"{line[:_LONGEST].rstrip()} ..."


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Return " Did you mean 'x'?", or "" if no allowed name is near: more than two thirds of both texts must agree, or
    one text must begin the other, or both must have the same letters."""
    names = list(allowed)
    long = [name for name in names if min(len(given), len(name)) > 2]
    alike = [n for n in long if n.startswith(given) or given.startswith(n) or sorted(n) == sorted(given)]
    near = [*difflib.get_close_matches(given, names, n=1, cutoff=0.67), *alike]
    return f" Did you mean '{near[0]}'?" if near else ""
