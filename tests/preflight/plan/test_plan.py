"""`agentgrpo plan`: what it prints, what it says would help, and whether that is so."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.cli.main import configs_dir, main, presets
from agentgrpo.models.loading import config_of, weightless
from agentgrpo.preflight.plan.device import GIB
from tests.engines.tiny import model
from tests.thorough import siblings

PUBLISHED = {
    "gemma_2b": 2_506_172_416,
    "gemma3_1b": 999_885_952,
    "llama3_1b": 1_235_814_400,
    "llama3_3b": 3_212_749_824,
    "llama3_8b": 8_030_261_248,
    "qwen2_5_0_5b": 494_032_768,
    "qwen2_5_1_5b": 1_543_714_304,
    "qwen2_5_3b": 3_085_938_688,
    "qwen2_5_7b": 7_615_616_512,
    "qwen2_5_14b": 14_770_033_664,
    "qwen3_0_6b": 596_049_920,
    "qwen3_1_7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "smollm2": 134_515_008,
    "smollm2_135m": 134_515_008,
    "smollm2_360m": 361_821_120,
    "smollm2_1_7b": 1_711_376_384,
}
"""Parameters of the published checkpoints, tied embeddings counted once."""
SPEED = ["hardware.peak_tflops=1", "hardware.bandwidth_gib_s=1"]
"""Stated, so that it is not measured."""
OWN = ["experiment=none", "task.questions=q", "task.corpus=c"]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def plan(capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    before = sorted(Path().rglob("*"))
    code, text = main(["plan", *settings]), capsys.readouterr().out
    assert sorted(Path().rglob("*")) == before
    fits = json.loads(text)["memory"]["fits"] if "--json" in settings else "DOES NOT FIT" not in text
    assert code == (1 if fits is False else 0)
    return text


def figures(capsys: pytest.CaptureFixture[str], *settings: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(plan(capsys, *settings, "--json"))
    return found


@pytest.mark.slow
def test_what_does_not_fit_is_known_by_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    for memory_gib, code in ((0.001, 1), (64, 0)):
        assert (
            main(["plan", "hardware.peak_tflops=1", "hardware.bandwidth_gib_s=1", f"hardware.memory_gib={memory_gib}"])
            == code
        )
        assert ("DOES NOT FIT" in capsys.readouterr().out) is bool(code)


@pytest.mark.parametrize("name", [n for n in presets()["model"] if n != "path" and not n.endswith("_tiny")])
def test_a_presets_shape_has_as_many_weights_as_the_published_model(name: str) -> None:
    shape = yaml.safe_load((configs_dir() / "model" / f"{name}.yaml").read_text())["shape"]
    assert sum(p.numel() for p in weightless(config_of(shape)).parameters()) == PUBLISHED[name]


def test_the_published_run_is_planned_without_weights_and_network(capsys: pytest.CaptureFixture[str]) -> None:
    text = plan(capsys, "experiment=mem_alpha_paper")
    assert "model (model.shape): 4,022,468,096 parameters, 4,022,468,096 of them trained; bfloat16" in text
    assert "episodes: 256 = 32 tasks x 8 attempts (exact)" in text
    assert "205 steps: 52,480 episodes" in text
    assert "memory of one device, 4 processes, fsdp:" in text
    assert "engine.kv_budget=262,144 tokens; 64 contexts of 32,768 tokens, 4.5 GiB each" in text
    assert "  fits: 80.00 GiB (hardware.memory_gib)" in text
    kept = 4_022_468_096 * (2 + 12)
    assert f"a checkpoint: {kept / GIB:.2f} GiB of tensors (exact)" in text


@pytest.mark.slow
def test_what_a_run_would_say_of_the_data_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "Who?", "golden_answers": ["Mara"], "images": ["a.png"]}\n')
    note = (
        f"q: {file} is read as search_r1; metadata of its tasks: golden_answers, images; without effect: images (a "
        "policy reads text)"
    )
    settings = ("model=smollm2_135m", f"task.questions={file}")
    assert plan(capsys, *settings).splitlines()[-1] == f"note: {note}"
    assert figures(capsys, *settings)["notes"] == [note]
    away = plan(capsys, "model=smollm2_135m", f"task.questions={tmp_path / 'no.jsonl'}").splitlines()[-1]
    assert away.startswith("note: the data was not read: questions: ")
    assert figures(capsys, "model=smollm2_135m")["notes"] == []


def test_rows_that_no_run_could_read_end_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "", "answers": ["Mara"]}\n')
    assert main(["plan", "model=smollm2_135m", f"task.questions={tmp_path / 'q.jsonl'}"]) == 2
    assert "q.jsonl, line 1: 'question' is ''" in capsys.readouterr().err


def test_a_step_of_one_turn_is_called_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "Who?", "answers": ["Mara"]}\n')
    settings = ("model=smollm2_135m", f"task.questions={tmp_path / 'q.jsonl'}")
    assert "a step (jsonl, single_turn):" in plan(capsys, *settings)
    assert "a step (jsonl, tools):" in plan(capsys, *settings, "tools=calculator")


def test_what_comes_before_and_after_the_steps_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    text = plan(capsys, "experiment=research")
    assert "two other runs of as many CPU seconds (run.eval.baselines)" in text
    assert "cold start" not in text
    other = plan(capsys, "experiment=mem_alpha_paper", "model.cold_start.demonstrations=1200")
    assert "a cold start from 1,200 demonstrations (model.cold_start)" in other
    assert "run.eval.baselines" not in other


def test_chunks_are_counted_where_the_data_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = plan(capsys, "experiment=memory", "task.train_diaries=20", "task.train_days=[5,5]")
    assert "turns of an episode: 5 (chunks of 20 tasks, counted: 5 to 5)" in text
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    assert f"fits: {memory:.2f} GiB (this machine)" in text


def test_a_folder_gives_its_own_shape(capsys: pytest.CaptureFixture[str]) -> None:
    model().save_pretrained("m")
    capsys.readouterr()
    text = plan(capsys, *OWN, "model.path=m")
    assert f"{sum(p.numel() for p in model().parameters()):,} parameters" in text
    assert json.loads(Path("m/config.json").read_text())["model_type"] == "qwen3"


def test_defaults_fit_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Without memory for 128 contexts of 40,960 tokens."""
    own = ["model=qwen3_0_6b", "task.questions=q", "task.corpus=c", "hardware.memory_gib=24", *SPEED]
    found = figures(capsys, *own)["memory"]
    assert (found["fits"], found["need_bytes"] < 20 * GIB) == (True, True)
    text = plan(capsys, *own)
    assert re.search(r"engine\.kv_budget=33,\d{3} tokens; 128 contexts of 8,192 tokens, 1\.8 GiB each", text)
    assert "learning rate: 8.2e-06 (optimizer.lr=null: the usual one)" in text


