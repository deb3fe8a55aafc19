"""The archive: who knows where to look can answer all of it, demonstrations are right, and a rule is not enough."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import yaml

from agentgrpo.cli.main import configs_dir
from agentgrpo.core.errors import ConfigError, RetrieverError
from agentgrpo.core.types import Passage, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.judges.evidence.heuristic import HeuristicEvidence
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.retrieval.embedded import embedded
from agentgrpo.retrieval.task_pages import TaskPages
from agentgrpo.tasks.base import Demonstrator
from agentgrpo.worlds.almanac.world import names as pool_names
from agentgrpo.worlds.archive.dataset import Archive
from agentgrpo.worlds.archive.demonstrator import HastyRule
from agentgrpo.worlds.archive.world import words
from tests.runners import search_runner

SMALL = {"num_companies": 12, "dev_companies": 8, "test_companies": 24}


def preset() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((configs_dir() / "task" / "archive.yaml").read_text(encoding="utf-8"))
    return {key: value for key, value in read.items() if key != "name"}


@pytest.fixture(scope="module")
def archive() -> Archive:
    return Archive(**{**preset(), **SMALL})


Played = dict[str, tuple[str | None, str, Task]]
"""Task id -> (answer, what was written, task)."""


async def played(tasks: Sequence[Task], corpora: Any, by: Callable[[Task], Demonstrator]) -> Played:
    """Every task as the policies play it, with the limits of experiment=research."""
    experiment = yaml.safe_load((configs_dir() / "experiment" / "research.yaml").read_text(encoding="utf-8"))
    limits = {key: value for key, value in experiment["environment"].items() if key != "fetcher"}
    renderer = PlainRenderer(tokenizer=train_tokenizer([t.question for t in tasks], vocab_size=640))
    policies = {task.id: by(task) for task in tasks}
    engine = ScriptedEngine(
        encode=renderer.encode_action,
        decode=renderer.decode,
        script=lambda key, context: str(policies[key.task_id].act(context)),
    )
    runner = search_runner(
        engine=engine,
        renderer=renderer,
        retrievers=embedded(corpora={name: corpora[name] for name in ("vdb", "web")}),
        fetcher=TaskPages(pages=corpora["pages"]),
        evidence=HeuristicEvidence(),
        describe_tools=False,
        **limits,
    )
    found: Played = {}
    for task in tasks:
        episode = await runner.run(task, sample_index=0, stream="eval", sampling=SamplingParams(max_tokens=256))
        written = "".join(renderer.decode(s.token_ids) for b in episode.branches for s in b.segments if s.sampled)
        found[task.id] = (episode.answer, written, task)
    return found


def share_right(found: Played) -> float:
    return sum(answer == task.references[0] for answer, _, task in found.values()) / len(found)


async def test_the_oracle_answers_nearly_all_and_a_rule_does_not(archive: Archive) -> None:
    tasks = archive.split("test")[:128]
    ideal = await played(tasks, archive.corpora(), archive.oracle)
    hasty = await played(tasks, archive.corpora(), lambda task: HastyRule(archive.question(task)))
    assert share_right(ideal) >= 0.95
    assert share_right(hasty) <= share_right(ideal) - 0.15
    written = "".join(text for _, text, _ in ideal.values())
    for action in ("<search ", "<searches ", "<fetch>", "<subquestions>", "<answer> unknown"):
        assert action in written


async def test_training_finds_its_answers_in_documents_that_name_nobody_of_dev_and_test(archive: Archive) -> None:
    own = archive.training_corpora()
    assert share_right(await played(archive.split("train")[:64], own, archive.oracle)) >= 0.95
    told = {word for passages in own.values() for p in passages for word in re.findall(r"[A-Z][a-z]+", p.text)}
    assert len(told) > 50
    assert told.isdisjoint({*pool_names("dev"), *pool_names("test")})
    assert all(set(own[name]) < set(passages) for name, passages in archive.corpora().items())


async def test_demonstrations_are_right_and_show_only_what_is_shown(archive: Archive) -> None:
    lessons = list(archive.demonstration_worlds(3, 90))
    found: Played = {}
    for lesson in lessons:
        found |= await played(lesson.tasks, lesson.corpora(), lesson.demonstrator)
    assert share_right(found) >= 0.97  # names of a few are so alike that the search shows others
    assert {task.metadata["kind"] for lesson in lessons for task in lesson.tasks} == set(archive.shown)
    gave_up = {task.metadata["kind"] for answer, _, task in found.values() if answer == task.references[0] == "unknown"}
    assert gave_up == set(archive.retries)
    names = set(re.findall(r"[A-Z][a-z]+", " ".join(task.question for _, _, task in found.values())))
    test = set(re.findall(r"[A-Z][a-z]+", " ".join(task.question for task in archive.split("test"))))
    assert len(names & test - {"What", "Name"}) == 0


def test_most_of_what_is_asked_is_never_shown() -> None:
    given = preset()
    assert len(set(given["asked"]) - set(given["shown"])) >= 8
    assert {relation for kind in given["unseen"] for relation in kind.split("+")} == {"patron"}
    assert not any("patron" in kind for kind in [*given["asked"], *given["shown"]])


def test_it_is_a_function_of_its_seed(archive: Archive) -> None:
    again, other = Archive(**{**preset(), **SMALL}), Archive(**{**preset(), **SMALL, "world_seed": 1})
    assert again.fingerprint == archive.fingerprint != other.fingerprint
    assert again.demonstration_fingerprint == other.demonstration_fingerprint


def test_a_changed_fact_is_told_in_the_same_words_in_both_places(archive: Archive) -> None:
    vdb, web = ({p.id.removesuffix("-vdb"): p.text for p in archive.corpora()[name]} for name in ("vdb", "web"))
    chiefs = [key for key in vdb if key.startswith("chief-")]
    wordings = [re.compile(f.format(noun="chief", subject=r"\w+", value=r"\w+")) for f in words().facts]
    assert all(any(w.fullmatch(text[key]) for w in wordings) for key in chiefs for text in (vdb, web))
    stale = sum(vdb[key].split()[-1] != web[key].split()[-1] for key in chiefs)
    assert 0.2 < stale / len(chiefs) < 0.8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"asked": ["cheif"]}, "task.asked has 'cheif'; founder, chief, "),
        ({"shown": ["maker+twin"]}, "task.shown has 'maker+twin': maker is a company, and twin that of a city"),
        ({"asked": []}, "task.asked=[]; name at least one kind of question, such as founder"),
        ({"shown": []}, "task.shown=[]; name at least one "),
        ({"retries": ["twins"]}, "task.retries has 'twins'; founder, chief, "),
        ({"num_companies": 5000}, "num_companies=5000 takes "),
        ({"test_companies": 0}, "num_companies=0 takes "),
    ],
)
def test_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        Archive(**{**preset(), **SMALL, **given})


async def test_pages_come_from_the_task_alone() -> None:
    pages = TaskPages(pages=[Passage(id="d/A", url="d/A", text="All of it.")])
    found, missing = await pages.fetch(["d/A", "d/B"])
    assert isinstance(found, Passage)
    assert found.text == "All of it."
    assert isinstance(missing, RetrieverError)
    assert missing.kind == "not_found"
    with pytest.raises(ConfigError, match=r"environment\.fetcher\.name=task, and the task set brings no pages"):
        TaskPages(pages=[])
