"""Which characters each token spells, in what a browser counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from agentgrpo.records.run_dir import RunDir
from agentgrpo.reports.view.pieces import TokenTexts, pieces_of
from tests.engines import tiny
from tests.renderers import families

BYTES = {byte: i for i, byte in enumerate(sorted((*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))))}


@pytest.fixture(scope="module")
def by_byte() -> TokenTexts:
    return TokenTexts(tiny.tokenizer().backend_tokenizer)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("a b\n", [1, 1, 1, 1]),
        ("a</search><|eos|>", [1, 9, 7]),
        ("\u00e9", [0, 1]),
        ("x\u6f22y", [1, 0, 0, 1, 1]),
        ("\U0001f642!", [0, 0, 0, 2, 1]),  # a pair of surrogates in JavaScript
        ("e\u0301", [1, 0, 1]),
    ],
)
def test_letters_come_with_the_last_of_their_tokens(by_byte: TokenTexts, text: str, expected: list[int]) -> None:
    assert by_byte.of(tiny.encode(text), text) == expected
    assert sum(expected) == len(text.encode("utf-16-le")) // 2


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("\u6f22".encode()[:2], [0, 1]),  # half a letter at the end: one replacement character
        ("\U0001f642".encode()[:3] + b"a", [0, 0, 0, 2]),  # ... and the letter that shows it to be broken
        (b"\xff\xfea", [1, 1, 1]),
        (b"\xc3\xc3\xa9", [0, 1, 1]),
    ],
)
def test_broken_letters_are_what_the_decoder_makes_of_them(
    by_byte: TokenTexts, data: bytes, expected: list[int]
) -> None:
    ids = [tiny.tokenizer().backend_tokenizer.token_to_id(letter) for letter in map(_letter, data)]
    text = tiny.tokenizer().backend_tokenizer.decode(ids, skip_special_tokens=False)
    assert "\ufffd" in text
    assert text == data.decode(errors="replace")
    assert by_byte.of(ids, text) == expected


def _letter(byte: int) -> str:
    others = [b for b in range(256) if b not in BYTES]
    return chr(byte) if byte in BYTES else chr(256 + others.index(byte))


def test_tokens_that_do_not_spell_the_text(by_byte: TokenTexts) -> None:
    assert by_byte.of(tiny.encode("abc"), "abd") is None
    assert by_byte.of([], "a") is None
    assert by_byte.of(tiny.encode("?"), "\ud800") is None


def test_ids_beyond_the_tokenizer_spell_nothing(by_byte: TokenTexts) -> None:
    assert by_byte.of([300, *tiny.encode("a")], "a") == [0, 1]


@pytest.mark.parametrize("name", sorted(families.TOKENIZERS))
@pytest.mark.parametrize("text", ["Hello  world", " \u00e9t\u00e9 \u6f22\U0001f642", "<|im_end|>\n</s>"])
def test_of_every_family_of_tokenizers(name: str, text: str) -> None:
    tokenizer = families.TOKENIZERS[name]().backend_tokenizer
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    found = TokenTexts(tokenizer).of(ids, decoded)
    assert found is not None
    assert (len(found), sum(found)) == (len(ids), len(decoded.encode("utf-16-le")) // 2)
    ends = [0] * (len(text) + 1)
    for i, (size, _) in enumerate(zip(found, ids, strict=True)):
        ends[0] += size
        if decoded.isascii():
            assert tokenizer.decode(ids[: i + 1], skip_special_tokens=False) == decoded[: ends[0]]


def test_a_space_that_the_decoder_takes_away() -> None:
    vocab = {"<unk>": 0, "\u2581ab": 1, "<0xC3>": 2, "<0xA9>": 3, "\u2581": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    strip = decoders.Strip(content=" ", left=1, right=0)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    tokenizer.decoder = decoders.Sequence(steps)
    text = tokenizer.decode([1, 1, 2, 3], skip_special_tokens=False)
    assert text == "ab ab\u00e9"
    assert TokenTexts(tokenizer).of([1, 1, 2, 3], text) == [2, 3, 0, 1]


def test_whose_tokenizer(tmp_path: Path) -> None:
    """The newest checkpoint that has one; before there is a checkpoint, that of model.path."""
    run, model = tmp_path / "run", tmp_path / "model"
    (run / "trajectories").mkdir(parents=True)
    assert pieces_of(RunDir(run), {}) is None
    assert pieces_of(RunDir(run), {"model": {"path": "no such/model"}}) is None
    assert pieces_of(RunDir(run), {"model": {"path": "${oc.env:MODEL} ?"}}) is None
    tiny.tokenizer().save_pretrained(model)
    config = {"model": {"path": str(model)}}
    of_model = pieces_of(RunDir(run), config)
    assert of_model is not None
    assert of_model.of([0], "!") == [1]
    other = Tokenizer(models.BPE(vocab={"xy": 0}, merges=[]))
    for step in (1, 2):
        (run / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    other.save(str(run / "checkpoints" / "step-000001" / "tokenizer.json"))
    of_run = pieces_of(RunDir(run), config)
    assert of_run is not None
    assert (of_run.of([0], "xy"), of_run.vocabulary()) == ([2], {"xy": 0})
    (run / "checkpoints" / "step-000002" / "tokenizer.json").write_text(json.dumps({"model": 3}))
    with pytest.raises(OSError, match=r"step-000002/tokenizer\.json: "):
        pieces_of(RunDir(run), config)
