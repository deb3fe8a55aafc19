"""A model folder learns from the task set's demonstrations before the run begins: once, and only what it is told to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, PreTrainedModel

from agentgrpo.cli.main import main
from tests.e2e.test_models import made

SETTINGS = [
    *("experiment=smollm2", "model=path", "model.path=start", "model.renderer=react", "model.freeze=[]"),
    *("model.cold_start.demonstrations=6", "model.cold_start.freeze=[]", "rollout.stratify_by=null"),
    *("rollout.tasks_per_step=2", "rollout.group_size=2", "rollout.max_tokens=6", "run.max_steps=1"),
    *("run.final_eval=false", "run.screen=plain", "run.log_with=[]", "hardware.threads=1", "guards=none"),
]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTGRPO_CACHE", str(tmp_path / "cache"))
    return made("smollm", tmp_path / "start")


def cold() -> list[Path]:
    return sorted(Path("cache/cold_start").glob("*/model"))


def weights(folder: Path) -> dict[str, Any]:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    return dict(model.named_parameters())


@pytest.mark.slow
def test_it_is_made_once_and_leaves_what_is_frozen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frozen = "model.cold_start.freeze=[embeddings,'model.layers.0.*']"
    assert main(["train", *SETTINGS, frozen, "run.dir=a"]) == 0
    said = capsys.readouterr()
    assert "cold start: " in said.out + said.err
    [start] = cold()
    before, after = weights(folder), weights(start)
    changed = {name for name, weight in after.items() if not weight.equal(before[name])}
    assert changed == {name for name in before if "layers.0." not in name and "embed" not in name}
    assert AutoModelForCausalLM.from_pretrained(start).config.agentgrpo_knows_format == '{"name": "tools"}'
    assert weights(folder).keys() == before.keys()

    assert main(["train", *SETTINGS, frozen, "run.dir=b"]) == 0
    said = capsys.readouterr()
    assert "cold start" not in said.out + said.err
    assert main(["resume", "b", "run.max_steps=2"]) == 0
    assert cold() == [start]


OTHERS = (
    "model.renderer=tags",
    *(
        pytest.param(other, marks=pytest.mark.slow)
        for other in ("run.seed=1", "model.cold_start.lr=0.001", "task.shown=[rows]")
    ),
)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.slow
def test_what_it_depends_on(other: str) -> None:
    for settings in ([], [other]):
        assert main(["train", *SETTINGS, *settings, f"run.dir=r{len(settings)}", "run.screen=quiet"]) == 0
    first, second = map(weights, cold())
    assert any(not weight.equal(second[name]) for name, weight in first.items())


def test_a_task_set_that_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"question": f"{x}?", "answers": [x], "split": split} for x in "ab" for split in ("train", "test")]
    Path("q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["experiment=none", "task.questions=q.jsonl", "model.path=start", "environment=tools", "run.dir=r"]
    code = main(["train", *given, "model.cold_start.demonstrations=6", "engine.max_context=512", "run.eval_every=0"])
    assert code == 2
    assert (
        "task.corpus is not set: give the corpus, set model.cold_start.demonstrations=0, or show it your own first: "
        "agentgrpo sft demonstrations=chat"
    ) in capsys.readouterr().err
    assert not cold()


def documents(answer: str) -> list[str]:
    """Four questions whose answers stand in their documents as "P0", "P1" and so on."""
    rows = [{"question": f"Who founded Firm{i}?", "answers": [answer.format(i)], "split": "train"} for i in range(4)]
    passages = [{"id": f"p{i}", "text": f"Firm{i} was founded by P{i}."} for i in range(4)]
    for name, written in (("q.jsonl", rows), ("c.jsonl", passages)):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in written))
    own = ["experiment=documents", "task.questions=q.jsonl", "task.corpus=c.jsonl"]
    return [*own, *(s for s in SETTINGS if not s.startswith(("experiment=", "rollout.stratify_by")))]


def test_own_questions_are_shown_over_own_documents(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(["train", *documents("P{}"), "run.dir=r"]) == 0
    [start] = cold()
    before, after = weights(folder), weights(start)
    assert any(not weight.equal(before[name]) for name, weight in after.items())
    assert "of 4 questions" not in capsys.readouterr().out


def test_documents_that_hold_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *documents("nobody {}"), "run.dir=r"]) == 2
    assert "none of 4 demonstrations found the answer of its question" in capsys.readouterr().err
    assert not cold()