def test_a_rate_that_cannot_move_the_model_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    own = ["model=smollm2_135m", "task.questions=q", "hardware.memory_gib=24", *SPEED]
    assert "learning rate: optimizer.lr=1e-06 moves a weight by at most" in plan(capsys, *own, "optimizer.lr=1e-6")
    assert "moves a weight" not in plan(capsys, *own, "optimizer.lr=1e-5")


def test_no_shape_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *OWN, "model.path=nowhere"]) == 2
    assert capsys.readouterr().err.startswith("agentgrpo: plan: ")


def test_the_old_key_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "run.dry_run=true"]) == 2
    assert "dry_run" in capsys.readouterr().err


# --- what would help

BIG = ["model=qwen2_5_7b", "hardware=single_gpu", "engine.max_context=4096", "engine.slots=16"]


@pytest.mark.slow
def test_every_setting_that_is_named_helps_as_much_as_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is planned once more from the command line."""
    short = figures(capsys, *BIG)
    assert short["memory"]["fits"] is False
    knobs = [k for k in short["knobs"] if k["of"] == "memory"]
    alone = [k for k in knobs if len(k["settings"]) == 1]
    keys = {key for k in knobs for key in k["settings"]}
    assert keys >= {"model.lora.rank", "hardware.dtype", "hardware.activation_checkpointing", "--processes"}
    for knob in alone:
        given = [f"{key}={json.dumps(v)}" for key, v in knob["settings"].items() if not key.startswith("--")]
        given += [text for key, v in knob["settings"].items() if key.startswith("--") for text in (key, str(v))]
        again = figures(capsys, *BIG, *given)["memory"]
        assert again["need_bytes"] == knob["takes"], knob
        assert short["memory"]["need_bytes"] - again["need_bytes"] == knob["saves"]
        assert again["fits"] is knob["fits"]


DAYS = [*OWN, "model=smollm2_135m", "hardware.memory_gib=80", "hardware.peak_tflops=1", "hardware.bandwidth_gib_s=2"]


def test_a_run_of_days_says_what_shortens_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = plan(capsys, *DAYS)
    [long] = re.findall(r"  long: (\S+ d) for all steps\. Each planned with:", text)
    assert f"150 steps: {long} (" in text
    rows = re.findall(r"    (\S.*?) +-(\S+) (?:d|h) +leaves (\S+) (d|h|min)(  at most 24 h)?\n", text)
    assert {row[0] for row in rows} >= {"hardware=single_gpu", "rollout.group_size=4", "model.lora.rank=16"}
    assert {row[0] for row in rows if row[4]} >= {"hardware=single_gpu"}
    assert all(row[3] != "d" or float(row[2]) <= 2 for row in rows if row[4])


@pytest.mark.slow
def test_every_setting_that_shortens_a_run_does_so_by_as_much_as_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is planned once more from the command line."""
    short = figures(capsys, *DAYS)
    days = sum(short["step"]["seconds"].values()) * short["run"]["steps"]
    knobs = [k for k in short["knobs"] if k["of"] == "time"]
    assert [k["takes"] for k in knobs] == sorted(k["takes"] for k in knobs)
    for knob in knobs:
        given = [f"{key}={value}" for key, value in knob["settings"].items()]
        stated = [word for word in DAYS if not word.startswith("hardware.") or "hardware" not in knob["settings"]]
        again = figures(capsys, *stated, *given)
        seconds = sum(again["step"]["seconds"].values()) * again["run"]["steps"]
        assert seconds == pytest.approx(knob["takes"], rel=1e-9), knob
        assert days - seconds == pytest.approx(knob["saves"], rel=1e-9)
        assert knob["fits"] is (seconds <= 86_400)


