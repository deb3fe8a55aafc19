"""The in-process engine: samples from the live policy, an unmodified transformers causal LM with full attention.

Continuous batching: each step is one packed row with one token of every decoding episode and the waiting prefill
spans; episodes come and go between steps. Keys and values stay across the turns of an episode, the prompt of a group
is computed once.

    runs        as one asyncio task, started by the first `generate` and gone when no turn is left, so that the engine
                may be used from one event loop after another
    waits for   nothing: a turn that waits for a tool is no turn; a step runs on the loop's thread, then yields once
    ends        a turn: a stop, its limit, cancellation, an error of a step (EngineError for every turn under way; the
                engine stays usable), `release`, `load_weights`, `close`
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agentgrpo.engines.attention import engine_mode
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.engines.packing import bucketed, pack
from agentgrpo.engines.sampling import Distribution, Noise, sample
from agentgrpo.engines.schedule import Schedule, Step, Turn
from agentgrpo.engines.slots import SlotPool
from agentgrpo.engines.stops import StopRules
from agentgrpo.errors import ConfigError, EngineError, boundary


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
        deterministic: bool = True,
    ) -> None:
        """model: the policy that is being trained, unwrapped; between steps it is left exactly as it was found.
        slots: episodes that run at once; each takes 2 * layers * kv heads * head dim * max_context numbers at most.
        max_context: null = the model's own. prefill_budget: prompt and observation tokens per step.
        deterministic: tokens and log-prob bits do not depend on scheduling or batch composition."""
        config = model.config.get_text_config()
        limit = int(config.max_position_embeddings)
        self.max_context = limit if max_context is None else max_context
        if slots < 1 or prefill_budget < 1 or not 2 <= self.max_context <= limit:
            raise ConfigError(
                f"engine: slots={slots}, prefill_budget={prefill_budget}, max_context={max_context} were given; slots "
                f"and prefill_budget must be at least 1, max_context between 2 and the model's own {limit}"
            )
        layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
        if layer_types != {"full_attention"} or not model._can_set_attn_implementation():
            raise ConfigError(
                f"engine: {type(model).__name__} with {', '.join(sorted(layer_types))} layers was given; the hf engine "
                "runs models whose layers all use full attention through transformers' attention interface (Qwen, "
                "Llama, ...); choose such a model, or an engine that serves this one"
            )
        self.policy_version = 0
        self._model, self._run_seed, self._deterministic = model, run_seed, deterministic
        self._num_slots, self._prefill_budget, self._vocab_size = slots, prefill_budget, int(config.vocab_size)
        self._rules = StopRules(tokenizer)
        num_heads = int(config.num_attention_heads)
        self._pool = SlotPool(
            num_layers=int(config.num_hidden_layers),
            num_kv_heads=int(getattr(config, "num_key_value_heads", None) or num_heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // num_heads),
            dtype=model.dtype,
            device=model.device,
            max_slots=slots,
            max_tokens=bucketed(self.max_context),
        )
        self._schedule = Schedule(slots=slots, prefill_budget=prefill_budget)
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        turn = self._turn(token_ids, sampling, key)
        self._schedule.add(turn)
        self._start()
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

    def _turn(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Turn:
        self._check(token_ids)
        tokens = list(token_ids)
        if len(tokens) >= self.max_context:
            raise EngineError(
                f"generate: a context of {len(tokens)} tokens was given, max_context is {self.max_context} and one "
                "token must be left to sample; end the episode before, or raise max_context",
                kind="context_overflow",
            )
        return Turn(
            key=key,
            tokens=tokens,
            max_total=min(len(tokens) + sampling.max_tokens, self.max_context),
            distribution=Distribution.of(sampling),
            noise=Noise(self._run_seed, key),
            stop=self._rules.rule(sampling.stop, sampling.stop_token_ids),
            future=asyncio.get_running_loop().create_future(),
            queued_at=time.monotonic(),
            num_given=len(tokens),
        )

    def release(self, key: SeedKey) -> None:
        turn = self._schedule.turn(key.episode)
        if turn is not None:
            self._fail([turn], f"episode {key.episode} was released while it was generating")
        if self._schedule.release(key.episode) is not None:
            self._start()

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """By one forward pass with transformers' own attention: none of the engine's machinery takes part."""
        self._check(token_ids)
        with boundary(EngineError, "score"), engine_mode(self._model, attention="sdpa"):
            ids = torch.tensor([token_ids], device=self._model.device)
            logprobs = self._model(input_ids=ids, use_cache=False).logits[0, :-1].double().log_softmax(-1)
            scores: list[float] = logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()
        return scores

    async def load_weights(self, policy_version: int) -> None:
        """The weights are the live policy's, so there is nothing to load: what was computed with older ones is dropped.
        Nothing should be generating by now; what is, fails."""
        self._drop("the weights were replaced during generation")
        self.policy_version = policy_version

    async def close(self) -> None:
        self._drop("the engine was closed during generation")
        self._closed = True
        self._pool.clear()

    def _drop(self, reason: str) -> None:
        self._fail(self._schedule.turns, reason)
        self._schedule = Schedule(slots=self._num_slots, prefill_budget=self._prefill_budget)

    def _fail(self, turns: Sequence[Turn], message: str, *, kind: str | None = None) -> None:
        for turn in turns:
            self._schedule.end(turn, well=False)
            turn.fail(EngineError(message, kind=kind))

    def _start(self) -> None:
        """Have a task if there is work. It ends with the work, or cancelled with its loop."""
        if self._schedule.has_work and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="agentgrpo-engine")

    async def _run(self) -> None:
        try:
            while self._schedule.has_work:
                try:
                    with boundary(EngineError, "engine step"):
                        self._step()
                except EngineError as e:
                    self._fail(self._schedule.active, str(e), kind=e.kind)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._fail(self._schedule.turns, "the engine's task was cancelled")
            raise

    def _step(self) -> None:
        """Choose, compute, draw, hand out."""
        step = self._schedule.next_step()
        tokens, logprobs = self._compute(step)
        self._schedule.computed(step)
        now = time.monotonic()
        for turn, token, logprob in zip(step.drawing, tokens, logprobs, strict=True):
            if not math.isfinite(logprob):
                self._refuse(turn)
            elif (reason := turn.take(token, logprob)) is not None:
                self._schedule.end(turn, well=True)
                turn.finish(reason, self.policy_version, now)

    def _compute(self, step: Step) -> tuple[list[int], list[float]]:
        """Run the step; returns a token and its log-prob for each turn that draws one."""
        now = time.monotonic()
        turns = step.turns
        for turn in turns:
            if turn.started_at is None:
                turn.started_at = now
        with engine_mode(self._model):
            self._pool.reserve(1 + max(t.held.slot for t in turns), bucketed(max(len(t.tokens) for t in turns)))
            for copy in step.copies:
                self._pool.copy_prefix(*copy)
            packed = pack(step, self._pool, deterministic=self._deterministic)
            logits = self._model(
                input_ids=packed.input_ids,
                position_ids=packed.position_ids,
                use_cache=False,
                logits_to_keep=packed.logits_at,
                plan=packed.plan,
            ).logits
            return self._draw(logits[0, : len(step.drawing)], step.drawing)

    def _draw(self, logits: Tensor, turns: Sequence[Turn]) -> tuple[list[int], list[float]]:
        """logits [n, V] -> the next token of n turns and its log-prob."""
        uniforms = [t.noise.uniform(len(t.logprobs)) for t in turns]
        return sample(logits, [t.distribution for t in turns], uniforms)

    def _refuse(self, turn: Turn) -> None:
        """No token can be drawn from logits that are not finite; what is in the slot must not reach its next owner."""
        self._fail(
            [turn],
            f"the logits after {len(turn.tokens)} tokens of episode {turn.key.episode} are not finite; weights "
            f"(version {self.policy_version}) must give finite logits; go back to an earlier checkpoint",
            kind="non_finite",
        )
        slot = self._schedule.release(turn.key.episode)
        if slot is not None:
            self._pool.scrub(slot)
