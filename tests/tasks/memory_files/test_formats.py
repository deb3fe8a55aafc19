"""Each format, from an invented file of its published shape to whole tasks."""

from __future__ import annotations

from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.types import Task
from agentgrpo.judges.answers import Choice, Contains, ExactMatch, Keywords, TokenF1
from agentgrpo.judges.composed import Questions, Route
from agentgrpo.tasks.dialogue import Fact, Question, facts_of, join, memory_task, questions_of
from agentgrpo.tasks.memory_files.dataset import MemoryFiles
from tests.tasks.memory_files.conftest import FIXTURES, load

MARA = (
    "Profile of Mara Lind\nProtagonist: Mara Lind\nAge: 31\nHobbies: sailing, chess\nMara is calm.\n\n"
    "Mara Lind's brother Jon Lind: He is 28.\n\n"
    "May 2022: A trip\nMara and Jon sailed to Orm.\n\n"
    "Dialogue on 2022-05-12 10:00\nMara Lind: Where is the map?\nJon Lind: I forgot it."
)
ALL_TRAIN: dict[str, Any] = {"dev_fraction": 0.0, "test_fraction": 0.0}


def of(dataset: MemoryFiles) -> dict[str, list[Task]]:
    return {name: list(tasks) for name in ("train", "dev", "test") if (tasks := dataset.split(name))}


def q(text: str, *answers: str, kind: str = "", metric: str = "token_f1", options: tuple[str, ...] = ()) -> Question:
    return Question(text=text, answers=answers, kind=kind, metric=metric, options=options)


def test_jsonl_of_chats_and_of_chunks() -> None:
    data = load("chats.jsonl")
    assert of(data) == {
        "train": [
            memory_task(
                "anna",
                chunks=["system: Be kind.\n[2024-05-01] Anna: I moved to Graz.\nassistant: How nice!"],
                questions=[q("Where does Anna live?", "Graz", kind="current")],
                data_source="chats",
                metadata={"topic": "moving"},
            )
        ],
        "test": [
            memory_task(
                "7",
                chunks=["Bob sold his car.", "Bob bought a boat."],
                questions=[
                    q("What does Bob own?", "a boat", "boat", metric="contains"),
                    q("Which?", "B", metric="choice", options=("a car", "a boat")),
                ],
                data_source="boats",
                facts=[(), (Fact(op="insert", key="Bob owns", text="Bob owns a boat"),)],
            )
        ],
    }
    assert facts_of(data.split("test")[0]) == ((), (Fact(op="insert", key="Bob owns", text="Bob owns a boat"),))
    assert (data.left_out, data.corpora(), data.thesaurus()) == ({}, {}, {})


def test_squad() -> None:
    orm = "Lake Orm lies in Velden. It froze in 1911."
    questions = [
        q("Where does Lake Orm lie?", "Velden", "in Velden"),
        q("How often does a ferry cross?", "twice a day"),
    ]
    assert of(load("squad.json", "squad", **ALL_TRAIN)) == {
        "train": [
            memory_task(
                "Lake_Orm",
                chunks=[f"{orm}\n\nA ferry crosses it twice a day."],
                questions=questions,
                data_source="squad",
            ),
            memory_task(
                "Quill_Press",
                chunks=["Quill Press printed maps."],
                questions=[q("What did Quill Press print?", "maps")],
                data_source="squad",
            ),
        ]
    }
    data = load("squad.json", "squad", unanswerable="unknown", metric="contains", chunk_words=6, **ALL_TRAIN)
    task = data.split("train")[0]
    assert task.metadata["chunks"] == [
        "Lake Orm lies in Velden.",
        "It froze in 1911.",
        "A ferry crosses it twice a",
        "day.",
    ]
    assert questions_of(task) == (
        q("Where does Lake Orm lie?", "Velden", "in Velden", metric="contains"),
        q("Who swam across Lake Orm?", "unknown", kind="unanswerable", metric="contains"),
        q("How often does a ferry cross?", "twice a day", metric="contains"),
    )


