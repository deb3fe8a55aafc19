"""engine=scripted by configuration: replies from a file, or from the task set's demonstrator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import Scripted
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.rollout.demonstrations.oracle import ideal_of
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.engines import tiny

RENDERER = PlainRenderer(tokenizer=tiny.tokenizer())
SAMPLING = SamplingParams(max_tokens=200)


def engine(script: str = "oracle", **settings: Any) -> Scripted:
    return Scripted(**{"renderer": RENDERER, "oracle": None, "context_limit": 900, "script": script, **settings})


def written(path: Path, *rows: Any) -> str:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(path)


async def said(found: Scripted, task: str, turn: int, sample: int = 0) -> str:
    done = await found.generate(tiny.encode("x"), SAMPLING, SeedKey("eval/test", task, sample, turn))
    return RENDERER.decode(done.token_ids)


async def test_a_file_says_turn_by_turn_what_each_task_gets(tmp_path: Path) -> None:
    rows = [{"task": "a", "turns": ["one", "two</search>"]}, "", {"task": "b", "turns": ["three"]}]
    found = engine(written(tmp_path / "s.jsonl", *rows))
    turns = [("a", 0), ("a", 1), ("b", 0)]
    assert [await said(found, task, turn) for task, turn in turns] == ["one", "two</search>", "three"]
    assert await said(found, "a", 0, sample=5) == "one"
    assert (found.trainable, found.max_context) == (False, 900)


async def test_a_task_without_a_script_is_named(tmp_path: Path) -> None:
    found = engine(written(tmp_path / "s.jsonl", {"task": "a", "turns": ["one"]}))
    with pytest.raises(ConfigError, match=r"has no line for the task zz; add one"):
        await said(found, "zz", 0)
    with pytest.raises(ConfigError, match="has 1 turns for the task a, and its episode goes on"):
        await said(found, "a", 1)


async def test_the_oracle_says_what_the_demonstrator_does() -> None:
    dataset = Almanac(num_companies=20, dev_companies=4, test_companies=4)
    [task] = dataset.split("test")[:1]
    found = engine(oracle=ideal_of(dataset, RENDERER))
    assert await said(found, task.id, 0) == dataset.oracle(task).act("x")
    with pytest.raises(ConfigError, match="the task nobody is not in the task set"):
        await said(found, "nobody", 0)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "holds no script"),
        (["{not json"], "line 1: JSONDecodeError"),
        ([{"task": "a", "turns": ["x"]}, {"task": "a", "turns": []}], "line 2: a second script for the task a"),
        ([{"task": "a"}], "line 1: KeyError: 'turns'"),
        ([{"task": "a", "turns": "x"}], "turns a list of texts"),
        ([["x"]], "line 1: TypeError"),
    ],
)
def test_a_file_that_is_none_is_refused_by_line(tmp_path: Path, rows: list[Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        engine(written(tmp_path / "s.jsonl", *rows))


def test_what_is_not_there_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.jsonl cannot be read"):
        engine(str(tmp_path / "no.jsonl"))
    with pytest.raises(ConfigError, match="this task set demonstrates nothing; give a file"):
        engine()
