"""Files in the shape of the published ones, invented by us: format -> (file name, its text, what it asks)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow
from pyarrow import parquet


class Sample(NamedTuple):
    file: str
    text: str
    asked: list[tuple[str, str, tuple[str, ...], dict[str, Any]]]
    """(id, question, answers, metadata)."""


def lines(*rows: object) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def table(path: Path, *rows: Mapping[str, Any]) -> str:
    """A parquet file."""
    keys = dict.fromkeys(key for row in rows for key in row)
    parquet.write_table(pyarrow.table({key: [row.get(key) for row in rows] for key in keys}), path)
    return str(path)


PROMPT = (
    "Answer the given question. You can search by <search> query </search>, and answer inside <answer> and </answer>. "
    "For example, <answer> Beijing </answer>. Question: {}\n"
)


def search_r1(number: int, *answers: str, source: str = "nq", split: str = "train", **more: Any) -> dict[str, Any]:
    """A row of Search-R1's parquet."""
    question = f"who founded town {number}?"
    return {
        "id": f"{split}_{number}",
        "question": question,
        "golden_answers": list(answers),
        "data_source": source,
        "prompt": [{"role": "user", "content": PROMPT.format(question)}],
        "ability": "fact-reasoning",
        "reward_model": {"style": "rule", "ground_truth": {"target": list(answers)}},
        "extra_info": {"split": split, "index": number},
        **more,
    }