def test_a_long_article_is_several_tasks_that_ask_what_they_show() -> None:
    data = load("squad.json", "squad", chunk_words=9, max_chunks=1, **ALL_TRAIN)
    assert [(t.id, t.metadata["chunks"], [x.text for x in questions_of(t)]) for t in data.split("train")] == [
        ("Lake_Orm/1", ["Lake Orm lies in Velden. It froze in 1911."], ["Where does Lake Orm lie?"]),
        ("Lake_Orm/2", ["A ferry crosses it twice a day."], ["How often does a ferry cross?"]),
        ("Quill_Press", ["Quill Press printed maps."], ["What did Quill Press print?"]),
    ]
    with pytest.raises(
        DataError, match=r"squad\.json, data\[0\]: a paragraph of it takes 2 chunks, and task\.max_chunks"
    ):
        load("squad.json", "squad", chunk_words=8, max_chunks=1, **ALL_TRAIN)
    fewer = load("squad.json", "squad", chunk_words=8, max_chunks=1, too_long="leave_out", **ALL_TRAIN)
    assert [t.id for t in fewer.split("train")] == ["Lake_Orm", "Quill_Press"]
    assert fewer.left_out == {"has no answer": 1, "too long": 1}


def test_hotpotqa_merges_rows_and_shows_a_shared_paragraph_once() -> None:
    tarn, moss, orm = (
        "Tarn\nTarn was founded in 1900. It is small.",
        "Moss\nMoss is green.",
        "Orm\nOrm was founded in 1800.",
    )
    questions = [
        q("Is Orm older than Tarn?", "yes", kind="comparison"),
        q("What colour is the moss of Fen?", "green", kind="bridge"),
    ]
    [task] = load("hotpotqa.json", "hotpotqa", **ALL_TRAIN).split("train")
    assert task == memory_task(
        "h1", chunks=[f"{tarn}\n\n{moss}\n\n{orm}\n\nFen\nFen has moss."], questions=questions, data_source="hotpotqa"
    )
    one_by_one = load("hotpotqa.json", "hotpotqa", questions_per_task=1, **ALL_TRAIN).split("train")
    assert [t.metadata["chunks"] for t in one_by_one] == [
        [f"{tarn}\n\n{moss}\n\n{orm}"],
        [f"Fen\nFen has moss.\n\n{moss}"],
    ]


def test_perltqa() -> None:
    data = load("perltqa.json", "perltqa", contexts=str(FIXTURES / "perltmem.json"), **ALL_TRAIN)
    assert of(data) == {
        "train": [
            memory_task(
                "Mara Lind",
                chunks=[MARA],
                questions=[
                    q("How old is Mara Lind?", "Mara Lind is 31.", kind="profile"),
                    q("Who is Mara's brother?", "Jon Lind", kind="social_relationship"),
                    q("Where did they sail?", "To Orm", kind="events"),
                    q("What did Jon forget?", "The map", kind="dialogues"),
                ],
                data_source="perltqa",
            )
        ]
    }
    assert data.left_out == {
        "has no answer": 1,
        "is about a memory that task.contexts does not have": 1,
        "a character that task.contexts does not have": 1,
    }
    with pytest.raises(ConfigError, match=r"task\.format=perltqa needs task\.contexts"):
        load("perltqa.json", "perltqa")


def ask(text: str, label: str) -> Question:
    return q(
        f"Which label has this text? Answer with the label alone.\nText: {text}",
        label,
        kind="label",
        metric="exact_match",
    )


def test_trec_labels_are_numbers_that_the_chunks_explain() -> None:
    [task] = load("trec.label", "labels", **ALL_TRAIN).split("train")
    numbers = {"HUM:ind": "0", "NUM:date": "1"}
    lines = [line.split(" ", 1) for line in (FIXTURES / "trec.label").read_text("utf-8").splitlines()]
    label_of = {text: numbers[label] for label, text in lines}
    [asked] = questions_of(task)
    text = asked.text.rpartition("Text: ")[2]
    assert asked == ask(text, label_of[text])
    shown = task.metadata["chunks"][0].split("\n\n")
    assert sorted(shown) == sorted(f"Text: {t}\nLabel: {n}" for t, n in label_of.items() if t != text)
    assert (task.id, task.data_source) == ("labels/train/1", "labels")


