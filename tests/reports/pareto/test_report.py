"""`agentgrpo report`: hand-made runs, their points, who beats whom, and what retrieval and prices do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.cli.main import main
from agentgrpo.reports.pareto import compared
from agentgrpo.reports.pareto.intervals import difference, interval
from agentgrpo.reports.pareto.prices import sentence
from agentgrpo.run.evaluate import paired_difference
from tests import builders
from tests.reports.pareto.sweep import evaluated, priced, scored
from tests.run_folders import folder, record

RIGHT, WRONG = 1.0, 0.0
ALL = ((RIGHT, 1),) * 4
HALF = ((RIGHT, 0), (RIGHT, 0), (WRONG, 0), (WRONG, 0))


def only(root: Path) -> dict[str, Any]:
    [family] = compared(root)["families"]
    return dict(family)


def greedy(root: Path) -> dict[str, dict[str, Any]]:
    return {point["label"]: point for point in only(root)["modes"]["greedy"]}


# --- intervals


def test_of_one_run_it_is_the_bootstrap_over_tasks() -> None:
    values = [0.0, 1.0, 1.0, 0.25, 0.5]
    assert interval([values]) == list(paired_difference([0.0] * 5, values))
    assert interval([[0.0, 1.0]]) == [0.5, 0.0, 1.0]  # of four equal draws one is 0 twice, one 1 twice
    assert interval([[0.5]]) == [0.5, 0.5, 0.5]


def test_of_several_runs_it_is_over_runs_too() -> None:
    assert interval([[0.0, 0.0], [1.0, 1.0]]) == [0.5, 0.0, 1.0]  # no task differs, the runs do
    assert interval([[0.25, 0.25], [0.25, 0.25]]) == [0.25, 0.25, 0.25]


def test_a_difference_is_paired_by_task_and_by_run_where_the_seeds_are_the_same() -> None:
    assert difference([[0.0, 1.0]], [[1.0, 2.0]], paired_runs=True) == [1.0, 1.0, 1.0]
    before, now = [[0.0], [2.0]], [[1.0], [3.0]]
    assert difference(before, now, paired_runs=True) == [1.0, 1.0, 1.0]
    assert difference(before, [[3.0], [1.0]], paired_runs=True) == [1.0, -1.0, 3.0]
    assert difference(before, [[3.0], [1.0]], paired_runs=False) == [1.0, -1.0, 3.0], "either side has its own chance"
    assert difference([[0.0, 1.0]], [[1.0, 2.0], [3.0, 4.0]], paired_runs=False) == [2.0, 1.0, 3.0], "paired by task"
    assert difference([[0.0, 1.0]], [[1.0, 2.0]], paired_runs=False) == [1.0, 1.0, 1.0]


def test_equal_figures_are_equal_however_many_runs_they_are_added_up_of() -> None:
    assert [interval([[0.1] * 37] * runs) for runs in (1, 2, 3)] == [[0.1, 0.1, 0.1]] * 3
    assert difference([[0.1] * 37] * 3, [[0.1] * 37], paired_runs=False) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("rows", [[], [[]]])
def test_no_value_has_no_interval(rows: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="needs a value for each run and task"):
        interval(rows)


# --- points


def test_a_run_is_a_point_with_intervals_beside_its_start(tmp_path: Path) -> None:
    evaluated(tmp_path / "one", priced(0.1), ((RIGHT, 1), (RIGHT, 1), (WRONG, 3), (WRONG, 3)))
    family = only(tmp_path)
    assert (family["task"], family["agent"], family["n"], family["varied"]) == ("", "search", 4, [])
    one, start = family["modes"]["greedy"]
    assert (one["label"], one["kind"], one["runs"], one["seeds"], one["n"]) == ("one", "trained", ["one"], [0], 4)
    assert one["quality"] == list(paired_difference([0.0] * 4, [1.0, 1.0, 0.0, 0.0]))
    assert one["cost"] == pytest.approx(paired_difference([0.0] * 4, [0.05, 0.05, 0.15, 0.15]))
    assert one["use"]["web_searches"][0] == 2.0
    assert [*one["use"]] == ["search_rounds", "web_searches", "vdb_searches", "rerank_calls"]
    assert one["members"] == [[0.5, pytest.approx(0.1)]]
    assert (start["label"], start["kind"], start["quality"]) == ("start policy", "start", [0.0, 0.0, 0.0])


def test_seeds_of_one_setting_are_joined_and_what_varied_is_named(tmp_path: Path) -> None:
    for price in (0.0, 0.4):
        for seed in (0, 1):
            scores = ALL if price == 0 else HALF if seed else ((RIGHT, 0),) * 4
            evaluated(tmp_path / f"p{price}-s{seed}", priced(price), scores, seed=seed)
    family = only(tmp_path)
    assert family["varied"] == ["reward.terms.retriever_cost.web"]
    found = greedy(tmp_path)
    assert [*found] == ["retriever_cost.web = 0.0", "retriever_cost.web = -0.4", "start policy"]
    joined = found["retriever_cost.web = -0.4"]
    assert (joined["runs"], joined["seeds"]) == (["p0.4-s0", "p0.4-s1"], [0, 1])
    assert joined["members"] == [[1.0, 0.0], [0.5, 0.0]]
    assert joined["quality"][0] == 0.75
    assert found["start policy"]["runs"] == ["p0.0-s0", "p0.0-s1", "p0.4-s0", "p0.4-s1"]


def test_how_a_run_is_watched_and_where_it_is_make_no_other_setting(tmp_path: Path) -> None:
    for name, screen in (("a", "quiet"), ("b", "plain")):
        config = priced(0.1) | {"guards": {"kl": {"limit": len(name)}}, "hardware": {"process_timeout_s": ord(name)}}
        run = evaluated(tmp_path / name, config, ALL)
        text = (run / "config.yaml").read_text().replace("seed: 0", f"seed: 0\n  screen: {screen}")
        (run / "config.yaml").write_text(text)
    assert [*greedy(tmp_path)] == ["all runs", "start policy"]


def test_a_key_that_older_runs_lack_is_varied_only_where_it_is_something(tmp_path: Path) -> None:
    evaluated(tmp_path / "old", priced(0.1), ALL)
    evaluated(tmp_path / "new", priced(0.1) | {"budget": {"calls": {"mcp": None}}, "x": {"y": 0.0}}, ALL, seed=1)
    assert (only(tmp_path)["varied"], [*greedy(tmp_path)]) == ([], ["all runs", "start policy"])
    evaluated(tmp_path / "other", priced(0.1) | {"x": {"y": 0.5}}, ALL)
    assert (only(tmp_path)["varied"], [*greedy(tmp_path)][:3]) == (["x.y"], ["x.y = 0.0", "x.y = 0.5", "x.y = absent"])


def test_the_front_and_by_whom_the_others_are_dominated(tmp_path: Path) -> None:
    """Costs 0.05 a web search: b is the cheapest, a the best; c costs as much as a, and d more, for less."""
    a, b = ALL, ((RIGHT, 0), (RIGHT, 0), (WRONG, 0), (WRONG, 0))
    c, d = ((RIGHT, 1),) * 3 + ((WRONG, 1),), ((RIGHT, 4),) * 3 + ((WRONG, 4),)
    for price, scores in enumerate((a, b, c, d)):
        evaluated(tmp_path / "abcd"[price], priced(price), scores, start=((WRONG, 9),) * 4)
    found = {point["runs"][0]: point for point in only(tmp_path)["modes"]["greedy"] if point["kind"] == "trained"}
    best = {"label": found["a"]["label"], "beyond_noise": False}
    assert [name for name, point in sorted(found.items()) if point["on_front"]] == ["a", "b"]
    assert found["c"]["dominated_by"] == [best]  # right on one task more, which may be chance
    assert found["d"]["dominated_by"] == [best | {"beyond_noise": True}]
    assert [row["label"] for row in greedy(tmp_path)["start policy"]["dominated_by"]] == [
        found["a"]["label"],
        found["b"]["label"],
    ]


def test_better_answers_at_the_same_cost_dominate_beyond_noise(tmp_path: Path) -> None:
    for price, right in enumerate((RIGHT, WRONG)):
        evaluated(tmp_path / str(price), priced(price), ((right, 1),) * 4)
    found = {p["runs"][0]: p for p in only(tmp_path)["modes"]["greedy"] if p["kind"] == "trained"}
    assert found["1"]["dominated_by"] == [{"label": found["0"]["label"], "beyond_noise": True}]


def test_equal_points_are_both_on_the_front_and_the_oracle_is_on_none(tmp_path: Path) -> None:
    ideal = {"correctness": 1.0, "cost": 0.0} | dict.fromkeys(
        ("search_rounds", "web_searches", "vdb_searches", "rerank_calls"), 0.5
    )
    for price in (0.0, 0.4):
        evaluated(tmp_path / str(price), priced(price), ALL, oracle=ideal)
    found = greedy(tmp_path)
    assert [p["on_front"] for p in found.values()] == [True, True, False, False]
    assert found["oracle"] == {
        "label": "oracle", "kind": "oracle", "varied": {}, "runs": ["0.0", "0.4"], "seeds": [0, 0], "n": 0,
        "quality": [1.0, None, None], "cost": [0.0, None, None], "members": [[1.0, 0.0], [1.0, 0.0]],
        "use": {name: [0.5, None, None] for name in found["start policy"]["use"]},
        "on_front": False, "dominated_by": [],
    }  # fmt: skip


def test_baselines_are_joined_over_all_runs(tmp_path: Path) -> None:
    """What they may spend is that of each run's policy."""
    for price, right in ((0.0, RIGHT), (0.4, WRONG)):
        more = {"everything": ((RIGHT, 9),) * 4, "chunks": ((right, 1),) * 4}
        evaluated(tmp_path / str(price), priced(price), ALL, baselines=more)
    found = [p for p in only(tmp_path)["modes"]["greedy"] if p["kind"] == "baseline"]
    assert [(p["label"], p["runs"], p["quality"]) for p in found] == [
        ("chunks", ["0.0", "0.4"], [0.5, 0.0, 1.0]),
        ("everything", ["0.0", "0.4"], [1.0, 1.0, 1.0]),
    ]


