"""The processes of a run: what all of them must call, in one order."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from agentgrpo.core.errors import AgentGrpoError, ConfigError, Preempted, line_of

if TYPE_CHECKING:
    from torch import Tensor  # which takes seconds, and who only reads a run needs none

T = TypeVar("T")


class Stop(Protocol):
    """What ends a process's work early, from any thread."""

    signal_name: str
    """The signal that asked for it; "" = none did."""

    def request(self, signal_name: str) -> None: ...

    def fail(self, error: Exception) -> None:
        """Give up what is waited for: it raises `error`."""
        ...


class ProcessGroup(Protocol):
    """`add_up` and `gather` are collectives: all processes call them, in the same order. So is `exchange`, in an order
    of its own: it may be awaited while another thread is in one of the other two."""

    rank: int
    """This process, from 0."""
    size: int
    phase: str
    """What this process is at: it is named where the others wait for it in vain. Who gathers is at the same as all."""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Each tensor becomes the sum over all processes, in place; the same bits everywhere. What is sharded is left
        as it is: its gradients are added up where they arise."""
        ...

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank."""
        ...

    async def exchange(self, value: T) -> list[T]:
        """The same, and the event loop runs on. Not to be cancelled: the others count on this process."""
        ...

    def heed(self, stop: Stop) -> None:
        """From here on a stop that one process is asked for reaches all of them, and the loss of one ends the work of
        the others. Called inside of the event loop that works."""
        ...

    def keep_stacks(self, directory: Path) -> None:
        """Where to write what every thread is at when a process is lost."""
        ...


class Alone:
    """One process."""

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


# --- What the processes of a run do with each other: share out work, and end alike.
#
#     share       episodes, judgements: each process its part; all results on all processes
#     agree       each process the same; what one raises, all raise
#     once        the first process for all, such as a file that is written
#     in_turn     the first process before the others
#     only_first  a part that only the first process has, such as the screen
#
# All else is computed on every process from equal data, with equal results. So all take the same turns, at a stop
# request or an error too, and none waits for one that has left.

R = TypeVar("R")


class _Interrupted(AgentGrpoError):
    """Another process has given up work that was shared; `agree` knows why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult(Generic[T]):
    """What one process's part came to."""

    value: T | None = None
    error: BaseException | None = None


async def share(
    world: ProcessGroup, items: Sequence[T], work: Callable[[Sequence[T]], Coroutine[Any, Any, Sequence[R]]]
) -> list[R]:
    """`work` on every process's own part of `items`; all results, in the order of the items. What one raises, all
    raise. Where it is cancelled on one, it ends on all: with _Interrupted on the others, which `agree` puts right."""
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
    """`work` on every process, which returns the same everywhere; what one raises, all raise. What is awaited agrees by
    run.context.RunContext."""
    outcome = _outcome(work)
    end: ProcessResult[None] = ProcessResult(error=outcome.error)
    _raise_first(world.rank, outcome.error, [o.error for o in world.gather(_portable(end))])
    return cast(T, outcome.value)


def once(world: ProcessGroup, work: Callable[[], T]) -> T:
    """`work` on the first process alone; its result, or what it raises, on all."""
    outcome = _outcome(work) if world.rank == 0 else ProcessResult()
    outcomes = world.gather(_portable(outcome))
    _raise_first(world.rank, outcome.error, [o.error for o in outcomes])
    return cast(T, outcome.value if world.rank == 0 else outcomes[0].value)


def in_turn(world: ProcessGroup, work: Callable[[], T]) -> T:
    """`work` on the first process and then on the others: what it leaves in a cache is made once."""
    made = agree(world, lambda: work() if world.rank == 0 else None)
    return agree(world, lambda: work() if made is None else made)


def refuse_unequal(world: ProcessGroup, what: str, value: object) -> None:
    """Raise ConfigError where `value` is not the same on all processes."""
    everywhere = world.gather(value)
    if odd := [rank for rank, found in enumerate(everywhere) if found != everywhere[0]]:
        raise ConfigError(
            f"rank {odd[0]} has other {what} than rank 0; all processes need the same: give them one file system, or "
            "the same files"
        )


def only_first(world: ProcessGroup, make: Callable[[], T]) -> T:
    """On the first process what `make` makes; on the others a part that does nothing, whatever is called."""
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
    """Raise the error that counts: a stop request before all, and who was merely interrupted does not know why. The
    process that has it raises it as it is; a cancellation goes its own way."""
    if isinstance(own, asyncio.CancelledError):
        raise own
    ranked = [(_rank_of(e), r, e) for r, e in enumerate(errors) if e is not None]
    if ranked:
        _, first, error = min(ranked, key=lambda found: found[:2])
        raise own if first == rank and own is not None else error


def _rank_of(error: BaseException) -> int:
    return 0 if isinstance(error, Preempted) else 2 if isinstance(error, _Interrupted) else 1


def _portable(outcome: ProcessResult[T]) -> ProcessResult[T]:
    """As another process can read it: an error that does not survive the journey by its text."""
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
    """The result of `work`. A cancellation waits for the next await."""
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