@pytest.mark.slow
def test_keys_and_values_get_the_room_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the rollout takes most: the largest budget that fits, in whole thousands of tokens."""
    settings = ["model=qwen2_5_0_5b", "hardware=single_gpu", "hardware.memory_gib=24", "engine.max_context=16384"]
    settings += ["hardware.activation_checkpointing=true", "hardware.head_chunk_tokens=128"]
    short = figures(capsys, *settings, "engine.kv_budget=2097152")  # by default it is what fits
    [knob] = [k for k in short["knobs"] if "engine.kv_budget" in k["settings"]]
    assert knob["fits"] is True
    budget = knob["settings"]["engine.kv_budget"]
    assert figures(capsys, *settings, f"engine.kv_budget={budget}")["memory"]["fits"] is True
    more = figures(capsys, *settings, f"engine.kv_budget={budget + 1024}")["memory"]
    assert more["rollout_bytes"] > 0.9 * 24 * GIB


@pytest.mark.slow
def test_several_settings_together_where_none_does_alone(capsys: pytest.CaptureFixture[str]) -> None:
    short = figures(capsys, *BIG, "hardware.memory_gib=40")
    knobs = [k for k in short["knobs"] if k["of"] == "memory"]
    assert [k for k in knobs if k["fits"]] == [knobs[-1]]
    assert len(knobs[-1]["settings"]) > 1
    text = plan(capsys, *BIG, "hardware.memory_gib=40")
    assert "  DOES NOT FIT: 40.00 GiB (hardware.memory_gib)" in text
    assert "too much: " in text
    memory, _, rest = text.partition("a step (")
    assert (memory.count("which fits"), rest.count("free where the run directory would be")) == (1, 1)


def test_what_fits_needs_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures(capsys)["knobs"] == []


@pytest.mark.slow
def test_processes_are_those_that_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, *BIG, "hardware=fsdp", "--processes", "16")["memory"]
    assert (found["processes"], found["need_bytes"]) == (16, found["by_processes"]["16"])
    assert main(["plan", "--processes", "0"]) == 2
    assert "--processes 0; allowed is the number of training devices, 1 or more" in capsys.readouterr().err


@pytest.mark.slow
def test_the_trainers_own_precision_is_in_memory_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    """As what helps, too, where weights of float32 do not fit."""
    settings = [*BIG, "hardware.memory_gib=140"]
    short, mixed = figures(capsys, *settings), figures(capsys, *settings, "hardware.mixed_precision=bf16")
    [knob] = [k for k in short["knobs"] if list(k["settings"]) == ["hardware.mixed_precision"]]
    assert knob["takes"] == mixed["memory"]["need_bytes"] < short["memory"]["need_bytes"]
    before, after = short["step"]["seconds"], mixed["step"]["seconds"]
    assert after == {**before, "update": pytest.approx(before["update"] / 16)}


@pytest.mark.slow
def test_further_rounds_are_in_the_work_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["hardware=single_gpu", "model=qwen2_5_0_5b"]
    once, thrice = figures(capsys, *settings), figures(capsys, *settings, "rollout.refill_rounds=2")
    for count in ("episodes", "sampled_tokens", "context_tokens"):
        assert thrice["step"][count] == 3 * once["step"][count]
    seconds = once["step"]["seconds"]
    assert thrice["step"]["seconds"] == {**seconds, "rollout": pytest.approx(3 * seconds["rollout"])}
    said = "episodes: 384 = 16 tasks x 8 attempts x 3 rounds (at most: 1 + rollout.refill_rounds)"
    assert said in plan(capsys, *settings, "rollout.refill_rounds=2")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["model=qwen2_5_0_5b", "engine.max_context=40000"], "max_context=40000 was given; .* the model's own 32768"),
        (["model=gemma3_1b"], "looks back 512 tokens in some layers, and max_context=32768"),
    ],
)
def test_contexts_that_no_run_would_begin_with_are_not_planned(
    capsys: pytest.CaptureFixture[str], settings: list[str], says: str
) -> None:
    assert main(["plan", "hardware=single_gpu", *settings]) == 2
    assert re.search(says, capsys.readouterr().err)


# --- calls


def test_searches_are_bounded_by_the_limits_of_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["environment.max_search_limit=3", "environment.search_budget_per_subquestion=0", "run.max_steps=10"]
    found = figures(
        capsys, *settings, "rollout.tasks_per_step=2", "rollout.group_size=4", "run.eval_every=5", "run.eval_tasks=7"
    )
    [search] = found["calls"]
    evaluated = 3 * 7 + 2 * 500 * 2  # dev at 0, 5 and 10; start and end weights, greedy and sampled
    assert found["run"]["evaluation_episodes"] == evaluated
    assert (search["kind"], search["step"], search["run"]) == ("vdb", 3 * 8, 3 * (80 + evaluated))


@pytest.mark.slow
def test_a_forced_answer_is_a_turn_more(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["environment.max_turns=4", "run.max_steps=1"]
    forced = plan(capsys, *settings)
    assert "turns of an episode: 5 (at most, environment.max_turns and one for a forced answer)" in forced
    unforced = plan(capsys, *settings, "environment.force_answer_on_deadend=false")
    assert "turns of an episode: 4 (at most, environment.max_turns)" in unforced


def test_fresh_contexts_are_as_many_as_turns_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["environment.max_turns=4", "run.max_steps=1"]
    alone, fresh = figures(capsys, *settings)["step"], figures(capsys, *settings, "environment.context=drop")["step"]
    assert (alone["turns"], fresh["turns"]) == (5, 5)
    assert fresh["context_tokens"] == 5 * alone["context_tokens"]
    asked = plan(capsys, *settings, "environment.context=summary")
    assert "turns of an episode: 9 (" in asked
    assert "environment.context may open a context for each, and ask for a summary)" in asked


def test_opinions_of_claims_are_as_many_as_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["judge=report_llm", "judge.max_claims=10"]
    found = figures(capsys, *settings, "run.max_steps=1", "run.eval_every=0", "run.final_eval=false")
    calls = {row["where"]: row["run"] / found["run"]["episodes"] for row in found["calls"] if row["kind"] == "judge"}
    # the answer and its control, and ten claims with two controls each; each asked twice
    assert calls == {"judge.judge": 4, "judge.support": 60}


def test_a_models_opinions_are_counted_and_priced(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["judge=llm", "judge.repeats=2", "judge.verdict_retries=1", "run.max_steps=10", "run.eval_every=0"]
    settings += ["run.final_eval=false", "judge.prompt_price=0.001", "judge.completion_price=0.01"]
    found = figures(capsys, *settings)
    [judge] = [c for c in found["calls"] if c["kind"] == "judge"]
    votes = (2 + 1) * 2  # two opinions and the control question, each once more where it is no verdict
    assert (judge["step"], judge["run"]) == (128 * votes, 1280 * votes)
    price = ((400 + 2000 / 3) * 0.001 + 256 * 0.01) / 1000
    assert judge["money"] == pytest.approx(1280 * votes * price)


@pytest.mark.slow
def test_tools_without_a_limit_are_an_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    [tool] = figures(capsys, "experiment=tools")["calls"]
    assert (tool["kind"], tool["basis"]) == ("tool", "estimate")
    [tool] = figures(capsys, "experiment=tools", "environment.max_calls=4")["calls"]
    assert (tool["step"], tool["basis"]) == (24 * 8 * 4, "at most")


@pytest.mark.slow
def test_a_budget_that_would_stop_the_run_is_an_overrun(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["judge=llm", "judge.control=false", "judge.verdict_retries=0", "budget.prices.judge=0.01"]
    settings += ["budget.per_run.money=50", "budget.per_run.calls.judge=100000", "run.eval_every=0"]
    found = figures(capsys, *settings)
    evaluated = 2 * 500 * 2 * 2  # two answers' worth each: its own task's and another's
    assert found["run"]["money"] == pytest.approx(0.01 * (150 * 128 + evaluated))
    assert {k["of"] for k in found["knobs"]} == {"money"}
    [steps] = [k for k in found["knobs"] if list(k["settings"]) == ["run.max_steps"]]
    assert (steps["settings"]["run.max_steps"], steps["fits"]) == (int((5000 - evaluated) / 128), True)
    again = figures(capsys, *settings, f"run.max_steps={steps['settings']['run.max_steps'] + 1}")
    assert again["run"]["money"] > 50
    assert "too much: 232.00 of 50.00 (budget.per_run.money). Each planned with:" in plan(capsys, *settings)
    assert figures(capsys, *settings, "cassette.mode=strict", "cassette.path=c")["run"]["money"] == 0


@pytest.mark.slow
def test_no_budget_stops_what_asks_no_service(capsys: pytest.CaptureFixture[str]) -> None:
    budget = ["budget.prices.vdb=1", "budget.per_run.money=5", "budget.per_run.calls.vdb=3", "budget.prices.judge=1"]
    found = figures(capsys, *budget)
    assert (found["run"]["money"], found["knobs"], found["calls"][0]["money"]) == (0, [], None)
    found = figures(capsys, *budget, "judge=llm_local")
    assert (found["run"]["money"], found["knobs"]) == (0, [])
    found = figures(capsys, *budget, "retriever=http")
    assert found["run"]["money"] == found["calls"][0]["run"] > 5
    assert {knob["of"] for knob in found["knobs"]} == {"money", "calls"}
    assert figures(capsys, *budget, "retriever=http", "cassette=strict", "cassette.path=c")["knobs"] == []


@pytest.mark.slow
def test_an_episodes_budget_bounds_its_searches(capsys: pytest.CaptureFixture[str]) -> None:
    [search] = figures(capsys, "budget.per_episode.calls.vdb=2")["calls"]
    assert (search["kind"], search["step"]) == ("vdb", 2 * 128)


# --- recipes of scale


RECIPES = {
    "lora_7b_vllm": (1, 1, ["experiment=lora_7b_vllm"]),
    "full_7b_nodes": (16, 2, ["experiment=full_7b_nodes", "--processes", "16"]),
    "slurm": (
        16,
        0,
        [*BIG, "hardware=slurm", "hardware.strategy=fsdp", "hardware.dtype=bfloat16", "--processes", "16"],
    ),
}


@pytest.mark.parametrize("name", siblings(RECIPES, quick=1))
def test_a_recipe_fits_the_devices_it_is_for(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    processes, servers, settings = RECIPES[name]
    if name == "slurm":
        settings = [*settings, "hardware.activation_checkpointing=true"]
    found = figures(capsys, *settings)
    memory = found["memory"]
    assert (memory["fits"], memory["processes"]) == (True, processes)
    sampled_here = {"keys and values", "weights of the sampler"} & {line["name"] for line in memory["lines"]}
    assert bool(sampled_here) is not bool(servers)
    assert [k for k in found["knobs"] if k["of"] == "memory"] == []


@pytest.mark.slow
def test_servers_read_an_adapter_or_a_whole_model(capsys: pytest.CaptureFixture[str]) -> None:
    text = plan(capsys, "experiment=lora_7b_vllm")
    adapter = int(re.search(r"parameters, ([\d,]+) of them trained", text)[1].replace(",", ""))  # type: ignore[index]
    assert f"weights that servers read: {4 * adapter / GIB:.2f} GiB a version" in text
    assert (
        f"and each of 1 servers, on a device of its own: {2 * 7_615_616_512 / GIB:.2f}" not in text
    )  # the adapter too
    whole = plan(capsys, "experiment=full_7b_nodes")
    assert f"weights that servers read: {2 * 7_615_616_512 / GIB:.2f} GiB a version" in whole
    assert f"and each of 2 servers, on a device of its own: {2 * 7_615_616_512 / GIB:.2f} GiB of weights" in whole