def test_tasks_that_failed_are_left_out_and_named(tmp_path: Path) -> None:
    evaluated(tmp_path / "a", priced(0.0), ((RIGHT, 1), (None, 1), (WRONG, 1), (WRONG, 1)), seed=0)
    evaluated(tmp_path / "b", priced(0.0), ((None, 1), (RIGHT, 1), (RIGHT, 1), (WRONG, 1)), seed=1)
    family = only(tmp_path)
    [point] = [p for p in family["modes"]["greedy"] if p["kind"] == "trained"]
    assert (point["n"], point["quality"][0]) == (2, 0.25)
    assert family["notes"] == ["tasks that failed are left out: 1 of a, 1 of b"]


def test_tasks_that_failed_in_one_mode_alone_are_named_too(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "a", priced(0.0), ((None, 1), *ALL[1:]))
    record(run, "eval-end-greedy", scored(ALL))
    assert only(tmp_path)["notes"] == ["tasks that failed are left out: 1 (sampled) of a"]


def test_seeds_pair_up_whatever_their_folders_are_called(tmp_path: Path) -> None:
    """Beside its own seed each is better on every task; of the means over runs it might be chance."""
    for name, price, seed, right in (("9", 0.0, 0, 0.0), ("10", 0.0, 1, 0.5), ("7", 1.0, 0, 0.5), ("8", 1.0, 1, 1.0)):
        evaluated(tmp_path / name, priced(price), ((right, 1),) * 4, seed=seed)
    worse = greedy(tmp_path)["retriever_cost.web = 0.0"]
    assert (worse["runs"], worse["seeds"]) == (["9", "10"], [0, 1])
    assert worse["dominated_by"] == [{"label": "retriever_cost.web = -1.0", "beyond_noise": True}]


