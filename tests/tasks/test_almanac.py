import re
from collections import Counter
from itertools import combinations, pairwise

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Passage
from agentgrpo.worlds.almanac.dataset import Almanac
from agentgrpo.worlds.almanac.world import names, pool_of, texts, thesaurus

KINDS = {
    *("founder", "hq", "born", "maker", "price", "chief"),
    *("founder+born", "chief+born", "maker+founder", "maker+hq"),
}


@pytest.fixture(scope="module")
def almanac() -> Almanac:
    return Almanac()


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Z][a-z]+|[a-z]+|\d+", text))


def test_it_is_a_function_of_its_seed(almanac: Almanac) -> None:
    again, other = Almanac(), Almanac(world_seed=1)
    assert again.fingerprint == almanac.fingerprint != other.fingerprint
    assert again.split("test")[:50] == almanac.split("test")[:50]
    assert again.corpora() == almanac.corpora()
    assert other.demonstration_fingerprint == almanac.demonstration_fingerprint


def test_the_world_never_changes_between_versions() -> None:
    """Published figures belong to this world; a change of names, texts or drawing makes it another one."""
    first = Almanac(world_seed=0).split("test")[0]
    assert (first.id, first.question, first.references) == (
        "almanac-0-founder-brastrer",
        "Who founded Brastrer?",
        ("Rasstal",),
    )


def test_pools_are_disjoint_and_independent_of_the_world_seed() -> None:
    pools = {pool: set(names(pool)) for pool in ("train", "dev", "test")}
    assert {pool: len(each) for pool, each in pools.items()} == {"train": 2013, "dev": 160, "test": 531}
    assert all(a.isdisjoint(b) for a, b in combinations(pools.values(), 2))
    assert pool_of("Surbus") == "test"


@pytest.mark.parametrize("world_seed", [0, 7])
def test_no_test_name_occurs_in_training(world_seed: int) -> None:
    almanac = Almanac(world_seed=world_seed)
    held_out = set(names("test")) | set(names("dev"))
    seen = {w for task in almanac.split("train") for text in (task.question, *task.references) for w in words(text)}
    for world in almanac.demonstration_worlds(5, 90):
        seen |= {w for passages in world.corpora().values() for p in passages for w in words(p.text)}
        seen |= {w for task in world.tasks for w in words(task.question)}
    for name, passages in almanac.training_corpora().items():
        seen |= {w for p in passages for w in words(p.text)}
        assert set(passages) < set(almanac.corpora()[name])
    assert len(seen) > 1000
    assert seen.isdisjoint(held_out)


def test_training_finds_what_proves_its_answers_and_a_test_is_among_all_documents(almanac: Almanac) -> None:
    for split, corpora in (("train", almanac.training_corpora()), ("test", almanac.corpora())):
        found = {p.id for p in corpora["web"]}
        assert all(set(task.metadata["supporting"]) <= found for task in almanac.split(split))
    assert {p.id for p in almanac.training_corpora()["web"]} <= {p.id for p in almanac.corpora()["web"]}


