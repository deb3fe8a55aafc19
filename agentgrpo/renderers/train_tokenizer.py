"""A small byte-level BPE tokenizer, trained on the texts it will encode: for tiny models trained from scratch.

Control strings of the action grammar are single added tokens, so that a policy says "search" or "answer" with its first
token. They are not special: decoding spells them out, and only trusted text is encoded with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agentgrpo.core.errors import ConfigError

PAD, EOS = "<pad>", "<eos>"
CONTROL_STRINGS = (
    '<search retriever="',
    '" rerank="',
    '">',
    "</search>",
    "<answer>",
    "</answer>",
    "\n<information>\n",
    "\n</information>\n",
)
ATTRIBUTE_VALUES = ("web", "vdb", "true", "false")
# often enough to be merged into one token long before the vocabulary is full
_REPEATS = 10_000


def labels(*, rounds: int, queries: int, docs: int) -> tuple[str, ...]:
    """Return result labels for single tokens: "[R1Q1D1]" ... in order of round, query, document."""
    return tuple(
        f"[R{r}Q{q}D{d}]" for r in range(1, rounds + 1) for q in range(1, queries + 1) for d in range(1, docs + 1)
    )


def byte_level() -> pre_tokenizers.PreTokenizer:
    """Cut texts like GPT-2: words with the space before them, numbers, punctuation."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def digits_and_plurals(*parts: str) -> pre_tokenizers.PreTokenizer:
    """byte_level after two more cuts. Every digit is a separate token (the first after a space takes the space, " 1"),
    so that numbers are copied digit by digit. So is the "s" that ends a word of five or more letters, so that dropping
    a plural is one decision. parts: regular expressions of further strings to cut out, after these."""
    plural = pre_tokenizers.Split(Regex("(?<=[a-z]{4})s(?![a-z])"), "isolated")
    digit = pre_tokenizers.Split(Regex(" ?\\d"), "isolated")
    return pre_tokenizers.Sequence([plural, digit, *_cuts(parts), byte_level()])


def parted(*parts: str) -> pre_tokenizers.PreTokenizer:
    """byte_level after `parts` are cut out, as in digits_and_plurals."""
    return pre_tokenizers.Sequence([*_cuts(parts), byte_level()])


def _cuts(parts: Sequence[str]) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(part), "isolated") for part in parts]


def train_tokenizer(
    texts: Iterable[str],
    *,
    vocab_size: int = 640,
    control_strings: Sequence[str] = (*CONTROL_STRINGS, *labels(rounds=4, queries=1, docs=3)),
    words: Sequence[str] = ATTRIBUTE_VALUES,
    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer] = byte_level,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE over `texts` (cut at control strings, which are tokens already), at most `vocab_size` tokens.

    Every byte is a token, so any text round-trips exactly; `words` are single tokens if they stand alone.
    `pre_tokenizer` cuts texts into units that no token may span; it must end in the byte level. Deterministic: the same
    texts give the same tokenizer. Raises ConfigError if vocab_size is too small for bytes, control strings and
    words."""
    fixed = 256 + 2 + len(control_strings) + sum(len(word.encode()) - 1 for word in words)
    if vocab_size < fixed:
        raise ConfigError(f"vocab_size={vocab_size}; bytes, control strings and words alone take {fixed}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(control_strings),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[PAD, EOS],
        show_progress=False,
    )
    longest_first = sorted(control_strings, key=len, reverse=True)  # as the tokenizer itself finds them
    between = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")  # without control strings, cut nowhere
    pieces = (piece for text in texts for piece in between.split(text))
    tokenizer.train_from_iterator(chain(pieces, *(repeat(word, _REPEATS) for word in words)), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in control_strings])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False
    )