def test_runs_of_other_tasks_are_another_family(tmp_path: Path) -> None:
    other = [builders.task(f"Where is {i}?", id=f"t{i}") for i in range(4)]
    evaluated(tmp_path / "a", priced(0.0), ALL)
    evaluated(tmp_path / "b", priced(0.4), ALL)
    evaluated(tmp_path / "c", priced(0.4), HALF, tasks=other)
    assert [[p["label"] for p in f["modes"]["greedy"]] for f in compared(tmp_path)["families"]] == [
        ["retriever_cost.web = 0.0", "retriever_cost.web = -0.4", "start policy"],
        ["c", "start policy"],
    ]


def test_prices_that_differ_are_said_to(tmp_path: Path) -> None:
    for name, web in (("a", 0.05), ("b", 0.5)):
        run = evaluated(tmp_path / name, priced(0.0), ALL)
        (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("web: 0.05", f"web: {web}"))
    assert only(tmp_path)["notes"] == [
        "costs are not comparable: run.eval.prices.web differ, by which calls are priced"
    ]


# --- evaluations of checkpoints


def test_an_evaluation_of_an_earlier_checkpoint_is_a_point_and_one_of_the_last_is_not(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "run", priced(0.1), ALL)
    for step in (1, 2):  # 2 is that of the checkpoint that there is
        ckpt = run / "checkpoints" / f"step-{step:06d}"
        evaluated(tmp_path / f"at{step}", priced(0.1), HALF, trains=False, ckpt=ckpt)
    found = greedy(tmp_path)
    assert [(label, point["runs"]) for label, point in found.items()] == [
        ("step = 1", ["at1"]),
        ("step = absent", ["run"]),
        ("start policy", ["run"]),
    ]


