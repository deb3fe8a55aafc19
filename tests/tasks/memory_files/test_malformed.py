"""What is wrong with a file is said with its place; nothing else ever comes out of a reader."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.tasks.dialogue import chunks_of, questions_of
from agentgrpo.tasks.memory_files.dataset import MemoryFiles
from tests.tasks.memory_files.conftest import FIXTURES

GOOD = {"chunks": ["a b"], "questions": [{"question": "q?", "answer": "a"}]}
TURN = {"role": "user", "content": "hi"}
ASK = [{"question": "q?", "answer": "a"}]
QUESTIONS = "shared_context_id,end_index_in_shared_context,question,correct_answer,all_options\n"


def write(folder: Path, name: str, content: object) -> str:
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"chunks": ', "not valid JSON"),
        ({"questions": ASK}, "give it 'chunks', a list of texts, or 'messages', a list of chat turns, and not both"),
        (GOOD | {"messages": [TURN]}, "give it 'chunks', a list of texts, or 'messages'"),
        (GOOD | {"chunks": "a b"}, r"line 1\.chunks: 'a b'; a list is needed"),
        (GOOD | {"chunks": ["a", " "]}, r"line 1\.chunks\[1\]: ' '; a text that is not empty is needed"),
        (GOOD | {"chunks": []}, "line 1: nothing to read"),
        ({"messages": [{"role": "user", "content": None}], "questions": ASK}, "line 1: nothing to read"),
        (
            {"messages": [{"role": "user"}], "questions": ASK},
            r"messages\[0\]: no text; give one of content, text, value",
        ),
        ({"messages": [{"content": "hi"}], "questions": ASK}, r"messages\[0\]: no speaker; give one of name, speaker"),
        ({"messages": ["hi"], "questions": ASK}, r"messages\[0\]: 'hi' stands where an object is needed"),
        (
            {"messages": [TURN | {"content": 1.5j.real}], "questions": []},
            "'questions' is empty; at least one is needed",
        ),
        (GOOD | {"questions": [{"question": "q?"}]}, r"questions\[0\]: 'answers' is missing; a text that is not empty"),
        (GOOD | {"questions": [{"question": "", "answer": "a"}]}, r"questions\[0\]\.question: ''; a text"),
        (GOOD | {"questions": [{"question": "q", "answers": [None]}]}, r"questions\[0\]: 'answers' is \[None\]"),
        (GOOD | {"questions": {"q": "a"}}, r"questions: \{'q': 'a'\}; a list is needed"),
        (GOOD | {"split": "tset"}, "line 1: 'split' is 'tset'; train, dev, test are allowed"),
        (GOOD | {"id": ["x"]}, r"line 1\.id: \['x'\]; a text is needed, or leave 'id' out"),
        (GOOD | {"facts": []}, "line 1: 'facts' has 0 lists; one for each of 'chunks' is needed"),
        (GOOD | {"facts": [[{"op": "add", "key": "k"}]]}, r"facts\[0\]\[0\]: 'op' is 'add'; insert, update, delete"),
        ('{"chunks": ["\\ud800"]}', "not valid UTF-8 text"),
        (b'{"chunks": ["\xff"]}', "not valid UTF-8 text"),
    ],
)
def test_users_files(tmp_path: Path, row: object, reason: str) -> None:
    with pytest.raises(DataError, match=rf"chats\.jsonl, (line 1.*)?{reason}"):
        MemoryFiles(path=write(tmp_path, "chats.jsonl", row))


def test_a_chat_that_is_too_long_says_what_it_takes(tmp_path: Path) -> None:
    path = write(tmp_path, "chats.jsonl", {"messages": [TURN] * 30, "questions": ASK})
    message = r"line 1: it takes 3 chunks, and task\.max_chunks is 2; raise that, task\.chunk_words or \(chats\)"
    with pytest.raises(DataError, match=message):
        MemoryFiles(path=path, max_chunks=2)
    assert sum(len(MemoryFiles(path=path, max_chunks=3).split(name)) for name in ("train", "dev", "test")) == 1
    with pytest.raises(DataError, match=r"makes no task \(1 left out: too long\); is it a jsonl file\?"):
        MemoryFiles(path=path, max_chunks=2, too_long="leave_out")


def test_ids_are_unique(tmp_path: Path) -> None:
    lines = "".join(json.dumps(GOOD | {"id": 1}) + "\n" for _ in range(2))
    with pytest.raises(DataError, match="line 2: id '1' was used in line 1 already"):
        MemoryFiles(path=write(tmp_path, "chats.jsonl", lines))


@pytest.mark.parametrize(
    ("name", "format", "content", "reason"),
    [
        ("x.json", "squad", '{"data": [\n{]}', "line 2, column 2: not valid JSON"),
        ("x.json", "squad", "[" * 100_000, "not readable as JSON"),
        ("x.json", "squad", '{"data": "\\ud800"}', "holds half a surrogate pair"),
        ("x.json", "squad", b"\xff", "not valid UTF-8 text"),
        ("x.json", "squad", [], r"top level: \[\] stands where an object is needed"),
        (
            "x.json",
            "squad",
            {"data": [{"title": "t", "paragraphs": [{"qas": []}]}]},
            r"paragraphs\[0\]\.context: missing",
        ),
        (
            "x.json",
            "squad",
            {"data": [{"title": "t", "paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": []}]}]}]},
            r"qas\[0\]: 'answers' is empty, and 'is_impossible' is not true",
        ),
        ("x.json", "squad", {"data": []}, r"makes no task \(it is empty\); is it a squad file\?"),
        ("x.json", "hotpotqa", [{"question": "q", "_id": "a"}], r"\[0\]: 'answer' is missing"),
        (
            "x.json",
            "hotpotqa",
            [{"_id": "a", "question": "q", "answer": "a", "supporting_facts": [["t"]], "context": []}],
            r"\[0\]\.supporting_facts: a list of 1; pairs of title and sent_id are needed",
        ),
        (
            "x.jsonl",
            "hotpotqa",
            {
                "id": "a",
                "question": "q",
                "answer": "a",
                "supporting_facts": [],
                "context": {"title": ["t"], "sentences": []},
            },
            r"line 1\.context: 1 of 'title' and 0 of 'sentences'; as many are needed",
        ),
        ("x.label", "labels", "NUM:date When ?\nWhen ?", "line 2: 'When \\?'; 'LABEL:fine text' is needed"),
        ("x.csv", "labels", "text,category\na,b,c\n", "line 2: not 2 columns as the header has"),
        ("x.csv", "labels", "a,b\nc,d\n", "line 2: the header has a, b; one of text, sentence, .* rename the columns"),
        ("x.csv", "labels", 'text,label\na,"b\nc,d\n', r"not readable as CSV \(unexpected end of data\)"),
        ("x.json", "labels", {"trian": [["a", "b"]]}, "'trian'; train, val, test and the same with oos_"),
        ("x.json", "labels", {"train": [["a"]]}, r"train\[0\]: a list of 1; \[text, label\] is needed"),
        ("x.jsonl", "labels", {"text": "a"}, r"line 1\.label: missing"),
        ("x.txt", "pubmed_rct", "BACKGROUND\tTea .\n", "line 1: .* '###id', or after one 'LABEL<tab>sentence'"),
        ("x.txt", "pubmed_rct", "###1\nTea .\n", "line 2: 'Tea \\.'; "),
        ("x.txt", "pubmed_rct", "###1\n\n###2\nA\tb", "line 1: an abstract without an id or without sentences"),
        ("x.jsonl", "summary", {"text": "a"}, "line 1: neither 'keywords' nor 'summary'"),
        ("x.jsonl", "summary", {"text": "a", "keywords": " , "}, "line 1: 'keywords' holds separators only"),
        ("x.jsonl", "summary", {"text": "a", "summary": []}, r"line 1\.summary: an empty list"),
        ("x.parquet", "mem_alpha", "PAR1", r"not readable as parquet \(.*\); is this the whole file\?"),
        (
            "x.jsonl",
            "mem_alpha",
            {"data_source": "squad", "chunks": "[", "questions_and_answers": []},
            "not valid JSON",
        ),
        ("x.jsonl", "mem_alpha", {"data_source": "s", "chunks": "[]", "questions_and_answers": "[]"}, "0 chunks and 0"),
        ("missing.json", "squad", None, "is not a file; give the path of one"),
        ("missing.jsonl", "jsonl", None, "is not a file"),
    ],
)
def test_published_formats(tmp_path: Path, name: str, format: str, content: object, reason: str) -> None:
    path = str(tmp_path / name) if content is None else write(tmp_path, name, content)
    with pytest.raises(DataError, match=rf"{name.replace('.', '[.]')}.*{reason}"):
        MemoryFiles(path=path, format=format)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("c,1,q,(a),\"['(a) x']\"", "line 2: 'shared_context_id' is 'c', which .* does not have"),
        ("k,0,q,(a),\"['(a) x']\"", "line 2: 'end_index_in_shared_context' is '0'; a count"),
        ("k,1,q,(b),\"['(a) x']\"", r"line 2: 'correct_answer' is '\(b\)'; \(a\) are there"),
        ("k,1,q,(a),(a) x", r"line 2: 'all_options' is '\(a\) x'; a list such as"),
        ("k,1,q,(a),\"['(b) x']\"", "line 2: 'all_options' is .* in that order"),
        ("k,1,,(a),\"['(a) x']\"", r"line 2\.question: ''; a text"),
    ],
)
def test_personamem(tmp_path: Path, row: str, reason: str) -> None:
    contexts = write(tmp_path, "contexts.jsonl", {"k": [TURN]})
    with pytest.raises(DataError, match=rf"questions\.csv, {reason}"):
        MemoryFiles(path=write(tmp_path, "questions.csv", QUESTIONS + row), format="personamem", contexts=contexts)
    with pytest.raises(ConfigError, match=r"task\.format=personamem needs task\.contexts"):
        MemoryFiles(path=str(tmp_path / "questions.csv"), format="personamem")


FUZZED = [
    ("chats.jsonl", "jsonl", None),
    ("squad.json", "squad", None),
    ("hotpotqa.json", "hotpotqa", None),
    ("perltqa.json", "perltqa", "perltmem.json"),
    ("trec.label", "labels", None),
    ("banking.csv", "labels", None),
    ("nlu.csv", "labels", None),
    ("clinc.json", "labels", None),
    ("labels.jsonl", "labels", None),
    ("pubmed.txt", "pubmed_rct", None),
    ("summary.jsonl", "summary", None),
    ("personamem_questions.csv", "personamem", "personamem_contexts.jsonl"),
    ("mem_alpha.jsonl", "mem_alpha", None),
]
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    " ",
    "x",
    "[",
    [],
    [[]],
    [1],
    {},
    {"a": 1},
    "(a)",
    "\x00",
    "']",
    "9" * 40,
]


def mutated(value: Any, rng: random.Random) -> Any:
    """A JSON value with one place of it changed."""
    if isinstance(value, dict | list) and value and rng.random() < 0.9:
        key: Any = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        copy = value.copy()
        if rng.random() < 0.15:
            del copy[key]
        else:
            copy[key] = mutated(value[key], rng)
        return copy
    return rng.choice(VALUES)


def broken(raw: bytes, name: str, rng: random.Random) -> bytes:
    if rng.random() < 0.6 and name.endswith(("json", "jsonl")):
        texts = raw.decode().splitlines() if name.endswith("jsonl") else [raw.decode()]
        at = rng.randrange(len(texts))
        texts[at] = json.dumps(mutated(json.loads(texts[at]), rng))
        return "\n".join(texts).encode()
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        data[at : at + rng.choice((0, 1, 1, 9))] = rng.choice(
            (b"", b'"', b"\n", b",", b"\xff", b"[", b"\x00", b"\t", b"e")
        )
    return bytes(data)


@pytest.mark.parametrize(("file", "format", "contexts"), FUZZED, ids=[file for file, _, _ in FUZZED])
def test_a_damaged_file_is_refused_or_read(tmp_path: Path, file: str, format: str, contexts: str | None) -> None:
    """Whatever is read is whole: chunks and questions of every task can be had."""
    rng, outcomes = random.Random(file), {"read": 0, "refused": 0}
    for number in range(150):
        names = [file, contexts] if contexts else [file]
        target = rng.choice(names)
        for name in names:
            raw = (FIXTURES / name).read_bytes()
            (tmp_path / name).write_bytes(broken(raw, name, rng) if name == target else raw)
        try:
            data = MemoryFiles(
                path=str(tmp_path / file),
                format=format,
                contexts=str(tmp_path / contexts) if contexts else None,
                chunk_words=rng.choice((3, 300)),
                max_chunks=rng.choice((2, 20, None)),
                too_long=rng.choice(("refuse", "leave_out")),
                questions_per_task=rng.choice((1, None)),
                dev_fraction=rng.choice((0.0, 0.5)),
                test_fraction=0.0,
                seed=number,
            )
        except (DataError, ConfigError):
            outcomes["refused"] += 1
            continue
        outcomes["read"] += 1
        for task in (t for name in ("train", "dev", "test") for t in data.split(name)):
            assert len(chunks_of(task)) > 0
            assert len(questions_of(task)) > 0
            json.dumps([*chunks_of(task)], ensure_ascii=False).encode()
    assert min(outcomes.values()) > 0, outcomes
