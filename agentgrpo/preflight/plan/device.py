"""The device memory and disk space that a run will take, from a model's shape alone.

Exact figures: parameters, and the bytes of weights, gradients, optimizer state and reference (with sharding, exact up
to the padding of uneven shares). All other figures are marked as an estimate or a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from transformers import PreTrainedModel

from agentgrpo.config.hardware import Hardware
from agentgrpo.config.settings import RolloutSettings
from agentgrpo.engines.cache import CacheShape, bucketed
from agentgrpo.engines.kernels.last_layer import decoder_layers
from agentgrpo.grpo.algorithm import Algorithm
from agentgrpo.training.adapters import adapter_tensors, has_adapter
from agentgrpo.training.policy import DTYPES, fitting_tokens

GIB = 2**30
EXACT, ESTIMATE, BOUND = "exact", "estimate", "at most"
ALWAYS, ROLLOUT, UPDATE = "always", "rollout", "update"
LARGE_SHARE = 0.9
"""Share of a device's memory that a plan may fill; the rest is for the allocator, the kernels and estimation errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLine:
    """Memory for one thing. when: always, or only in the rollout or in the update."""

    name: str
    num_bytes: int
    basis: str
    when: str = ALWAYS
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """The engine's settings that determine how many keys and values it holds at once."""

    slots: int
    kv_budget: int | None
    max_context: int
    """Maximum tokens of one context."""
    servers: int = 0
    """Number of servers that sample on their own devices; 0 = this process samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsMemory:
    """Numbers of weights in a model, by use."""

    total: int
    trained: int
    sharded: int
    """Trained weights in decoder layers, which fsdp shards."""
    trained_tensors: int
    saved: int
    """Weights in a checkpoint: all, or an adapter's."""
    head: int = 0
    """Weights of the output layer, which processes sampled tokens only."""
    looked_up: int = 0
    """Input embeddings that are not also the output layer; they take part in no product."""
    is_tied: bool = False
    """True if the output layer shares the input embeddings."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> WeightsMemory:
        trained = [p for p in model.parameters() if p.requires_grad]
        layers = decoder_layers(model)
        in_layers = set() if layers is None else set(layers.parameters())
        adapter = adapter_tensors(model)
        output, embeddings = model.get_output_embeddings().weight, model.get_input_embeddings().weight
        return cls(
            total=sum(p.numel() for p in model.parameters()),
            trained=sum(p.numel() for p in trained),
            sharded=sum(p.numel() for p in trained if p in in_layers),
            trained_tensors=len(trained),
            saved=sum(p.numel() for p in (adapter.values() if adapter else model.parameters())),
            head=output.numel(),
            looked_up=0 if embeddings is output else embeddings.numel(),
            is_tied=embeddings is output,
        )

    @property
    def body(self) -> int:
        """Weights that process every token."""
        return self.total - self.head - self.looked_up


class MemoryPlan:
    """The memory needed by each of `processes` devices."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        hardware: Hardware,
        algorithm: Algorithm,
        rollout: RolloutSettings,
        engine: EngineFacts,
        processes: int = 1,
    ) -> None:
        self.weights = WeightsMemory.of(model)
        self._model, self._config = model, model.config.get_text_config()
        self._hardware, self._algorithm, self._rollout = hardware, algorithm, rollout
        self._engine, self.processes = engine, processes
        self._is_sharded = hardware.strategy == "fsdp" and processes > 1
        self._size = DTYPES[hardware.dtype].itemsize
        self._trained_size = 4 if has_adapter(model) else self._size

    @property
    def weight_bytes(self) -> int:
        """Bytes of one whole copy of the model."""
        w = self.weights
        return w.total * self._size + w.trained * (self._trained_size - self._size)

    @property
    def read_bytes(self) -> int:
        """Bytes of the weights that are read for each sampled token."""
        return self.weight_bytes - self.weights.looked_up * self._size

    @property
    def recomputes(self) -> bool:
        """Whether the update recomputes layers in the backward pass for the longest contexts."""
        h = self._hardware
        if h.activation_checkpointing is not None:
            return h.activation_checkpointing
        given = h.tokens_per_micro_batch or fitting_tokens(self._model.config, h.head_chunk_tokens)
        return self._engine.max_context > given and not self._is_sharded

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        return CacheShape.of(self._model)._replace(dtype=DTYPES[self._hardware.dtype]).token_bytes

    @property
    def episodes_at_once(self) -> int:
        """Maximum number of contexts in the engine at once."""
        r = self._rollout
        of_process = ceil(r.tasks_per_step / self.processes) * r.group_size
        return min(self._engine.slots, r.max_concurrent_episodes, of_process)

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the whole optimizer state over all processes: two moments, a step count per tensor, and a float32
        copy of half-precision weights."""
        w = self.weights
        copies = 4 if self._trained_size < 4 else 0
        return w.trained * (2 * max(4, self._trained_size) + copies) + 4 * w.trained_tensors

    @property
    def saved_bytes(self) -> int:
        """Bytes of the model in a checkpoint: all weights, or an adapter."""
        w = self.weights
        return w.saved * (self._trained_size if w.saved < w.total else self._size)

    @property
    def sync_bytes(self) -> int:
        """Bytes of a version's files, which servers read: an adapter, or all weights, with tied embeddings as two
        tensors."""
        w = self.weights
        return self.saved_bytes + (w.head * self._size if w.saved == w.total and w.is_tied else 0)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint's tensors."""
        w, a = self.weights, self._algorithm
        moving = 4 * w.trained if a.needs_reference and a.reference != "frozen" else 0
        sampler = w.trained * self._trained_size if a.max_staleness else 0
        return self.saved_bytes + self.optimizer_bytes + moving + sampler

    def lines(self) -> list[MemoryLine]:
        """Every line, in no particular order."""
        return [*self._held(), *self._rollout_lines(), *self._update_lines()]

    def peak(self, phase: str) -> int:
        """Bytes used at once in the phase ROLLOUT or UPDATE."""
        return sum(line.num_bytes for line in self.lines() if line.when in (ALWAYS, phase))

    @property
    def need(self) -> int:
        return max(self.peak(ROLLOUT), self.peak(UPDATE))

    def room(self, memory_bytes: int) -> int:
        """Bytes of a device's memory left for keys and values."""
        held = sum(line.num_bytes for line in self._held())
        return int(LARGE_SHARE * memory_bytes) - held

    def fits(self, memory_bytes: int) -> bool:
        return self.need <= LARGE_SHARE * memory_bytes

    def _share(self, num_bytes_each: int) -> int:
        """This process's share of a state with `num_bytes_each` bytes for every trained weight."""
        w = self.weights
        sharded = w.sharded if self._is_sharded else 0
        return (w.trained - sharded + ceil(sharded / self.processes)) * num_bytes_each

    @property
    def _optimizer_here(self) -> int:
        """This process's part of the optimizer state, in bytes."""
        return -(-self.optimizer_bytes * self._share(1) // self.weights.trained)

    def _held(self) -> list[MemoryLine]:
        w, a = self.weights, self._algorithm
        frozen = (w.total - w.trained) * self._size
        lines = [
            MemoryLine(name="weights", num_bytes=frozen + self._share(self._trained_size), basis=EXACT),
            MemoryLine(
                name="optimizer state",
                num_bytes=self._optimizer_here,
                basis=EXACT,
                note="two moments" + (", float32 weights" if self._trained_size < 4 else ""),
            ),
        ]
        own = w.trained * self._trained_size
        if (self._is_sharded or a.max_staleness) and not self._engine.servers:
            why = "fsdp: whole, to sample from" if self._is_sharded else "max_staleness: the sampler's own"
            lines.append(MemoryLine(name="weights of the sampler", num_bytes=own, basis=EXACT, note=why))
        if a.needs_reference:
            moving = 0 if a.reference == "frozen" else 4 * w.trained
            lines.append(
                MemoryLine(name="reference", num_bytes=own + moving, basis=EXACT, note="algorithm.kl_coef > 0")
            )
        return lines

    def _rollout_lines(self) -> list[MemoryLine]:
        if self._engine.servers:
            return []
        one = bucketed(self._engine.max_context)
        tokens = self.episodes_at_once * one
        within = self._engine.kv_budget is not None and self._engine.kv_budget < tokens
        kept = self._engine.kv_budget if within and self._engine.kv_budget else tokens
        each = f"{one * self.kv_token_bytes / GIB:.2g} GiB each"
        note = f"{self.episodes_at_once} contexts of {self._engine.max_context:,} tokens, {each}"
        return [
            MemoryLine(
                name="keys and values",
                num_bytes=kept * self.kv_token_bytes,
                basis=BOUND,
                when=ROLLOUT,
                note=f"engine.kv_budget={kept:,} tokens; {note}" if within else note,
            )
        ]

    def _update_lines(self) -> list[MemoryLine]:
        h, c = self._hardware, self._config
        given = h.tokens_per_micro_batch or fitting_tokens(self._model.config, h.head_chunk_tokens)
        tokens = max(given, self._engine.max_context)
        computed = 2 if h.mixed_precision == "bf16" else max(2, self._size)
        layer = computed * (18 * c.hidden_size + 6 * c.intermediate_size)
        kept, how = c.num_hidden_layers * layer, "every layer's"
        if self.recomputes:
            kept, how = c.num_hidden_layers * self._size * c.hidden_size + layer, "a layer's, and every layer's input"
            if not h.activation_checkpointing and given * c.num_hidden_layers * layer > tokens * kept:
                tokens, kept, how = given, c.num_hidden_layers * layer, "every layer's"
        gradients = self._share(max(4, self._trained_size))
        longer = f"; the longest context, not {given:,}" if tokens > given else ""
        undone = []
        if not self._algorithm.is_on_policy:
            before = self._share(self._trained_size) + self._optimizer_here
            why = "to undo an update that fails: algorithm.mini_batches or num_epochs is more than 1"
            undone = [MemoryLine(name="state before the update", num_bytes=before, basis=EXACT, when=UPDATE, note=why)]
        return [
            *undone,
            MemoryLine(
                name="gradients", num_bytes=gradients, basis=EXACT, when=UPDATE, note="float32 in the optimizer step"
            ),
            MemoryLine(
                name="activations",
                num_bytes=tokens * kept,
                basis=ESTIMATE,
                when=UPDATE,
                note=f"{how}, of {tokens:,} tokens{longer}",
            ),
            MemoryLine(
                name="logits",
                num_bytes=2 * 4 * h.head_chunk_tokens * c.vocab_size,
                basis=ESTIMATE,
                when=UPDATE,
                note=f"{h.head_chunk_tokens:,} tokens x {c.vocab_size:,} words, twice",
            ),
        ]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Pad the columns; the second one is aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [
        [
            cell.rjust(width) if i == 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    return [f"  {'  '.join(row)}".rstrip() for row in padded]