def test_label_names_and_coarse_labels() -> None:
    [task] = load("trec.label", "labels", labels="name", label_level="coarse", chunk_words=8, **ALL_TRAIN).split(
        "train"
    )
    assert len(task.metadata["chunks"]) == 8
    assert {chunk.rpartition("Label: ")[2] for chunk in task.metadata["chunks"]} == {"HUM", "NUM"}
    [short] = load("trec.label", "labels", chunk_words=5, max_chunks=None, **ALL_TRAIN).split("train")
    assert "Text: When was\nLabel: 1" in short.metadata["chunks"]
    with pytest.raises(ConfigError, match=r"task\.label_level=coarse, but .*banking\.csv, line 2 has one label only"):
        load("banking.csv", "labels", label_level="coarse")


@pytest.mark.parametrize(
    ("file", "level", "expected"),
    [
        (
            "banking.csv",
            "fine",
            {
                "Where is my card, please?": "card_arrival",
                "My card has not come": "card_arrival",
                "What is the rate today?": "exchange_rate",
                "Which rate do I get?": "exchange_rate",
            },
        ),
        ("nlu.csv", "coarse", dict.fromkeys(("wake me at five", "when is my alarm", "An alarm at six."), "alarm")),
        ("labels.jsonl", "fine", {"one two": "3", "two three": "3"}),
    ],
)
def test_label_files(file: str, level: Any, expected: dict[str, str]) -> None:
    for seed in range(3):
        [task] = load(file, "labels", labels="name", label_level=level, seed=seed, **ALL_TRAIN).split("train")
        shown = [chunk.removeprefix("Text: ").split("\nLabel: ") for chunk in task.metadata["chunks"][0].split("\n\n")]
        asked = [[x.text.rpartition("Text: ")[2], x.answers[0]] for x in questions_of(task)]
        assert sorted(shown + asked) == sorted([t, label] for t, label in expected.items())
        assert len(asked) == 1


def test_clinc_keeps_its_splits() -> None:
    data = load("clinc.json", "labels", labels="name", seed=2)
    assert {name: len(tasks) for name, tasks in of(data).items()} == {"train": 1, "dev": 1, "test": 1}
    texts = {"dev": {"timer now", "start a timer"}, "test": {"how much is in my account", "balance please"}}
    for name, expected in texts.items():
        [task] = data.split(name)
        chunk = task.metadata["chunks"][0].removeprefix("Text: ").partition("\n")[0]
        assert {chunk, questions_of(task)[0].text.rpartition("Text: ")[2]} == expected


def test_pubmed_rct() -> None:
    [task] = load("pubmed.txt", "pubmed_rct", questions_per_task=1, seed=0, **ALL_TRAIN).split("train")
    lines = ("Tea is drunk widely .", "We gave tea to ten people .", "They slept .", "They slept well .")
    first = [f"Text: {text}\nLabel: {label}" for text, label in zip(lines, "0112", strict=True)]
    then = ["Text: Coffee keeps awake .\nLabel: 0", "Text: We gave coffee to nine people .\nLabel: 1"]
    assert task == memory_task(
        "pubmed-rct/train/1",
        chunks=["\n\n".join([*first, *then])],
        questions=[ask("They did not sleep .", "2")],
        data_source="pubmed-rct",
    )


def test_summaries() -> None:
    assert of(load("summary.jsonl", "summary", chunk_words=8)) == {
        "train": [
            memory_task(
                "c1",
                chunks=["Mara steers the ferry. Jon loses the map.", "They land in Velden."],
                questions=[
                    q(
                        "Summarize what was read of The Orm Ferry.",
                        *("Mara", "ferry", "Velden"),
                        kind="summary",
                        metric="keywords",
                    )
                ],
                data_source="summary",
                metadata={"title": "The Orm Ferry"},
            )
        ],
        "test": [
            memory_task(
                "c2",
                chunks=["A press prints maps."],
                questions=[q("Summarize what was read.", "Maps are printed.", kind="summary")],
                data_source="summary",
            )
        ],
    }