def test_splits_are_balanced_in_any_prefix(almanac: Almanac) -> None:
    assert {name: len(almanac.split(name)) for name in ("train", "dev", "test")} == {
        "train": 4400,
        "dev": 275,
        "test": 1100,
    }
    for n in (100, 500, 1000):
        assert Counter(t.metadata["kind"] for t in almanac.split("test")[:n]) == dict.fromkeys(KINDS, n // 10)
    everything = [t.id for name in ("train", "dev", "test") for t in almanac.split(name)]
    assert len(set(everything)) == len(everything)


def test_what_an_oracle_needs(almanac: Almanac) -> None:
    """The figures that a trained policy is measured against: rounds 1.4, web 0.3, rerank 0.2 per question."""
    head = almanac.split("test")[:1000]
    assert sum(t.metadata["hops"] for t in head) == 1400
    assert {t.metadata["kind"] for t in head if t.metadata["needs_web"]} == {"price", "chief", "chief+born"}
    assert {t.metadata["kind"] for t in head if t.metadata["needs_rerank"]} == {"hq", "maker+hq"}


def test_supporting_passages_hold_the_chain_of_evidence(almanac: Almanac) -> None:
    web = {p.id: p.text for p in almanac.corpora()["web"]}
    vdb = {p.id: p.text for p in almanac.corpora()["vdb"]}
    for task in almanac.split("test"):
        shown = [web[id] for id in task.metadata["supporting"]]
        assert len(shown) == task.metadata["hops"]
        assert task.references[0] in words(shown[-1])
        for bridge, then in pairwise(shown):
            assert len(words(bridge) & words(then) & set(names("test"))) == 1
        assert all(id in vdb for id in task.metadata["supporting"]) is not task.metadata["needs_web"]


def test_the_vdb_is_out_of_date_where_the_web_is_not(almanac: Almanac) -> None:
    vdb, web = (almanac.corpora()[name] for name in ("vdb", "web"))
    assert len(vdb) == len(web)
    assert {p.id for p in vdb} - {p.id for p in web} == {
        f"{p.id}-years-ago" for p in web if p.id.startswith(("price-", "chief-"))
    }
    today = {p.id: p.text for p in web}
    for passage in vdb:
        if passage.id.endswith("-years-ago"):
            assert words(passage.text) - words(today[passage.id.removesuffix("-years-ago")]) > {"Years", "ago"}


def test_passages_are_unique_and_bare(almanac: Almanac) -> None:
    for passages in almanac.corpora().values():
        assert len({p.id for p in passages}) == len(passages) == len({p.text for p in passages})
        assert all(p == Passage(id=p.id, text=p.text) for p in passages)


def test_the_word_before_a_value_belongs_to_one_relation() -> None:
    before = [rule.fact.partition("{value}")[0].split()[-1] for rule in texts().relations.values()]
    assert sorted(before) == ["by", "from", "in", "is", "near", "now"]


def test_queries_meet_the_words_of_the_facts_except_where_a_thesaurus_is_needed() -> None:
    for rule in texts().relations.values():
        query, fact = ({w.lower() for w in words(text)} for text in (rule.query, rule.fact))
        assert bool(query & fact - {"subject"}) is not rule.needs_rerank
        if rule.needs_rerank:
            assert {other for w in query & thesaurus().keys() for other in thesaurus()[w]} <= fact


def test_demonstration_worlds_draw_facts_of_their_own(almanac: Almanac) -> None:
    worlds = list(almanac.demonstration_worlds(3, 84))
    assert [len(w.tasks) for w in worlds] == [84] * 3
    assert Counter(t.metadata["kind"] for t in worlds[0].tasks) == {kind: 12 if "+" in kind else 6 for kind in KINDS}
    assert len({t.id for w in worlds for t in w.tasks}) == 3 * 84
    assert next(iter(almanac.demonstration_worlds(1, 84))).tasks == worlds[0].tasks
    assert Almanac(world_seed=9).demonstration_fingerprint == almanac.demonstration_fingerprint
    assert Almanac(habits={"web": 0.5}).demonstration_fingerprint != almanac.demonstration_fingerprint


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"test_companies": 500}, "num_companies=500 takes 2250 names; there are 531, enough for 113 companies"),
        ({"num_companies": 0}, "num_companies=0"),
        ({"two_hop_weight": 0}, "two_hop_weight=0; at least 1"),
        ({"habits": {"webb": 0.5}}, r"habits.webb; .*Did you mean 'web'\?"),
        ({"habits": {"web": 1.5}}, r"habits.web=1.5; a probability in \[0, 1\]"),
        ({"habits": {"max_searches": 0}}, "habits.max_searches=0; at least 1"),
    ],
)
def test_refused_settings(settings: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=says):
        Almanac(**settings)


def test_refused_requests(almanac: Almanac) -> None:
    with pytest.raises(DataError, match=r"split 'tset'; this task set has train, dev, test. Did you mean 'test'\?"):
        almanac.split("tset")
    with pytest.raises(DataError, match="is not of this world"):
        almanac.oracle(Almanac(world_seed=1).split("test")[0])
    with pytest.raises(ConfigError, match="tasks_per_world=1000; a demonstration world has 440 tasks"):
        list(almanac.demonstration_worlds(1, 1000))
