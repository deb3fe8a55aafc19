"""The processes of a run, and the collective functions that all of them must call in the same order."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from agentgrpo.core.errors import AgentGrpoError, ConfigError, Preempted, line_of

if TYPE_CHECKING:
    from torch import Tensor  # importing it takes seconds, and reading a run does not need it

T = TypeVar("T")


class Stop(Protocol):
    """A request to end a process's work early; may be called from any thread."""

    signal_name: str
    """The signal that requested the stop; "" = no stop was requested."""

    def request(self, signal_name: str) -> None: ...

    def fail(self, error: Exception) -> None:
        """Interrupt the work that is being awaited by raising `error`."""
        ...


class ProcessGroup(Protocol):
    """`add_up` and `gather` are collectives: all processes call them in the same order. `exchange` has a separate
    order: it may be awaited while another thread is in `add_up` or `gather`."""

    rank: int
    """Number of this process, from 0."""
    size: int
    phase: str
    """Description of the current work, quoted in errors if other processes wait in vain. Processes that gather must be
    in the same phase."""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in place, with the same bits everywhere. Sharded tensors
        are left unchanged, because their gradients are summed where they are computed."""
        ...

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        ...

    async def exchange(self, value: T) -> list[T]:
        """Like `gather`, without blocking the event loop. It must not be cancelled, because the others wait for this
        process."""
        ...

    def heed(self, stop: Stop) -> None:
        """From now on, a stop requested on one process reaches all of them, and the loss of one process ends the work
        of the others. Call it inside the event loop that does the work."""
        ...

    def keep_stacks(self, directory: Path) -> None:
        """Set the directory for the stack traces of all threads, written when a process is lost."""
        ...


class Alone:
    """A ProcessGroup of a single process."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.phase = ""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        pass

    def gather(self, value: T) -> list[T]:
        return [value]

    async def exchange(self, value: T) -> list[T]:
        return [value]

    def heed(self, stop: Stop) -> None:
        pass

    def keep_stacks(self, directory: Path) -> None:
        pass


# --- Collective work: the processes share work, and end in the same way.
#
#     share       each process does its part (episodes, judgements); all processes get all results
#     agree       each process does the same; an error on one process is raised on all
#     once        the first process works for all, for example to write a file
#     in_turn     the first process works before the others
#     only_first  an object that only the first process has, such as the screen
#
# Everything else is computed on every process from equal data, with equal results. So all processes take the same
# branches, also after a stop request or an error, and no process waits for one that has left.

R = TypeVar("R")


class _Interrupted(AgentGrpoError):
    """Another process gave up shared work; `agree` finds out why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult(Generic[T]):
    """The outcome of one process's part."""

    value: T | None = None
    error: BaseException | None = None


async def share(
    world: ProcessGroup, items: Sequence[T], work: Callable[[Sequence[T]], Coroutine[Any, Any, Sequence[R]]]
) -> list[R]:
    """Run `work` on each process's part of `items` and return all results, in the order of the items. An error on one
    process is raised on all. A cancellation on one process ends the work on all: the others raise _Interrupted, which
    `agree` replaces by the actual reason."""
    if world.size == 1:
        return list(await work(items))
    outcome: ProcessResult[Sequence[R]]
    try:
        outcome = ProcessResult(value=await work(items[world.rank :: world.size]))
    except (Exception, asyncio.CancelledError) as e:
        outcome = ProcessResult(error=e)
    outcomes = await _to_its_end(world.exchange(_portable(outcome)))
    _raise_first(world.rank, outcome.error, [o.error for o in outcomes])
    results: list[Any] = [None] * len(items)
    for rank, part in enumerate(outcomes):
        results[rank :: world.size] = cast(Sequence[R], part.value)
    return results


def agree(world: ProcessGroup, work: Callable[[], T]) -> T:
    """Run `work`, which returns the same everywhere, on every process; an error on one process is raised on all. For
    awaited work, RunContext (run.context) does the same."""
    outcome = _outcome(work)
    end: ProcessResult[None] = ProcessResult(error=outcome.error)
    _raise_first(world.rank, outcome.error, [o.error for o in world.gather(_portable(end))])
    return cast(T, outcome.value)


def once(world: ProcessGroup, work: Callable[[], T]) -> T:
    """Run `work` on the first process alone; its result or error is passed to all processes."""
    outcome = _outcome(work) if world.rank == 0 else ProcessResult()
    outcomes = world.gather(_portable(outcome))
    _raise_first(world.rank, outcome.error, [o.error for o in outcomes])
    return cast(T, outcome.value if world.rank == 0 else outcomes[0].value)


def in_turn(world: ProcessGroup, work: Callable[[], T]) -> T:
    """Run `work` on the first process and then on the others, so that cached results are computed only once."""
    made = agree(world, lambda: work() if world.rank == 0 else None)
    return agree(world, lambda: work() if made is None else made)


def refuse_unequal(world: ProcessGroup, what: str, value: object) -> None:
    """Raise ConfigError unless `value` is the same on all processes."""
    everywhere = world.gather(value)
    if odd := [rank for rank, found in enumerate(everywhere) if found != everywhere[0]]:
        raise ConfigError(
            f"rank {odd[0]} has other {what} than rank 0; all processes need the same: give them one file system, or "
            "the same files"
        )


def only_first(world: ProcessGroup, make: Callable[[], T]) -> T:
    """Return the result of `make` on the first process; on the others an object that ignores every call."""
    return make() if world.rank == 0 else cast(T, _Idle())


class _Idle:
    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _outcome(work: Callable[[], T]) -> ProcessResult[T]:
    try:
        return ProcessResult(value=work())
    except Exception as e:
        return ProcessResult(error=e)


def _raise_first(rank: int, own: BaseException | None, errors: Sequence[BaseException | None]) -> None:
    """Raise the decisive error: a stop request comes first, and _Interrupted last, because it does not know the reason.
    The process with the error raises the original object; a cancellation is always raised unchanged."""
    if isinstance(own, asyncio.CancelledError):
        raise own
    ranked = [(_rank_of(e), r, e) for r, e in enumerate(errors) if e is not None]
    if ranked:
        _, first, error = min(ranked, key=lambda found: found[:2])
        raise own if first == rank and own is not None else error


def _rank_of(error: BaseException) -> int:
    return 0 if isinstance(error, Preempted) else 2 if isinstance(error, _Interrupted) else 1


def _portable(outcome: ProcessResult[T]) -> ProcessResult[T]:
    """Make an outcome picklable: an error that cannot be pickled is replaced by its text."""
    error = outcome.error
    if error is None:
        return outcome
    if isinstance(error, asyncio.CancelledError):
        return ProcessResult(error=_Interrupted("the work was given up on another process"))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        error = RuntimeError(line_of(error))
    return ProcessResult(error=error)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. A cancellation is postponed to the next await."""
    running, cancelled = asyncio.ensure_future(work), False
    while not running.done():
        try:
            await asyncio.wait((running,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled and (task := asyncio.current_task()) is not None:
        task.uncancel()
        task.cancel()
    return running.result()
