"""Turns that are held to a grammar: which tokens may come next.

A token that cannot go on has the logit NEVER, in engine and trainer alike. So a log-prob is that of the distribution
from which the token was drawn, and a token to which there is no alternative has the log-prob 0 and no gradient.

The grammar is a text in llguidance's dialect of Lark (https://github.com/guidance-ai/llguidance). It contains the end
of the turn, so the masks are a function of the grammar, the tokenizer and the tokens sampled before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.hf import from_tokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from agentgrpo.core.errors import EngineError
from agentgrpo.engines.vocabulary import NEVER


class Matcher:
    """Follows one turn through its grammar. Raises EngineError if the grammar cannot be used."""

    __slots__ = ("_matcher",)

    def __init__(self, grammar: str, tokenizer: PreTrainedTokenizerBase) -> None:
        self._matcher = LLMatcher(_prepared(tokenizer), LLMatcher.grammar_from_lark(grammar), log_level=0)
        self._refuse_error()

    def allowed(self) -> Tensor:
        """[bytes] uint8: bit i of byte b is set if token 8 b + i may come next."""
        mask = self._matcher.compute_bitmask()
        self._refuse_error()
        return torch.frombuffer(bytearray(mask), dtype=torch.uint8)

    def take(self, token: int) -> bool:
        """Advance by a token. Return whether the grammar allows it."""
        return self._matcher.consume_token(token)

    def _refuse_error(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"the grammar of a turn: {self._matcher.get_error()[:500]}", kind="grammar")


class Support(NamedTuple):
    """The tokens that may be drawn, for some rows of [n, V] logits. The other rows have no limit."""

    rows: Tensor
    """[k] int64, in order."""
    bits: Tensor
    """[k, bytes] uint8, as Matcher.allowed has them."""

    @classmethod
    def of_next(cls, turns: Sequence[Matcher | None]) -> Support | None:
        """Return the support of each turn's next token, one row per turn; None if no turn has a matcher."""
        held = [(row, turn) for row, turn in enumerate(turns) if turn is not None]
        if not held:
            return None
        return cls(torch.tensor([row for row, _ in held]), torch.stack([turn.allowed() for _, turn in held]))

    @classmethod
    def of_turns(cls, turns: Sequence[tuple[int, str, Sequence[int]]], tokenizer: PreTrainedTokenizerBase) -> Support:
        """Return the support of every token of the turns. turns: (row of the first token, grammar, tokens). Raises
        EngineError if a turn has a token that its grammar does not allow."""
        rows, bits = [], []
        for first, grammar, tokens in turns:
            matcher = Matcher(grammar, tokenizer)
            for i, token in enumerate(tokens):
                allowed = matcher.allowed()
                is_allowed = token // 8 < len(allowed) and bool(allowed[token // 8] >> (token % 8) & 1)
                if not is_allowed or not (matcher.take(token) or i + 1 == len(tokens)):
                    raise EngineError(
                        f"token {i} of a turn, id {token}, is not allowed by the grammar of the turn; it was sampled "
                        "with another tokenizer or another version of llguidance: leave that episode out",
                        kind="grammar",
                    )
                rows.append(first + i)
                bits.append(allowed)
        return cls(torch.tensor(rows), torch.stack(bits))

    def to(self, device: torch.device) -> Support:
        return Support(self.rows.to(device), self.bits.to(device))

    def within(self, chunk: slice) -> Support:
        """Return the support of rows chunk.start to chunk.stop; its first row is 0."""
        begin, end = (int(torch.searchsorted(self.rows, at)) for at in (chunk.start, chunk.stop))
        return Support(self.rows[begin:end] - chunk.start, self.bits[begin:end])

    def hold(self, logits: Tensor) -> Tensor:
        """Set the logits [n, V] of tokens outside the support to NEVER, in place, and return them."""
        if not len(self.rows):
            return logits
        shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
        allowed = (self.bits[:, :, None] >> shifts & 1).bool().flatten(1)[:, : logits.shape[1]]
        held = logits[self.rows]
        held[:, : allowed.shape[1]].masked_fill_(~allowed, NEVER)
        held[:, allowed.shape[1] :] = NEVER
        logits[self.rows] = held
        return logits


def problem_of(schema: Mapping[str, Any]) -> str:
    """Return the reason why turns cannot follow a JSON schema; "" if they can."""
    failed, problems = LLMatcher.validate_grammar_with_warnings(LLMatcher.grammar_from_json_schema(dict(schema)))
    return problems[0][:500] if failed else ""


@cache
def _prepared(tokenizer: PreTrainedTokenizerBase) -> LLTokenizer:
    """Return llguidance's form of a tokenizer. Building it takes about a second, so engine and trainer share it."""
    return from_tokenizer(tokenizer)
