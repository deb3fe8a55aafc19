"""What opens an episode: the whole prompt of a row, however its trainer writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import DataError
from agentgrpo.tasks.jsonl import jsonl
from agentgrpo.tasks.questions.openings import opening_of
from agentgrpo.tasks.records import Node
from tests.tasks.questions.samples import PROMPT, lines

SEARCH_R1 = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query "
    "</search> and it will return the top searched results between <information> and </information>. If you find no "
    "further external knowledge needed, you can directly provide the answer inside <answer> and </answer>, without "
    "detailed illustrations. For example, <answer> Beijing </answer>. Question: who founded orm?\n"
)
SYSTEM = {"role": "system", "content": "You sell fruit."}
SHOT = [{"role": "user", "content": "Sell 1 pear."}, {"role": "assistant", "content": "Sold."}]
LAST = {"role": "user", "content": "Sell 2 apples.\nQuestion: at what price?"}


def said(row: dict[str, Any], column: str | None = None) -> list[tuple[str, str]]:
    """(role, content) of every message, and the answer of a chat as what the assistant says last."""
    opening = opening_of(Node(Path("q.jsonl"), "line 1", row), column)
    messages = [(m.role, m.content) for m in opening.messages] or [("user", opening.question)]
    return messages + ([("answer", opening.answer)] if opening.answer else [])


def pairs(*messages: dict[str, str]) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in messages]


ROWS: list[tuple[str, dict[str, Any], list[tuple[str, str]]]] = [
    ("a text", {"prompt": "Sell 2 apples.\nQuestion: at what price?"}, [("user", LAST["content"])]),
    ("verl", {"prompt": [SYSTEM, *SHOT, LAST]}, pairs(SYSTEM, *SHOT, LAST)),
    ("a question in its prompt", {"prompt": [SYSTEM, LAST], "question": "at what price?"}, pairs(SYSTEM, LAST)),
    (
        "a question in a text",
        {"prompt": "Be brief. Where is Orm?", "question": "Where is Orm?"},
        [("user", "Be brief. Where is Orm?")],
    ),
    ("a question beside a prompt", {"prompt": "You sell fruit.", "question": "Where?"}, [("user", "Where?")]),
    (
        "text parts",
        {
            "prompt": [
                {"role": "user", "content": [{"type": "text", "text": "Who "}, {"type": "text", "text": "is it?"}]}
            ]
        },
        [("user", "Who is it?")],
    ),
    (
        "parts of a table",
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "Who?", "image": None}]}]},
        [("user", "Who?")],
    ),
    (
        "keys without a value",
        {"prompt": [{"role": "user", "content": "Who?", "tool_calls": None, "name": ""}]},
        [("user", "Who?")],
    ),
    (
        "a developer",
        {"prompt": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Who?"}]},
        [("system", "Be kind."), ("user", "Who?")],
    ),
    (
        "ShareGPT",
        {
            "system": "Be kind.",
            "conversations": [
                {"from": "human", "value": "Hi"},
                {"from": "gpt", "value": "Ho"},
                {"from": "human", "value": "Who?"},
                {"from": "gpt", "value": "Mara"},
            ],
        },
        [("system", "Be kind."), ("user", "Hi"), ("assistant", "Ho"), ("user", "Who?"), ("answer", "Mara")],
    ),
    ("messages", {"messages": [SYSTEM, *SHOT]}, [*pairs(SYSTEM, SHOT[0]), ("answer", "Sold.")]),
    ("Alpaca", {"instruction": "Add.", "input": "2, 3", "output": "5"}, [("user", "Add.\n\n2, 3")]),
    ("Alpaca without input", {"instruction": "Add 2 and 3.", "input": "", "output": "5"}, [("user", "Add 2 and 3.")]),
    (
        "Alpaca with a history",
        {"instruction": "And 4?", "system": "Be kind.", "history": [["2 + 3?", "5"]]},
        [("system", "Be kind."), ("user", "2 + 3?"), ("assistant", "5"), ("user", "And 4?")],
    ),
    ("OpenRLHF", {"input": [SYSTEM, LAST], "label": "3"}, pairs(SYSTEM, LAST)),
    ("a chat that is written out", {"prompt": json.dumps([SYSTEM, LAST])}, pairs(SYSTEM, LAST)),
    ("a text in brackets", {"prompt": "[1, 2] is what?"}, [("user", "[1, 2] is what?")]),
    ("a problem", {"problem": "2 + 3?", "solution": "5"}, [("user", "2 + 3?")]),
    (
        "what only matters where it is learned from",
        {"conversations": [{"from": "human", "value": "Who?", "loss": False, "weight": 1}]},
        [("user", "Who?")],
    ),
    ("Search-R1", {"prompt": [{"role": "user", "content": SEARCH_R1}]}, [("user", "who founded orm?")]),
    ("Search-R1 in a text", {"prompt": PROMPT.format("where?"), "question": "Where?"}, [("user", "Where?")]),
    (
        "Search-R1's tags in verl",
        {"prompt": [SYSTEM, {"role": "user", "content": SEARCH_R1.replace("search>", "tool_call>")}]},
        [("user", "who founded orm?")],
    ),
]


@pytest.mark.parametrize(
    ("row", "opening"), [(row, opening) for _, row, opening in ROWS], ids=[name for name, *_ in ROWS]
)
def test_all_of_a_prompt_opens_the_episode(row: dict[str, Any], opening: list[tuple[str, str]]) -> None:
    assert said(row) == opening


def test_a_column_that_the_user_names_is_read_whole() -> None:
    row = {"prompt": [SYSTEM, LAST], "question": "at what price?", "text": SEARCH_R1}
    assert said(row, "question") == [("user", "at what price?")]
    assert said(row, "text") == [("user", SEARCH_R1.strip())]
    assert said({"prompt": [{"role": "user", "content": SEARCH_R1}]}, "prompt") == [("user", SEARCH_R1.strip())]


CALL = {"id": "1", "function": {"name": "sell", "arguments": "{}"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a.png"}}]}]},
        r"prompt\[0\]\.content\[0\]: a part of type 'image_url'; a policy reads parts of type text",
    ),
    (
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": "Who?"}, {"type": "audio"}]}]},
        r"prompt\[0\]\.content\[1\]: a part of type 'audio'",
    ),
    (
        {"prompt": [{"role": "user", "content": [{"text": "Who?"}]}]},
        r"prompt\[0\]\.content\[0\]: a part of type missing",
    ),
    (
        {"prompt": [SHOT[0], {"role": "assistant", "content": "x", "tool_calls": [CALL]}, LAST]},
        r"prompt\[1\]\.tool_calls: .*; a message of a prompt has role and content: take 'tool_calls' out",
    ),
    (
        {"prompt": [{"role": "user", "content": "Who?", "name": "Mara"}]},
        r"prompt\[0\]\.name: 'Mara'; a message of a prompt has",
    ),
    (
        {"prompt": [SHOT[0], {"role": "tool", "content": "4"}, LAST]},
        r"prompt\[1\]: role 'tool'; system, user, assistant are",
    ),
    (
        {"conversations": [{"from": "observation", "value": "4"}]},
        r"conversations\[0\]: from 'observation'; system, user,",
    ),
    (
        {"conversations": [{"from": "gpt", "value": "4"}]},
        r"conversations: a list of messages whose last one is the user's",
    ),
    ({"prompt": [*SHOT]}, r"prompt: a list of messages whose last one is the user's is needed"),
    (
        {"instruction": "Add.", "history": [["2 + 3?"]]},
        r"history\[0\]: a list of 1; pairs of what was asked and answered",
    ),
]


@pytest.mark.parametrize(("row", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_no_policy_reads_is_refused_with_its_place(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(DataError, match=rf"q\.jsonl, line 1\.{reason}"):
        said(row)


def test_a_prompt_with_the_published_instructions_is_said_to_be_cut(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": SEARCH_R1}], "reward_model": {"ground_truth": {"target": ["Mara"]}}}
    ]
    (tmp_path / "q.jsonl").write_text(lines(*rows))
    data = jsonl(questions=str(tmp_path / "q.jsonl"), test_fraction=0, dev_fraction=0)
    [task] = data.split("train")
    assert ([m.content for m in task.messages], task.references) == (["who founded orm?"], ("Mara",))
    [note] = data.notes
    assert note.partition(" is read as ")[2] == (
        "verl; of its prompts the question alone, without the published instructions for other tags; metadata of its "
        "tasks: reward_model"
    )
    whole = jsonl(questions=str(tmp_path / "q.jsonl"), question_key="prompt", test_fraction=0, dev_fraction=0)
    assert whole.split("train")[0].question == SEARCH_R1.strip()


@pytest.mark.parametrize(
    ("truth", "references"),
    [
        ("5", ("5",)),
        (5.0, ("5",)),
        (["a", "b"], ("a", "b")),
        ({"target": ["Mara"]}, ("Mara",)),
        ({"numbers": [1, 2], "target": 3}, ("3",)),
        ({"inputs": ["1"], "outputs": ["2"]}, ()),
        ([{"a": 1}], ()),
        ("", ()),
        (None, ()),
    ],
)
def test_a_ground_truth_is_an_answer_where_it_reads_as_one(
    tmp_path: Path, truth: Any, references: tuple[str, ...]
) -> None:
    row = {"prompt": [LAST], "reward_model": {"style": "rule", "ground_truth": truth}}
    (tmp_path / "q.jsonl").write_text(lines(row))
    [task] = jsonl(questions=str(tmp_path / "q.jsonl"), test_fraction=0, dev_fraction=0).split("train")
    assert (task.references, task.metadata) == (references, {"reward_model": row["reward_model"]})


@pytest.mark.parametrize(
    ("row", "references", "metadata"),
    [
        ({"prompt": "x?", "answer": ""}, (), {}),
        ({"prompt": "x?", "answer": "", "info": {"a": 1}}, (), {"info": {"a": 1}}),
        ({"prompt": "x?", "ground_truth": 5.0}, ("5",), {"ground_truth": 5.0}),
        ({"prompt": "x?", "answer": "b", "ground_truth": "c"}, ("b",), {"ground_truth": "c"}),
        ({"prompt": "x?", "completion": "y", "label": True}, (), {"completion": "y", "label": True}),
        ({"messages": [SYSTEM, *SHOT], "answer": "Yes."}, ("Yes.",), {}),
        ({"prompt": "Be brief. Who?", "question": "Who?", "answer": "Mara"}, ("Mara",), {"question": "Who?"}),
    ],
)
def test_where_an_answer_is_found(
    tmp_path: Path, row: dict[str, Any], references: tuple[str, ...], metadata: dict[str, Any]
) -> None:
    (tmp_path / "q.jsonl").write_text(lines(row))
    data = jsonl(questions=str(tmp_path / "q.jsonl"), test_fraction=0, dev_fraction=0)
    [task] = data.split("train")
    assert (task.references, task.metadata) == (references, metadata)
    assert ("what the assistant says last" in data.notes[0]) is ("messages" in row)
    assert ("its prompt opens the episode" in data.notes[0]) is ("question" in row)
