"""In which pieces an episode is computed: by hand."""

from __future__ import annotations

import random

from agentgrpo.engines.contexts import Context

GROUP = ("train/0", "t")


def context(chunk: int = 512) -> Context:
    return Context(age=1, group=GROUP, chunk=chunk)


def compute(made: Context) -> list[tuple[int, int, bool]]:
    """All that is left of it; returns its pieces."""
    pieces = list(made.pieces())
    made.cached = pieces[-1].stop
    made.settled = max(made.settled, made.cached)
    return [tuple(p) for p in pieces]


def test_a_prompt_is_a_span_and_its_last_token_is_computed_by_itself():
    made = context()
    made.follow(list(range(20)))
    assert compute(made) == [(0, 19, False), (19, 20, True)]
    assert made.prompt == (GROUP, tuple(range(19)))


def test_a_prompt_of_one_token_shares_nothing():
    made = context()
    made.follow([5])
    assert compute(made) == [(0, 1, True)]
    assert made.prompt is None


def test_later_turns_compute_what_is_new_from_the_last_sampled_token_on():
    made = context()
    tokens = list(range(20))
    made.follow(tokens)
    compute(made)
    tokens.append(70)  # sampled
    assert compute(made) == [(20, 21, True)]
    tokens.append(71)  # sampled, and the end of the turn
    made.follow([*tokens, *range(80, 90)])
    assert compute(made) == [(21, 32, False)]
    made.follow([*made.tokens, 72])  # nothing injected
    assert compute(made) == [(32, 33, True)]


def test_a_long_span_is_cut_from_its_start_and_a_short_rest_is_computed_one_by_one():
    made = context(chunk=10)
    made.follow(list(range(29)))
    assert compute(made) == [(0, 10, False), (10, 20, False), (20, 28, False), (28, 29, True)]
    made.follow(list(range(46)))
    assert compute(made) == [(29, 39, False), (39, 46, True)]


def test_what_was_computed_in_pieces_is_computed_again_in_the_same_pieces():
    made = context(chunk=10)
    made.follow(list(range(16)))
    compute(made)
    made.tokens.append(50)
    compute(made)
    made.tokens.append(51)
    made.follow([*made.tokens, *range(60, 80)])
    compute(made)
    made.tokens.append(52)
    made.cached = 0
    pieces = [(0, 10, False), (10, 15, True), (15, 17, True), (17, 27, False), (27, 37, False), (37, 38, True)]
    assert compute(made) == [*pieces, (38, 39, True)]


def test_where_bits_may_change_all_after_the_prompt_is_one_span():
    made = context()
    made.follow(list(range(12)))
    compute(made)
    made.tokens += [50, 51]
    compute(made)
    made.tokens.append(52)
    made.follow([*made.tokens, *range(60, 70)])
    compute(made)
    made.tokens.append(53)
    made.cached = 0
    made.forget_pieces()
    assert compute(made) == [(0, 11, False), (11, 25, False), (25, 26, True)]
    alone = context()
    alone.follow([1])
    compute(alone)
    alone.tokens += [2, 3]
    alone.cached, alone.settled = 0, 2
    alone.forget_pieces()
    assert (alone.spans, alone.prompt) == ([(0, 2)], None)


def test_another_context_keeps_whole_pieces_only():
    made = context(chunk=10)
    made.follow(list(range(32)))
    compute(made)
    made.follow([*range(25), *range(100, 120)])
    assert (made.settled, made.cached) == (20, 20)
    assert compute(made) == [(20, 30, False), (30, 40, False), (40, 45, True)]
    assert made.prompt == (GROUP, tuple(range(20)))
    made.follow([*range(3), 99])
    assert (made.settled, made.prompt) == (0, (GROUP, (0, 1, 2)))
    assert compute(made) == [(0, 3, True), (3, 4, True)]


def test_of_tokens_computed_one_by_one_any_number_is_kept():
    made = context(chunk=10)
    made.follow(list(range(15)))
    compute(made)
    made.follow([*range(12), 99, 98])
    assert (made.settled, made.spans) == (12, [(0, 12), (12, 14)])
    assert compute(made) == [(12, 14, True)]


def test_pieces_never_change_whatever_was_evicted_in_between():
    """Random turns: what each token was first computed in is what it is computed in ever after."""
    for seed in range(300):
        rng = random.Random(seed)
        made = context(chunk=rng.choice((3, 8, 10, 64)))
        once: dict[int, tuple[int, int] | None] = {}
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 30))]
        for _ in range(12):
            made.follow(tokens)
            once = {at: piece for at, piece in once.items() if at < made.settled}
            for _ in range(rng.randrange(1, 6)):
                if rng.random() < 0.3:
                    made.cached = 0
                for start, stop, single in compute(made):
                    for at in range(start, stop):
                        piece = None if single else (start, stop)
                        assert once.setdefault(at, piece) == piece, (seed, at)
                made.tokens.append(rng.randrange(2))
            tokens = made.tokens[: rng.randrange(1, len(made.tokens))] if rng.random() < 0.2 else made.tokens
            tokens = tokens + [rng.randrange(2) for _ in range(rng.choice((0, 1, 7, 30)))]
