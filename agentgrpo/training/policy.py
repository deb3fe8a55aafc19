"""The trainable weights: a transformers causal language model and its tokenizer, scored over packed rows.

The model's own `forward` is not used: its base model gives the hidden states, and the output embeddings are applied
only where a log-probability is wanted. `Policy` checks once, on a few tokens, that this is the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentgrpo.core.errors import AgentGrpoError, ConfigError
from agentgrpo.core.types import TrainingSample
from agentgrpo.engines.grammar import Support
from agentgrpo.engines.kernels.last_layer import decoder_layers
from agentgrpo.engines.vocabulary import Vocabulary
from agentgrpo.grpo.aggregation import token_mean
from agentgrpo.grpo.packing import PackedBatch, pack
from agentgrpo.training.adapters import CONFIG as ADAPTER
from agentgrpo.training.adapters import adapter_tensors, has_adapter, save_adapter
from agentgrpo.training.attention import PackedLayout, packed_attention
from agentgrpo.training.head import CHUNK_TOKENS, Head
from agentgrpo.training.plausible import refuse_non_finite_weights, refuse_outer_weights, refuse_unheld_weights
from agentgrpo.training.remote_code import trusted_class, trusted_options

# --- The input embeddings, with a gradient that goes straight to the rows that were looked up.
#
# Autograd would make a dense [V, hidden] gradient for every micro-batch and add it to the one that is there: for a wide
# vocabulary more memory, and more time, than all layers together.


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor, padding: int | None) -> Tensor:
        ctx.weight, ctx.ids, ctx.padding = weight, ids, padding
        return weight.detach().index_select(0, ids)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        weight: Tensor = ctx.weight
        (gradient,) = gradients
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        if ctx.padding is not None:  # never trained, as nn.Embedding has it
            gradient = gradient.masked_fill((ctx.ids == ctx.padding)[:, None], 0)
        weight.grad.index_add_(0, ctx.ids, gradient.to(weight.grad.dtype))
        return None, None, None


def look_up(embedding: nn.Module, ids: Tensor) -> Tensor:
    """The embeddings [T, hidden] of `ids` [T]. Backward adds to the weight's `grad`."""
    if type(embedding) is not nn.Embedding or not embedding.weight.requires_grad or not torch.is_grad_enabled():
        found: Tensor = embedding(ids)
        return found
    embedded: Tensor = _LookUp.apply(embedding.weight, ids, embedding.padding_idx)  # type: ignore[no-untyped-call]
    return embedded


# --- How many tokens a forward pass may have.


