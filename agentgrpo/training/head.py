"""A language model's output layer over a wide vocabulary: log-probs, entropy and gradient on one buffer of logits.

    z = hidden @ W^T + b                           [m, V]: the only array of that size
    e = exp((z - max z) / T), s = sum of e         overwrites z
    log p(target) = (z[target] - max z) / T - log s
    dL/dz = -g / (T s) * (e - s at the target)     with g = dL / d log p(target), one number per token
          - h / (T s) * e (log e - log s + H)      with h = dL / d entropy H, if the loss depends on H

A token's factor is not multiplied into its V numbers but applied to the other side of the two products that follow,
dL/dhidden = dL/dz @ W and dL/dW = dL/dz^T @ hidden. So the three products are nearly all of the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agentgrpo.engines.grammar import Support
from agentgrpo.engines.vocabulary import NEVER, Vocabulary

CHUNK_TOKENS = 256
"""Number of tokens whose logits exist at a time. Smaller chunks make the products narrow; larger ones take more memory
and are hardly faster."""
TILE_BYTES = {"cpu": 2**20}
"""Size of the rows processed together, so that they stay in the cache; other devices process all rows at once."""


class TokenScores(NamedTuple):
    """Scores of m target tokens."""

    logprobs: Tensor
    """[m], float32 or wider."""
    entropy: Tensor
    """[m] entropy of the whole next-token distribution."""


class Head:
    """Scores tokens under softmax(linear(hidden) / temperature) and computes the gradient of the tokens scored last.

    linear: the output layer; under torch.autocast its products run in the autocast dtype. dtype: of everything between
    the products, float32 or wider. vocabulary: restricts the distribution to the rows of the layer that stand for
    tokens; None = all rows. Autograd does not see these computations.
    """

    def __init__(
        self,
        linear: nn.Linear,
        *,
        temperature: float = 1.0,
        chunk_tokens: int = CHUNK_TOKENS,
        dtype: torch.dtype,
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self._linear, self._temperature, self._chunk_tokens, self._dtype = linear, temperature, chunk_tokens, dtype
        device = linear.weight.device.type
        autocast = torch.is_autocast_enabled(device)
        # [V, hidden] in the dtype of the products: the weight itself, or a copy.
        self._weight = linear.weight.detach().to(torch.get_autocast_dtype(device) if autocast else linear.weight.dtype)
        unused = () if vocabulary is None else vocabulary.unused
        self._unused = torch.tensor(unused, device=linear.weight.device) if unused else None
        self._states = self._e = self._s = self._entropy = torch.empty(0)

    def chunks(self, num_tokens: int) -> Iterator[slice]:
        """Yield the chunks in which `num_tokens` tokens are scored, in order."""
        for start in range(0, num_tokens, self._chunk_tokens):
            yield slice(start, min(start + self._chunk_tokens, num_tokens))

    @torch.no_grad()
    def score(self, states: Tensor, targets: Tensor, support: Support | None = None) -> TokenScores:
        """Return the scores of `targets` [m] after the hidden states `states` [m, hidden]; m is at most one chunk.
        support: tokens that could have been sampled; None = all tokens."""
        self._states, self._states_dtype = states.detach().to(self._weight.dtype), states.dtype
        e = self._e = self._logits()
        if support is not None:
            support.hold(e)
        at_target, top, self._s, dot = e.gather(1, targets[:, None])[:, 0], *e.new_empty(3, len(e))
        self._targets = targets
        for part, z in self._tiles():
            tile = e[part]
            torch.amax(tile, -1, out=top[part])
            torch.sub(tile, top[part, None], out=z)
            if self._temperature != 1.0:
                z /= self._temperature
            torch.exp(z, out=tile)
            torch.sum(tile, -1, out=self._s[part])
            dot[part] = torch.linalg.vecdot(tile, z)
        log_s = self._s.log()
        self._entropy = log_s - dot / self._s
        return TokenScores((at_target - top) / self._temperature - log_s, self._entropy)

    def score_all(self, states: Tensor, targets: Tensor, support: Support | None = None) -> TokenScores:
        """Score any number of targets, chunk by chunk."""
        scores = [
            self.score(states[chunk], targets[chunk], support and support.within(chunk))
            for chunk in self.chunks(len(states))
        ]
        return TokenScores(*map(torch.cat, zip(*scores, strict=True)))

    @torch.no_grad()
    def backward(self, gradient: Tensor, of_entropy: Tensor | None = None) -> Tensor:
        """Backpropagate through the last `score`; call it once per `score`. gradient: dL / d log-probs [m]. of_entropy:
        dL / d entropies [m], if the loss depends on them. Adds dL/dW (and the bias gradient) to the gradients of the
        parameters, and returns dL/d states [m, hidden] in the dtype of the states."""
        if of_entropy is None:
            self._e.scatter_add_(1, self._targets[:, None], -self._s[:, None])
            factor = (-gradient / (self._temperature * self._s))[:, None]
        else:
            self._mix(gradient, of_entropy)
            factor = (-1 / (self._temperature * self._s))[:, None]
        e, weight, bias = self._e.to(self._weight.dtype), self._linear.weight, self._linear.bias
        if weight.requires_grad:
            scaled = (factor * self._states).to(e.dtype)
            if weight.grad is None:
                weight.grad = torch.mm(e.T, scaled).to(weight.dtype)
            elif weight.grad.dtype == e.dtype:
                weight.grad.addmm_(e.T, scaled)
            else:
                weight.grad += torch.mm(e.T, scaled)
        if bias is not None and bias.requires_grad:
            of_bias = torch.mv(self._e.T, factor[:, 0]).to(bias.dtype)
            bias.grad = of_bias if bias.grad is None else bias.grad + of_bias
        return (factor * torch.mm(e, self._weight)).to(self._states_dtype)

    def _mix(self, gradient: Tensor, of_entropy: Tensor) -> None:
        """Overwrite e with dL/dz without the factor -1 / (T s)."""
        of_e = gradient + of_entropy * (self._entropy - self._s.log())
        for part, e_log_e in self._tiles():
            tile = self._e[part]
            torch.special.xlogy(tile, tile, out=e_log_e)  # 0 where e has underflowed to 0
            tile.mul_(of_e[part, None]).addcmul_(e_log_e, of_entropy[part, None])
        self._e.scatter_add_(1, self._targets[:, None], -(gradient * self._s)[:, None])

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield the rows of e that are processed together, each with scratch memory of the same size."""
        e = self._e
        rows = max(1, TILE_BYTES.get(e.device.type, e.nbytes) // (e.shape[1] * e.element_size()))
        scratch = e.new_empty(min(rows, len(e)), e.shape[1])
        for start in range(0, len(e), rows):
            part = slice(start, min(start + rows, len(e)))
            yield part, scratch[: part.stop - start]

    def _logits(self) -> Tensor:
        """Return [m, V] in `dtype`, reusing the buffer of the previous chunk if it fits."""
        shape = (len(self._states), len(self._weight))
        if self._e.shape != shape:
            self._e = torch.empty(0)  # free the old buffer before allocating the next
            self._e = torch.empty(shape, dtype=self._dtype, device=self._weight.device)
        bias = self._linear.bias
        if self._weight.dtype == self._dtype:
            torch.mm(self._states, self._weight.T, out=self._e)
        else:
            self._e.copy_(torch.mm(self._states, self._weight.T))
        if bias is not None:
            self._e += bias
        if self._unused is not None:
            self._e.index_fill_(1, self._unused, NEVER)
        return self._e
