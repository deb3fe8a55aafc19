"""The trainable weights: a transformers causal language model and its tokenizer, scored over packed rows.

The model's own `forward` is not used: its base model computes the hidden states, and the output embeddings are applied
only where a log-probability is needed. `Policy` checks once, on a few tokens, that the result is the same.
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

# --- The input embeddings, whose gradient is added directly to the rows that were looked up.
#
# Autograd would create a dense [V, hidden] gradient for every micro-batch and add it to the existing one: for a wide
# vocabulary this takes more memory and time than all layers together.


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
        if ctx.padding is not None:  # never trained, as in nn.Embedding
            gradient = gradient.masked_fill((ctx.ids == ctx.padding)[:, None], 0)
        weight.grad.index_add_(0, ctx.ids, gradient.to(weight.grad.dtype))
        return None, None, None


def look_up(embedding: nn.Module, ids: Tensor) -> Tensor:
    """Return the embeddings [T, hidden] of `ids` [T]. The backward pass adds to the weight's `grad`."""
    if type(embedding) is not nn.Embedding or not embedding.weight.requires_grad or not torch.is_grad_enabled():
        found: Tensor = embedding(ids)
        return found
    embedded: Tensor = _LookUp.apply(embedding.weight, ids, embedding.padding_idx)  # type: ignore[no-untyped-call]
    return embedded


# --- The maximum number of tokens of a forward pass.


def fitting_tokens(config: PretrainedConfig, head_chunk_tokens: int) -> int:
    """Return the number of input tokens of a micro-batch for which the activations kept for the backward pass plus the
    logits of a chunk take somewhat more than a GiB in fp32. At least 1024, below which the products get narrow; at most
    4096, beyond which nothing is gained. One decoder layer keeps 18 vectors of hidden size and 6 of the feed-forward
    size per token (measured, Qwen2 with plain products)."""
    model = config.get_text_config()
    per_token: int = 4 * model.num_hidden_layers * (18 * model.hidden_size + 6 * model.intermediate_size)
    logits: int = 4 * head_chunk_tokens * model.vocab_size
    return max(1024, min(4096, (9 * 2**27 - logits) // per_token))


# --- Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost", arXiv 1604.06174): a
# decoder layer keeps only its input and is recomputed when its gradient is needed.
#
# The switch of transformers works in training mode only, in which dropout would make the trainer score another
# distribution than the engine sampled. It would also recompute outside the contexts of the forward pass.


@contextmanager
def recomputed_layers(model: PreTrainedModel, in_place: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Inside the block, `model` runs with checkpointed decoder layers; they are recomputed inside `in_place()`. Raises
    ConfigError if the model's layers are not at the usual place in transformers."""
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
            preserve_rng_state=False,  # no random numbers are drawn in eval mode
            context_fn=lambda: (nullcontext(), in_place()),
        )
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # restores the class's own forward


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KNOWS_FORMAT = "agentgrpo_knows_format"


class Policy:
    """A model and its tokenizer. `model` stays in eval mode: with dropout the trainer would not score the distribution
    that the engine sampled from.

    Raises ConfigError for a model whose log-probabilities the packed forward does not reproduce.
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
        """The dtype of log-probabilities and losses: the dtype of the weights, but at least float32."""
        return torch.promote_types(self.model.dtype, torch.float32)

    @property
    def is_half(self) -> bool:
        """Whether the weights are in half precision."""
        return bool(self.model.dtype != self.dtype)

    @property
    def ends(self) -> tuple[str, tuple[int, ...]]:
        """The file that declares the model's end-of-turn tokens (generation_config.json or else config.json), and these
        tokens. Raises ConfigError if one of them is not an id of the model's."""
        for name in ("generation_config", "config"):
            eos = getattr(getattr(self.model, name, None), "eos_token_id", None)
            if eos is not None:
                ids = tuple(eos) if isinstance(eos, list | tuple) else (eos,)
                if not all(type(i) is int and 0 <= i < self.vocabulary.rows for i in ids):
                    raise ConfigError(
                        f"{name}.json: eos_token_id={eos}; ids of tokens from 0 to {self.vocabulary.rows - 1} are "
                        "allowed; correct it"
                    )
                return f"{name}.json", ids
        return "config.json", ()

    def hidden_states(self, batch: PackedBatch, *, recompute: bool = False) -> Tensor:
        """Return [M, hidden]: the state that predicts each target of `batch`, which must be on this policy's device.
        recompute: keep fewer activations for the backward pass (activation checkpointing)."""
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
        """Return the head that scores hidden states and computes their gradient. all_rows: include the rows that stand
        for no token, like the model itself."""
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
        """Return each sample with the log-probs [its loss tokens] of its loss tokens, in the canonical order of `pack`.
        Samples without a loss token are left out. all_rows: see `head`."""
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
        """Name of the task and format that demonstrations have taught the model. The name is stored in config.json for
        later training."""
        return getattr(self.model.config, KNOWS_FORMAT, None)

    @knows_format.setter
    def knows_format(self, name: str | None) -> None:
        setattr(self.model.config, KNOWS_FORMAT, name)

    def save(self, directory: Path | str, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write a plain transformers folder (safetensors and tokenizer) that AutoModelForCausalLM loads. For a model
        with an adapter, write only the adapter; AutoModelForCausalLM loads it if peft is installed and the base is
        still at its path. weights: the model's whole state by name, if the model holds only its share
        (sharding.gathered)."""
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
    """Load the policy from a transformers folder, or by a hub name that is already cached. Never runs code from `path`
    and never unpickles. code: a folder whose code defines the model class, configuration and tokenizer; `path` then
    gives only the weights. Raises ConfigError."""
    if dtype not in DTYPES:
        raise ConfigError(f"hardware.dtype={dtype}: allowed are {', '.join(DTYPES)}")
    if (Path(path).is_absolute() or str(path).startswith(".")) and not Path(path).is_dir():
        raise ConfigError(
            f"model {str(path)!r}: there is no such folder, and the hub's cache has no model of that name; give a "
            "folder with config.json and safetensors"
        )
    if Path(path, ADAPTER).is_file():  # transformers would load its base unverified and freeze it
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
            trust_remote_code=False,  # class and configuration already come from `code`
            **trusted_options(code),
        )
        tokenizer = AutoTokenizer.from_pretrained(code or path, trust_remote_code=code is not None)
    except AgentGrpoError:
        raise
    except Exception as e:  # libraries raise any exception if the files are not those of a model
        reason = next(iter(str(e).splitlines()), "") or type(e).__name__
        raise ConfigError(
            f"model {str(path)!r} cannot be loaded: {reason} "
            f"Give a folder with config.json, safetensors and a tokenizer"
        ) from e
    if missing := sorted(loading["missing_keys"]):
        # transformers would replace them with random numbers.
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
    """Create a Qwen3 with tied embeddings, as a function of `seed` alone (the global generator is left unchanged).
    head_dim = hidden_size / num_heads. shared_embedding: standard deviation of a random vector added to the embeddings
    of all tokens. Queries and keys have no bias, so without this vector no head can attend to the previous token until
    training has created one. Raises ConfigError for sizes that do not divide."""
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
        raise ConfigError(f"device {device!r}: {reason}; give a device that this machine has, such as cpu") from e
    return torch.device(device)
