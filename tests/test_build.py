"""Names to classes, keys to arguments, every mistake named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from agentgrpo.config import build, registry
from agentgrpo.config.build import Child, admit_user_code, build_node, user_code, validate
from agentgrpo.config.hardware import Hardware
from agentgrpo.config.settings import RolloutSettings
from agentgrpo.core.errors import ConfigError
from agentgrpo.judges.answers import Contains, ExactMatch
from agentgrpo.judges.base import AnswerJudge
from agentgrpo.judges.composed import Composite
from agentgrpo.rewards.reward import Reward

HERE = "tests.test_build:Custom"


class Custom:
    """A user's class with every type that YAML can express, and one it cannot."""

    def __init__(
        self,
        *,
        engine: Iterator[int],
        ratio: float,
        count: int = 1,
        label: str | None = None,
        mode: Literal["a", "b"] = "a",
        betas: tuple[float, float] = (0.0, 1.0),
        names: tuple[str, ...] = (),
        sizes: Sequence[int] = (),
        prices: Mapping[str, float] | None = None,
        folder: Path = Path(),
        anything: Any = None,
        flag: bool = False,
    ) -> None:
        self.values = {k: v for k, v in locals().items() if k != "self"}

    async def grade(self, task: Any, answers: Sequence[str]) -> list[Any]:
        """So that it passes for a judge."""
        return []


@pytest.fixture
def admitted() -> Iterator[None]:
    admit_user_code([HERE])
    yield
    build._admitted.discard(HERE)


def refusal(kind: str, node: Any, **injected: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build_node(kind, node, **injected)
    return str(caught.value)


@pytest.mark.usefixtures("admitted")
def test_values_arrive_as_their_parameters_want_them() -> None:
    engine = iter([1])
    node = {
        "name": HERE,
        "ratio": 1,
        "label": None,
        "mode": "b",
        "betas": [1, 2.5],
        "names": ["x", "y"],
        "sizes": [3],
        "prices": {"web": 2},
        "folder": "a b",
        "anything": {"deep": [1]},
        "flag": True,
    }
    built = build_node("judge", node, engine=engine, unwanted=object())
    assert built.values == {
        "engine": engine,
        "ratio": 1.0,
        "count": 1,
        "label": None,
        "mode": "b",
        "betas": (1.0, 2.5),
        "names": ("x", "y"),
        "sizes": [3],
        "prices": {"web": 2.0},
        "folder": Path("a b"),
        "anything": {"deep": [1]},
        "flag": True,
    }
    assert type(built.values["ratio"]) is float
    assert type(built.values["prices"]["web"]) is float


@pytest.mark.usefixtures("admitted")
@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"ratio": "high"}, "judge.ratio='high'; a number is allowed"),
        ({"ratio": True}, "judge.ratio=true; a number is allowed"),
        ({"ratio": None}, "judge.ratio=null; a number is allowed"),
        ({"count": 1.5}, "judge.count=1.5; a whole number is allowed"),
        ({"count": False}, "judge.count=false; a whole number is allowed"),
        ({"label": 3}, "judge.label=3; a text, or null is allowed; quotes make a text of it: KEY='\"VALUE\"'"),
        ({"mode": "c"}, "judge.mode='c'; a or b is allowed"),
        ({"betas": [1]}, "judge.betas=[1]; a list of 2: a number, a number is allowed"),
        ({"names": "x"}, "judge.names='x'; a list of texts is allowed"),
        ({"names": ["x", 1]}, "judge.names=['x', 1]; a list of texts is allowed"),
        (
            {"prices": {"web": "1"}},
            "judge.prices={'web': '1'}; a mapping of names to numbers, or null is allowed",
        ),
        ({"flag": "yes"}, "judge.flag='yes'; true or false is allowed"),
    ],
)
def test_a_value_of_the_wrong_type(keys: dict[str, Any], expected: str) -> None:
    assert refusal("judge", {"name": HERE, "ratio": 0.5, **keys}, engine=iter([])) == expected


@pytest.mark.usefixtures("admitted")
def test_what_a_run_injects_is_no_key() -> None:
    allowed = "ratio, count, label, mode, betas, names, sizes, prices, folder, anything, flag"
    assert refusal("judge", {"name": HERE, "engine": 1}) == f"unknown key judge.engine; allowed are {allowed}."
    assert refusal("judge", {"name": HERE, "count": 1}, count=2, ratio=0.5).startswith("unknown key judge.count;")


