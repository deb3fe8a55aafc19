"""Recorded decoding: a decode step is recorded per number of rows and of keys read, and replayed. On a GPU a step with
few tokens is limited by preparing and launching its hundreds of small operations, not by the operations themselves.

A recorded step has one token of every decoding episode. Its operations have fixed shapes and work on fixed memory: the
caches' rows (`Rows`), a table of what each row does, a buffer for the logits, and the weights. Empty rows, and rows
whose episode does not decode now, are computed as well: they write to memory that is never read, and their results are
ignored. Prompts and observations of the same step follow in a separate packed row.

    weights       are updated in place, also those of a copy and of adapters, so recordings stay valid across
                  `load_weights`; if some weights have moved nevertheless, `check_weights` drops the recordings
    sharded       models are sampled from a copy with whole weights, so recording works the same
    bits          of a row depend on the number of keys of the longest row, so not used with deterministic=true
    memory        is kept, like the recordings, until the engine is closed
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentgrpo.engines.attention import RowPlan
from agentgrpo.engines.cache import CacheShape, Context, KVCache, bucketed
from agentgrpo.engines.counters import EngineStats
from agentgrpo.engines.schedule import Step, WorkUnit

# --- Device work is recorded once and replayed: one launch instead of hundreds.
#
# Only capture and replay below need a GPU; the rest of recorded decoding also runs on a CPU.

Key = tuple[int, int]
"""(rows, length)."""


class Recorder(Protocol):
    captures: int
    """Number of recordings made so far."""

    def replay(self, key: Key, run: Callable[[], None]) -> None:
        """Do what `run` does: every call with the same key must perform the same operations on the same memory, until
        `forget`. `run` may be called several times in a row."""
        ...

    def forget(self) -> None:
        """Drop all recordings, because their memory is no longer in use."""
        ...


class CudaGraphs:
    """Graphs that share one memory pool. This is safe because no graph's output outlives it: `run` writes its results
    to the caller's memory.

    A model whose forward pass cannot be recorded (because it waits for the device, as routing to experts may) runs
    unrecorded, with a warning."""

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
                    f"a decode step of {key[0]} rows and {key[1]} keys could not be recorded as a CUDA graph "
                    f"({_first_line(e)}); decoding goes on without; engine.cuda_graphs=false says so from the start",
                    RuntimeWarning,
                    stacklevel=2,
                )
                return  # the warm-up has already done this step
            self.captures += 1
        self._graphs[key].replay()

    def forget(self) -> None:
        self._graphs, self._pool = {}, None

    def _warm_up(self, run: Callable[[], None]) -> None:
        """Run once on the recording stream, because libraries set up their handles and workspaces per stream."""
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
        # other threads, for example of a tool, may allocate in the meantime
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph


def _first_line(error: BaseException) -> str:
    """Return the first line of the original error: ending the capture fails too, and CUDA adds advice."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).partition("\n")[0]


# --- Rows: caches side by side at a fixed address, which a recorded decode step reads and writes.
#
# A cache is in one place at a time, separate or in a row, and looks the same to its users. So nothing is stored twice
# or written back: rewinding, copying a prompt, computing a span and eviction work as usual.
#
#     moves in    when its episode decodes and it is not in one of the first rows, which the step reads
#     moves out   when another decoding episode needs its row, or when it outgrows the rows (`KVCache.reserve`)
#     is freed    with its context: rows keep no cache alive
#
# More or longer rows need new memory: all caches move, both memories exist for a moment, and all recordings become
# invalid. So rows never become fewer or shorter. `engine.kv_budget` counts caches wherever they are. Empty rows, and
# the excess length of other rows, come on top: at most rows times length.

LEAST_LENGTH = 128
"""Length of the shortest row in tokens."""


def rows_for(decoding: int, most: int) -> int:
    """Return the number of rows computed for this many decoding episodes: a power of two, or `most`."""
    return min(1 << (decoding - 1).bit_length(), most)


def read_length(tokens: int) -> int:
    """Return the number of keys read by a step whose longest row has this many tokens: a multiple of 128 and, beyond
    512 tokens, of a quarter of the next power of two. It is coarser than a cache's own length, because each length is
    recorded."""
    step = max(LEAST_LENGTH, 1 << max(0, (tokens - 1).bit_length() - 2))
    return -(-tokens // step) * step


class Rows:
    """kv [layers, 2, rows, kv heads, length + 1, head dim]: the last token of a row receives values that are never
    read. table [3, rows] describes each row's part in the next step: the token, its position, and where its key and
    value are written."""

    kv: Tensor
    table: Tensor

    def __init__(self, shape: CacheShape, *, most_rows: int, most_tokens: int, stats: EngineStats) -> None:
        """most_tokens: maximum size of one cache."""
        self._shape, self._stats = shape, stats
        self._most_rows, self._most_tokens = most_rows, bucketed(most_tokens)
        self._rooms: list[Tensor] = []
        self._caches: list[weakref.ref[KVCache] | None] = []
        self.length = 0

    def make_room(self, contexts: Sequence[Context]) -> bool:
        """Make rows for contexts that decode together and already have capacity for their tokens. Returns whether all
        rows moved."""
        rows = max(len(self._rooms), rows_for(len(contexts), self._most_rows))
        tokens = max(c.capacity for c in contexts)
        if tokens > self.length:
            length = min(max(1 << (tokens - 1).bit_length(), LEAST_LENGTH), self._most_tokens)
        else:
            length = self.length
        if (rows, length) == (len(self._rooms), self.length):
            return False
        shape, seated = self._shape, self._seated()
        size = (shape.layers, 2, rows, shape.kv_heads, length + 1, shape.head_dim)
        kv = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        rooms = [kv[:, :, row, :, :length] for row in range(rows)]
        for row, cache in seated.items():
            self._move(cache, rooms[row], cache.capacity)
        self.kv, self.table = kv, torch.zeros(3, rows, dtype=torch.int64, device=shape.device)
        self._rooms, self.length = rooms, length
        self._stats.row_tokens = rows * length
        self._caches = [weakref.ref(seated[row]) if row in seated else None for row in range(rows)]
        return True

    def seat(self, contexts: Sequence[Context]) -> list[int]:
        """Return the row of each context, among the first `rows_for(len(contexts))`. A context that already has such a
        row stays; the others take empty rows, or rows whose episode does not decode now."""
        first = rows_for(len(contexts), self._most_rows)
        seated = self._seated()
        rows = {cache: row for row, cache in seated.items() if row < first}
        decoding = {c.held for c in contexts}
        free = [row for row in range(first) if seated.get(row) not in decoding]
        free.sort(key=lambda row: row in seated)
        for context in contexts:
            cache = context.held
            if cache in rows:
                continue
            row = free.pop(0)
            if row in seated:
                idle = seated[row]
                self._move(idle, self._shape.room(idle.capacity), idle.capacity)
            self._move(cache, self._rooms[row], context.cached)
            self._caches[row], rows[cache] = weakref.ref(cache), row
        return [rows[c.held] for c in contexts]

    def fill(self, rows: Sequence[int], tokens: Sequence[int], positions: Sequence[int], num_rows: int) -> None:
        """Fill the table's first `num_rows` entries: the given rows, and the other rows such that their caches stay
        unchanged."""
        table = [[0] * num_rows, [0] * num_rows, [self.length] * num_rows]
        for row, token, position in zip(rows, tokens, positions, strict=True):
            table[0][row], table[1][row], table[2][row] = token, position, position
        self.table[:, :num_rows].copy_(torch.tensor(table))

    def _seated(self) -> dict[int, KVCache]:
        """Return the cache in each row."""
        caches = ((row, ref()) for row, ref in enumerate(self._caches) if ref is not None)
        return {row: cache for row, cache in caches if cache is not None and cache.room is self._rooms[row]}

    def _move(self, cache: KVCache, room: Tensor, tokens: int) -> None:
        cache.move(room, tokens)
        self._stats.moved_tokens += tokens


LEAST_BESIDE = 16
"""Minimum number of decoding episodes for a second pass beside a prefill. The second pass reads all weights once more,
but saves laying out the row episode by episode, which takes a CPU some 50 microseconds per episode at 24 layers. An
estimate, not yet measured on a GPU."""


class RecordedDecoding:
    def __init__(
        self,
        *,
        model: PreTrainedModel,
        shape: CacheShape,
        slots: int,
        max_context: int,
        recorder: Recorder,
        stats: EngineStats,
    ) -> None:
        self._model, self._recorder, self._slots, self._stats = model, recorder, slots, stats
        self._rows = Rows(shape, most_rows=slots, most_tokens=max_context, stats=stats)
        self._logits = torch.empty(0)
        self._weights = self._addresses()

    def logits(self, step: Step, packed: Callable[[Step], Tensor]) -> Tensor:
        """Return [n, V] for the turns that draw a token, in the order of `Step.drawing`. packed: computes the same with
        one packed row, for the units that are not decoded here. Call it in `engine_mode`, after the copies and with
        room in the caches."""
        decoding = [unit for unit in step.units if _decodes(unit)]
        rest = Step(units=[unit for unit in step.units if not _decodes(unit)])
        if not decoding or (rest.units and len(decoding) < LEAST_BESIDE):
            return packed(step)
        logits = self._decode(decoding)
        if not rest.units:
            return logits
        row_of = {turn: row for row, turn in enumerate([*(u.turn for u in decoding), *rest.drawing])}
        return torch.cat((logits, packed(rest)))[[row_of[turn] for turn in step.drawing]]

    def _decode(self, units: Sequence[WorkUnit]) -> Tensor:
        """Return [n, V] for n units that decode."""
        contexts = [u.turn.context for u in units]
        if self._rows.make_room(contexts):
            self._recorder.forget()
            size = (self._rows.table.shape[1], int(self._model.config.get_text_config().vocab_size))
            # float32 holds the logits of every model dtype exactly
            self._logits = torch.zeros(size, dtype=torch.float32, device=self._rows.kv.device)
        rows = self._rows.seat(contexts)
        num_rows = rows_for(len(rows), self._slots)
        length = min(read_length(max(u.stop for u in units)), self._rows.length)
        self._rows.fill(rows, [u.turn.tokens[u.start] for u in units], [u.start for u in units], num_rows)
        self._recorder.replay((num_rows, length), partial(self._forward, num_rows, length))
        self._stats.graph_steps += 1
        self._stats.graph_captures = self._recorder.captures
        return self._logits[rows]

    def check_weights(self) -> None:
        """Drop the recordings if the model's new weights are at other addresses."""
        if (addresses := self._addresses()) != self._weights:
            self._weights = addresses
            self._recorder.forget()

    def _forward(self, num_rows: int, length: int) -> None:
        """The recorded work: everything that changes from step to step is in the table and the caches."""
        table = self._rows.table[:, :num_rows]
        plan = RowPlan.of(self._rows.kv, positions=table[1], targets=table[2], num_keys=length)
        out = self._model(input_ids=table[:1], position_ids=table[1:2], use_cache=False, plan=plan)
        self._logits[:num_rows].copy_(out.logits[0])

    def _addresses(self) -> Sequence[int]:
        return [t.data_ptr() for t in (*self._model.parameters(), *self._model.buffers())]


def _decodes(unit: WorkUnit) -> bool:
    """Return whether this is a single token that draws the next one, whose context is cached and waits for no other
    unit."""
    return unit.single and unit.draws and unit.start == unit.stop - 1 == unit.turn.context.cached