def test_a_counterfactual_is_held_against_the_checkpoint_that_it_is_of(tmp_path: Path) -> None:
    """Right on all four tasks, and blank on one: 3 of 4 points are retrieval."""
    for seed in (0, 1):
        run = evaluated(tmp_path / f"run{seed}", priced(0.1), ALL, seed=seed)
        blank = priced(0.1) | {"counterfactual": {"name": "blank"}}
        one = ((RIGHT, 2),) + ((WRONG, 2),) * 3
        evaluated(run / "blank", blank, one, seed=seed, trains=False, ckpt=run / "checkpoints" / "step-000002")
    family = only(tmp_path)
    assert family["varied"] == []
    assert [point["label"] for point in family["modes"]["greedy"]] == ["all runs", "start policy"]
    [row] = family["counterfactuals"]["greedy"]
    assert {key: row[key] for key in ("setting", "counterfactual", "runs", "n", "with", "without", "share")} == {
        "setting": "all runs", "counterfactual": "blank", "runs": ["run0/blank", "run1/blank"], "n": 4,
        "with": 1.0, "without": 0.25, "share": 0.75,
    }  # fmt: skip
    assert row["change"] == list(paired_difference([1.0] * 4, [1.0, 0.0, 0.0, 0.0]))
    assert row["use"]["web_searches"] == {"with": 1.0, "without": 2.0}


def test_a_counterfactual_of_an_earlier_checkpoint_is_not_held_against_the_last(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "run", priced(0.1), ALL)
    early = run / "checkpoints" / "step-000001"
    swapped = priced(0.1) | {"counterfactual": {"name": "swapped"}}
    evaluated(tmp_path / "swapped", swapped, HALF, trains=False, ckpt=early)
    assert only(tmp_path)["counterfactuals"]["greedy"] == []
    evaluated(tmp_path / "early", priced(0.1), ((RIGHT, 0),) * 3 + ((WRONG, 0),), trains=False, ckpt=early)
    [row] = only(tmp_path)["counterfactuals"]["greedy"]
    assert (row["setting"], row["with"], row["without"]) == ("step = 1", 0.75, 0.5)


def test_of_moved_folders_the_run_is_the_only_one_of_its_settings_and_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        evaluated(tmp_path / f"run{seed}", priced(0.1), ALL if seed else HALF, seed=seed)
    blank = priced(0.1) | {"counterfactual": {"name": "blank"}}
    gone = Path("/gone/run/checkpoints/step-000002")
    evaluated(tmp_path / "blank", blank, HALF, seed=1, trains=False, ckpt=gone)
    [row] = only(tmp_path)["counterfactuals"]["greedy"]
    assert (row["with"], row["without"]) == (1.0, 0.5)
    evaluated(tmp_path / "twin", priced(0.1), ALL, seed=1)
    assert only(tmp_path)["counterfactuals"]["greedy"] == []


# --- prices


def at_prices(root: Path, *web: int) -> dict[str, Any]:
    """A run at the prices 0, 1, ..., each sending so many web searches on each of four tasks."""
    for price, count in enumerate(web):
        evaluated(root / f"p{price}", priced(float(price)), ((RIGHT, count),) * 4)
    [sweep] = only(root)["sweeps"]
    return dict(sweep)


def said(sweep: dict[str, Any], figure: str = "web_searches") -> tuple[dict[str, Any], str]:
    [statement] = [s for s in sweep["modes"]["greedy"]["statements"] if s["figure"] == figure]
    return statement, sentence(statement, sweep)


