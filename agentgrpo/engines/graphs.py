"""Device work that is recorded once and replayed: one launch instead of hundreds.

Not yet run on a GPU: all else of recorded decoding runs on a CPU as well, capture and replay below do not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch

Key = tuple[int, int]
"""(rows, length)."""


class Recorder(Protocol):
    captures: int
    """Works recorded since it was made."""

    def replay(self, key: Key, run: Callable[[], None]) -> None:
        """Do what `run` does: the same operations on the same memory at every call with that key, until `forget`. It
        may be run several times in a row."""
        ...

    def forget(self) -> None:
        """What was recorded works on memory that is no longer in use."""
        ...


class CudaGraphs:
    """Graphs that share one pool of memory, which is safe since no output of one outlives it: `run` leaves its results
    in memory of the caller's.

    A model whose forward pass cannot be recorded (it waits for the device, as routing to experts may) is run as it is,
    with a warning."""

    def __init__(self) -> None:
        self.captures = 0
        self._graphs: dict[Key, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._refused = False

    def replay(self, key: Key, run: Callable[[], None]) -> None:
        if self._refused:
            run()
            return
        if key not in self._graphs:
            self._warm_up(run)
            try:
                self._graphs[key] = self._capture(run)
            except RuntimeError as e:
                self._refused = True
                self.forget()
                warnings.warn(
                    f"a decode step of {key[0]} rows and {key[1]} keys could not be recorded as a CUDA graph ({e}); "
                    "decoding goes on without; engine.cuda_graphs=false says so from the start",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return  # the warm-up has done the work
            self.captures += 1
        self._graphs[key].replay()

    def forget(self) -> None:
        self._graphs, self._pool = {}, None

    def _warm_up(self, run: Callable[[], None]) -> None:
        """Where it will be recorded: libraries set up their handles and workspaces stream by stream."""
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()
        torch.cuda.current_stream().wait_stream(self._stream)

    def _capture(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # other threads, a tool's say, may allocate in the meantime
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph
