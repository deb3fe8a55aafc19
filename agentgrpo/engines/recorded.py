"""Decoding that is recorded, per number of rows and of keys read, and replayed: on a GPU a step of few tokens is bound
by the launches of its hundreds of small operations, and by preparing them, not by the operations.

What is recorded has one token of every episode that decodes. Its operations have fixed shapes and work on fixed memory:
the caches' rows (rows.py), a table of what each row does, a place for the logits, the weights. Rows that nobody is in,
or one that does not decode now, are computed along: they write where nobody reads, and nobody reads what they give.
Where prompts and observations are to be computed in the same step, they follow in a packed row without those tokens.

    weights       are updated in place, those of a copy and of adapters too, so that recordings stay valid across
                  `load_weights`; where some have moved nevertheless, `check_weights` drops the recordings
    sharded       models are sampled from through a copy with whole weights: nothing is different
    bits          of a row depend on how many keys the longest row has: not with deterministic=true
    memory        stays, as do the recordings, as long as the engine is open

Not yet run on a GPU; see graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agentgrpo.engines.attention import RowPlan
from agentgrpo.engines.cache import CacheShape
from agentgrpo.engines.counters import EngineStats
from agentgrpo.engines.graphs import Recorder
from agentgrpo.engines.rows import Rows, read_length, rows_for
from agentgrpo.engines.schedule import Step, Unit

LEAST_BESIDE = 16
"""Decoding episodes from which on a second pass beside a prefill is worth it. It reads all weights once more, but
spares laying the row out episode by episode, which takes a CPU some 50 microseconds for each at 24 layers. An estimate,
not yet measured on a GPU."""


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
        """[n, V] for the turns that draw a token, in the order of `Step.drawing`. packed: does the same by one packed
        row, for what is not decoded here. Copies are done, caches have room, and it is where `engine_mode` is."""
        decoding = [unit for unit in step.units if _decodes(unit)]
        rest = Step(units=[unit for unit in step.units if not _decodes(unit)])
        if not decoding or (rest.units and len(decoding) < LEAST_BESIDE):
            return packed(step)
        logits = self._decode(decoding)
        if not rest.units:
            return logits
        row_of = {turn: row for row, turn in enumerate([*(u.turn for u in decoding), *rest.drawing])}
        return torch.cat((logits, packed(rest)))[[row_of[turn] for turn in step.drawing]]

    def _decode(self, units: Sequence[Unit]) -> Tensor:
        """[n, V] for n units that decode."""
        contexts = [u.turn.context for u in units]
        if self._rows.make_room(contexts):
            self._recorder.forget()
            size = (self._rows.table.shape[1], int(self._model.config.get_text_config().vocab_size))
            # of any dtype that models have, exactly
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
        """The model has new weights. Where they are not at the old addresses, nothing recorded can be used."""
        if (addresses := self._addresses()) != self._weights:
            self._weights = addresses
            self._recorder.forget()

    def _forward(self, num_rows: int, length: int) -> None:
        """What is recorded: everything that changes from step to step is in the table and the caches."""
        table = self._rows.table[:, :num_rows]
        plan = RowPlan.of(self._rows.kv, positions=table[1], targets=table[2], num_keys=length)
        out = self._model(input_ids=table[:1], position_ids=table[1:2], use_cache=False, plan=plan)
        self._logits[:num_rows].copy_(out.logits[0])

    def _addresses(self) -> Sequence[int]:
        return [t.data_ptr() for t in (*self._model.parameters(), *self._model.buffers())]


def _decodes(unit: Unit) -> bool:
    """Is this one token whose context is cached, not waiting for other units of the step, and draws it the next?"""
    return unit.single and unit.draws and unit.start == unit.stop - 1 == unit.turn.context.cached
