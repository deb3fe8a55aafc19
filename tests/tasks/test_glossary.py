"""WordNet as its database is written, small: what is asked of it, where the answers stand, and who finds them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Task, ToolCall
from agentgrpo.retrieval.embedded import embedded
from agentgrpo.tasks.base import DemonstratedDataset, ToolDemonstrator
from agentgrpo.tools.search import SearchTool
from agentgrpo.worlds.glossary.dataset import Glossary
from agentgrpo.worlds.glossary.wordnet import Noun, read_nouns

LETTERS = "abcdefghij"
ASKED = ["word", "kind", "both"]


def synset(offset: int, words: list[str], gloss: str, above: int | None = None) -> str:
    pointers = f"002 ~ 00000001 n 0000 @ {above:08d} n 0000" if above is not None else "001 ~ 00000001 n 0000"
    told = " ".join(f"{word} 0" for word in words)
    return f"{offset:08d} 03 n {len(words):02x} {told} {pointers} | {gloss}  \n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten kinds of things and sixty nouns."""
    lines = [
        "  1 This software and database is being provided to you  \n",
        synset(1, ["entity"], "that which is there"),
    ]
    lines += [synset(100 + i, [f"kind{a}"], f"the {a}", 1) for i, a in enumerate(LETTERS)]
    lines += [
        synset(1000 + i, [f"noun{a}{b}", "other"], f"a thing of shape {a} and colour {b}; not that one", 100 + i % 10)
        for i, (a, b) in enumerate((a, b) for a in LETTERS[:6] for b in LETTERS)
    ]
    (tmp_path / "data.noun").write_text("".join(lines))
    return tmp_path


def test_what_a_line_says_and_which_are_left_out(tmp_path: Path) -> None:
    lines = [
        synset(1, ["animal"], "a living being that moves by itself"),
        synset(2, ["dog", "domestic_dog"], 'a (tame) beast that "barks" at night; "the dog barked"', 1),
        synset(3, ["guide_dog"], "a tame beast that leads the blind", 2),
        synset(4, ["bank"], "a slope beside a running water", 1),
        synset(5, ["bank"], "a house where money is kept", 1),
        synset(6, ["fox"], "a wild beast of the fox family", 1),
        synset(7, ["cur"], "a beast", 1),
        synset(8, ["elk"], "an animal of the far north", 1),
        synset(9, ["ewe"], "she who is the mother of lambs", 1),
        synset(10, ["yew"], "she who is the mother of lambs", 1),
    ]
    (tmp_path / "data.noun").write_text("".join(lines))
    assert read_nouns(tmp_path) == [Noun("dog", "a beast that barks at night", "animal")]


def test_nothing_of_test_is_asked_in_training_and_all_is_in_the_corpus(folder: Path) -> None:
    glossary = Glossary(path=str(folder), asked=ASKED)
    assert isinstance(glossary, DemonstratedDataset)
    tasks = {name: glossary.split(name) for name in ("train", "dev", "test")}
    assert [len(of_split) for of_split in tasks.values()] == [48, 3, 9]
    asked = {
        name: {t.metadata["supporting"][0].partition("-")[0] for t in of_split} for name, of_split in tasks.items()
    }
    assert sum(map(len, asked.values())) == len(set.union(*asked.values())) == 60
    passages = {p.id: p for p in glossary.corpora()["vdb"]}
    for task in [task for of_split in tasks.values() for task in of_split]:
        last = passages[task.metadata["supporting"][-1]]
        assert task.references[0] in f"{last.title}: {last.text}"
    assert [t.metadata["kind"] for t in tasks["test"]] == ["word", "kind", "both"] * 3
    assert Glossary(path=str(folder), asked=ASKED, world_seed=1).split("test") != tasks["test"]
    assert Glossary(path=str(folder), asked=ASKED).fingerprint == glossary.fingerprint