@pytest.mark.usefixtures("admitted")
def test_a_missing_key() -> None:
    assert refusal("judge", {"name": HERE}) == "judge.ratio has no value; give it one: judge.ratio=..."


def test_unknown_keys_and_names() -> None:
    assert refusal("judge", {"name": "contains", "containd": 1.0}) == (
        "unknown key judge.containd; allowed are contained, max_extra_words. Did you mean 'contained'?"
    )
    assert refusal("judge", {"name": "exact_match", "parts": {}}) == "unknown key judge.parts; allowed are none."
    names = (
        "exact_match, token_f1, contains, gold_agreement, keywords, numeric, choice, composite, questions, route, llm, "
        "judger, report, math"
    )
    own = "a class or function of your own is package.module:Class"
    assert refusal("judge", {"name": "exact"}) == (
        f"judge.name=exact; registered are {names}; {own}. Did you mean 'exact_match'?"
    )
    assert refusal("judge", {}) == f"judge.name=None; registered are {names}; {own}."
    assert refusal("judge", None) == "judge=None; use a mapping of keys"


def test_a_dictionary_of_terms() -> None:
    node = {
        "name": "weighted",
        "mode": "sparse_final_only",
        "terms": {"correctness": {"weight": 1}, "retriever_cost": {"web": -0.5, "vdb": -1}},
    }
    reward = build_node("reward", node, judge=ExactMatch())
    assert isinstance(reward, Reward)
    correctness, cost = reward._terms["correctness"], reward._terms["retriever_cost"]
    assert (reward._mode, list(reward._terms)) == ("sparse_final_only", ["correctness", "retriever_cost"])
    assert (correctness.weight, cost.web, cost.vdb) == (1.0, -0.5, -1.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({"retriever_cost": {"webb": -1.0}}, "unknown key reward.terms.retriever_cost.webb; allowed are web, vdb."),
        ({"retriever_cost": {"web": -1.0}}, "reward.terms.retriever_cost.vdb has no value; give it one: "),
        ({"format": {"weight": "1"}}, "reward.terms.format.weight='1'; a number is allowed"),
        ({"format": 1.0}, "reward.terms.format=1.0; use a mapping of keys"),
        ({"formt": {"weight": 1.0}}, "reward.terms.formt.name=formt; registered are correctness, "),
        (None, "reward.terms=None; use a mapping by name"),
    ],
)
def test_mistakes_in_terms(terms: Any, expected: str) -> None:
    assert refusal("reward", {"name": "weighted", "terms": terms}, judge=ExactMatch()).startswith(expected)


def test_a_composite_judge() -> None:
    node = {
        "name": "composite",
        "parts": {
            "exact": {"judge": {"name": "exact_match"}, "weight": 1},
            "near": {"judge": {"name": "contains", "contained": 0.5}, "weight": 0.25},
        },
    }
    built: Any = build_node("judge", node)
    parts: dict[str, tuple[AnswerJudge, float]] = built._parts
    assert isinstance(built, Composite)
    assert {k: (type(judge), weight) for k, (judge, weight) in parts.items()} == {
        "exact": (ExactMatch, 1.0),
        "near": (Contains, 0.25),
    }
    node["parts"] = {"near": {"judge": {"name": "contains", "contain": 0.5}, "weight": 0.25}}
    assert refusal("judge", node).startswith("unknown key judge.parts.near.judge.contain; allowed are contained, max")
    node["parts"] = {"near": {"judge": {"name": "contains"}}}
    assert refusal("judge", node) == "judge.parts.near.weight has no value; give it one: judge.parts.near.weight=..."


def test_settings_have_no_name() -> None:
    assert build_node("rollout", {"group_size": 4}) == RolloutSettings(group_size=4)
    assert refusal("rollout", {"name": "default"}).startswith("unknown key rollout.name; allowed are tasks_per_step,")
    assert refusal("rollout", {"group_sise": 4}).endswith("Did you mean 'group_size'?")


def test_hardware() -> None:
    hardware = build_node("hardware", {"device": "cpu", "dtype": "float32", "threads": 3})
    assert (hardware, hardware.num_threads) == (Hardware(threads=3), 3)
    assert Hardware().num_threads in (1, 2)
    assert refusal("hardware", {"dtype": "float8"}).startswith("hardware.dtype='float8'; float32 or bfloat16 is")
    precision = refusal("hardware", {"mixed_precision": "fp16"})
    assert precision == "hardware.mixed_precision='fp16'; no or bf16 is allowed. Did you mean 'bf16'?"
    for key, null in {"tokens_per_micro_batch": ", or null", "head_chunk_tokens": "", "threads": ", or null"}.items():
        assert refusal("hardware", {key: 0}) == f"hardware.{key}=0; a whole number >= 1{null} is allowed"