def test_use_falls_with_its_price(tmp_path: Path) -> None:
    sweep = at_prices(tmp_path, 3, 2, 2, 0)
    assert {k: sweep[k] for k in ("key", "name", "is_price", "fixed", "values")} == {
        "key": "reward.terms.retriever_cost.web", "name": "retriever_cost.web", "is_price": True, "fixed": {},
        "values": [0.0, 1.0, 2.0, 3.0],
    }  # fmt: skip
    assert sweep["modes"]["greedy"]["use"]["web_searches"] == [[v, v, v] for v in (3.0, 2.0, 2.0, 0.0)]
    assert said(sweep) == (
        {
            "figure": "web_searches", "own": True, "first": 3.0, "last": 0.0, "change": [-3.0, -3.0, -3.0],
            "never_rises": True, "rises_beyond_noise": [],
        },
        (
            "web searches: 3.000 to 0.000 as the price in retriever_cost.web rises from 0 to 3 (-3.000 [-3.000, "
            "-3.000]); monotone: it never rises"
        ),
    )  # fmt: skip
    assert said(sweep, "vdb_searches")[1].endswith("rises from 0 to 3 (+0.000 [+0.000, +0.000])")


def test_a_rise_beyond_noise_is_named_and_one_within_it_is_noise(tmp_path: Path) -> None:
    statement, text = said(at_prices(tmp_path / "clear", 3, 1, 2, 0))
    assert (statement["never_rises"], statement["rises_beyond_noise"]) == (False, [[1, 2]])
    assert text.endswith("NOT monotone: it rises beyond noise between 1 and 2")
    evaluated(tmp_path / "noise" / "a", priced(0.0), ((RIGHT, 1),) * 4)
    evaluated(tmp_path / "noise" / "b", priced(1.0), ((RIGHT, 0), (RIGHT, 1), (RIGHT, 1), (RIGHT, 4)))
    [sweep] = only(tmp_path / "noise")["sweeps"]
    assert said(sweep)[1].endswith("monotone within the intervals: it never rises beyond noise")


def test_two_things_that_vary_are_a_sweep_each_all_else_being_equal(tmp_path: Path) -> None:
    for price in (0.0, 0.4):
        for rate in (0.1, 0.2):
            evaluated(tmp_path / f"{price}-{rate}", priced(price) | {"optimizer": {"lr": rate}}, ALL)
    sweeps = only(tmp_path)["sweeps"]
    assert [(s["name"], s["is_price"], s["values"], [*s["fixed"].values()]) for s in sweeps] == [
        ("optimizer.lr", False, [0.1, 0.2], [0.0]),
        ("optimizer.lr", False, [0.1, 0.2], [-0.4]),
        ("retriever_cost.web", True, [0.0, 0.4], [0.1]),
        ("retriever_cost.web", True, [0.0, 0.4], [0.2]),
    ]


def test_a_mode_in_which_a_price_was_not_evaluated_has_no_sweep(tmp_path: Path) -> None:
    for price in (0.0, 1.0):
        run = evaluated(tmp_path / f"{price}", priced(price), ALL)
        (run / "trajectories" / "eval-end-greedy.jsonl").unlink()
    [sweep] = only(tmp_path)["sweeps"]
    assert ([*sweep["modes"]], sweep["values"]) == (["sampled"], [0.0, 1.0])


# --- what is there


@pytest.mark.parametrize("oracle", [{}, None, {"correctness": None, "cost": 1}])
def test_an_oracle_that_eval_json_does_not_know_whole_is_no_point(tmp_path: Path, oracle: Any) -> None:
    """It has no figures where all of its tasks failed."""
    run = evaluated(tmp_path / "a", priced(0.0), ALL)
    told = json.loads((run / "eval.json").read_text())
    (run / "eval.json").write_text(json.dumps(told | {"oracle": oracle}))
    assert [*greedy(tmp_path)] == ["a", "start policy"]


@pytest.mark.parametrize(
    ("file", "before", "now"),
    [
        ("trajectories/eval-end-greedy.jsonl", '"exit":"answered"', '"exit":"unheard of"'),
        ("config.yaml", "environment:\n  name: search", "environment: ["),
    ],
)
def test_what_is_not_ours_is_named_and_no_more(tmp_path: Path, file: str, before: str, now: str) -> None:
    evaluated(tmp_path / "good", priced(0.0), ALL)
    path = evaluated(tmp_path / "odd", priced(0.1), ALL) / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, now))
    assert [row["name"] for row in compared(tmp_path)["skipped"]] == ["odd"]