def fitting_tokens(config: PretrainedConfig, head_chunk_tokens: int) -> int:
    """Input tokens of a micro-batch such that what its forward pass keeps for the backward pass and a chunk's logits
    take somewhat more than a GiB in fp32; 1024 at least, below which the products get narrow, and 4096 at most, beyond
    which nothing is gained. Of a token one decoder layer keeps 18 vectors of hidden size and 6 of the feed-forward's
    (measured, Qwen2 with plain products)."""
    model = config.get_text_config()
    per_token: int = 4 * model.num_hidden_layers * (18 * model.hidden_size + 6 * model.intermediate_size)
    logits: int = 4 * head_chunk_tokens * model.vocab_size
    return max(1024, min(4096, (9 * 2**27 - logits) // per_token))


# --- Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174): a
# decoder layer keeps nothing but its input, and is computed again when its gradient is due.
#
# transformers' own switch works in training mode only, and there dropout would make the trainer score something else
# than the engine sampled. It would also compute again without what was in place around the forward pass.


@contextmanager
def recomputed_layers(model: PreTrainedModel, in_place: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside, `model` runs with its decoder layers checkpointed; their second run is inside `in_place()`. Raises
    ConfigError for a model whose layers are not where transformers has them."""
    layers = decoder_layers(model)
    if layers is None:
        raise ConfigError(
            f"hardware.activation_checkpointing=true with {type(model).__name__}, which has no list of decoder layers; "
            f"set it to false or choose a model like Qwen, Llama and Mistral"
        )
    for layer in layers:
        layer.forward = partial(
            checkpoint,
            layer.forward,
            use_reentrant=False,
            preserve_rng_state=False,  # nothing is drawn in eval mode
            context_fn=lambda: (nullcontext(), in_place()),
        )
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # the class's own is back


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KNOWS_FORMAT = "agentgrpo_knows_format"


class Policy:
    """`model` stays in eval mode: with dropout the trainer would not score what the engine sampled from.

    Raises ConfigError for a model whose log-probabilities the packed forward would not reproduce.
    """

    def __init__(self, *, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self._check_packed_forward()
        self.vocabulary = Vocabulary.of(model.get_output_embeddings().weight.shape[0], tokenizer)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of log-probabilities and losses: the weights' own, at least float32."""
        return torch.promote_types(self.model.dtype, torch.float32)

    @property
    def is_half(self) -> bool:
        """Whether the weights are in half precision."""
        return bool(self.model.dtype != self.dtype)

    @property
    def ends(self) -> tuple[str, tuple[int, ...]]:
        """What the model was trained to end its turns with, and the file that says so: generation_config.json, or else
        config.json."""
        for name in ("generation_config", "config"):
            eos = getattr(getattr(self.model, name, None), "eos_token_id", None)
            if eos is not None:
                return f"{name}.json", tuple(eos) if isinstance(eos, list | tuple) else (eos,)
        return "config.json", ()

    def hidden_states(self, batch: PackedBatch, *, recompute: bool = False) -> Tensor:
        """[M, hidden]: the state that predicts each target of `batch`, which is on this policy's device. recompute:
        keep less for the backward pass (training.policy)."""
        layout = PackedLayout(batch.rows, self.device, read=torch.unique(batch.loss_positions))
        in_place = partial(packed_attention, self.model, layout)
        with in_place(), recomputed_layers(self.model, in_place) if recompute else nullcontext():
            output = self.model.base_model(
                inputs_embeds=look_up(self.model.get_input_embeddings(), batch.input_ids)[None],
                position_ids=batch.position_ids[None],
                use_cache=False,
                packed_layout=layout,
            )
        states: Tensor = output.last_hidden_state[0]
        return states.index_select(0, batch.loss_positions)

    def head(self, *, temperature: float = 1.0, chunk_tokens: int = CHUNK_TOKENS, all_rows: bool = False) -> Head:
        """What scores hidden states, and gives their gradient. all_rows: also those that stand for no token, as the
        model itself has it."""
        linear = self.model.get_output_embeddings()
        return Head(
            linear,
            temperature=temperature,
            chunk_tokens=chunk_tokens,
            dtype=self.dtype,
            vocabulary=None if all_rows else self.vocabulary,
        )

    def support(self, batch: PackedBatch) -> Support | None:
        """The tokens that could have been drawn in the place of the batch's targets; None = all tokens, everywhere.
        Raises EngineError as Support.of_turns does."""
        if not batch.grammars:
            return None
        targets = batch.targets.tolist()
        turns = [(first, grammar, targets[first : first + count]) for first, count, grammar in batch.grammars]
        return Support.of_turns(turns, self.tokenizer).to(self.device)

    @torch.no_grad()
    def logprobs(
        self,
        samples: Sequence[TrainingSample],
        *,
        temperature: float = 1.0,
        tokens_per_batch: int = 4096,
        chunk_tokens: int = CHUNK_TOKENS,
        all_rows: bool = False,
    ) -> list[tuple[TrainingSample, Tensor]]:
        """Each sample with the log-probs [its loss tokens] of its loss tokens, in the canonical order of `pack`.
        Samples without a loss token are left out. all_rows: as `head` has it."""
        scored: list[tuple[TrainingSample, Tensor]] = []
        head = self.head(temperature=temperature, chunk_tokens=chunk_tokens, all_rows=all_rows)
        for batch in pack(samples, tokens_per_batch=tokens_per_batch, token_weights=token_mean):
            moved = batch.to(self.device, self.dtype)
            logprobs = head.score_all(self.hidden_states(moved), moved.targets, self.support(moved)).logprobs
            scored += zip(batch.samples, torch.split(logprobs, list(batch.num_tokens)), strict=True)
        return scored

    @property
    def saved(self) -> list[Tensor]:
        """The weights that `save` writes."""
        return list(adapter_tensors(self.model).values()) or list(self.model.parameters())

    @property
    def knows_format(self) -> str | None:
        """The name of what demonstrations have taught it: what there is to do and how it is written. In its
        config.json, so that whoever trains it further finds it there."""
        return getattr(self.model.config, KNOWS_FORMAT, None)

    @knows_format.setter
    def knows_format(self, name: str | None) -> None:
        setattr(self.model.config, KNOWS_FORMAT, name)

    def save(self, directory: Path | str, weights: Mapping[str, Tensor] | None = None) -> None:
        """A plain transformers folder (safetensors and tokenizer) that AutoModelForCausalLM loads; of a model with an
        adapter only that, which it loads where peft is installed and the base still in its place. weights: the model's
        whole state by name, where the model has only its share (sharding.gathered)."""
        if has_adapter(self.model):
            save_adapter(self.model, Path(directory), weights)
        else:
            self.model.save_pretrained(directory, state_dict=weights)
        self.tokenizer.save_pretrained(directory)

    @torch.no_grad()
    def _check_packed_forward(self) -> None:
        """Compare with the model's own forward on two rows that share a prompt."""
        output = self.model.get_output_embeddings()
        if type(output) is not nn.Linear:
            raise ConfigError(
                f"model type {self.model.config.model_type!r}: its output embeddings are a {type(output).__name__}; a "
                f"plain Linear layer is allowed, as Qwen, Llama and Mistral have it; choose another model"
            )
        vocabulary = output.weight.shape[0]
        rows = [tuple(i % vocabulary for i in ids) for ids in ((1, 2, 3, 4, 5, 6), (1, 2, 3, 5, 7))]
        samples = [
            TrainingSample(
                group_id="probe",
                sample_index=i,
                token_ids=ids,
                loss_mask=(0, 0, 0) + (1,) * (len(ids) - 3),
                rollout_logprobs=(0.0,) * len(ids),
                advantage=0.0,
                num_prompt_tokens=3,
                policy_version=0,
            )
            for i, ids in enumerate(rows)
        ]
        for sample, packed in self.logprobs(samples, all_rows=True):
            ids = torch.tensor([sample.token_ids], device=self.device)
            own = self.model(input_ids=ids, use_cache=False).logits[0, 2:-1].to(self.dtype).log_softmax(-1)
            plain = own.gather(1, ids[0, 3:, None])[:, 0]
            tolerance = 0.2 if self.is_half else 1e-3
            if not torch.allclose(packed, plain, rtol=tolerance, atol=tolerance):
                raise ConfigError(
                    f"model type {self.model.config.model_type!r}: its logits are not its output embeddings applied to "
                    f"causal hidden states (log-probs differ by {float((packed - plain).abs().max()):.2g}); allowed "
                    f"are decoders like Qwen, Llama and Mistral; choose another model"
                )


def load_policy(path: Path | str, *, dtype: str = "float32", device: str = "cpu", code: Path | None = None) -> Policy:
    """The policy in a transformers folder (or of a hub name that is already cached). Never runs code that lies in
    `path` and never unpickles. code: a folder whose code makes the model, with its configuration and its tokenizer;
    `path` then gives the weights. Raises ConfigError."""
    if dtype not in DTYPES:
        raise ConfigError(f"hardware.dtype={dtype}: allowed are {', '.join(DTYPES)}")
    if (Path(path).is_absolute() or str(path).startswith(".")) and not Path(path).is_dir():
        raise ConfigError(
            f"model {str(path)!r}: there is no such folder, nor a model of that name in the hub's cache; give a folder "
            "with config.json and safetensors"
        )
    if Path(path, ADAPTER).is_file():  # transformers would load its base, unverified, and take it out of training
        raise ConfigError(
            f"model {str(path)!r} is an adapter; give a whole model: agentgrpo export --ckpt PATH --merge OUT makes one"
        )
    try:
        refuse_outer_weights(Path(path))
        if code is None:
            refuse_unheld_weights(Path(path))
        make = AutoModelForCausalLM if code is None else trusted_class(code)
        model, loading = make.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            use_safetensors=True,
            output_loading_info=True,
            trust_remote_code=False,  # the class and the configuration are those of `code` already
            **trusted_options(code),
        )
        tokenizer = AutoTokenizer.from_pretrained(code or path, trust_remote_code=code is not None)
    except AgentGrpoError:
        raise
    except Exception as e:  # of libraries that expect the files of a model, and raise whatever comes
        reason = next(iter(str(e).splitlines()), "") or type(e).__name__
        raise ConfigError(
            f"model {str(path)!r} cannot be loaded: {reason} "
            f"Give a folder with config.json, safetensors and a tokenizer"
        ) from e
    if missing := sorted(loading["missing_keys"]):
        # transformers would go on with random numbers in their place.
        raise ConfigError(
            f"model {str(path)!r}: {len(missing)} weights are missing, such as {missing[0]!r}; give a whole checkpoint"
        )
    refuse_non_finite_weights(Path(path), dict(model.state_dict()))
    return Policy(model=model.to(_available(device)), tokenizer=tokenizer)


def init_policy(
    *,
    tokenizer: PreTrainedTokenizerBase,
    hidden_size: int = 128,
    num_layers: int = 3,
    intermediate_size: int = 256,
    num_heads: int = 4,
    num_kv_heads: int = 4,
    max_positions: int = 512,
    rope_theta: float = 10_000.0,
    shared_embedding: float = 0.0,
    seed: int = 0,
    device: str = "cpu",
) -> Policy:
    """A new Qwen3 with tied embeddings, a function of `seed` alone (the global generator is left as it was).
    head_dim = hidden_size / num_heads. shared_embedding: standard deviation of a vector that all embeddings have in
    common, whatever the token: queries and keys have no bias, so that without one no head can look at the token before
    until training has made one. Raises ConfigError for sizes that do not divide."""
    if hidden_size % (2 * num_heads) or num_heads % num_kv_heads:
        raise ConfigError(
            f"hidden_size={hidden_size}, num_heads={num_heads}, num_kv_heads={num_kv_heads}: hidden_size must be a "
            f"multiple of 2 * num_heads and num_heads one of num_kv_heads"
        )
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        intermediate_size=intermediate_size,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=hidden_size // num_heads,
        max_position_embeddings=max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": rope_theta},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        if shared_embedding:
            with torch.no_grad():
                model.get_input_embeddings().weight.add_(shared_embedding * torch.randn(hidden_size))
    return Policy(model=model.to(_available(device)), tokenizer=tokenizer)


def _available(device: str) -> torch.device:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as e:
        reason = str(e).splitlines()[0].split(". ")[0]
        raise ConfigError(f"device {device!r}: {reason}; allowed is a device of this machine, such as cpu") from e
    return torch.device(device)
