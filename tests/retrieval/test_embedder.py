from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.retrieval.embedder import HashingEmbedder


def signs(feature: str, dim: int = 512) -> np.ndarray:
    digest = int.from_bytes(hashlib.shake_128(feature.encode()).digest(dim // 8), "big")
    return np.array([1.0 if digest >> (dim - 1 - i) & 1 else -1.0 for i in range(dim)])


def word(spelling: str) -> np.ndarray:
    marked = f"<{spelling}>"
    grams = [marked[i : i + 3] for i in range(len(marked) - 2)] + [marked[i : i + 4] for i in range(len(marked) - 3)]
    return math.sqrt(0.35) * signs(f"word {spelling}") + math.sqrt(0.65 / len(grams)) * sum(
        signs(f"gram {gram}") for gram in grams
    )


def cosine(embedder: HashingEmbedder, a: str, b: str) -> float:
    va, vb = embedder.embed([a, b])
    return float(va @ vb)


def test_a_text_is_the_weighted_sum_of_its_hashed_words() -> None:
    # df of "ox" is 1 of 3 texts, of "ant" 2 of 3: idf ln(1 + 2.5/1.5), ln(1 + 1.5/2.5); "ant" occurs twice.
    embedder = HashingEmbedder(texts=["ox ant", "ant", "bee"])
    expected = math.sqrt(math.log(1 + 2.5 / 1.5)) * word("ox") + math.sqrt(2 * math.log(1 + 1.5 / 2.5)) * word("ant")
    [vector] = embedder.embed(["Ant, OX ant!"])
    assert vector.dtype == np.float32
    np.testing.assert_allclose(vector, expected / np.sqrt((expected**2).sum()), atol=1e-6)


def test_shapes_lengths_and_texts_that_say_nothing() -> None:
    vectors = HashingEmbedder(dim=64).embed(["one", "", "two words", " .,; "])
    assert vectors.shape == (4, 64)
    np.testing.assert_allclose(np.sqrt((vectors**2).sum(axis=1)), [1, 0, 1, 0], atol=1e-6)
    assert HashingEmbedder(dim=64).embed([]).shape == (0, 64)


def test_a_row_is_the_same_in_any_company_and_in_any_embedder_of_the_same_texts() -> None:
    texts = [f"Company {i} was founded by number {i * i}." for i in range(50)]
    together = HashingEmbedder(texts=texts).embed(texts)
    alone = np.concatenate([HashingEmbedder(texts=texts).embed([text]) for text in reversed(texts)])[::-1]
    assert together.tobytes() == alone.tobytes()


def test_words_with_a_common_stem_are_near_and_others_are_not() -> None:
    embedder = HashingEmbedder()
    assert cosine(embedder, "founder", "FOUNDED") > 0.3
    assert abs(cosine(embedder, "founder", "price")) < 0.15
    assert cosine(embedder, "Velmor", "Velmir") < 0.6
    assert cosine(embedder, "Velmor", "velmor") == pytest.approx(1)


def test_rare_words_weigh_more_once_texts_are_given() -> None:
    texts = [f"the name of {name}" for name in ("Velmor", "Castin", "Roka", "Bilsir")]
    plain, weighted = HashingEmbedder(), HashingEmbedder(texts=texts)
    assert cosine(weighted, "the Velmor", "Velmor") > cosine(plain, "the Velmor", "Velmor") + 0.1


@pytest.mark.parametrize("dim", [0, 7, 100])
def test_dimensions_that_are_no_multiple_of_8_are_refused(dim: int) -> None:
    with pytest.raises(ConfigError, match=f"dim={dim}; use a multiple of 8"):
        HashingEmbedder(dim=dim)


def test_any_unicode_can_be_embedded() -> None:
    vectors = HashingEmbedder(dim=64).embed(["naïve 東京 🙂", "lone \ud800 surrogate", "x" * 10_000])
    np.testing.assert_allclose(np.sqrt((vectors**2).sum(axis=1)), [1, 1, 1], atol=1e-6)