def test_json_is_json_whatever_the_settings_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("a", ".inf"), ("b", "2024-01-01"), ("c", "1")):
        run = evaluated(tmp_path / name, priced(0.0), ALL)
        (run / "config.yaml").write_text((run / "config.yaml").read_text() + f"own: {value}\n")
    for given in (["report", str(tmp_path)], ["diff", str(tmp_path / "a"), str(tmp_path / "b")]):
        assert main([*given, "--json"]) == 0
        out = capsys.readouterr().out
        json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert '"inf"' in out
        assert '"2024-01-01"' in out


def test_folders_without_an_evaluation_are_none_and_broken_ones_are_named(tmp_path: Path) -> None:
    evaluated(tmp_path / "good", priced(0.0), ALL)
    old = evaluated(tmp_path / "old", priced(0.1), ALL)
    file = old / "trajectories" / "eval-end-greedy.jsonl"
    file.write_text(file.read_text().replace('"schema_version":5', '"schema_version":1'))
    bare = evaluated(tmp_path / "bare", priced(0.1), ALL)
    for path in (bare / "trajectories").iterdir():
        path.unlink()
    (tmp_path / "begun").mkdir()
    found = compared(tmp_path)
    assert [row["name"] for row in found["skipped"]] == ["bare", "old"]
    assert found["skipped"][0]["reason"] == "it has no trajectories of its evaluation"
    assert "schema_version 1; this version reads 3 to 5" in found["skipped"][1]["reason"]
    assert [point["runs"] for point in found["families"][0]["modes"]["greedy"]] == [["good"], ["good"]]


def test_a_run_of_a_version_that_counted_no_calls_has_the_cost_of_its_comparison(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "run", priced(0.0), ALL)
    for path in (run / "trajectories").glob("*.jsonl"):
        path.write_text(path.read_text().replace("web_calls", "web_served").replace("vdb_calls", "vdb_served"))
    said = json.loads((run / "eval.json").read_text())
    said["greedy"] = {"trained": {"cost": 0.25}, "baseline": {"cost": 0.5}}
    (run / "eval.json").write_text(json.dumps(said))
    assert [(p["cost"], p["on_front"]) for p in greedy(tmp_path).values()] == [
        ([0.25, None, None], True),
        ([0.5, None, None], False),
    ]


def test_a_run_that_was_stopped_is_left_out_with_the_reason(tmp_path: Path) -> None:
    evaluated(tmp_path / "run", priced(0.1), ALL)
    stopped = folder(tmp_path / "stopped")
    (stopped / "stopped.json").write_text('{"step":3,"max_steps":8,"reason":"the budget is spent","raised":""}')
    why = "not evaluated: stopped after step 3 of 8: the budget is spent"
    assert compared(tmp_path)["skipped"] == [{"name": "stopped", "reason": why}]


@pytest.mark.parametrize(
    ("where", "message"), [("empty", "holds no run with an evaluation"), ("no", "is not a directory")]
)
def test_nothing_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / where)]) == 2
    assert message in capsys.readouterr().err


def test_the_command_writes_the_page_and_json_alone_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(tmp_path / "run", priced(0.1), ALL)
    assert main(["report", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == compared(tmp_path)
    assert not (tmp_path / "report.html").exists()
    assert main(["report", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "on the front" in out
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["report", str(tmp_path), "--json", "--out", str(tmp_path / "sub" / "page.html")]) == 0
    assert (tmp_path / "sub" / "page.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_a_page_takes_the_place_of_nothing_but_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluated(tmp_path / "run", priced(0.1), ALL)
    for _ in range(2):
        assert main(["report", str(tmp_path)]) == 0
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    for out, why in (
        (mine, "is no page of agentgrpo report"),
        (tmp_path / "run", "is a folder"),
        (mine / "x" / "report.html", "cannot be made: Not a directory"),
    ):
        assert main(["report", str(tmp_path), "--out", str(out)]) == 2
        assert why in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_it_loads_no_model(tmp_path: Path) -> None:
    evaluated(tmp_path / "run", priced(0.1), ALL)
    program = (
        "import sys; from agentgrpo.cli.main import main; "
        f"assert main(['report', {str(tmp_path)!r}, '--json']) == 0; "
        "print(sorted({'torch', 'transformers', 'faiss', 'hydra'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
