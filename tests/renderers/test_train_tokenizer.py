import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from agentgrpo.core.errors import ConfigError
from agentgrpo.renderers.train_tokenizer import digits_and_plurals, labels, train_tokenizer

FIRST = ("Vel", "Cas", "Dor", "Tak", "Mer", "Sol", "Ban", "Ril")
SECOND = ("mor", "tin", "sin", "bus", "dan", "lox", "pek", "gur")
TEXTS = [f" {first}{second} was founded by" for first in FIRST for second in SECOND]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, vocab_size=340)


def test_the_grammar_is_single_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    text = (
        '<search retriever="web" rerank="true"> founded Velmor</search>'
        "\n<information>\n[R1Q1D1] Velmor was founded by Castin.\n[R1Q1D2] Dorsin.\n</information>\n"
        "<answer> Castin [R1Q1D1]</answer>"
    )
    ids = tokenizer(text)["input_ids"]
    assert [tokenizer.decode([i]) for i in ids] == [
        *('<search retriever="', "web", '" rerank="', "true", '">', " founded", " Vel", "mor", "</search>"),
        *("\n<information>\n", "[R1Q1D1]", " Vel", "mor", " was", " founded", " by", " Cas", "tin", "."),
        *("\n", "[R1Q1D2]", " Dor", "sin", ".", "\n</information>\n"),
        *("<answer>", " Cas", "tin", " ", "[R1Q1D1]", "</answer>"),
    ]
    assert tokenizer.decode(ids) == text


def test_same_texts_same_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    again = train_tokenizer(iter(TEXTS), vocab_size=340)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_size_and_special_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer) <= 340
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
    assert set(tokenizer.all_special_tokens) == {"<eos>", "<pad>"}


def test_it_is_saved_and_loaded_as_any_other(tokenizer: PreTrainedTokenizerFast, tmp_path: object) -> None:
    tokenizer.save_pretrained(str(tmp_path))
    loaded = AutoTokenizer.from_pretrained(str(tmp_path))
    text = '<search retriever="vdb" rerank="false"> founded Velmor</search> \u00e9\u4e2d  two  spaces .'
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded.decode(loaded(text)["input_ids"]) == text


@given(st.text())
def test_any_text_round_trips(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_control_strings_in_texts_are_not_learned_again(tokenizer: PreTrainedTokenizerFast) -> None:
    wrapped = [f"<answer>{text}</answer>\n<information>\n[R1Q1D1]" for text in TEXTS]
    again = train_tokenizer(wrapped, vocab_size=340)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_labels() -> None:
    assert labels(rounds=2, queries=1, docs=2) == ("[R1Q1D1]", "[R1Q1D2]", "[R2Q1D1]", "[R2Q1D2]")


def test_a_vocabulary_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="vocab_size=100; bytes, control strings and words alone take 289"):
        train_tokenizer(TEXTS, vocab_size=100)


def test_digits_and_plurals_are_tokens_of_their_own() -> None:
    texts = ["orders 29 verdrens at 1276"] * 50
    trained = train_tokenizer(
        texts, vocab_size=400, control_strings=('{"key": "',), words=(), pre_tokenizer=digits_and_plurals
    )
    text = 'orders 29 verdrens at 1276{"key": " verdren'
    ids = trained(text)["input_ids"]
    assert [trained.decode([i]) for i in ids] == [
        *("order", "s", " 2", "9", " verdren", "s", " at", " 1", "2", "7", "6", '{"key": "', " verdren"),
    ]
    assert trained.decode(ids) == text


def test_of_control_strings_that_begin_alike_the_longest_cuts() -> None:
    texts = ["Action Input: Vel", "Action Vel"] * 20
    for strings in (("Action", "Action Input: "), ("Action Input: ", "Action")):
        trained = train_tokenizer(texts, vocab_size=300, control_strings=strings, words=())
        assert "Input" not in {trained.decode([i]) for i in range(len(trained))}
        assert [trained.decode([i]) for i in trained("Action Input: Vel")["input_ids"]] == ["Action Input: ", "Vel"]


def test_the_cut_that_was_not_asked_for_is_the_byte_levels(tokenizer: PreTrainedTokenizerFast) -> None:
    """Warm starts are made again when the embedded example's tokenizer changes."""
    cut = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"]
    assert cut == {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
