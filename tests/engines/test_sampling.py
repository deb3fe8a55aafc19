from __future__ import annotations

import hashlib
import math

import pytest
import torch

from agentgrpo.engines import sampling
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.sampling import Distribution, Noise, sample

KEY = SeedKey("train/12", "t-1", 3, 2)
PLAIN = Distribution(1.0, 0, 1.0, 0.0)
P = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).log()


def draw(logits: torch.Tensor, distribution: Distribution, u: float) -> tuple[int, float]:
    tokens, logprobs = sample(logits, [distribution], [u])
    return tokens[0], logprobs[0]


def test_uniform_is_the_documented_hash_of_names_and_counter():
    spelled = b'[7, "train/12", "t-1", 3, 2]' + (5).to_bytes(8, "little")
    digest = hashlib.blake2b(spelled, digest_size=8, person=b"agentgrpo.sample").digest()
    assert Noise(7, KEY).uniform(5) == (int.from_bytes(digest, "little") >> 11) / 2**53


def test_every_name_changes_the_number_and_none_can_be_confused():
    noise = [Noise(7, KEY), Noise(8, KEY)]
    noise += [Noise(7, k) for k in (KEY._replace(stream="a"), KEY._replace(task_id="a"), KEY._replace(turn=0))]
    noise += [Noise(7, KEY._replace(sample_index=0)), Noise(7, SeedKey('a", "b', "c", 0, 0))]
    noise += [Noise(7, SeedKey("a", 'b", "c', 0, 0))]
    numbers = [n.uniform(i) for n in noise for i in (0, 1, 256)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= u < 1 for u in numbers)


@pytest.mark.parametrize(
    ("u", "token"), [(0.0, 0), (0.0999, 0), (0.1001, 1), (0.2999, 1), (0.3001, 2), (0.5999, 2), (0.6001, 3)]
)
def test_inverse_cdf_and_logprob(u, token):
    assert draw(P, PLAIN, u) == (token, pytest.approx(math.log([0.1, 0.2, 0.3, 0.4][token]), abs=1e-15))


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (1 - 2**-53, 3)])
def test_ends_of_the_interval_never_draw_what_has_no_probability(u, token):
    torch.manual_seed(0)
    logits = torch.randn(500, 5).index_fill(1, torch.tensor([0, 4]), -math.inf)
    assert set(sample(logits, [PLAIN] * 500, [u] * 500)[0]) == {token}


def test_greedy_takes_the_first_maximum_and_the_untempered_logprob():
    logits = torch.tensor([[0.0, 2.0, 2.0]])
    assert draw(logits, Distribution(0.0, 0, 1.0, 0.0), 0.99) == (
        1,
        pytest.approx(2 - math.log(1 + 2 * math.exp(2)), abs=1e-12),
    )


@pytest.mark.parametrize(
    ("distribution", "probabilities"),
    [
        (Distribution(0.5, 0, 1.0, 0.0), [1 / 30, 4 / 30, 9 / 30, 16 / 30]),  # squares
        (Distribution(1.0, 2, 1.0, 0.0), [0, 0, 3 / 7, 4 / 7]),
        (Distribution(1.0, 9, 1.0, 0.0), [0.1, 0.2, 0.3, 0.4]),
        (Distribution(1.0, 0, 0.65, 0.0), [0, 0, 3 / 7, 4 / 7]),  # 0.4 + 0.3 reaches 0.65
        (Distribution(1.0, 0, 0.75, 0.0), [0, 2 / 9, 3 / 9, 4 / 9]),
        (Distribution(1.0, 0, 0.05, 0.0), [0, 0, 0, 1]),
        (Distribution(1.0, 0, 1.0, 0.45), [0, 2 / 9, 3 / 9, 4 / 9]),  # below 0.45 * 0.4 goes
        (Distribution(1.0, 3, 0.75, 0.8), [0, 0, 0, 1]),  # top_k leaves 2/9 3/9 4/9, top_p 3/7 4/7, min_p 4/7
        (Distribution(0.5, 3, 1.0, 0.3), [0, 0, 9 / 25, 16 / 25]),
    ],
)
def test_filters(distribution, probabilities):
    bounds = [sum(probabilities[: i + 1]) for i in range(4)]
    for token, p in enumerate(probabilities):
        if p > 0:
            found = draw(P, distribution, bounds[token] - p / 2)
            assert found == (token, pytest.approx(math.log(p), abs=1e-12))
            assert draw(P, distribution, bounds[token] - 1e-9)[0] == token


