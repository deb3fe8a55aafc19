"""The compared works, by name. Standard library only: a process that only starts others needs no torch.

Each step has B tasks x G episodes; every episode takes `turns` turns of 30-48 sampled tokens; every turn but the last
ends with a tool call whose reply has 100-200 tokens and arrives after `latency_s`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Work:
    """One work. hidden, layers, heads, kv_heads, ffn, vocab and tied describe the model. The tokenizer has `words`
    tokens at most; `vocab` may be larger, for an output layer as wide as a real one, and the script bans the additional
    tokens."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    words: int
    tied: bool = True
    """Input and output embeddings are one matrix."""
    tasks: int = 4
    group_size: int = 8
    turns: int = 3
    least_tokens: int = 30
    most_tokens: int = 48
    prompt_tokens: int = 200
    tool_tokens: int = 150
    latency_s: float = 0.0
    max_positions: int = 8192

    @property
    def rows(self) -> int:
        """Episodes of a step."""
        return self.tasks * self.group_size

    @property
    def most_sampled_or_injected(self) -> int:
        """Tokens that an episode can add to its prompt, with room for the template's text around a tool's reply."""
        return self.turns * self.most_tokens + (self.turns - 1) * (self.tool_tokens * 4 // 3 + 24)

    @property
    def max_context(self) -> int:
        """Maximum tokens of an episode."""
        return self.prompt_tokens + 50 + self.most_sampled_or_injected


TINY = Work("tiny", hidden=128, layers=4, heads=4, kv_heads=2, ffn=352, vocab=1024, words=1024)
SMALL = Work("small", hidden=512, layers=8, heads=8, kv_heads=4, ffn=1408, vocab=8192, words=8192)
VOCAB151K = replace(SMALL, name="vocab151k", vocab=151_936, tasks=1)
LATENCIES_MS = (0, 100, 300)


def works() -> dict[str, Work]:
    """Every work by name: tiny, small and vocab151k, each with three tool latencies and as a single turn."""
    found = {}
    for base in (TINY, SMALL, VOCAB151K):
        for ms in LATENCIES_MS:
            found[f"{base.name}/latency-{ms}"] = replace(base, name=f"{base.name}/latency-{ms}", latency_s=ms / 1e3)
        found[f"{base.name}/single-turn"] = replace(base, name=f"{base.name}/single-turn", turns=1)
    return found
