"""Values against annotations: what fits, what is refused and in which words."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from agentgrpo.config.settings import EvalSettings, LoraSettings, RolloutSettings, RunSettings
from agentgrpo.config.values import (
    Count,
    CountOrZero,
    Positive,
    PositiveOrZero,
    Share,
    check_arguments,
    describe,
    fit,
    fit_arguments,
    is_plain,
)
from agentgrpo.core.errors import ConfigError

FITS: list[tuple[Any, Any, Any]] = [
    (float, 1, 1.0),
    (Positive, 2, 2.0),
    (float, math.inf, math.inf),
    (float | None, None, None),
    (Path, "a b", Path("a b")),
    (tuple[float, float], [1, 2.5], (1.0, 2.5)),
    (tuple[str, ...], [], ()),
    (Sequence[int], [3], [3]),
    (Mapping[str, float], {"web": 2}, {"web": 2.0}),
    (str | tuple[str, ...], ["q"], ("q",)),
    (Literal["a", "b"], "b", "b"),
    (Any, {"deep": [1, None]}, {"deep": [1, None]}),
    (Share, 1, 1.0),
]
REFUSED: list[tuple[Any, Any, str]] = [
    (int, "1", "k='1'; a whole number is allowed"),
    (int, 1.0, "k=1.0; a whole number is allowed"),
    (int, True, "k=true; a whole number is allowed"),
    (float, "0.5", "k='0.5'; a number is allowed"),
    (float, False, "k=false; a number is allowed"),
    (bool, 1, "k=1; true or false is allowed"),
    (bool, "true", "k='true'; true or false is allowed"),
    (str, 3, "k=3; a text is allowed; quotes make a text of it: KEY='\"VALUE\"'"),
    (str, None, "k=null; a text is allowed"),
    (Count, 0, "k=0; a whole number >= 1 is allowed"),
    (CountOrZero | None, -1, "k=-1; a whole number >= 0, or null is allowed"),
    (Positive, 0.0, "k=0.0; a finite number > 0 is allowed"),
    (Positive, math.inf, "k=inf; a finite number > 0 is allowed"),
    (PositiveOrZero, math.nan, "k=nan; a finite number >= 0 is allowed"),
    (Share, math.nan, "k=nan; a number >= 0 and <= 1 is allowed"),
    (Annotated[float, Gt(0), Lt(1)], 1.0, "k=1.0; a number > 0 and < 1 is allowed"),
    (Annotated[int, Field(ge=2, le=8)], 9, "k=9; a whole number >= 2 and <= 8 is allowed"),
    (Literal["none", "hard"], "hrd", "k='hrd'; none or hard is allowed. Did you mean 'hard'?"),
    (Literal[0, 1], 2, "k=2; 0 or 1 is allowed"),
    (tuple[Share, Share], [0.5], "k=[0.5]; a list of 2: a number >= 0 and <= 1, a number >= 0 and <= 1 is allowed"),
    (Sequence[Count], [1, 0], "k=[1, 0]; a list of whole numbers >= 1 is allowed"),
    (Mapping[str, float], {"a": None}, "k={'a': None}; a mapping of names to numbers is allowed"),
    (tuple[str, ...] | None, "x", "k='x'; a list of texts, or null is allowed"),
    (Path, 3, "k=3; a path is allowed"),
    (str, object, "k=<class 'object'>; a text is allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value", "expected"), FITS)
def test_what_fits(hint: Any, value: Any, expected: Any) -> None:
    found = fit("k", value, hint)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(("hint", "value", "message"), REFUSED)
def test_what_does_not(hint: Any, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fit("k", value, hint)
    assert str(caught.value) == message


@given(st.floats(allow_nan=False))
def test_every_number_arrives_to_the_bit(number: float) -> None:
    assert struct.pack("d", fit("k", number, float)) == struct.pack("d", number)


def test_what_yaml_can_say() -> None:
    assert all(is_plain(hint) for hint, _, _ in (*FITS, *REFUSED))
    assert not is_plain(object | None)
    assert not is_plain(Annotated[Any | bytes, Ge(1)])
    assert describe(Annotated[float, Le(3)]) == "a number <= 3"


def function(first: object, *, rate: Positive, label: str = "x", eps: float = 0.0, engine: object = None) -> None:
    """What a configuration may say of it: rate and label."""


def open_function(first: object, **settings: object) -> None:
    """Takes everything."""


def test_arguments_of_a_function() -> None:
    assert fit_arguments("k", {"rate": 1}, function, called="f", provided=("eps",)) == {"rate": 1.0}
    assert fit_arguments("k", {"any": [1]}, open_function, called="f") == {"any": [1]}
    for given_, message in {
        "label": "k.rate has no value, which f needs; give it one: k.rate=...",
        "eps": "unknown key k.eps; f takes rate, label. To drop a preset's key, write ~k.eps",
        "engine": "unknown key k.engine; f takes rate, label. To drop a preset's key, write ~k.engine",
        "labl": "unknown key k.labl; f takes rate, label. Did you mean 'label'? To drop a preset's key, write ~k.labl",
    }.items():
        with pytest.raises(ConfigError) as caught:
            fit_arguments("k", {given_: "y"}, function, called="f", provided=("eps",))
        assert str(caught.value) == message
    with pytest.raises(ConfigError, match=r"^k\.rate=-1; a finite number > 0 is allowed$"):
        check_arguments("k", function, {"rate": -1, "first": self_referring()})


def self_referring() -> list[Any]:
    """What no YAML can say, for an argument that is none of its."""
    found: list[Any] = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunSettings(dir="r", max_steps=0), "run.max_steps=0; a whole number >= 1 is allowed"),
        (lambda: RunSettings(dir="r", keep_last=0), "run.keep_last=0; a whole number >= 1 is allowed"),
        (lambda: RunSettings(dir="r", eval_every=-1), "run.eval_every=-1; a whole number >= 0 is allowed"),
        (lambda: RunSettings(dir="r", eval_tasks=1), "run.eval_tasks=1; a whole number >= 2 is allowed"),
        (lambda: RunSettings(dir="r", grace_s=-0.5), "run.grace_s=-0.5; a finite number >= 0 is allowed"),
        (lambda: EvalSettings(tasks=1), "run.eval.tasks=1; a whole number >= 2 is allowed"),
        (lambda: EvalSettings(margin=-0.1), "run.eval.margin=-0.1; a finite number >= 0 is allowed"),
        (lambda: RolloutSettings(group_size=1), "rollout.group_size=1; a whole number >= 2 is allowed"),
        (lambda: RolloutSettings(temperature=-1.0), "rollout.temperature=-1.0; a finite number >= 0 is allowed"),
        (lambda: RolloutSettings(curriculum_target=1.5), "rollout.curriculum_target=1.5; a number >= 0 and <= 1 is a"),
        (lambda: RolloutSettings(curriculum_memory=1.0), "rollout.curriculum_memory=1.0; a number >= 0 and < 1 is al"),
        (lambda: LoraSettings(rank=0), "model.lora.rank=0; a whole number >= 1, or null is allowed"),
        (lambda: LoraSettings(alpha=math.inf), "model.lora.alpha=inf; a finite number > 0 is allowed"),
    ],
)
def test_settings_hold_their_bounds_however_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_help_does_not_wait_for_pydantic() -> None:
    program = "import sys; import agentgrpo.cli.main, agentgrpo.config.settings; assert 'pydantic' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
