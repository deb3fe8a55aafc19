"""In which pieces an episode is computed: by hand."""

from __future__ import annotations

import random

from agentgrpo.engines.cache import Context, PromptKey

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
    assert made.shared == (PromptKey(GROUP, tuple(range(19)), 0),)


def test_a_prompt_of_one_token_shares_nothing():
    made = context()
    made.follow([5])
    assert compute(made) == [(0, 1, True)]
    assert made.shared == ()


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
    assert (alone.spans, alone.shared) == ([(0, 2)], ())


def test_another_context_keeps_whole_pieces_only():
    made = context(chunk=10)
    made.follow(list(range(32)))
    compute(made)
    made.follow([*range(25), *range(100, 120)])
    assert (made.settled, made.cached) == (20, 20)
    assert compute(made) == [(20, 30, False), (30, 40, False), (40, 45, True)]
    assert made.shared == ()
    made.follow([*range(3), 99])
    assert (made.settled, made.shared) == (0, (PromptKey(GROUP, (0, 1, 2), 0),))
    assert compute(made) == [(0, 3, True), (3, 4, True)]


def test_an_opening_is_a_span_of_its_own_which_the_next_prompt_keeps():
    made = context(chunk=20)
    made.follow(list(range(40)), 12)
    assert compute(made) == [(0, 12, False), (12, 32, False), (32, 39, True), (39, 40, True)]
    opening = PromptKey(None, tuple(range(12)), 12)
    assert made.shared == (opening, PromptKey(GROUP, tuple(range(39)), 12))
    made.tokens.append(70)
    made.follow([*range(20), *range(90, 105)], 12)
    assert (made.settled, made.spans) == (12, [(0, 12), (12, 34)])
    assert made.shared == (opening, PromptKey(GROUP, (*range(20), *range(90, 104)), 12))
    made.cached = 0
    assert compute(made) == [(0, 12, False), (12, 32, False), (32, 34, True), (34, 35, True)]
    made.follow([*made.tokens, 71, 72, 73], 12)  # goes on: no fresh prompt
    assert compute(made) == [(35, 38, True)]
    assert len(made.shared) == 2


def test_a_fresh_prompt_is_cut_as_if_it_were_the_first():
    first, later = context(chunk=10), context(chunk=10)
    later.follow([*range(12), *range(50, 70)], 12)
    compute(later)
    for made in (first, later):
        made.follow([*range(12), *range(80, 90)], 12)
    assert first.shared == later.shared
    assert compute(first) == [(0, 10, False), (10, 12, True), *compute(later)]
    assert first.spans == later.spans == [(0, 12), (12, 21)]


def test_an_opening_is_shared_with_those_only_that_cut_it_off_as_well():
    whole, alone, short = context(), context(), context()
    whole.follow(list(range(13)))
    alone.follow(list(range(13)), 40)
    short.follow(list(range(13)), 11)
    assert whole.shared == (PromptKey(GROUP, tuple(range(12)), 0),)
    assert alone.shared == (PromptKey(None, tuple(range(12)), 12),)
    assert short.shared == (PromptKey(None, tuple(range(11)), 11), PromptKey(GROUP, tuple(range(12)), 11))


def test_an_opening_of_a_few_tokens_is_none():
    made = context()
    made.follow(list(range(30)), 7)
    assert (made.spans, made.shared) == ([(0, 29)], (PromptKey(GROUP, tuple(range(29)), 0),))


def test_a_whole_prompt_is_no_opening_though_the_next_prompt_says_so():
    made = context()
    made.follow(list(range(13)))
    compute(made)
    made.follow([*range(12), *range(30, 50)], 12)
    assert made.spans == [(0, 12), (12, 32)]
    assert made.shared == (PromptKey(GROUP, tuple(range(12)), 0),)


def test_where_bits_may_change_the_opening_and_the_prompt_are_spans_still():
    made = context()
    made.follow(list(range(30)), 12)
    compute(made)
    made.tokens += [50, 51]
    made.settled, made.cached = 31, 0
    made.forget_pieces()
    assert compute(made) == [(0, 12, False), (12, 29, False), (29, 31, True), (31, 32, True)]


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
        opening = rng.choice((0, 0, 1, 9, 14))
        for _ in range(12):
            made.follow(tokens, opening)
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
