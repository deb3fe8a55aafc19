import re
from collections import Counter

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Task
from agentgrpo.tasks.base import DemonstratedDataset
from agentgrpo.tasks.dialogue import chunks_of, facts_of, questions_of
from agentgrpo.worlds.almanac.world import names, syllables
from agentgrpo.worlds.diary.dataset import LONG_EVERY, Diaries
from agentgrpo.worlds.diary.world import UNKNOWN, beginning, draw_diary, hard_wording, most_people, people, relations

CHUNKS = (
    "Wednesday. Fiksun lives in Boston.",
    "Thursday. Brasstil drank some tea.",
    "Friday. After Boston, Fiksun lives in Cairo.",
    (
        "Saturday. Brasstil lives in Nairobi. Brasstil keeps a mouse. Perhaps Fiksun keeps a poodle. "
        "Perhaps Fiksun lives in Delhi."
    ),
)
KINDS = {"current", "history", "forgotten", "rumoured", "never"}


@pytest.fixture(scope="module")
def diaries() -> Diaries:
    return Diaries(train_diaries=200)


@pytest.fixture(scope="module")
def hard() -> Diaries:
    return Diaries(train_diaries=20, hard=True)


def words(task: Task) -> set[str]:
    return set(re.findall(r"\w+", " ".join((*chunks_of(task), *(q.text for q in questions_of(task))))))


def test_it_is_a_function_of_its_seed(diaries: Diaries) -> None:
    assert isinstance(diaries, DemonstratedDataset)
    again, other = Diaries(train_diaries=200), Diaries(train_diaries=200, world_seed=1)
    assert again.fingerprint == diaries.fingerprint != other.fingerprint
    assert again.split("test") == diaries.split("test")
    assert not {chunks_of(t) for t in other.split("test")} & {chunks_of(t) for t in diaries.split("test")}
    assert other.demonstration_fingerprint == diaries.demonstration_fingerprint
    assert Diaries(habits={"fact": 0.5}).demonstration_fingerprint != diaries.demonstration_fingerprint
    assert (diaries.corpora(), diaries.thesaurus()) == ({}, {})


def test_splits_and_lengths(diaries: Diaries) -> None:
    sizes = {name: len(diaries.split(name)) for name in ("train", "dev", "test")}
    assert sizes == {"train": 200, "dev": 60, "test": 220}
    test = diaries.split("test")
    assert [i for i, t in enumerate(test) if t.metadata["kind"] == "long"] == list(range(10, 220, LONG_EVERY))
    lengths = {kind: Counter[int]() for kind in ("dialogue", "long")}
    for task in test:
        lengths[task.metadata["kind"]][len(chunks_of(task))] += 1
    assert lengths["long"] == {50: 20}
    assert sorted(lengths["dialogue"]) == list(range(4, 11))
    assert {len(chunks_of(t)) for t in diaries.split("train")} == set(range(4, 9))


@pytest.mark.parametrize("world_seed", [0, 7])
def test_nobody_of_the_held_out_splits_occurs_in_training(world_seed: int) -> None:
    world = Diaries(world_seed=world_seed, train_diaries=100)
    pools = {pool: set(names(pool)) for pool in ("train", "dev", "test")}  # type: ignore[arg-type]
    everybody = set().union(*pools.values())
    for split, allowed in pools.items():
        for task in world.split(split):
            assert words(task) & everybody <= allowed
    shown = [task for shelf in world.demonstration_worlds(3, 30) for task in shelf.tasks]
    assert set().union(*map(words, shown)) & everybody <= pools["train"]


def test_of_two_people_none_begins_like_the_other() -> None:
    firsts, _ = syllables()
    cut = re.compile(beginning())
    for seed in range(20):
        diary = draw_diary("test", 50, seed)
        everybody = {m[0].strip() for q in diary.questions for m in [cut.match(q.text)] if m}
        named = {q.text.split()[0] for q in diary.questions}
        assert len(everybody) == len(named)
        assert everybody <= set(firsts)
    assert most_people("test") > 36  # a long diary's, and a stranger


def test_people_are_drawn_without_repetition() -> None:
    from random import Random

    drawn = people("dev", 10, Random(3))
    assert len({name[:3] for name in drawn}) >= 9
    assert set(drawn) <= set(names("dev"))


def test_a_name_is_cut_after_its_first_syllable_and_nothing_else_is(diaries: Diaries) -> None:
    cut = re.compile(beginning())
    everybody = {*names("train"), *names("dev"), *names("test")}
    for task in diaries.split("test")[:30]:
        for chunk in chunks_of(task):
            for match in cut.finditer(chunk):
                assert re.match(r"\w+", chunk[match.start() :].strip())[0] in everybody  # type: ignore[index]
            named = [w for w in re.findall(r"\w+", chunk) if w in everybody]
            assert len(cut.findall(chunk)) == len(named)


def test_questions_follow_from_the_days(diaries: Diaries) -> None:
    """Read by another hand: what the facts of the chunks come to answers every question."""
    kinds = Counter[str]()
    for task in diaries.split("test"):
        holds: dict[str, str] = {}
        facts = facts_of(task)
        assert facts is not None
        assert len(facts) == len(chunks_of(task))
        for fact in (fact for chunk in facts for fact in chunk):
            assert fact.op in ("insert", "update", "delete")
            assert (fact.op == "insert") == (fact.key not in holds)
            if fact.op == "delete":
                del holds[fact.key]
            else:
                assert fact.text.startswith(f"{fact.key} ")
                holds[fact.key] = fact.text
        for question in questions_of(task):
            kinds[question.kind] += 1
            key, cue = " ".join(question.text.split()[:2]), question.text.split()[2]
            said = holds.get(key, "").split()
            answer = said[said.index(cue) + 1] if cue in said else UNKNOWN
            assert (answer,) == question.answers, question
            assert (answer == UNKNOWN) == (question.kind in ("forgotten", "rumoured", "never"))
    assert set(kinds) == KINDS
    share = {kind: count / kinds.total() for kind, count in kinds.items()}
    assert 0.45 < share["current"] < 0.65
    assert min(share["history"], share["forgotten"]) > 0.1