def test_top_k_keeps_ties():
    logits = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    assert [draw(logits, Distribution(1.0, 2, 1.0, 0.0), u)[0] for u in (0.1, 0.5, 0.9)] == [0, 1, 2]


def test_a_row_does_not_depend_on_the_others_nor_on_the_chunking(monkeypatch):
    torch.manual_seed(1)
    logits = 3 * torch.randn(40, 97)
    modes = [PLAIN, Distribution(0.0, 0, 1.0, 0.0), Distribution(0.7, 5, 0.9, 0.02), Distribution(1.3, 0, 0.8, 0.0)]
    modes = [modes[i % 4] for i in range(40)]
    u = [Noise(0, KEY).uniform(i) for i in range(40)]
    alone = [draw(logits[i : i + 1], modes[i], u[i]) for i in range(40)]
    assert list(zip(*sample(logits, modes, u), strict=True)) == alone
    monkeypatch.setattr(sampling, "MAX_ELEMENTS", 300)
    assert list(zip(*sample(logits, modes, u), strict=True)) == alone


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_show_in_the_logprob_of_their_row_only(bad):
    logits = torch.tensor([[0.0, 1.0], [0.0, bad], [bad, bad]])
    for mode in (PLAIN, Distribution(0.0, 0, 1.0, 0.0)):
        _, logprobs = sample(logits, [mode] * 3, [0.5] * 3)
        assert [math.isfinite(x) for x in logprobs] == [True, False, False]


@pytest.mark.parametrize("filtered", [False, True])
def test_draws_follow_the_distribution(filtered):
    """Chi-square over 40,000 draws: 79 or 49 degrees of freedom; the bounds leave out about 1 in 10^5 on each side."""
    torch.manual_seed(2)
    n = 40_000
    x = torch.randn(80, dtype=torch.float64)
    mode = Distribution(0.8, 50, 1.0, 0.0) if filtered else PLAIN
    p = (
        (x / mode.temperature).masked_fill(x < x.topk(50).values[-1], -math.inf).softmax(-1)
        if filtered
        else x.softmax(-1)
    )
    noise = Noise(3, KEY)
    tokens, _ = sample(x.expand(n, -1), [mode] * n, [noise.uniform(i) for i in range(n)])
    seen = torch.tensor(tokens).bincount(minlength=80).double()
    kept = p > 0
    assert seen[~kept].sum() == 0
    chi_square = float(((seen - n * p)[kept] ** 2 / (n * p[kept])).sum())
    low, high = (18, 100) if filtered else (37, 142)
    assert low < chi_square < high


def test_distribution_of_sampling_params():
    assert Distribution.of(SamplingParams(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1)) == (0.7, 5, 0.9, 0.1)


@pytest.mark.parametrize("nucleus", [1, 2, 7, 1024])
def test_the_nucleus_is_the_smallest_set_and_of_equal_tokens_the_first(nucleus, monkeypatch):
    """Against a full stable sort, over logits full of ties; however many tokens are looked at first."""
    monkeypatch.setattr(sampling, "NUCLEUS", nucleus)
    torch.manual_seed(0)
    for top_p in (0.01, 0.3, 0.77, 0.99):
        logits = torch.randint(0, 5, (60, 33)).double()
        ranked, order = logits.sort(descending=True, stable=True)
        probs = ranked.softmax(-1)
        dropped = torch.zeros(60, 33, dtype=torch.bool).scatter(-1, order, probs.cumsum(-1) - probs >= top_p)
        found = logits.clone()
        sampling._keep_nucleus(found, top_p)
        assert torch.equal(found, logits.masked_fill(dropped, -math.inf))


def test_the_logits_are_left_as_they_are():
    for dtype in (torch.float32, torch.float64):
        logits = torch.randn(3, 9, dtype=dtype)
        before = logits.clone()
        sample(logits, [Distribution(0.5, 5, 0.9, 0.1)] * 3, [0.1, 0.5, 0.9])
        assert torch.equal(logits, before)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_has_the_same_bits_alone_and_in_company_with_several_threads(temperature):
    """In a vocabulary large enough for one row's sum to be split between threads."""
    torch.manual_seed(0)
    logits, distribution = torch.randn(3, 150_000), Distribution(temperature, 0, 1.0, 0.0)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together = sample(logits, [distribution] * 3, [0.1, 0.5, 0.9])
        alone = [sample(logits[i : i + 1], [distribution], [u]) for i, u in enumerate((0.1, 0.5, 0.9))]
    finally:
        torch.set_num_threads(before)
    assert together == ([a[0][0] for a in alone], [a[1][0] for a in alone])
