"""The benches measure what they say: prescribed work, floors, fits and shares that can be checked by hand."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import determinism
import durability
import floor
import gpu
import growth
import memory
import ours
import pytest
import torch
from forwards import Rates, bound_seconds
from measure import Stopwatch
from schedules import EngineStep, Schedule, Spans
from workload import Script, model, prompt_text, reply_text
from works import TINY

from agentgrpo.config.settings import RunSettings
from tests import builders
from tests.scripts.conftest import BENCH

MINI = replace(TINY, name="mini", hidden=32, layers=2, ffn=64, tasks=2, group_size=2, turns=2, tool_tokens=60)
ROWS, TURNS = range(MINI.rows), range(MINI.turns)
DIGEST = """
import hashlib
from dataclasses import replace
from workload import Script, model
from works import TINY
script = Script(replace(TINY, turns=2))
said = [[script.forced(s, r, t), script.reply(s, r, t)] for s in range(2) for r in range(4) for t in range(2)]
said += [[script.question(i), script.tokenizer(script.question(i))["input_ids"]] for i in range(4)]
weights = [p.sum().item() for p in model(script.work).parameters()]
digest = hashlib.sha256(repr([said, weights]).encode()).hexdigest()
"""


@pytest.fixture(scope="module")
def script() -> Script:
    return Script(MINI)


@pytest.mark.slow
def test_a_fresh_process_prescribes_the_same() -> None:
    here: dict[str, str] = {}
    exec(DIGEST, here)
    command = [sys.executable, "-c", f"import sys\nsys.path.append({str(BENCH)!r})\n{DIGEST}\nprint(digest)"]
    fresh = subprocess.run(command, capture_output=True, text=True, check=True)
    assert fresh.stdout == here["digest"] + "\n"


def test_a_turn_is_of_prescribed_length_and_ends_with_a_call_or_the_end(script: Script) -> None:
    call = tuple(script.tokenizer("<tool_call>\n")["input_ids"])
    for row in ROWS:
        with_call, last = script.forced(0, row, 0), script.forced(0, row, 1)
        assert 30 <= len(with_call) <= 48
        assert 30 <= len(last) <= 48
        assert set(last[:-1]) == {-1}
        assert last[-1] == with_call[-1] == script.end
        first = with_call.index(call[0])
        assert set(with_call[:first]) == {-1}
        assert with_call[first : first + len(call)] == call
    assert len({len(script.forced(step, row, turn)) for step in range(4) for row in ROWS for turn in TURNS}) > 5


def test_replies_and_prompts_have_about_the_length_they_should(script: Script) -> None:
    tok = script.tokenizer
    replies = [len(tok(script.reply(step, row, 0))["input_ids"]) for step in range(4) for row in ROWS]
    assert all(40 - 3 <= n <= 80 + 3 for n in replies), replies  # cut words may be split otherwise
    assert max(replies) - min(replies) > 20
    prompts = [len(tok(prompt_text(script.question(i), with_tools=True))["input_ids"]) for i in range(4)]
    assert all(abs(n - MINI.prompt_tokens) <= 3 for n in prompts), prompts


def test_a_forced_row_draws_its_token_and_a_free_one_none_that_is_banned(script: Script) -> None:
    scores = script.apply(torch.ones(2, MINI.vocab), [7, -1])
    assert scores[0].isfinite().nonzero().tolist() == [[7]]
    free = scores[1].isfinite().nonzero()[:, 0]
    assert free.tolist() == list(range(11, len(script.tokenizer)))


def test_our_side_does_the_prescribed_work_and_reports_it(script: Script, tmp_path: Path) -> None:
    watch = Stopwatch()
    parts = ours.parts_of(MINI, RunSettings(dir=str(tmp_path), max_steps=2))
    work = asyncio.run(ours.run(parts, watch))
    sampled = sum(len(script.forced(1, row, turn)) for row in ROWS for turn in TURNS)
    injected = sum(len(script.tokenizer(reply_text(script.reply(1, row, 0)))["input_ids"]) for row in ROWS)
    prompts = [script.tokenizer(prompt_text(t.question, with_tools=True))["input_ids"] for t in parts.order.take(1)]
    total = sampled + injected + MINI.group_size * sum(map(len, prompts))
    assert work == {"sampled": [sampled], "tokens": [total]}
    figures = watch.figures()
    assert set(figures) == {
        "step_wall_s",
        "step_cpu_s",
        "rollout_wall_s",
        "rollout_cpu_s",
        "train_cpu_s",
        "peak_rss_mb",
    }
    assert figures["step_cpu_s"] == pytest.approx(figures["rollout_cpu_s"] + figures["train_cpu_s"])
    assert min(figures.values()) > 0


def test_the_floor_is_steps_times_a_forward_plus_prefill_at_its_rate() -> None:
    assert floor.floor_seconds(10, 0.25, [(100, 50.0), (30, 10.0)]) == (2.5, 5.0)


def test_a_schedule_sums_up_to_typical_calls() -> None:
    schedule = Schedule(
        [
            EngineStep(keys=(), spans=((20, 0), (30, 0)), drawn=0),
            EngineStep(keys=(21, 31), spans=(), drawn=2),
            EngineStep(keys=(22, 32), spans=((9, 30),), drawn=3),
            EngineStep(keys=(), spans=((11, 50),), drawn=1),
        ]
    )
    assert (schedule.decode_steps, schedule.rows, schedule.keys) == (2, 2, 26)
    assert schedule.spans(opening=True) == Spans(rows=2, tokens=25, start=0, total=50)
    assert schedule.spans(opening=False) == Spans(rows=1, tokens=10, start=40, total=20)
    assert [step.tokens for step in schedule.steps] == [50, 2, 11, 11]
    assert [step.attended for step in schedule.steps] == [210 + 465, 52, 54 + 270 + 45, 550 + 66]
    assert Schedule([schedule.steps[1]]).spans(opening=True) is None


def test_the_bound_is_arithmetic_or_reading_whichever_is_slower() -> None:
    made = model(MINI)  # hidden 32, 4 heads of 8, 2 kv heads, 2 layers, ffn 64, vocabulary 1024
    layers = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    head = 32 * 1024
    steps = [EngineStep(keys=(10, 20), spans=((5, 3),), drawn=2)]
    flops = 2 * layers * 7 + 2 * head * 2 + 4 * 2 * 32 * (30 + 15 + 15)
    read = 4 * (layers + head + 2 * 2 * 16 * (30 + 8))
    assert bound_seconds(made, steps, Rates(flops_per_s=1e6, bytes_per_s=1e12)) == pytest.approx(flops / 1e6)
    assert bound_seconds(made, steps, Rates(flops_per_s=1e12, bytes_per_s=1e6)) == pytest.approx(read / 1e6)


@pytest.mark.slow
def test_a_real_rollout_has_a_floor_and_its_gaps_add_up(script: Script) -> None:
    [found] = floor.rounds_of(MINI, 1)
    texts = [prompt_text(script.question(task), with_tools=True) for task in range(4)]
    prompts = [len(script.tokenizer(text)["input_ids"]) for text in texts]
    injected = sum(1 + len(script.tokenizer(reply_text(script.reply(1, row, 0)))["input_ids"]) for row in ROWS)
    assert found.prefill_tokens - injected in {a + b - 2 for a, b in permutations(prompts, 2)}
    longest = max(len(script.forced(1, row, 0)) + len(script.forced(1, row, 1)) for row in ROWS)
    assert longest - 1 <= found.decode_steps <= longest + 4  # the turns of all episodes side by side
    assert found.floor + sum(found.gaps().values()) == pytest.approx(found.rollout)
    assert 0 < found.bound < found.floor
    assert found.fraction == found.floor / found.rollout


def test_a_fit_recovers_what_made_the_data() -> None:
    tokens, pairs = [1e3, 2e3, 4e3, 8e3, 1.6e4], [3e5, 1e6, 9e6, 2e7, 2e8]
    seconds = [0.5 + 2e-4 * t + 3e-8 * p for t, p in zip(tokens, pairs, strict=True)]
    found = growth.fit({"tokens": tokens, "pairs": pairs}, seconds)
    assert found.intercept == pytest.approx(0.5)
    assert found.slopes == pytest.approx({"tokens": 2e-4, "pairs": 3e-8})
    assert found.r_squared == pytest.approx(1.0)
    assert found.residuals == pytest.approx([0.0] * 5, abs=1e-9)


def test_a_fit_says_how_far_off_it_is() -> None:
    found = growth.fit({"x": [1.0, 2.0, 3.0]}, [1.0, 4.0, 9.0])
    # least (1 - a - b)² + (4 - a - 2b)² / 16 + (9 - a - 3b)² / 81, by hand
    assert (found.intercept, found.slopes["x"]) == pytest.approx((-180 / 73, 252 / 73))
    assert found.r_squared == pytest.approx(1 - sum(r * r for r in found.residuals) / (98 - 14**2 / 3))
    assert found.r_squared < 0.98


def test_a_shared_prompt_is_counted_once() -> None:
    first = builders.episode(None, builders.given(1, 2, 3), builders.sampled(4, 5), builders.given(6))
    second = builders.episode(None, builders.given(1, 2, 3), builders.sampled(7), sample_index=1)
    # 3 tokens of prompt see 1 + 2 + 3; then 4 + 5 + 6 and 4
    assert growth.counts([builders.group(first, second)]) == (3, 3 + 3 + 1, 6 + 15 + 4)


def test_a_curve_is_measured_up_and_down(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    works = tuple((g, replace(MINI, turns=1, group_size=g)) for g in (2, 4))
    curve = growth.Curve("group_size", works, ("sampled",))
    points = growth.measured(curve)
    assert [p.value for p in points] == [2, 4, 4, 2]
    scripted = [sum(len(Script(work).forced(0, row, 0)) for row in range(work.rows)) for _, work in works]
    assert [p.sampled for p in points][1:] == [scripted[1], scripted[1], scripted[0]]  # the first is a second step
    assert all(p.step_cpu_s > 0 for p in points)
    assert len(growth.fitted(curve, points).residuals) == 4


def test_the_growth_curves_are_those_promised() -> None:
    found = {name: [value for value, _ in curve.works] for name, curve in growth.curves().items()}
    assert found == {
        "group_size": [4, 8, 16, 32, 64],
        "turns": [1, 2, 4, 8, 12, 16],
        "context": [512, 1024, 2048, 4096, 8192, 16_384],
        "concurrent_episodes": [8, 32, 128, 256, 512],
        "tool_latency_s": [0.0, 0.1, 0.3, 0.6, 1.0],
    }
    assert [work.rows for _, work in growth.curves()["concurrent_episodes"].works] == [8, 32, 128, 256, 512]


def test_the_cost_of_determinism_is_a_median_over_pairs() -> None:
    assert determinism.cost([1.1, 1.3, 2.2], [1.0, 1.0, 2.0]) == pytest.approx(0.1)


def test_both_kinds_of_rollout_are_measured() -> None:
    deterministic, free = determinism.seconds_of(replace(MINI, turns=1), 1)
    assert len(deterministic) == len(free) == 1
    assert min(*deterministic, *free) > 0


def test_the_share_of_files_in_a_step() -> None:
    rows = [
        {"total": 10.0, "records": 1.0, "checkpoint": 0.0, "evaluation": 0.0},
        {"total": 15.0, "records": 1.0, "checkpoint": 5.0, "evaluation": 0.0},
        {"total": 31.0, "records": 1.0, "checkpoint": 0.0, "evaluation": 21.0},
        {"total": 31.0, "records": 1.0, "checkpoint": 0.0, "evaluation": 21.0},
        {"total": 31.0, "records": 1.0, "checkpoint": 0.0, "evaluation": 21.0},
    ]
    found = durability.share_of(rows, cadence=25)
    assert found == durability.Share(work_s=9.0, records_s=1.0, checkpoint_s=5.0, cadence=25)
    assert found.step_s == pytest.approx(10.2)
    assert found.share == pytest.approx(1.2 / 10.2)


@pytest.mark.slow
def test_a_real_run_says_what_its_files_cost(tmp_path: Path) -> None:
    rows = durability.profile_of_work(MINI, 3, tmp_path)
    assert [(row["step"], row["checkpoint"] > 0) for row in rows] == [(0, True), (1, False), (2, True)]
    found = durability.share_of(rows, durability.CADENCE)
    assert durability.CADENCE == 25
    assert 0 < found.share < 1


@pytest.mark.slow
def test_memory_episodes_do_the_same_work_in_all_ways_and_the_opening_is_computed_once() -> None:
    found = memory.measured(MINI, 4, 100, 1)
    runs = {way: f for way, [f] in found.items()}
    together, alone = runs[memory.Way(together=True, told=True)], runs[memory.Way(together=False, told=True)]
    untold = runs[memory.Way(together=False, told=False)]
    assert all(f.chunks_per_s > 0 for f in runs.values())
    assert all(e.metrics["executed"] >= memory.CHUNKS for f in runs.values() for e in f.episodes)
    environment = memory.runners_of(MINI, 100, 4)[1][True].environment
    kept = environment.shared_opening * 4 * (memory.CHUNKS - 1)  # of every chunk of an episode but the first
    assert untold.prefill_tokens - alone.prefill_tokens == kept
    assert (alone.copied_tokens, untold.copied_tokens) == (0, 0)
    assert together.prefill_tokens + together.copied_tokens == alone.prefill_tokens
    assert together.copied_tokens >= 3 * environment.shared_opening


@pytest.mark.slow
def test_a_way_that_does_other_work_is_no_comparison() -> None:
    [found] = memory.measured(MINI, 1, 0, 1)[memory.WAYS[0]]
    [episode] = found.episodes
    assert memory.same_work([found, replace(found, chunks_per_s=0.0)])
    assert not memory.same_work([found, replace(found, episodes=(replace(episode, memory=()),))])


@pytest.mark.slow
@pytest.mark.parametrize(("options", "figures"), [([], 11), (["--no-graphs"], 9)])
def test_the_gpu_bench_runs_on_any_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], figures: int
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--shape", "tiny", "--device", "cpu", "--rounds", "1", *options])
    monkeypatch.setitem(gpu.SHAPES, "tiny", replace(MINI, name="tiny"))
    gpu.main()
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│ tiny")]
    cells = [float(cell.replace(",", "")) for cell in line.split("│")[2:-1]]
    assert len(cells) == figures
    assert all(cell > 0 for cell in (cells[0], *cells[5:]))


def test_a_shape_that_does_not_fit_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--shape", "7b", "--device", "cpu"])
    monkeypatch.setattr(gpu, "free_bytes", lambda device: 2 * gpu.GIB)
    gpu.main()
    assert capsys.readouterr().out == "7b: skipped, it needs about 149 GiB and 2 GiB are free\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit) as stopped:
        gpu.main()
    assert stopped.value.code == 2
    expected = "bench: device cuda was given; torch finds none here; --shape tiny --device cpu runs anywhere\n"
    assert capsys.readouterr().err == expected