async def done(by: ToolDemonstrator, task: Task, tool: SearchTool) -> tuple[str | None, int]:
    """(answer, calls)."""
    answered: list[str] = []
    while (turn := by.next_turn(answered)).answer is None:
        [call] = turn.calls
        assert isinstance(call, ToolCall)
        result = await tool.call(call.arguments, None)  # type: ignore[arg-type]
        answered.append(result.text)
    return turn.answer, len(answered)


def chained(folder: Path) -> Path:
    """Each noun is itself a kind, of three: nounaa is a kinda; thingaaa, thingaab and thingaac are each a nounaa."""
    lines = [
        synset(5000 + i, [f"thing{a}{b}{c}"], f"a part of what is called {a} and {b} and {c}", 1000 + i // 3)
        for i, (a, b, c) in enumerate((a, b, c) for a in LETTERS[:6] for b in LETTERS for c in LETTERS[:3])
    ]
    with (folder / "data.noun").open("a") as file:
        file.writelines(lines)
    return folder


async def test_the_kind_of_a_kind_is_asked_where_the_corpus_says_it(folder: Path) -> None:
    glossary = Glossary(path=str(chained(folder)), asked=["above"])
    tool = SearchTool(retrievers=embedded(corpora=glossary.corpora(), mode="fused"), top_k=1)
    nouns = {noun.word: noun.kind for noun in read_nouns(folder)}
    tasks = glossary.split("test")
    assert tasks
    for task in tasks:
        first, second = (of.removesuffix("-kind") for of in task.metadata["supporting"])
        assert (nouns[first], nouns[second]) == (second, task.references[0])
        assert await done(glossary.oracle(task), task, tool) == (task.references[0], 2)
    assert Glossary(path=str(folder), asked=["word", "above", "above"]).split("test")


async def test_the_oracle_answers_everything_from_what_it_finds(folder: Path) -> None:
    glossary = Glossary(path=str(folder), asked=ASKED)
    tool = SearchTool(retrievers=embedded(corpora=glossary.corpora(), mode="fused"), top_k=2)
    for task in glossary.split("test"):
        wanted = (task.references[0], task.metadata["ideal_calls"]["search"])
        assert await done(glossary.oracle(task), task, tool) == wanted
    nothing = SearchTool(retrievers=embedded(corpora={"vdb": glossary.corpora()["vdb"][:1]}), top_k=2)
    assert (await done(glossary.oracle(task), task, nothing))[0] == "unknown"


def test_demonstrations_are_of_what_is_shown_and_of_training_alone(folder: Path) -> None:
    glossary = Glossary(path=str(folder), asked=ASKED, shown=["word", "kind"])
    [world] = glossary.demonstration_worlds(1, 20)
    assert [t.metadata["kind"] for t in world.tasks] == ["word", "kind"] * 10
    of_training = {t.metadata["supporting"][0].partition("-")[0] for t in glossary.split("train")}
    assert {t.metadata["supporting"][0].partition("-")[0] for t in world.tasks} <= of_training
    other = Glossary(path=str(folder), shown=["word"])
    assert other.demonstration_fingerprint != glossary.demonstration_fingerprint


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nouns": 3}, "task.nouns=3; at least 40 are needed"),
        ({"asked": ["words"]}, r"task.asked has 'words'; word, kind, above, both are allowed\. Did you mean 'word'\?"),
        ({"shown": []}, r"task.shown=\[\]; name at least one of word, kind, above, both"),
    ],
)
def test_refused(given: dict[str, object], said: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        Glossary(path=str(folder), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "said"),
    [("a line\n", "line 1: not a synset"), (re.sub(r" \|.*", "", synset(1, ["a"], "b")), "line 1: no gloss")],
)
def test_another_file_is_refused_by_its_line(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(line)
    with pytest.raises(DataError, match=said):
        read_nouns(tmp_path)
    with pytest.raises(DataError, match=r"there is no data.noun \(.*\); install WordNet"):
        read_nouns(tmp_path / "elsewhere")
