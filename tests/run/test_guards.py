"""Guards ring where their limit is passed and no earlier, act before the weights change, and remember whole steps."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.errors import ConfigError, GuardHalt, GuardRollback, TrainingError
from agentgrpo.run.guards import LEAST, WINDOW, Guard, Guards


def guards(**named: Guard) -> Guards:
    return Guards(named, has_checkpoints=True)


def one(when: str = "above", limit: float = 1.0, action: str = "warn", **kwargs: Any) -> Guards:
    return guards(g=Guard(metric="m", when=when, limit=limit, action=action, **kwargs))  # type: ignore[arg-type]


def lines(guards: Guards, *values: float) -> list[int]:
    """How many lines each step of a run with these values brings."""
    return [len(guards.close(step, {"m": value}).lines) for step, value in enumerate(values)]


def refused(guards: Guards, step: int, value: float) -> str:
    """The class of what the guards raise before the update; the step is then recorded without one."""
    try:
        guards.look(step, {"m": value})
    except TrainingError as e:
        guards.close(step, {"m": value, "skipped": 1.0})
        return type(e).__name__
    guards.close(step, {"m": value})
    return ""


@pytest.mark.parametrize("when, fine, beyond", [("above", 1.0, 1.01), ("below", 1.0, 0.99)])
def test_a_limit_is_passed_beyond_it(when: str, fine: float, beyond: float) -> None:
    assert lines(one(when), fine, beyond) == [0, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("when, limit", [("above", 1.0), ("below", 1.0), ("falls_to", 0.5), ("rises_to", 2.0)])
def test_what_is_not_finite_is_beyond_every_limit(when: str, limit: float, value: float) -> None:
    assert lines(one(when, limit), value) == [1]


def test_a_warning_is_said_when_it_begins_and_again_only_after_it_stopped() -> None:
    assert lines(one(), 0.0, 2.0, 2.0, 0.0, 2.0) == [0, 1, 0, 0, 1]


def test_patience_counts_steps_in_a_row() -> None:
    assert lines(one(patience=3), 2.0, 2.0, 0.0, 2.0, 2.0, 2.0, 2.0) == [0, 0, 0, 0, 0, 1, 0]


def test_a_step_without_the_metric_neither_counts_nor_ends_the_row() -> None:
    watching = one(patience=2)
    said = [
        len(watching.close(step, tags).lines) for step, tags in enumerate([{"m": 2.0}, {"skipped": 1.0}, {"m": 2.0}])
    ]
    assert said == [0, 0, 1]


def test_a_message_says_what_where_and_what_to_do() -> None:
    named = Guard(metric="policy/kl", when="above", limit=1.0, patience=2, hint="lower optimizer.lr")
    watching = guards(kl=named)
    watching.close(6, {"policy/kl": 1.5})
    assert watching.close(7, {"policy/kl": 2.5}).lines == [
        "step 7: guards.kl: policy/kl is 2.5, above 1 for 2 steps: lower optimizer.lr"
    ]
    falling = guards(answers=Guard(metric="answered", when="falls_to", limit=0.25, action="halt"))
    for step in range(LEAST):
        falling.look(step, {"answered": 0.8})
        falling.close(step, {"answered": 0.8})
    with pytest.raises(GuardHalt) as halt:
        falling.look(LEAST, {"answered": 0.1})
    assert str(halt.value) == (
        "step 5: guards.answers: answered is 0.1, below 0.2 (0.25 times its mean over the last 5 steps within it). "
        "The run halts here; to go on all the same, resume it with guards.answers.action=warn"
    )


def test_a_sudden_fall_rings_and_a_slow_one_does_not() -> None:
    slow = [2.0 * 0.95**step for step in range(100)]
    assert sum(lines(one("falls_to", 0.3), *slow)) == 0
    assert slow[-1] < 0.02
    assert lines(one("falls_to", 0.3), *[2.0] * LEAST, 0.5) == [0] * LEAST + [1]
    assert lines(one("rises_to", 100.0), *[0.2] * LEAST, 19.0, 90.0, 0.2) == [0] * LEAST + [0, 0, 0]
    assert lines(one("rises_to", 100.0), *[0.2] * LEAST, 20.1) == [0] * LEAST + [1]


def test_values_beyond_the_limit_do_not_become_the_measure() -> None:
    watching = one("falls_to", 0.3, "skip")
    assert [refused(watching, step, v) for step, v in enumerate([1.0] * LEAST + [0.1] * 50)] == [""] * LEAST + [
        "TrainingError"
    ] * 50


def test_the_measure_is_the_mean_of_the_last_steps() -> None:
    """The 15 is too long ago and forgotten, or by one step not."""
    assert sum(lines(one("falls_to", 0.5), 15.0, *[10.0] * WINDOW, 5.1)) == 0
    assert sum(lines(one("falls_to", 0.5), 15.0, *[10.0] * (WINDOW - 1), 5.1)) == 1


def test_too_few_steps_or_a_mean_of_nothing_are_no_measure() -> None:
    assert sum(lines(one("falls_to", 0.5), *[1.0] * (LEAST - 1), 0.0)) == 0
    assert sum(lines(one("rises_to", 2.0), *[0.0] * 10, 5.0)) == 0
    assert sum(lines(one("falls_to", 0.5), *[-1.0] * 10, -5.0)) == 0


@pytest.mark.parametrize(
    "action, error", [("warn", ""), ("skip", "TrainingError"), ("rollback", "GuardRollback"), ("halt", "GuardHalt")]
)
def test_actions_come_before_the_update(action: str, error: str) -> None:
    assert refused(one(action=action), 0, 2.0) == error
    assert refused(one(action=action, patience=2), 0, 2.0) == ""


def test_the_strongest_of_several_acts_and_all_are_recorded() -> None:
    actions = ("warn", "skip", "rollback", "halt", "skip")
    named = {f"g{i}": Guard(metric="m", when="above", limit=1.0, action=a) for i, a in enumerate(actions)}  # type: ignore[arg-type]
    for gone, error in (("", GuardHalt), ("g3", GuardRollback), ("g2", TrainingError)):
        named.pop(gone, None)
        watching = guards(**named)
        with pytest.raises(TrainingError, match="step 4: guards") as refusal:
            watching.look(4, {"m": 2.0})
        assert type(refusal.value) is error
    closed = watching.close(4, {"m": 2.0, "skipped": 1.0})
    assert str(refusal.value).count("guards.") == 2  # both that skip
    assert closed.lines == ["step 4: guards.g0: m is 2, above 1"]
    assert closed.tags == {"guard/fired": 3.0} | {f"guard/fired/g{i}": 1.0 for i in (0, 1, 4)}


def test_a_quiet_step_adds_no_tag() -> None:
    assert one().close(0, {"m": 0.5}) == ([], {}, None)


def test_every_optimizer_step_of_an_update_is_judged() -> None:
    watching = one(action="skip")
    watching.look(0, {"other": 5.0})
    watching.look(0, {"m": 0.5})
    with pytest.raises(TrainingError, match="m is 3, above 1"):
        watching.look(0, {"m": 3.0})
    assert watching.seen == {"other": 5.0, "m": 3.0}
    relative = one("rises_to", 2.0)
    for step in range(LEAST):
        relative.look(step, {"m": 1.0})
        relative.look(step, {"m": 3.0})
        relative.close(step, {"m": 2.0})
    assert relative.state()["g"]["values"] == [2.0] * LEAST  # the mean of the step's


def test_the_mean_over_an_update_is_not_judged_again() -> None:
    watching = one(action="skip")
    watching.look(0, {"m": 0.5})
    assert watching.close(0, {"m": 2.0}).tags == {}


def test_an_update_without_an_optimizer_step_measures_no_gradient() -> None:
    watching = guards(
        norm=Guard(metric="gradients/norm", when="below", limit=0.1, action="skip"),
        loss=Guard(metric="loss", when="below", limit=0.1),
    )
    assert watching.close(0, {"gradients/norm": 0.0, "loss": 0.0, "optimizer_steps": 0.0}) == ([], {}, None)


def test_what_is_known_only_after_the_update_can_halt_but_not_skip() -> None:
    halt = one(action="halt").close(3, {"m": 2.0}).halt
    assert "step 3: guards.g: m is 2, above 1" in str(halt)
    for action in ("skip", "rollback"):
        with pytest.raises(ConfigError, match=rf"guards.g.action={action}: m is known only after the update"):
            one(action=action).close(3, {"m": 0.0})


def test_a_metric_that_nobody_measures_is_named_once() -> None:
    watching = guards(
        typo=Guard(metric="agent/answred", when="below", limit=0.1),
        kl=Guard(metric="policy/kl", when="above", limit=1.0),
    )
    assert [watching.close(step, tags).lines for step, tags in enumerate([{"skipped": 1.0}, {"loss": 0.1}, {}])] == [
        [],
        ["note: guards.typo watches agent/answred, which step 1 has not measured"],
        [],
    ]


def test_after_a_rollback_nothing_is_in_a_row() -> None:
    watching = one(action="rollback", patience=2)
    assert [refused(watching, step, 2.0) for step in range(4)] == ["", "GuardRollback", "", "GuardRollback"]
    skipping = one(action="skip", patience=2)
    assert [refused(skipping, step, 2.0) for step in range(4)] == ["", *["TrainingError"] * 3]


def test_calm_is_when_no_guard_that_rolls_back_is_beyond_its_limit() -> None:
    watching = guards(
        back=Guard(metric="m", when="above", limit=1.0, action="rollback", patience=3),
        skip=Guard(metric="n", when="above", limit=1.0, action="skip", patience=3),
    )
    calm = []
    for step, tags in enumerate([{"m": 0.0}, {"m": 2.0}, {}, {"m": 0.0}, {"n": 2.0}]):
        watching.look(step, tags)
        watching.close(step, tags)
        calm.append(watching.is_calm)
    assert calm == [True, False, False, True, True]
    assert watching.can_roll_back
    assert not one(action="halt").can_roll_back


def test_a_step_that_did_not_end_leaves_nothing_in_the_state() -> None:
    watching = one("falls_to", 0.5, "halt", patience=2)
    for step in range(LEAST):
        watching.close(step, {"m": 1.0})
    before = json.dumps(watching.state())
    watching.look(LEAST, {"m": 0.1})
    assert json.dumps(watching.state()) == before


@pytest.mark.parametrize("cut", range(12))
def test_a_resumed_run_is_judged_as_one_that_was_never_stopped(cut: int) -> None:
    values = [1.0, 1.1, 0.7, 1.3, 0.9, 0.2, 0.2, 1.0, 0.2, 0.1, 0.3, 0.2]

    def run(watching: Guards, steps: range) -> list[object]:
        said: list[object] = []
        for step in steps:
            said += [refused(watching, step, values[step]), watching.state()]
        return said

    whole = run(one("falls_to", 0.5, "rollback", patience=2), range(12))
    first, second = (one("falls_to", 0.5, "rollback", patience=2) for _ in range(2))
    said = run(first, range(cut))
    second.load_state(json.loads(json.dumps(first.state())))
    assert said + run(second, range(cut, 12)) == whole
    assert whole.count("GuardRollback") == 3


def test_a_guard_of_another_metric_begins_anew() -> None:
    watching = one(patience=2)
    watching.close(0, {"m": 2.0})
    other = guards(g=Guard(metric="other", when="above", limit=1.0), new=Guard(metric="m", when="above", limit=1.0))
    other.load_state(watching.state())
    assert {name: saved["streak"] for name, saved in other.state().items()} == {"g": 0, "new": 0}
    same = one(patience=2)
    same.load_state(watching.state())
    assert same.state() == {"g": {"metric": "m", "streak": 1, "values": []}}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"limit": math.inf}, "limit=inf; a finite number is allowed with when=above"),
        ({"when": "falls_to", "limit": 1.0}, "limit=1.0; a share of the mean, between 0 and 1"),
        ({"when": "rises_to", "limit": 1.0}, "limit=1.0; a multiple of the mean, above 1"),
        ({"patience": 0}, "patience=0; 1 step or more"),
    ],
)
def test_guards_that_could_not_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"guard on m: {message}"):
        one(**settings)


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["guards.kl.action=stop"], r"guards.kl.action='stop'; warn, skip, rollback or halt is allowed"),
        (["guards.kl.lmit=1"], r"(guards.kl.)?lmit"),
        (["+guards.mine.metric=loss"], r"guards.mine.when has no value"),
        (["guards.kl.action=rollback", "run.checkpoint_every=0"], r"guards.kl.action=rollback needs a checkpoint"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(
    overrides: list[str], message: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", f"run.dir='{tmp_path}'", *overrides]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error