def test_sentences_of_one_diary() -> None:
    """Published figures belong to this world; a change of names, texts or drawing makes it another one."""
    assert draw_diary("test", 4, 0, "test", 3).chunks == CHUNKS


HARD_CHUNKS = (
    "Monday. Homcox drank some tea. Ternal had a guest. It was Drancex.",
    "Tuesday. Ternal had lunch with Drancex. Homcox lives in Tokyo. Perhaps Brexstal takes lessons on the fiddle.",
    "Wednesday. Homcox was late again. Homcox is done with Tokyo. Home is now Prague.",
)


def test_the_hard_world_s_sentences() -> None:
    """Published figures belong to this world too."""
    assert draw_diary("test", 8, 0, "test", 3, hard=True).chunks[:3] == HARD_CHUNKS


def test_a_hard_diary_asks_of_a_memory_what_a_plain_one_does_and_meetings(hard: Diaries) -> None:
    """Read by another hand: what the facts come to answers every question."""
    kinds = Counter[str]()
    for task in hard.split("test"):
        holds: dict[str, str] = {}
        met: dict[str, set[str]] = {}
        for fact in (fact for chunk in facts_of(task) or () for fact in chunk):
            assert (fact.op == "add") == fact.key.endswith(" met")
            if fact.op == "add":
                assert fact.text not in met.setdefault(fact.key, set())
                met[fact.key].add(fact.text)
            elif fact.op == "delete":
                del holds[fact.key]
            else:
                assert (fact.op == "insert") == (fact.key not in holds)
                holds[fact.key] = fact.text
        for question in questions_of(task):
            kinds[question.kind] += 1
            key, cue = " ".join(question.text.split()[:2]), question.text.split()[2]
            said = holds.get(key, "").split()
            answer = said[said.index(cue) + 1] if cue in said else UNKNOWN
            assert (str(len(met[key])) if question.kind == "count" else answer,) == question.answers, question
    assert set(kinds) == {*KINDS, "count"}
    assert 0.1 < kinds["count"] / kinds.total() < 0.3


def test_most_of_a_hard_diary_is_told_in_other_words(hard: Diaries) -> None:
    """And a meeting may come twice, which is counted once."""
    said, plainly, again = 0, 0, 0
    for task in hard.split("test"):
        sentences = [sentence for day in hard.diary(task).days for sentence in day]
        facts = [s for s in sentences if s.kind in ("fact", "change", "meeting")]
        said, plainly = said + len(facts), plainly + sum(s.clause in s.text for s in facts)
        again += sum(s.kind == "again" for s in sentences)
    assert 0.1 < plainly / said < 0.3
    assert again > 50


def test_no_wording_of_the_hard_world_looks_like_a_name_and_all_tell_the_values(hard: Diaries) -> None:
    cut = re.compile(beginning())
    everybody = {*names("train"), *names("dev"), *names("test")}
    for task in hard.split("test")[:60]:
        for chunk in chunks_of(task):
            assert len(cut.findall(chunk)) == len([w for w in re.findall(r"\w+", chunk) if w in everybody])
    for relation in relations():
        told = hard_wording().relations[relation.verb]
        assert all("{who}" in text and "{value}" in text for text in told.fact + told.change)
        assert all("{before}" in text for text in told.change)
        assert all("{who}" in text and "{value}" not in text for text in told.forget)


def test_a_change_says_what_held_before(diaries: Diaries) -> None:
    changes = 0
    for task in diaries.split("train"):
        text = " ".join(chunks_of(task))
        for fact in (f for chunk in facts_of(task) or () for f in chunk if f.op == "update"):
            clause, _, before = fact.text.partition(" before ")
            assert f"After {before}, {clause}." in text
            changes += 1
    assert changes > 100


def test_verbs_and_cues_are_a_relation_s_own() -> None:
    rows = relations()
    told_apart = [word for r in rows for word in (r.verb, r.cue)]
    assert len(set(told_apart)) == 2 * len(rows) == 8
    values = [value for r in rows for value in r.values]
    assert len(set(values)) == len(values)
    assert all(re.fullmatch("[A-Za-z]+", value) for value in values)
    assert not {UNKNOWN, "before", "perhaps"} & {value.lower() for value in values}


def test_refused_settings(diaries: Diaries) -> None:
    with pytest.raises(ConfigError, match="dev_diaries=0; at least 1 is allowed"):
        Diaries(dev_diaries=0)
    with pytest.raises(ConfigError, match=r"test_days=\[8, 4\]; two whole numbers, at least 1"):
        Diaries(test_days=(8, 4))
    with pytest.raises(ConfigError, match=r"habits\.fact=1\.5; a probability"):
        Diaries(habits={"fact": 1.5})
    with pytest.raises(ConfigError, match="their sum must be at most 1"):
        Diaries(habits={"update": 0.6, "neglect": 0.6})
    with pytest.raises(ConfigError, match=r"habits\.fakt; .* Did you mean 'fact'"):
        Diaries(habits={"fakt": 0.5})
    with pytest.raises(DataError, match=r"split .tset.; this task set has train, dev, test\. Did you mean 'test'"):
        diaries.split("tset")
    with pytest.raises(DataError, match="not of this world"):
        diaries.oracle(Diaries(world_seed=1, train_diaries=1).split("test")[0])
