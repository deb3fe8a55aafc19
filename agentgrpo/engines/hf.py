"""The in-process engine: samples from the live policy, an unmodified transformers causal LM with full attention, or
from a copy of its weights.

Continuous batching: each step is one packed row with one token of every decoding episode and the waiting prefill spans;
episodes come and go between steps. Keys and values are kept across the turns of an episode, and the prompt of a group
is computed once. If graphs are replayed, decoding has a separate forward pass (recorded.py).

    runs        as one asyncio task, started by the first `generate` and finished when no turn is left, so that the
                engine may be used from one event loop after another
    waits       only if no turn can continue: a step runs on the loop's thread, then yields once. If all turns wait for
                contexts to have been idle long enough, the task waits for the time of a step, or for any news
    turn ends   on a stop, its limit, cancellation, an error of a step (EngineError for every active turn; the engine
                stays usable), `release`, `load_weights` or `close`
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgrpo.core.errors import EngineError, boundary
from agentgrpo.engines.attention import engine_mode
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.cache import CacheShape, budget_within, bytes_of
from agentgrpo.engines.counters import EngineStats
from agentgrpo.engines.grammar import Matcher, Support
from agentgrpo.engines.kernels.last_layer import last_layer_rows
from agentgrpo.engines.kernels.linear import PackedLinears
from agentgrpo.engines.limits import refuse_context, refuse_least, refuse_other_attention
from agentgrpo.engines.own_weights import bring_up_to_date, copy_of
from agentgrpo.engines.packing import pack
from agentgrpo.engines.recorded import CudaGraphs, RecordedDecoding, Recorder
from agentgrpo.engines.sampling import Distribution, Noise, StopRules, sample
from agentgrpo.engines.schedule import EngineTurn, Schedule, Step
from agentgrpo.engines.torch_settings import TorchSettings
from agentgrpo.engines.vocabulary import Vocabulary


class HFEngine:
    trainable = True

    def __init__(
        self,
        *,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        run_seed: int,
        slots: int = 128,
        max_context: int | None = None,
        prefill_budget: int = 2048,
        prefill_chunk: int = 512,
        kv_budget: int | None = None,
        deterministic: bool = True,
        cuda_graphs: bool = True,
        own_weights: bool = False,
    ) -> None:
        """model: the policy being trained, unwrapped; each step restores its state exactly.
        own_weights: sample from a copy of the trained weights, which `load_weights` updates, so that the policy may be
        updated in the meantime; frozen weights are shared.
        slots: maximum number of episodes that have keys and values. kv_budget: their maximum total number of tokens;
        null = a third of the device memory that the weights leave free. A token takes 2 * layers * kv heads * head dim
        numbers. Episodes without a place wait; idle episodes give up their places.
        max_context: null = the model's own. prefill_budget: prompt and observation tokens per step, computed in pieces
        of prefill_chunk.
        deterministic: tokens and log-prob bits do not depend on scheduling or batch composition.
        cuda_graphs: on CUDA without `deterministic`, decode steps replay recorded graphs (recorded.py). Their memory
        takes up to slots times the longest context, rounded up, for the lifetime of the engine."""
        config = model.config.get_text_config()
        limit = int(config.max_position_embeddings)
        self.max_context = limit if max_context is None else max_context
        refuse_least(slots=slots, prefill_budget=prefill_budget, prefill_chunk=prefill_chunk)
        refuse_context(self.max_context, limit, kv_budget)
        refuse_other_attention(model, self.max_context)
        self.policy_version, self._torch = 0, TorchSettings.of_run()
        self.stats = EngineStats()
        self._live, self._model = model, copy_of(model) if own_weights else model
        self._modules, self._run_seed = list(self._model.modules()), run_seed
        self._linears = PackedLinears(self._model)
        self._deterministic, self._vocab_size = deterministic, int(config.vocab_size)
        self._tokenizer = tokenizer
        self._rules, self._vocabulary = StopRules(tokenizer), Vocabulary.of(self._vocab_size, tokenizer)
        self._shape = CacheShape.of(self._model)
        if kv_budget is None:
            kv_budget = budget_within(
                bytes_of(self._shape.device),
                weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
                token_bytes=self._shape.token_bytes,
                longest=self.max_context,
            )
        self._new_schedule = partial(
            Schedule,
            slots=slots,
            prefill_budget=prefill_budget,
            prefill_chunk=prefill_chunk,
            kv_budget=kv_budget,
            exact=deterministic,
            stats=self.stats,
        )
        self._schedule = self._new_schedule()
        self._recorded: RecordedDecoding | None = None
        if cuda_graphs and not deterministic and self._shape.device.type == "cuda":
            self._recorded = self._recorded_with(CudaGraphs(), slots)
        self._task: asyncio.Task[None] | None = None
        self._news: asyncio.Event | None = None
        self._closed = False

    def _recorded_with(self, recorder: Recorder, slots: int) -> RecordedDecoding:
        return RecordedDecoding(
            model=self._model,
            shape=self._shape,
            slots=slots,
            max_context=self.max_context,
            recorder=recorder,
            stats=self.stats,
        )

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        turn = self._turn(token_ids, sampling, key)
        if sampling.grammar:
            turn.held = await asyncio.to_thread(Matcher, sampling.grammar, self._tokenizer)
        self._schedule.add(turn)
        self._wake()
        try:
            return await turn.future
        except BaseException:
            self._schedule.end(turn, well=False)
            raise

    def _check(self, token_ids: Sequence[int]) -> None:
        if self._closed:
            raise EngineError("the engine is closed; make a new one", kind="closed")
        low, high = min(token_ids, default=-1), max(token_ids, default=-1)
        if low < 0 or high >= self._vocab_size:
            raise EngineError(
                f"a context of {len(token_ids)} tokens from {low} to {high} was given; it needs at least one, each "
                f"from 0 to {self._vocab_size - 1}; check that renderer and model share one vocabulary",
                kind="bad_tokens",
            )

    def _turn(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> EngineTurn:
        self._check(token_ids)
        tokens = list(token_ids)
        if len(tokens) >= self.max_context:
            raise EngineError(
                f"generate: a context of {len(tokens)} tokens was given, max_context is {self.max_context} and one "
                "token must be left to sample; end the episode before, or raise max_context",
                kind="context_overflow",
            )
        return EngineTurn(
            key=key,
            tokens=tokens,
            max_total=min(len(tokens) + sampling.max_tokens, self.max_context),
            distribution=Distribution.of(sampling),
            noise=Noise(self._run_seed, key),
            stop=self._rules.rule(sampling.stop, sampling.stop_token_ids),
            future=asyncio.get_running_loop().create_future(),
            queued_at=time.monotonic(),
            num_given=len(tokens),
            opening=sampling.opening,
        )

    def release(self, key: SeedKey) -> None:
        turn = self._schedule.turn(key.episode)
        if turn is not None:
            self._fail([turn], f"episode {key.episode} was released while it was generating")
        self._schedule.release(key.episode)
        if self._schedule.num_contexts == 0:  # free the memory for other uses
            self._linears.drop()
        self._wake()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Score with one forward pass through transformers' own attention, over all rows of the output layer,
        independent of the engine's own machinery."""
        self._check(token_ids)
        with boundary(EngineError, "score"), self._torch.in_force(), engine_mode(self._model, attention="sdpa"):
            ids = torch.tensor([token_ids], device=self._model.device)
            logprobs = self._model(input_ids=ids, use_cache=False).logits[0, :-1].double().log_softmax(-1)
            scores: list[float] = logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()
        return scores

    async def load_weights(self, policy_version: int) -> None:
        """Copy the live policy's weights if the engine has its own copy; else it already has them. Everything computed
        with older weights is dropped. Turns still being generated fail."""
        self._drop("the weights were replaced during generation")
        bring_up_to_date(self._model, self._live)
        if self._recorded is not None:
            self._recorded.check_weights()
        self.policy_version = policy_version

    async def close(self) -> None:
        self._drop("the engine was closed during generation")
        self._recorded, self._closed = None, True

    def _drop(self, reason: str) -> None:
        self._fail(self._schedule.turns, reason)
        self._linears.drop()
        self._schedule = self._new_schedule()

    def _fail(self, turns: Sequence[EngineTurn], message: str, *, kind: str | None = None) -> None:
        for turn in turns:
            self._schedule.end(turn, well=False)
            turn.fail(EngineError(message, kind=kind))

    def _wake(self) -> None:
        """Start a task if there is work, or make the running one look again. It ends with the work, or when its loop
        cancels it."""
        if self._news is not None:
            self._news.set()
        if self._schedule.turns and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="agentgrpo-engine")

    async def _run(self) -> None:
        step_s = 0.0
        try:
            while self._schedule.turns:
                started, step = time.monotonic(), Step()
                try:
                    with boundary(EngineError, "engine step"):
                        step = self._schedule.next_step()
                        if step.units:
                            self._step(step)
                except EngineError as e:
                    self._fail(self._schedule.active, str(e), kind=e.kind)
                    for context in step.contexts:  # partly computed
                        self._schedule.evict(context)
                if step.units:
                    step_s = time.monotonic() - started
                    await asyncio.sleep(0)
                else:
                    await self._wait(step_s)
        except asyncio.CancelledError:
            self._fail(self._schedule.turns, "the engine's task was cancelled")
            raise

    async def _wait(self, timeout_s: float) -> None:
        self._news = asyncio.Event()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), timeout_s)
        finally:
            self._news = None

    def _step(self, step: Step) -> None:
        """Compute the step, draw tokens and pass them to the turns."""
        tokens, logprobs = self._compute(step)
        drawing = step.drawing
        self._schedule.computed(step)
        now = time.monotonic()
        for turn, token, logprob in zip(drawing, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                self._refuse(turn)
            elif (reason := turn.take(token, logprob)) is not None:
                self._schedule.end(turn, well=True)
                turn.finish(reason, self.policy_version, now)

    def _compute(self, step: Step) -> tuple[list[int], list[float]]:
        """Run the step; return a token and its log-prob for each turn that draws one."""
        now = time.monotonic()
        for unit in step.units:
            if unit.turn.started_at is None:
                unit.turn.started_at = now
        drawing = step.drawing
        with self._torch.in_force(), engine_mode(self._model, modules=self._modules):
            for context in step.contexts:
                context.held.reserve(self._shape, context.capacity)
            for copy in step.copies:
                copy.target.held.copy_prefix(copy.source, copy.tokens)
            logits = self._packed(step) if self._recorded is None else self._recorded.logits(step, self._packed)
            return self._draw(logits, drawing)

    def _packed(self, step: Step) -> Tensor:
        """Return [n, V] for the turns that draw a token, computed as one packed row."""
        packed = pack(step, self._shape, deterministic=self._deterministic)
        narrowed = nullcontext() if packed.plan.last is None else last_layer_rows(self._model, packed.logits_at)
        with narrowed, self._linears.in_use():
            out = self._model(
                input_ids=packed.input_ids,
                position_ids=packed.position_ids,
                use_cache=False,
                logits_to_keep=packed.logits_at,
                plan=packed.plan,
            )
        logits: Tensor = out.logits[0, : len(step.drawing)]
        return logits

    def _draw(self, logits: Tensor, turns: Sequence[EngineTurn]) -> tuple[list[int], list[float]]:
        """logits [n, V] -> the next token of n turns and its log-prob."""
        uniforms = [t.noise.uniform(len(t.logprobs)) for t in turns]
        logits = self._vocabulary.within(logits)
        if support := Support.of_next([t.held for t in turns]):
            logits = support.to(logits.device).hold(logits.clone())
        return sample(logits, [t.distribution for t in turns], uniforms)

    def _refuse(self, turn: EngineTurn) -> None:
        """Fail the turn, because no token can be drawn from logits that are not finite, and release its context."""
        self._fail(
            [turn],
            f"the logits after {len(turn.tokens)} tokens of episode {turn.key.episode} are not finite; weights "
            f"(version {self.policy_version}) must give finite logits; go back to an earlier checkpoint",
            kind="non_finite",
        )
        self._schedule.release(turn.key.episode)