HOTPOT = {
    "_id": "5a8b",
    "question": "Which town is older, Orm or Velm?",
    "answer": "Orm",
    "type": "comparison",
    "level": "hard",
    "supporting_facts": [["Orm", 0], ["Velm", 1], ["Orm", 2]],
    "context": [["Orm", ["Orm is old.", " It lies by a lake."]], ["Velm", ["Velm is new."]]],
}
WIKI2 = {
    "_id": "8813f8",
    "type": "compositional",
    "question": "Who is the mother of the director of film Orm (Film)?",
    "context": [["Orm (film)", ["Orm is a film."]]],
    "supporting_facts": [["Orm (film)", 0]],
    "evidences": [["Orm", "director", "Xawery Lind"]],
    "answer": "Małgorzata Lind",
}
MUSIQUE = {
    "id": "2hop__460946_294723",
    "paragraphs": [{"idx": 0, "title": "Orm", "paragraph_text": "...", "is_supporting": True}],
    "question": "Who is the spouse of the Orm performer?",
    "question_decomposition": [{"id": 1, "question": "Orm >> performer", "answer": "J", "paragraph_support_idx": 0}],
    "answer": "Mara Lind",
    "answer_aliases": ["Mara", "M. Lind"],
    "answerable": True,
}
TRIVIA = {
    "Answer": {
        "Aliases": ["Sunset Blvd", "Sunset Boulevard", "Sunset Blvd."],
        "MatchedWikiEntityName": "Sunset Boulevard",
        "NormalizedAliases": ["sunset boulevard", "sunset blvd", "west sunset"],
        "NormalizedMatchedWikiEntityName": "sunset boulevard",
        "NormalizedValue": "sunset boulevard",
        "Type": "WikipediaEntity",
        "Value": "Sunset Boulevard",
    },
    "EntityPages": [{"DocSource": "TagMe", "Filename": "Orm.txt", "Title": "Orm"}],
    "Question": "Which musical opened on 10th December 1993?",
    "QuestionId": "tc_33",
    "QuestionSource": "http://example.org/",
}
POPQA = "id\tsubj\tprop\tobj\ts_pop\tquestion\tpossible_answers\n4222362\tOrm\toccupation\tpolitician\t142\t" + (
    "What is Orm's occupation?\t" + '"[""politician"", ""pol"", ""Politician""]"\n'
)
GSM = {"question": "Mara sold 48 clips, then half as many. How many?", "answer": "48/2 = <<48/2=24>>24.\n#### 1,072"}
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Orm",
            "paragraphs": [
                {
                    "context": "Orm is old.",
                    "qas": [
                        {
                            "id": "56d",
                            "question": "How is Orm?",
                            "answers": [{"text": "old", "answer_start": 7}, {"text": "old", "answer_start": 7}],
                            "is_impossible": False,
                        },
                        {"id": "56e", "question": "Where is Orm?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


def handed_on(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of a row of Search-R1's, what is metadata."""
    return {key: row[key] for key in row if key not in ("id", "question", "data_source", "prompt")}


ROWS = (search_r1(0, "Mara Lind", "Mara"), search_r1(1, "Jon", source="hotpotqa", metadata={"level": "hard"}))

VERL = {
    "data_source": "gsm8k",
    "prompt": [
        {"role": "system", "content": "Think."},
        {"role": "user", "content": "Mara has 2 clips and buys 3. How many?"},
    ],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "5"},
    "extra_info": {"split": "test", "index": 7, "answer": "2+3=5\n#### 5"},
}
"""As verl's examples write GSM8K."""
CUT = (
    "is read as search_r1; of its prompts the question alone, without the published instructions for other tags; "
    "metadata of its tasks: golden_answers, ability, reward_model, extra_info"
)

SAMPLES: Mapping[str, Sample] = {
    "search_r1": Sample(
        "train.jsonl",
        lines(*ROWS),
        [
            ("nq-train_0", "who founded town 0?", ("Mara Lind", "Mara"), handed_on(ROWS[0])),
            ("hotpotqa-train_1", "who founded town 1?", ("Jon",), {"level": "hard"} | handed_on(ROWS[1])),
        ],
    ),
    "hotpotqa": Sample(
        "hotpot_train_v1.1.json",
        json.dumps([HOTPOT]),
        [
            (
                "5a8b",
                "Which town is older, Orm or Velm?",
                ("Orm",),
                {"type": "comparison", "level": "hard", "titles": ["Orm", "Velm"]},
            )
        ],
    ),
    "2wiki": Sample(
        "train.json",
        json.dumps([WIKI2]),
        [
            (
                "8813f8",
                "Who is the mother of the director of film Orm (Film)?",
                ("Małgorzata Lind",),
                {"type": "compositional", "titles": ["Orm (film)"]},
            )
        ],
    ),
    "musique": Sample(
        "musique_full_v1.0_train.jsonl",
        lines(MUSIQUE, MUSIQUE | {"id": "3hop1__9", "question": "Who?", "answerable": False}),
        [
            (
                "2hop__460946_294723",
                "Who is the spouse of the Orm performer?",
                ("Mara Lind", "Mara", "M. Lind"),
                {"hops": 2},
            ),
            ("3hop1__9", "Who?", (), {"hops": 3}),
        ],
    ),
    "trivia_qa": Sample(
        "wikipedia-train.json",
        json.dumps({"Data": [TRIVIA], "Domain": "Wikipedia", "VerifiedEval": False, "Version": 1.0}, indent=2),
        [
            (
                "tc_33",
                "Which musical opened on 10th December 1993?",
                ("Sunset Boulevard", "Sunset Blvd", "west sunset"),
                {"QuestionSource": "http://example.org/"},
            )
        ],
    ),
    "nq": Sample(
        "NQ-open.train.jsonl",
        lines({"question": "when was orm founded", "answer": ["1200", "in 1200"]}),
        [("", "when was orm founded", ("1200", "in 1200"), {})],
    ),
    "popqa": Sample(
        "popQA.tsv",
        POPQA,
        [
            (
                "4222362",
                "What is Orm's occupation?",
                ("politician", "pol"),
                {"prop": "occupation", "s_pop": 142, "subj": "Orm", "obj": "politician"},
            )
        ],
    ),
    "bamboogle": Sample(
        "bamboogle.csv",
        'Question,Answer\n"Who was president when Orm, the town, fell?",Mara Lind\n',
        [("", "Who was president when Orm, the town, fell?", ("Mara Lind",), {})],
    ),
    "gsm8k": Sample(
        "train.jsonl", lines(GSM), [("", "Mara sold 48 clips, then half as many. How many?", ("1,072",), {})]
    ),
    "squad": Sample(
        "train-v2.0.json",
        json.dumps(SQUAD),
        [
            ("56d", "How is Orm?", ("old",), {"title": "Orm", "context": "Orm is old.", "is_impossible": False}),
            ("56e", "Where is Orm?", (), {"title": "Orm", "context": "Orm is old.", "is_impossible": True}),
        ],
    ),
    "plain": Sample(
        "mine.jsonl",
        lines(
            {"question": "Where?", "answers": "here", "topic": "places"}, {"id": 7, "question": "How?", "answer": [1]}
        ),
        [("", "Where?", ("here",), {"topic": "places"}), ("7", "How?", ("1",), {})],
    ),
    "verl": Sample(
        "gsm8k.jsonl",
        lines(VERL, {k: v for k, v in VERL.items() if k != "reward_model"} | {"reward_spec": {"ground_truth": 5.0}}),
        [
            (
                "gsm8k-7",
                "Mara has 2 clips and buys 3. How many?",
                ("5",),
                {"ability": "math", "extra_info": VERL["extra_info"], **graded},
            )
            for graded in ({"reward_model": VERL["reward_model"]}, {"reward_spec": {"ground_truth": 5.0}})
        ],
    ),
    "sharegpt": Sample(
        "chats.json",
        json.dumps(
            [
                {
                    "id": "c1",
                    "system": "Be brief.",
                    "conversations": [{"from": "human", "value": "Where?"}, {"from": "gpt", "value": "Here."}],
                }
            ]
        ),
        [("c1", "Where?", ("Here.",), {"system": "Be brief."})],
    ),
    "alpaca": Sample(
        "alpaca.json",
        json.dumps([{"instruction": "Add.", "input": "2 and 3", "output": "5"}]),
        [("", "Add.\n\n2 and 3", ("5",), {"instruction": "Add.", "input": "2 and 3", "output": "5"})],
    ),
    "openrlhf": Sample(
        "prompts.jsonl",
        lines({"input": [{"role": "user", "content": "2 + 3?"}], "label": "5"}, {"input": "Where?", "label": ""}),
        [
            ("", "2 + 3?", ("5",), {"input": [{"role": "user", "content": "2 + 3?"}], "label": "5"}),
            ("", "Where?", (), {"input": "Where?", "label": ""}),
        ],
    ),
}