def test_every_built_object_is_finished() -> None:
    """The nested ones first, by kind; what `finish` returns goes where the object would have gone."""
    seen: list[str] = []

    def finish(child: Child, built: Any) -> Any:
        seen.append(child.kind)
        return (built[0], 2.0) if child.kind == "judge_part" else built

    node = {"name": "composite", "parts": {"near": {"judge": {"name": "contains"}, "weight": 0.25}}}
    assert build_node("judge", node, finish)._parts["near"][1] == 2.0
    assert seen == ["judge", "judge_part", "judge"]


def test_user_code_needs_the_users_word() -> None:
    assert refusal("judge", {"name": HERE, "ratio": 1.0}) == (
        f"judge.name={HERE} is code from outside; to run it, name it on this command line"
    )


@pytest.mark.parametrize(
    "name", ["os.system", "os;system:x", "pathlib.Path.write_text", "a:b:c", "os:system()", " os:x"]
)
def test_what_is_no_name_of_code(name: str) -> None:
    assert user_code({"judge": {"name": name}}) == set()
    assert "registered are" in refusal("judge", {"name": name})


def test_a_dot_where_a_colon_should_be() -> None:
    assert refusal("tool", {"name": "my_tools.weather"}).endswith(
        "a class or function of your own is package.module:Class. Did you mean 'my_tools:weather', with a colon?"
    )
    assert refusal("task", {"name": "my_tasks.Mine"}).endswith(
        "; a class of your own is package.module:Class. Did you mean 'my_tasks:Mine', with a colon?"
    )


def test_a_misspelt_name_key() -> None:
    with pytest.raises(ConfigError) as caught:
        build._validate("", {"tools": {"weather": {"nam": "my_tools:weather"}}}, "")
    assert str(caught.value) == "unknown key tools.weather.nam; allowed are name. Did you mean 'name'?"
    with pytest.raises(ConfigError, match=r"tools\.weather\.name=weather; registered are calculator, "):
        build._validate("", {"tools": {"weather": {"days": 3}}}, "")


def test_user_code_is_found_wherever_it_is_named() -> None:
    tree = {"reward": {"name": "a.b:C", "terms": {"mine": {"name": "d:E", "weight": 1}}}, "task": {"label": "f:G"}}
    assert user_code(tree) == {"a.b:C", "d:E"}


def test_user_code_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_admitted", {"no_such_package:X", "tests.test_build:Missing"})
    why = "it must be installed, or importable from here"
    assert refusal("judge", {"name": "no_such_package:X"}) == (
        f"judge.name=no_such_package:X: No module named 'no_such_package'; {why}"
    )
    assert refusal("judge", {"name": "tests.test_build:Missing"}).endswith(f"has no attribute 'Missing'; {why}")
    monkeypatch.setattr(build, "_admitted", {"tests.test_build:Custum"})
    assert refusal("judge", {"name": "tests.test_build:Custum"}).endswith(f"{why}. Did you mean 'Custom'?")


def test_validate_asks_for_every_group_and_no_other() -> None:
    with pytest.raises(ConfigError, match=r"^the group task is missing; choose one of its presets: task=\.\.\.$"):
        validate({})
    with pytest.raises(ConfigError, match=r"^unknown key lrr; allowed are task, model, .*, run\.$"):
        validate({**{group: {} for group in registry.ROOT}, "lrr": 3})


def test_an_agents_reranker_and_fetcher_are_chosen_by_name() -> None:
    from agentgrpo.retrieval.http import HttpPageFetcher, HttpReranker
    from agentgrpo.retrieval.rerank import LexicalReranker

    url = {"name": "http", "url": "http://localhost:1/x"}
    assert isinstance(build.build_node("reranker", url), HttpReranker)
    assert isinstance(build.build_node("fetcher", url), HttpPageFetcher)
    assert build.build_node("fetcher", {"name": "none"}) is None
    lexical = build.build_node("reranker", {"name": "lexical", "name_weight": 1.0}, thesaurus={"a": ["b"]})
    assert isinstance(lexical, LexicalReranker)
    assert refusal("reranker", {"name": "lexical", "thesaurus": {}}).startswith("unknown key reranker.thesaurus;")


def test_a_part_of_the_users_may_have_arguments_of_any_name() -> None:
    assert build._outside("judge.name=x:y", dict, where=1, function=2) == {"where": 1, "function": 2}
