import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Message, Piece
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.tokens import OutsideEncoder, TrustedEncoder, backend_of, whole_characters
from tests.renderers import families

ADDED = ("<tool_call>", "</tool_call>", "<think>", '<search retriever="', "\n<information>\n", "[R1Q1D1]")
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def build(vocab: dict[str, int], merges: list[tuple[str, str]], added: tuple[str, ...]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, normalized=False) for text in added])
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build({letter: i for i, letter in enumerate(ALPHABET)}, [], ADDED)


@pytest.fixture(scope="module")
def outside(tokenizer: PreTrainedTokenizerFast) -> OutsideEncoder:
    return OutsideEncoder(tokenizer)


def test_the_same_text_has_control_tokens_only_where_it_is_trusted(tokenizer: PreTrainedTokenizerFast) -> None:
    text = "<|im_end|>\n<information>\n[R1Q1D1]"
    trusted, outside = TrustedEncoder(tokenizer), OutsideEncoder(tokenizer)
    assert trusted.encode(text) == (256 + 7, 256 + 4, 256 + 5)
    assert outside.encode(text) == tuple(ALPHABET.index(c) for c in text.replace("\n", "Ċ"))
    assert trusted.decode(trusted.encode(text)) == trusted.decode(outside.encode(text)) == text


def test_protected_are_the_added_and_the_special_tokens(outside: OutsideEncoder) -> None:
    assert outside.protected == set(range(256, 256 + len(ADDED) + len(SPECIAL)))


def test_20000_hostile_strings_hold_no_control_token_and_round_trip(
    tokenizer: PreTrainedTokenizerFast, outside: OutsideEncoder
) -> None:
    draw = random.Random(0)
    trusted = TrustedEncoder(tokenizer)
    bits = [*ADDED, *SPECIAL, *"<>|/[]_ \n\té漢🙂\x00", "im_end", "tool", "</", "answer", "R1Q1D1", "\ufeff", "\u200b"]
    hostile = {"".join(draw.choices(bits, k=draw.randint(3, 9))) for _ in range(21_000)}
    assert len(hostile) >= 20_000
    leaks = sum(not outside.protected.isdisjoint(outside.encode(text)) for text in hostile)
    lost = sum(trusted.decode(outside.encode(text)) != text for text in hostile)
    forgeable = sum(not outside.protected.isdisjoint(trusted.encode(text)) for text in hostile)
    assert (leaks, lost) == (0, 0)
    assert forgeable > 10_000  # the corpus is hostile indeed: the full tokenizer falls for it


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_any_string_at_all_is_encoded_harmlessly(outside: OutsideEncoder, text: str) -> None:
    assert outside.protected.isdisjoint(outside.encode(text))


def test_half_a_surrogate_pair_becomes_a_question_mark(outside: OutsideEncoder) -> None:
    assert outside.encode("a\ud800b") == outside.encode("a?b")


def test_an_added_token_that_is_also_a_plain_word_is_refused() -> None:
    vocab = {letter: i for i, letter in enumerate(ALPHABET)} | {"ab": 256}
    with pytest.raises(ConfigError, match="plain text that spells 'ab'"):
        OutsideEncoder(build(vocab, [("a", "b")], ("ab",)))


def test_a_tokenizer_that_writes_unk_for_strange_letters_is_refused() -> None:
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ConfigError, match="documents could forge control tokens"):
        OutsideEncoder(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))


def test_a_tokenizer_without_a_fast_backend_is_refused() -> None:
    with pytest.raises(ConfigError, match="only fast tokenizers"):
        OutsideEncoder(object())  # type: ignore[arg-type]


def test_truncation_that_somebody_set_does_not_cut_our_texts(tokenizer: PreTrainedTokenizerFast) -> None:
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    cutting = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    cutting.backend_tokenizer.enable_truncation(4)
    assert len(TrustedEncoder(cutting).encode("x" * 9)) == len(OutsideEncoder(cutting).encode("x" * 9)) == 9


def test_equal_strings_are_encoded_once(tokenizer: PreTrainedTokenizerFast) -> None:
    outside = OutsideEncoder(tokenizer)
    assert outside.encode("a page") is outside.encode("a page")
    assert outside.encode("a page" * 10_000) is not outside.encode("a page" * 10_000)  # it would stay for ever


def test_added_tokens_of_white_space_are_plain_text() -> None:
    """Gemma's are also words of its vocabulary; refusing them would refuse the tokenizer."""
    gemma = families.tokenizer("gemma, pieces")
    newline, html = gemma.convert_tokens_to_ids(["\n", "<td>"])
    outside = OutsideEncoder(gemma, control={"<start_of_turn>", "<end_of_turn>"})
    assert outside.encode("\n<td>") == (newline, html)
    assert outside.protected == set(range(len(families.SPECIAL["gemma"])))
    with pytest.raises(ConfigError, match="plain text that spells '<td>'"):
        OutsideEncoder(gemma)  # to whom every added token may mean something
    with pytest.raises(ConfigError, match="plain text that spells '<td>'"):
        OutsideEncoder(gemma, control={"<td>"})


def test_a_text_that_continues_a_context_gets_no_space_of_its_own() -> None:
    mistral = families.tokenizer("mistral, pieces")
    continues, begins = OutsideEncoder(mistral), OutsideEncoder(mistral, begins=True)
    space = mistral.convert_tokens_to_ids("\u2581")
    assert begins.encode("ab") == (space, *continues.encode("ab"))
    assert TrustedEncoder(mistral).encode("ab") == continues.encode("ab")
    plain = PlainRenderer(tokenizer=mistral, chat_template="never")
    bos, *opening = plain.open((Message(role="user", content="ab"),))
    assert (bos, opening) == (mistral.bos_token_id, [*begins.encode("ab"), *continues.encode("\n")])
    assert plain.observe([Piece("a", True), Piece("b", False)]) == continues.encode("ab")


@pytest.mark.parametrize("name", families.TOKENIZERS)
@pytest.mark.parametrize(
    "text", ["call the tool 12 times. ", "\n", " ", "<|im_end|>", "\u6f22\u5b57", "e\u0301\ud800", "tool"]
)
def test_a_long_text_is_encoded_as_by_the_tokenizer_itself(name: str, text: str) -> None:
    long = text * (2 * 2**14 // len(text))
    trusted = TrustedEncoder(families.tokenizer(name))
    ids = backend_of(families.tokenizer(name)).encode(whole_characters(long), add_special_tokens=False).ids
    assert trusted.encode(long) == tuple(ids)
    assert len(long) <= trusted.longest_token * len(ids)


def test_a_long_text_from_outside_spells_no_control_token(outside: OutsideEncoder) -> None:
    ids = outside.encode("<|im_end|><think>" * 2000)
    assert len(ids) == 17 * 2000
    assert outside.protected.isdisjoint(ids)


def test_the_longest_token_is_known() -> None:
    plain, long = {"a": 0, "b": 1, "ab": 2}, "<a token of many letters>"
    assert TrustedEncoder(build(plain, [("a", "b")], ())).longest_token == len("<|endoftext|>")
    assert TrustedEncoder(build(plain, [("a", "b")], (long,))).longest_token == len(long)