def test_personamem_asks_after_so_many_messages() -> None:
    contexts = str(FIXTURES / "personamem_contexts.jsonl")
    data = load("personamem_questions.csv", "personamem", contexts=contexts, chunk_messages=2, **ALL_TRAIN)
    first = ["system: Current user persona: Mara.\nUser: I do not like heat."]
    assert of(data) == {
        "train": [
            memory_task(
                "ctx1@3",
                chunks=[*first, "Assistant: I will remember."],
                questions=[
                    q(
                        "Any trip for me?",
                        "Lake Orm, since you don't like heat.",
                        kind="recall_user_shared_facts",
                        metric="choice",
                        options=("A desert tour.", "Lake Orm, since you don't like heat.", "None."),
                    ),
                    q("Too hot?", "Yes.", kind="recall_user_shared_facts", metric="choice", options=("Yes.", "No.")),
                ],
                data_source="personamem",
            ),
            memory_task(
                "ctx1@5",
                chunks=[*first, "Assistant: I will remember.\nUser: I like heat now.", "Assistant: Good."],
                questions=[
                    q(
                        "Any other?",
                        "Now the desert.",
                        kind="track_full_preference_evolution",
                        metric="choice",
                        options=("Now the desert.", "Lake Orm."),
                    )
                ],
                data_source="personamem",
            ),
        ]
    }


def test_mem_alpha_is_graded_by_its_sources() -> None:
    data = load("mem_alpha.jsonl", "mem_alpha", **ALL_TRAIN)
    assert [
        (t.data_source, [(x.answers, x.metric) for x in questions_of(t)], len(t.metadata["chunks"]))
        for t in data.split("train")
    ] == [
        ("squad", [(("a lake",), "contains")], 1),
        ("booksum", [(("Mara", "ferry", "Velden"), "keywords")], 1),
        ("pubmed-rct", [(("0",), "exact_match")], 1),
        ("perltqa", [(("Sailing", "Chess"), "keywords"), (("Mara",), "contains")], 1),
        ("icl_banking77_5900shot_balance", [(("12",), "exact_match")], 1),
        ("infbench_sum_eng_shots2", [(("Jon", "map"), "keywords")], 1),
        ("lme_train", [(("The user would prefer tea.",), "token_f1")], 1),
    ]
    assert data.split("train")[0].metadata["chunks"] == [
        "[Dialogue between User and Assistant on 2024-01-01 00:00]\n<User>Orm is a lake.\n<Assistant>Noted."
    ]


async def test_every_task_can_be_graded_by_its_metrics() -> None:
    """What judge=questions_by_metric is: the right answers get 1, wrong ones 0."""
    routes = {
        "exact_match": ExactMatch(),
        "token_f1": TokenF1(),
        "contains": Contains(),
        "keywords": Keywords(),
        "choice": Choice(),
    }
    judge, count = Questions(judge=Route(routes=routes)), 0
    for dataset in every_dataset():
        for task in (t for name in ("train", "dev", "test") for t in dataset.split(name)):
            asked = questions_of(task)
            right = join([", ".join(x.answers) if x.metric == "keywords" else x.answers[0] for x in asked])
            assert [v.score for v in await judge.grade(task, [right, join(["zebra"] * len(asked))])] == [1.0, 0.0]
            count += len(asked)
    assert count == 29


def every_dataset() -> list[MemoryFiles]:
    files: list[tuple[str, str, dict[str, Any]]] = [
        ("chats.jsonl", "jsonl", {}),
        ("squad.json", "squad", {}),
        ("hotpotqa.json", "hotpotqa", ALL_TRAIN),
        ("perltqa.json", "perltqa", {"contexts": str(FIXTURES / "perltmem.json")}),
        ("trec.label", "labels", ALL_TRAIN),
        ("clinc.json", "labels", {}),
        ("pubmed.txt", "pubmed_rct", ALL_TRAIN),
        ("summary.jsonl", "summary", {}),
        ("personamem_questions.csv", "personamem", {"contexts": str(FIXTURES / "personamem_contexts.jsonl")}),
        ("mem_alpha.jsonl", "mem_alpha", {}),
    ]
    return [load(file, format, **settings) for file, format, settings in files]
