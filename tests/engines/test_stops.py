from __future__ import annotations

from agentgrpo.engines.sampling import StopRules
from tests.engines.tiny import EOS, encode, tokenizer


def stops_at(tokens: list[int], *strings: str, ids: tuple[int, ...] = (), first: int = 0) -> int | None:
    """Number of tokens after which the turn is over."""
    rule = StopRules(tokenizer()).rule(strings, ids)
    return next((n for n in range(first + 1, len(tokens) + 1) if rule.ends(tokens[:n], first)), None)


def test_stop_tokens():
    assert stops_at([1, 2, EOS, 3], ids=(EOS,)) == 3
    assert stops_at([1, 2, 3], ids=(EOS,)) is None
    assert stops_at([1, 2, EOS, 3]) is None


def test_a_token_that_holds_a_whole_stop_string():
    assert stops_at([*encode("ab"), 258, 5], "</search>", "</answer>") == 3
    assert stops_at([*encode("ab"), 258, 5], "arch") == 3


def test_a_stop_string_spread_over_tokens():
    tokens = encode("x > y </answer> z")
    assert len(tokens) == 17
    assert stops_at(tokens, "</search>", "</answer>") == 15
    assert stops_at(tokens, "y </") == 8
    assert stops_at(tokens, "q") is None
    assert stops_at([*encode("ax"), 258], "x</search>") == 3


def test_only_the_turn_itself_is_searched():
    tokens = encode("</ans") + encode("wer></answer>")
    assert stops_at(tokens, "</answer>", first=5) == 18


def test_characters_of_several_bytes():
    tokens = encode("né。ok")
    assert len(tokens) == 8
    assert stops_at(tokens, "。") == 6
    assert stops_at(tokens, "é。o") == 7


def test_ids_beyond_the_tokenizer_are_no_stop():
    assert stops_at([319, 300, *encode("</answer>")], "</answer>") == 11


def test_text_is_decoded_only_after_tokens_that_may_complete_a_stop_string():
    decoded: list[int] = []

    class Counting:
        def __len__(self) -> int:
            return len(tokenizer())

        def decode(self, ids, **options):
            decoded.append(len(ids))
            return tokenizer().decode(ids, **options)

    rule = StopRules(Counting()).rule(("</answer>",), ())
    decoded.clear()
    tokens = encode("(" * 500 + "a>b</answer>")
    assert next(n for n in range(1, len(tokens) + 1) if rule.ends(tokens[:n], 0)) == len(tokens)
    # one-letter tokens complete "</answer>" only with ">", of which there are two; 9 bytes + 4 are enough to see it
    assert decoded == [13, 13]


def test_rules_are_made_once():
    rules = StopRules(tokenizer())
    assert rules.rule(("a",), (1,)) is rules.rule(("a",), (1,))
    assert rules.rule(("a",), (1,)) is not rules.rule(("a",), (2,))
