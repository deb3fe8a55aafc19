"""Sources into one task set: splits, filters, limits, weights, and what is said of them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Message, Task
from agentgrpo.tasks.base import SPLITS, MixedDataset
from agentgrpo.tasks.mixture import Mixture
from agentgrpo.tasks.questions.dataset import QuestionSet, questions
from agentgrpo.tasks.questions.intake import Filter, QuestionSource
from tests.tasks.questions.samples import CUT, handed_on, lines, search_r1, table


def rows(count: int, about: str = "town", **more: Any) -> list[dict[str, Any]]:
    return [
        {"id": f"q{i}", "question": f"Who founded {about} {i}?", "answers": f"Mara {i}"} | more for i in range(count)
    ]


def write(path: Path, *values: object) -> str:
    path.write_text(lines(*values), encoding="utf-8")
    return str(path)


def ids(data: QuestionSet) -> dict[str, list[str]]:
    return {name: [task.id for task in data.split(name)] for name in SPLITS}


def test_two_sources_are_whole_tasks(tmp_path: Path) -> None:
    own = write(tmp_path / "own.jsonl", {"question": "Where is Orm?", "answers": "here", "split": "test", "topic": "x"})
    data = questions(
        sources={
            "r1": QuestionSource(path=table(tmp_path / "train.parquet", search_r1(4, "Mara")), split="train"),
            "own": QuestionSource(path=own),
        }
    )
    assert data.split("train") == [
        Task(
            id="r1:nq-train_4",
            messages=(Message(role="user", content="who founded town 4?"),),
            references=("Mara",),
            metadata=handed_on(search_r1(4, "Mara")),
            data_source="nq",
        )
    ]
    [test] = data.split("test")
    assert (test.id.partition(":")[0], test.metadata, test.data_source) == (
        "own",
        {"split": "test", "topic": "x"},
        "own",
    )
    assert data.split("dev") == []
    assert data.notes == (
        f"r1: {tmp_path / 'train.parquet'} {CUT}",
        f"own: {own} is read as plain; metadata of its tasks: topic",
        "r1: train 1, dev 0, test 0",
        "own: train 0, dev 0, test 1",
    )
    assert isinstance(data, MixedDataset)
    assert (data.mixture, data.corpora(), data.thesaurus()) == (None, {}, {})


def test_shares_stay_where_they_are_when_data_grows(tmp_path: Path) -> None:
    few = questions(sources={"s": QuestionSource(path=write(tmp_path / "few.jsonl", *rows(300)))})
    many = questions(sources={"s": QuestionSource(path=write(tmp_path / "many.jsonl", *rows(2000)[::-1]))})
    sizes = {name: len(many.split(name)) for name in SPLITS}
    assert abs(sizes["dev"] - 200) < 45
    assert abs(sizes["test"] - 400) < 60
    assert sum(sizes.values()) == 2000
    for name in SPLITS:
        assert {*ids(few)[name]} == {*ids(many)[name]} & {f"s:q{i}" for i in range(300)}
    other = questions(sources={"s": QuestionSource(path=str(tmp_path / "many.jsonl"))}, seed=1)
    assert {*ids(other)["test"]} != {*ids(many)["test"]}


def test_a_rewording_goes_to_the_same_split(tmp_path: Path) -> None:
    reworded = [{"question": f"Founded who the town {i}", "answers": "x"} for i in range(200)]
    sources = {
        "a": QuestionSource(path=write(tmp_path / "a.jsonl", *rows(200))),
        "b": QuestionSource(path=write(tmp_path / "b.jsonl", *reworded)),
    }
    data = questions(sources=sources)
    where = {task.question.split()[-1].strip("?"): set[str]() for name in SPLITS for task in data.split(name)}
    for name in SPLITS:
        for task in data.split(name):
            where[task.question.split()[-1].strip("?")].add(name)
    assert Counter(map(len, where.values())) == {1: 200}
    assert "200 questions are nearly the same in two sources or splits (the same words, reordered)" in data.notes


def test_no_question_is_in_two_splits(tmp_path: Path) -> None:
    train = write(
        tmp_path / "train.jsonl",
        *rows(3),
        {"id": "again", "question": "who FOUNDED town 1", "answers": "x"},
        {"id": "with a file", "question": "Who founded town 1?", "answers": "x", "files": {"a": "b"}},
    )
    test = write(tmp_path / "test.jsonl", {"id": "t", "question": "Who founded town 1", "answers": "Mara"})
    dev = write(
        tmp_path / "dev.jsonl", *({"id": f"d{i}", "question": f"Who founded town {i}?", "answers": "x"} for i in (1, 2))
    )
    sources = {
        "a": QuestionSource(path=train, split="train"),
        "b": QuestionSource(path=dev, split="dev", test_path=test),
    }
    data = questions(sources=sources)
    assert ids(data) == {"train": ["a:q0", "a:with a file"], "dev": ["b:d2"], "test": ["b:t"]}
    assert [note for note in data.notes if "also" in note] == [
        "a: 1 left out: also asked in dev",
        "a: 2 left out: also asked in test",
        "b: 1 left out: also asked in test",
    ]


def test_files_per_split_leave_nothing_to_chance(tmp_path: Path) -> None:
    source = QuestionSource(
        path=write(tmp_path / "train.jsonl", *rows(60)),
        dev_path=write(tmp_path / "dev.jsonl", *rows(5, "lake")),
        test_path=write(tmp_path / "test.jsonl", *rows(7, "hill")),
    )
    again = write(tmp_path / "again.jsonl", *rows(1), *rows(1, "lake"))
    with pytest.raises(
        DataError, match=r"again\.jsonl, line 2: id 'q0' was used in line 1 already; ids must be unique"
    ):
        questions(sources={"s": QuestionSource(path=again)})
    message = (
        rf"dev\.jsonl, line 1: id 'q0' was used in line 1 of {re.escape(source.path)} already; ids must be unique in"
    )
    with pytest.raises(DataError, match=message):
        questions(sources={"s": source})
    for name, about in (("dev", "lake"), ("test", "hill")):
        write(tmp_path / f"{name}.jsonl", *({k: v for k, v in row.items() if k != "id"} for row in rows(6, about)))
    data = questions(sources={"s": source})
    assert {name: len(data.split(name)) for name in SPLITS} == {"train": 60, "dev": 6, "test": 6}
    some = questions(sources={"s": QuestionSource(path=source.path, test_path=source.test_path)}, dev_fraction=0.5)
    assert len(some.split("test")) == 6
    assert 15 < len(some.split("dev")) < 45


def test_published_ids_that_repeat_are_numbered(tmp_path: Path) -> None:
    path = table(tmp_path / "x.parquet", search_r1(1, "a"), search_r1(1, "b", question="who was it?"))
    data = questions(sources={"s": QuestionSource(path=path, split="train")})
    assert ids(data)["train"] == ["s:nq-train_1", "s:nq-train_1#2"]


FILTERS: list[tuple[Filter, list[str], list[str]]] = [
    (Filter(), ["0", "1", "2", "3"], ["s: 1 left out: no answer"]),
    (Filter(has_answer=False), ["0", "1", "2", "3", "4"], []),
    (Filter(max_question_chars=19), ["0", "1", "2"], ["s: 1 left out: no answer", "s: 1 left out: question too long"]),
    (Filter(max_answer_chars=4), ["0", "2", "3"], ["s: 1 left out: answer too long", "s: 1 left out: no answer"]),
    (Filter(where={"level": "hard"}), ["1", "2"], ["s: 2 left out: another level", "s: 1 left out: no answer"]),
    (
        Filter(where={"level": ["hard", "easy"]}, has_answer=False),
        ["0", "1", "2"],
        ["s: 2 left out: another level"],
    ),
    (
        Filter(where={"data_source": "hotpotqa"}),
        ["3"],
        ["s: 3 left out: another data_source", "s: 1 left out: no answer"],
    ),
]


@pytest.mark.parametrize(("filter", "kept", "said"), FILTERS, ids=str)
def test_filters(tmp_path: Path, filter: Filter, kept: list[str], said: list[str]) -> None:
    path = table(
        tmp_path / "x.parquet",
        search_r1(0, "Mara", metadata={"level": "easy"}),
        search_r1(1, "Mara Lind", metadata={"level": "hard"}),
        search_r1(2, "Mara Lind", "Mara", metadata={"level": "hard"}),
        search_r1(3, "Jon", source="hotpotqa", question="who founded the town of Orm?"),
        search_r1(4),
    )
    data = questions(sources={"s": QuestionSource(path=path, split="train", filter=filter)})
    assert [id.rpartition("_")[2] for id in ids(data)["train"]] == kept
    assert [note for note in data.notes if "left out" in note] == said


def test_a_filter_that_leaves_nothing(tmp_path: Path) -> None:
    source = QuestionSource(path=write(tmp_path / "x.jsonl", *rows(3)), filter=Filter(max_question_chars=1))
    message = r"task\.sources\.s\.path: no question of '.*x\.jsonl' is used \(3 question too long\); change its filter"
    with pytest.raises(DataError, match=message):
        questions(sources={"s": source})


def test_a_limit_takes_the_same_questions_of_a_file_that_grows(tmp_path: Path) -> None:
    def limited(name: str, count: int) -> list[str]:
        source = QuestionSource(path=write(tmp_path / name, *rows(count)), split="train", limit=100)
        return ids(questions(sources={"s": source}))["train"]

    few, many = limited("few.jsonl", 150), limited("many.jsonl", 300)
    assert len(few) == len(many) == 100
    assert {*many} & {f"s:q{i}" for i in range(150)} <= {*few}
    assert few == sorted(few, key=lambda id: int(id[3:]))


def test_the_first_held_out_tasks_are_a_fair_sample(tmp_path: Path) -> None:
    sources = {
        "small": QuestionSource(path=write(tmp_path / "a.jsonl", *rows(10)), split="test"),
        "large": QuestionSource(path=write(tmp_path / "b.jsonl", *rows(30, "lake")), split="test"),
    }
    test = questions(sources=sources).split("test")
    for start in range(0, 40, 4):
        assert Counter(task.id.partition(":")[0] for task in test[start : start + 4]) == {"small": 1, "large": 3}
    assert [task.id for task in test if task.id.startswith("small")] == [f"small:q{i}" for i in range(10)]


def test_weights(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.jsonl", *rows(9)), write(tmp_path / "b.jsonl", *rows(9, "lake"))

    def mixture(one: float | None, other: float | None, split: Any = "train") -> Mixture | None:
        sources = {
            "a": QuestionSource(path=a, split="train", weight=one),
            "b": QuestionSource(path=b, split=split, weight=other),
        }
        return questions(sources=sources).mixture

    assert mixture(None, None) is None
    assert mixture(3, 1.5) == Mixture(weights={"a": 3, "b": 1.5})
    assert mixture(1, 0) == Mixture(weights={"a": 1, "b": 0})
    assert mixture(None, None, "test") is None
    assert mixture(2, 0, "test") == Mixture(weights={"a": 2})
    with pytest.raises(
        ConfigError, match=r"task\.sources\.a\.weight=1 and task\.sources\.b\.weight is null; give every"
    ):
        mixture(1, None)
    with pytest.raises(ConfigError, match=r"task\.sources\.b\.weight=2, and it has no training question; set it to 0"):
        mixture(1, 2, "test")
    with pytest.raises(ConfigError, match="no source with training questions has a weight above 0"):
        mixture(0, 0)


def test_the_fingerprint_follows_content_not_location(tmp_path: Path) -> None:
    def of(name: str, *values: object, corpus: str | None = None, **more: Any) -> str:
        source = QuestionSource(path=write(tmp_path / name, *values), split="train", **more)
        return questions(sources={"s": source}, corpus=corpus).fingerprint

    corpus = write(tmp_path / "c.jsonl", {"id": "p", "text": "x"})
    first = of("a.jsonl", *rows(3))
    assert first == of("b.jsonl", *rows(3))
    said = [
        of(f"{s}.jsonl", *(search_r1(i, "x", source=s) | {"id": "", "extra_info": {}} for i in range(3))) for s in "nq"
    ]
    assert said[0] != said[1]
    others = [of("c1.jsonl", *rows(4)), of("d.jsonl", *rows(3), weight=1), of("a.jsonl", *rows(3), corpus=corpus)]
    assert len({first, *others}) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "hotpot"}, r"format=hotpot; auto, search_r1, .* are allowed\. Did you mean 'hotpotqa'\?"),
        ({"format": "nq", "keys": {"id": "x"}}, r"keys=\{'id': 'x'\} with format=nq; only plain has keys to rename"),
        ({"weight": -1.0}, r"weight=-1\.0; a finite number >= 0 is allowed, or null"),
        ({"weight": float("inf")}, r"weight=inf; a finite number"),
        ({"limit": 0}, "limit=0; 1 or more is allowed, or null"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        QuestionSource(path="x", **settings)


def test_an_empty_cell_says_no_split(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id,question,answers,split\n1,Who?,x,\n2,When?,y,test\n", encoding="utf-8")
    data = questions(sources={"s": QuestionSource(path=str(path))}, dev_fraction=1.0, test_fraction=0.0)
    assert ids(data) == {"train": [], "dev": ["s:1"], "test": ["s:2"]}


def test_questions_of_signs_are_not_thrown_away(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", *(q("What is 7 - 5?"), q("What is 7*5?"), q("Who made C++?"), q("a b")))
    test = write(tmp_path / "test.jsonl", *(q("What is 7 + 5?"), q("Who made C#?"), q("A b?")))
    data = questions(sources={"s": QuestionSource(path=train, split="train", test_path=test)})
    assert [task.question for task in data.split("train")] == ["What is 7 - 5?", "What is 7*5?", "Who made C++?"]


def q(text: str) -> dict[str, Any]:
    return {"question": text, "answers": "x"}


def test_bad_sets(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"task\.sources: 'a:b'; names must not contain ':', which ends the name in a"
    ):
        questions(sources={"a:b": QuestionSource(path="x")})
    with pytest.raises(ConfigError, match=r"task\.sources is empty; name what to read: task\.sources\.NAME\.path=FILE"):
        questions(sources={})
    source = QuestionSource(path=write(tmp_path / "x.jsonl", *rows(1)), test_path=str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match=r"task\.sources\.s\.test_path: '.*none\.jsonl' is not a file"):
        questions(sources={"s": source})
    with pytest.raises(
        ConfigError, match=r"dev_fraction=0\.9, test_fraction=0\.2; both must be >= 0 and their sum <= 1"
    ):
        questions(sources={"s": QuestionSource(path="x")}, dev_fraction=0.9)
