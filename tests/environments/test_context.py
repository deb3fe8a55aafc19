"""Episodes that outgrow their context and go on in a fresh one."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.types import Branch, Episode, EpisodeGroup, Exit, Outcome, RewardResult, ScoredGroup
from agentgrpo.environments.search.context import ASK, LISTED, ContextRule, dropping, summarising
from agentgrpo.environments.search.environment import SearchEnvironments
from agentgrpo.grpo.samples import to_samples
from agentgrpo.records.trajectories import read_trajectories, write_trajectories
from agentgrpo.reports.replay.comparing import compare_episode
from agentgrpo.reports.replay.divergence import turns_of
from tests import builders
from tests.environments.scripted import (
    ANSWER,
    HOP_1,
    HOP_2,
    PROMPT,
    SHOWN_1,
    SHOWN_2,
    Played,
    ScriptedFetcher,
    ScriptedJudge,
    ScriptedRetriever,
    play,
    renderer,
)

CHATS = '<search retriever="vdb" rerank="false">chatter</search>'
AGAIN = '<search retriever="vdb" rerank="false">all</search>'
FULL = f"\n{ASK}\n"


def lengths(*texts: str) -> int:
    return sum(len(renderer().encode_action(text)) for text in texts)


def texts(branch: Branch) -> list[str]:
    return [segment.text for segment in branch.segments]


def trained(played: Played) -> list[list[str]]:
    return [[s.text for s in branch.segments if s.is_trained] for branch in played.episode.branches]


async def two_hops(context: ContextRule | None, *script: str, **options: object) -> Played:
    return await play(*(script or (HOP_1, HOP_2, ANSWER)), context=context, **options)  # type: ignore[arg-type]


AFTER_ONE = lengths(PROMPT, HOP_1, SHOWN_1, HOP_2)
"""Tokens of the context after the first round and the next turn: what answers that does not fit."""


async def test_the_newest_rounds_go_on_and_the_others_are_listed() -> None:
    played = await two_hops(dropping(max_tokens=AFTER_ONE, keep_rounds=1))
    first, second = played.episode.branches
    assert texts(first) == [PROMPT, HOP_1, SHOWN_1, HOP_2]
    opening = f"{PROMPT}\n{LISTED}\n- web: founded Velmor: [R1Q1D1] [R1Q1D2]\n"
    assert texts(second) == [opening, HOP_2, SHOWN_2, ANSWER]
    # the engine has seen exactly that, token by token
    assert played.engine.contexts[2] == "".join(texts(second)[:3])
    assert second.segments[1].token_ids == first.segments[3].token_ids
    assert [(s.role, s.sampled) for s in second.segments] == [
        ("user", False),
        ("assistant", False),
        ("tool", False),
        ("assistant", True),
    ]
    assert second.loss_mask == (0,) * lengths(opening, HOP_2, SHOWN_2) + (1,) * lengths(ANSWER)
    # labels are the episode's: the citation of the second round resolves
    assert [(c.doc_id, c.marker) for c in played.episode.citations] == [("c1", "[R2Q1D1]")]
    assert (played.episode.answer, played.episode.exit) == ("Roka", Exit.ANSWERED)
    assert played.episode.metrics["contexts"] == 2
    assert [key.turn for key in played.engine.keys] == [0, 1, 2]


async def test_nothing_is_trained_twice_and_all_branches_share_the_advantage() -> None:
    played = await two_hops(dropping(max_tokens=AFTER_ONE, keep_rounds=1))
    assert trained(played) == [[HOP_1, HOP_2], [ANSWER]]
    assert [turn.text for turn in played.episode.turns] == [HOP_1, HOP_2, ANSWER]
    reward = RewardResult(total=1.0, terms={}, dimensions={}, correctness=1.0)
    group = EpisodeGroup(task=played.episode.task, episodes=(played.episode,))
    samples = to_samples([ScoredGroup(group=group, rewards=(reward,))], [[0.5]])
    assert [sample.advantage for sample in samples] == [0.5, 0.5]
    assert sum(sum(sample.loss_mask) for sample in samples) == lengths(HOP_1, HOP_2, ANSWER)


async def test_what_is_counted_and_paid_is_that_of_one_context() -> None:
    prices = {"web": 0.05, "vdb": 0.01}
    alone = (await two_hops(None, call_prices=prices)).episode
    for rule in (dropping(max_tokens=AFTER_ONE, keep_rounds=1), dropping(max_tokens=1, keep_rounds=3)):
        episode = (await two_hops(rule, call_prices=prices)).episode
        assert {k: episode.metrics[k] for k in alone.metrics} == alone.metrics
        assert episode.tool_records == alone.tool_records
        assert (episode.retrieved_ids, episode.citations) == (alone.retrieved_ids, alone.citations)
        assert episode.metrics_by_turn == alone.metrics_by_turn


async def test_without_a_rule_nothing_changes_and_it_ends_in_overflow() -> None:
    plain = await two_hops(None, HOP_1, HOP_2, max_context=AFTER_ONE + 5)
    assert plain.episode.exit is Exit.CONTEXT_OVERFLOW
    assert len(plain.episode.branches) == 1
    assert "contexts" not in plain.episode.metrics
    kept = await two_hops(dropping(max_tokens=AFTER_ONE, keep_rounds=1), max_context=AFTER_ONE + 60)
    assert kept.episode.answer == "Roka"
    assert not kept.episode.is_truncated


async def test_a_summary_is_asked_from_the_policy_and_trained() -> None:
    summary = "<summary>Castin founded Velmor [R1Q1D1]. Missing: his birthplace.</summary>"
    rule = summarising(max_tokens=AFTER_ONE, max_summary_tokens=100)
    played = await two_hops(rule, HOP_1, HOP_2, summary, ANSWER)
    first, second = played.episode.branches
    assert texts(first) == [PROMPT, HOP_1, SHOWN_1, HOP_2, FULL, summary]
    assert texts(second)[1:] == [HOP_2, SHOWN_2, ANSWER]
    notes = "Castin founded Velmor [R1Q1D1]. Missing: his birthplace."
    assert texts(second)[0].startswith(f"{PROMPT}\nYour summary of what was done so far:\n{notes}\n")
    assert trained(played) == [[HOP_1, HOP_2, summary], [ANSWER]]
    assert played.engine.samplings[2].stop[-1] == "</summary>"
    assert (played.episode.metrics["summaries"], played.episode.metrics["contexts"]) == (1, 2)
    # it is no act of the policy's: no format error, and the searches are those of one context
    alone = (await two_hops(None)).episode.metrics
    assert {k: played.episode.metrics[k] for k in alone} == alone


async def test_a_citation_of_a_label_that_only_the_summary_still_has() -> None:
    rule = summarising(max_tokens=AFTER_ONE, max_summary_tokens=100)
    played = await two_hops(rule, HOP_1, HOP_2, "Castin [R1Q1D1]", "<answer>Castin [R1Q1D1] of Roka [R2Q1D1]</answer>")
    assert [c.doc_id for c in played.episode.citations] == ["v1", "c1"]


async def test_a_summary_is_cut_to_length_and_cannot_be_a_tag() -> None:
    rule = summarising(max_tokens=AFTER_ONE, max_summary_tokens=20)
    played = await two_hops(rule, HOP_1, HOP_2, "</information> x" + "y" * 40, ANSWER)
    opening = texts(played.episode.branches[1])[0]
    assert "&lt;/information> x" in opening
    assert "yyyyyyyyyyyyyyyyyyyyy" not in opening


async def test_where_no_summary_fits_rounds_are_dropped_without_one() -> None:
    full = lengths(PROMPT, HOP_1, SHOWN_1, HOP_2, FULL)
    rule = summarising(max_tokens=AFTER_ONE, max_summary_tokens=100)
    played = await two_hops(rule, max_context=full + 99)
    assert (played.episode.metrics["summaries"], played.episode.metrics["contexts"]) == (0, 2)
    enough = await two_hops(rule, HOP_1, HOP_2, "s", ANSWER, max_context=full + 100)
    assert enough.episode.metrics["summaries"] == 1


async def test_a_search_that_is_repeated_shows_what_the_context_has_no_more() -> None:
    played = await two_hops(
        dropping(max_tokens=AFTER_ONE, keep_rounds=1), HOP_1, HOP_2, HOP_1, ANSWER, call_prices={"web": 0.05}
    )
    third = played.episode.branches[2]
    assert texts(third)[2] == SHOWN_1  # under the labels that it had
    assert played.web is not None
    assert played.web.calls == [("founded Velmor", 5)]  # asked once
    assert played.episode.metrics["repeated_search_queries"] == 0
    assert played.episode.metrics["recalled_searches"] == 1
    assert played.episode.metrics["search_rounds"] == 2
    assert [(r.name, r.outcome, r.cost) for r in played.episode.tool_records] == [
        ("search", Outcome.SUCCESS, 0.05),
        ("search", Outcome.SUCCESS, 0.0),
        ("recall", Outcome.SUCCESS, 0.0),
    ]
    # what is still shown is a repetition as ever
    seen = await two_hops(dropping(max_tokens=10_000), HOP_1, HOP_1, ANSWER)
    assert (seen.episode.metrics["repeated_search_queries"], seen.episode.metrics["recalled_searches"]) == (1, 0)


async def test_another_search_that_finds_what_is_hidden_shows_it_under_its_first_label() -> None:
    played = await two_hops(dropping(max_tokens=AFTER_ONE, keep_rounds=1), HOP_1, HOP_2, AGAIN, ANSWER)
    shown = texts(played.episode.branches[2])[2]
    assert "[R1Q1D1] (Title: Velmor) Velmor was founded by Castin." in shown
    assert "[R1Q1D2] Tours of Velmor are popular." in shown
    assert "see [R1Q1D1] [R2Q1D1] [R1Q1D2]." in shown
    assert played.episode.retrieved_ids == ("v1", "n1", "c1")


async def test_a_page_that_is_out_of_sight_is_shown_again_and_not_fetched() -> None:
    page = builders.passage("", "All of Velmor.", url="http://x.test/p")
    fetcher = ScriptedFetcher({"http://x.test/p": page})
    opens = "<fetch>http://x.test/p</fetch>"
    rule = dropping(max_tokens=lengths(PROMPT, HOP_1, SHOWN_1, f"\n\n{LISTED}\n- page: http://x.test/p"), keep_rounds=1)
    played = await two_hops(rule, opens, HOP_1, opens, ANSWER, fetcher=fetcher, call_prices={"fetch": 1.0})
    assert fetcher.calls == [("http://x.test/p",)]
    assert played.episode.metrics["fetched_pages"] == 1
    assert [(r.name, r.cost) for r in played.episode.tool_records] == [("fetch", 1.0), ("search", 0.0), ("recall", 0.0)]
    assert "- page: http://x.test/p" in texts(played.episode.branches[1])[0]


async def test_kept_rounds_stay_token_by_token_over_several_contexts() -> None:
    script = (HOP_1, HOP_2, CHATS, AGAIN, ANSWER)
    rule = dropping(max_tokens=AFTER_ONE + lengths(SHOWN_2), keep_rounds=2)
    played = await two_hops(rule, *script)
    branches = played.episode.branches
    assert len(branches) > 2
    assert [text for of in trained(played) for text in of] == list(script)
    for before, after in pairwise(branches):
        repeated = [s for s in after.segments if s.role == "assistant" and not s.sampled]
        assert repeated
        ids = {s.token_ids for s in before.segments if s.role == "assistant"}
        assert all(s.token_ids in ids for s in repeated)


async def test_the_turns_of_an_episode_are_as_many_as_in_one_context() -> None:
    rule = summarising(max_tokens=1, max_summary_tokens=5)
    played = await two_hops(rule, HOP_1, "s", HOP_2, "t", ANSWER, max_turns=3)
    assert played.episode.exit is Exit.ANSWERED
    assert played.episode.metrics["forced_final_answer"] == 0
    played = await two_hops(dropping(max_tokens=1), HOP_1, HOP_2, CHATS, ANSWER, max_turns=3)
    assert played.episode.metrics["forced_final_answer"] == 1


def cut_at(length: int, episode: Episode) -> Episode:
    """With all sampled turns of that many tokens cut short by a limit."""
    branches = [
        Branch(segments=tuple(replace(s, cut_short=s.sampled and len(s.token_ids) == length) for s in b.segments))
        for b in episode.branches
    ]
    return replace(episode, branches=tuple(branches))


async def test_a_turn_that_was_cut_short_and_goes_on_did_not_end_the_episode() -> None:
    full, ends = lengths(PROMPT) + 1, "<answer>Roka</answer>"
    options = {"max_consecutive_format_errors": 9, "require_sufficient_evidence_before_answer": False}
    played = await two_hops(dropping(max_tokens=full, keep_rounds=1), "x" * 40, ends, **options)
    episode = cut_at(40, played.episode)
    assert episode.branches[0].segments[-1].cut_short
    assert not episode.is_truncated
    # a summary that was cut short was not the policy's to end
    summarised = await two_hops(summarising(max_tokens=full, max_summary_tokens=5), "x", "s" * 40, ends, **options)
    assert cut_at(40, summarised.episode).is_truncated


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: dropping(max_tokens=0), "environment.context.max_tokens 0: 1 or more is allowed"),
        (lambda: dropping(keep_rounds=0), "environment.context.keep_rounds 0: 1 or more is allowed"),
        (lambda: summarising(max_summary_tokens=0), "environment.context.max_summary_tokens 0: 1 or more is allowed"),
    ],
)
def test_values_out_of_range_are_refused(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


async def test_what_was_recorded_of_several_contexts_is_replayed_turn_by_turn(tmp_path: Path) -> None:
    rule = summarising(max_tokens=AFTER_ONE, max_summary_tokens=100)
    script = (HOP_1, HOP_2, "Castin [R1Q1D1]", ANSWER)
    first = (await two_hops(rule, *script)).episode
    assert len(first.branches) > 1
    group = EpisodeGroup(task=first.task, episodes=(first,))
    path = tmp_path / "train-000000.jsonl"
    scored = ScoredGroup(group=group, rewards=(None,))
    write_trajectories(path, scored=[scored], advantages=[[None]], dropped=[None], step=0, seed=0)
    [record] = read_trajectories(path)
    assert record.branches == first.branches
    said = [turn.said.text for turn in turns_of(record.branches)]
    assert said == list(script)
    again = (await two_hops(rule, *said)).episode
    assert compare_episode(record, again, None, tolerance=0.0, decode=renderer().decode) is None
    other = (await two_hops(None, HOP_1, HOP_2, ANSWER)).episode
    assert compare_episode(record, other, None, tolerance=0.0, decode=renderer().decode) is not None


def test_an_opening_that_leaves_a_context_one_turn_is_refused() -> None:
    environment = SearchEnvironments(
        renderer=renderer(),
        retrievers={"vdb": ScriptedRetriever({})},
        evidence=ScriptedJudge(),
        context=dropping(max_tokens=20),
        describe_tools=False,
    )
    with pytest.raises(ConfigError, match=r"environment\.context opens a fresh one after 20"):
        environment.rehearse(builders.task(), max_context=10_000)
    replace(environment, context=dropping()).rehearse(builders.task(), max_context=10_000)


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_done_each_turn_follows_what_is_recorded_before_it_and_is_trained_once(seed: int) -> None:
    rng = random.Random(seed)
    acts = (
        HOP_1,
        HOP_2,
        CHATS,
        AGAIN,
        "<rerank/>",
        "<search_decision>search</search_decision>",
        "<searches>\nall\nchatter\n</searches>",
    )
    script = [*rng.choices(acts, k=8), "<answer>Roka [R1Q1D1] [R2Q1D1]</answer>"]
    options = {"require_sufficient_evidence_before_answer": False, "max_turns": 20, "max_search_limit": 20}
    alone = await two_hops(None, *script, **options)
    rule = dropping(max_tokens=rng.randrange(100, 700), keep_rounds=rng.randrange(1, 4))
    played = await two_hops(rule, *script, **options)
    before = []
    for branch in played.episode.branches:
        for i, segment in enumerate(branch.segments):
            if segment.sampled:
                before.append("".join(texts(branch)[:i]))
    assert before == played.engine.contexts
    assert [turn.text for turn in played.episode.turns] == script
    assert [c.doc_id for c in played.episode.citations] == [c.doc_id for c in alone.episode.citations]
    assert played.episode.retrieved_ids == alone.episode.retrieved_ids
    assert played.vdb.calls == alone.vdb.calls
    free = {"repeated_search_queries", "repeated_query_ratio"}  # some of the repetitions show again what is gone
    paid = alone.episode.metrics.keys() - free
    assert {k: played.episode.metrics[k] for k in paid} == {k: alone.episode.metrics[k] for k in paid}
    repeated = played.episode.metrics["repeated_search_queries"] + played.episode.metrics["recalled_searches"]
    assert repeated == alone.episode.metrics["repeated_search_queries"]


async def test_a_query_that_is_listed_cannot_be_a_tag() -> None:
    rule = dropping(max_tokens=AFTER_ONE + 60, keep_rounds=1)
    played = await two_hops(rule, "<search></information> x</search>", HOP_1, HOP_2, ANSWER)
    assert "- vdb: &lt;/information> x: nothing" in texts(played.episode.branches[-1])[0]
