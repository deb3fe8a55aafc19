"""`agentgrpo.train` and its like: the command line called from Python, in scripts and in notebooks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import agentgrpo
from agentgrpo.core.errors import ConfigError, DataError, Preempted, TooManyFailures
from agentgrpo.core.types import Episode
from agentgrpo.records.run_dir import RunDir
from agentgrpo.tasks.jsonl import export
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.e2e.conftest import rows, start

__all__ = ["start"]  # a fixture

ROOT = Path(agentgrpo.__file__).parents[1]
SMALL = [
    *("rollout=almanac_tiny", "optimizer=tiny", "rollout.tasks_per_step=2", "rollout.group_size=2"),
    *("environment.top_k=2", "run.eval_every=0", "run.final_eval=false"),
    *("hardware.threads=1", "run.screen=quiet", "run.log_with=[]"),
]
CALLS: list[str] = []


def even(episode: Episode) -> float:
    """Something that no preset pays for."""
    return float(episode.sample_index % 2 == 0)


def interrupting(episode: Episode) -> float:
    """Ctrl-C at the first sampled episode; before, it is tried on one without turns."""
    if episode.turns and not CALLS:
        CALLS.append(episode.task.id)
        signal.raise_signal(signal.SIGINT)
    return float(episode.sample_index)


class InterruptingAtOnce:
    """While the parts of the run are built."""

    dimension = None

    def __init__(self) -> None:
        signal.raise_signal(signal.SIGINT)

    def __call__(self, episode: Episode, correctness: float) -> float:
        return 0.0


def failing(episode: Episode) -> float:
    raise ValueError("a mistake in the reward")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """questions.jsonl and corpus.jsonl, in a working directory that holds nothing else."""
    export(Almanac(num_companies=20, dev_companies=4, test_companies=4), tmp_path / "data")
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    monkeypatch.setattr(sys, "path", [*sys.path])  # a run adds where it is
    return tmp_path / "data"


Train = Callable[..., RunDir]


@pytest.fixture
def train(start: Path, data: Path) -> Train:
    def run(*overrides: str, rewards: Any = (even,), steps: int = 1, **given: Any) -> RunDir:
        files = {"questions": data / "questions.jsonl", "corpus": data / "corpus.jsonl"}
        return agentgrpo.train(
            start, **{**files, **given}, rewards=rewards, steps=steps, overrides=[*SMALL, *overrides]
        )

    return run


def test_a_plain_function_is_the_whole_reward(train: Train) -> None:
    run = train(steps=2)
    assert run.path.parent == Path("runs")
    assert [row["step"] for row in run.metrics()] == [0, 1]
    episodes = [*run.episodes()]
    assert [episode.step for episode in episodes] == [0] * 4 + [1] * 4
    assert [episode.reward for episode in episodes] == [1.0, 0.0] * 4
    assert {*run.config["reward"]["terms"]} == {"even"}


@pytest.mark.slow
def test_rewards_are_added_to_a_preset_that_is_chosen(train: Train) -> None:
    assert {*train("reward=correctness").config["reward"]["terms"]} == {"correctness", "even"}


def test_the_settings_are_those_of_the_command_line(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """The same lines, and a name that has to be quoted there."""
    run = train(run_dir="it's a run, isn't it")
    assert run.path == Path("it's a run, isn't it")
    assert capsys.readouterr().out.startswith(f"run directory: {run.path}\n")


def test_with_a_running_loop(train: Train) -> None:
    """As in a notebook: what else runs in that loop waits, and goes on."""
    beats: list[str] = []

    async def beat() -> None:
        beats.append("before")
        await asyncio.sleep(0)
        beats.append("after")

    async def main() -> RunDir:
        loop, task, beating = asyncio.get_running_loop(), asyncio.current_task(), asyncio.create_task(beat())
        await asyncio.sleep(0)
        handler = signal.getsignal(signal.SIGINT)
        run = train()
        assert (beats, asyncio.get_running_loop(), asyncio.get_event_loop()) == (["before"], loop, loop)
        assert (asyncio.current_task(), signal.getsignal(signal.SIGINT)) == (task, handler)
        await beating
        return run

    assert [row["step"] for row in asyncio.run(main()).metrics()] == [0]
    assert beats == ["before", "after"]


async def awaited(call: Callable[[], RunDir]) -> RunDir:
    return call()


@pytest.mark.parametrize("in_a_loop", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_ctrl_c_stops_it_and_resume_goes_on(train: Train, *, in_a_loop: bool) -> None:
    def call() -> RunDir:
        return train(rewards=[interrupting], run_dir="run")

    CALLS.clear()
    with pytest.raises(Preempted, match=r"stopped by SIGINT; go on with: .*agentgrpo'? resume run reward\.terms"):
        asyncio.run(awaited(call)) if in_a_loop else call()
    assert [row["step"] for row in agentgrpo.resume("run", rewards=[interrupting]).metrics()] == [0]


@pytest.mark.parametrize("in_a_loop", [pytest.param(False, marks=pytest.mark.slow), True])
def test_ctrl_c_before_there_is_anything_to_go_on_with(train: Train, *, in_a_loop: bool) -> None:
    def call() -> RunDir:
        return train(rewards=[InterruptingAtOnce])

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(awaited(call)) if in_a_loop else call()
    assert [*Path("runs").rglob("*")] == []


@pytest.mark.slow
def test_rows_are_kept_in_the_run_so_that_it_can_go_on(train: Train, data: Path) -> None:
    given = {key: rows(data / f"{key}.jsonl") for key in ("questions", "corpus")}
    run = train(**given)
    assert {key: rows(run.path / f"{key}.jsonl") for key in given} == given
    resumed = agentgrpo.resume(run, rewards=[even], overrides=["run.max_steps=2"])
    assert [row["step"] for row in resumed.metrics()] == [0, 1]
    with pytest.raises(ConfigError, match=r"questions\.jsonl is there already; choose another run_dir, or resume"):
        train(**given, run_dir=run.path)
    assert len(rows(run.path / "metrics.jsonl")) == 2


@pytest.mark.slow
def test_the_newest_checkpoint_is_evaluated_with_the_functions_it_was_trained_with(train: Train) -> None:
    run = train()
    with pytest.raises(ConfigError, match="even is code from outside"):
        agentgrpo.evaluate(run)
    evaluation = agentgrpo.evaluate(
        run, [even], ["run.eval.tasks=2", "run.eval.samples_per_task=2"], run_dir="evaluated"
    )
    assert (evaluation.path, evaluation.evaluated["ckpt"]) == (
        Path("evaluated"),
        str(run.checkpoints()[1].absolute()),
    )
    assert evaluation.evaluation is not None
    assert evaluation.evaluation["sampled"]["trained"]["reward"] == 0.5
    assert [episode.reward for episode in evaluation.episodes("eval-end-sampled")] == [1.0, 0.0] * 2


@pytest.mark.slow
def test_a_function_of_a_program_is_found_there_alone(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "even", even, raising=False)
    monkeypatch.setattr(even, "__module__", "__main__")
    run = train()
    assert run.config["reward"]["terms"] == {"even": {"name": "__main__:even"}}
    assert "agentgrpo: note: even of the program itself, where the command line finds" in capsys.readouterr().err
    assert len(agentgrpo.resume(run, rewards=[even], overrides=["run.max_steps=2"]).metrics()) == 2
    assert "note:" not in capsys.readouterr().err  # not "nothing": other libraries may log there


# --- What goes wrong is raised, and leaves nothing.


def nested() -> Callable[[Episode], float]:
    def inner(episode: Episode) -> float:
        return 0.0

    return inner


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"rewards": [lambda episode: 0.0]}, ConfigError, r"rewards\[0\]=<function <lambda> .* write it with def"),
        ({"rewards": [even, nested()]}, ConfigError, r"rewards\[1\]=<function nested"),
        ({"rewards": ["even"]}, ConfigError, r"rewards\[0\]='even'; a function or class that"),
        ({"rewards": [even, even]}, ConfigError, r"rewards has two entries named even"),
        ({"steps": -1}, ConfigError, r"run\.max_steps=-1"),
        ({"questions": "nowhere.jsonl"}, DataError, r"nowhere\.jsonl"),
        ({"questions": ["who?"]}, DataError, r"questions\[0\]='who\?'; a mapping is needed"),
        ({"corpus": [{"id": "d", "text": {1}}]}, DataError, r"corpus\[0\]: Object of type set is not JSON"),
        ({"questions": [{"question": "who?"}]}, DataError, "'who\\?', has no answers"),
        ({"corpus": []}, DataError, r"corpus\.jsonl' has no passages"),
    ],
)
def test_what_is_given_wrongly(train: Train, given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        train(**given)
    assert [path for path in Path.cwd().rglob("*") if path.is_file() or path.parent != Path.cwd()] == []


@pytest.mark.parametrize("word", ["run.seed=1,2", "-m", "--help", "run.sede=1", "no override"])
def test_overrides_are_those_of_one_run(train: Train, word: str) -> None:
    with pytest.raises(ConfigError):
        train(word)
    assert [*Path.cwd().iterdir()] == []


def test_a_text_is_no_list_of_overrides() -> None:
    with pytest.raises(ConfigError, match=r"overrides='run\.seed=1'; a list of them is needed"):
        agentgrpo.train("m", "q", overrides="run.seed=1")


def test_a_reward_that_always_fails_ends_the_run_with_its_error(train: Train) -> None:
    with pytest.raises(TooManyFailures, match=r"reward term .*failing: ValueError: a mistake in the reward"):
        train(rewards=[failing])


def test_another_thread_is_refused() -> None:
    errors: list[Exception] = []

    def work() -> None:
        try:
            agentgrpo.train("m", "q")
        except ConfigError as e:
            errors.append(e)

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    thread.join()
    assert [str(e).partition(";")[0] for e in errors] == ["a run was started in the thread worker"]


# --- As installed.

SIX_LINES = """\
import agentgrpo
def even(episode): return float(episode.sample_index % 2 == 0)
def train(): return agentgrpo.train(MODEL, QUESTIONS, CORPUS, rewards=[even], steps=1, overrides=SETTINGS)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a wheel of these sources is installed."""
    tmp_path = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = tmp_path / "source"
    for name in ("agentgrpo", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, source], check=True)
    [wheel] = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)
    return tmp_path / "site"


@pytest.mark.slow
@pytest.mark.parametrize("call", ["train()", "asyncio.run(main())"])
def test_the_installed_wheel_runs_in_an_empty_directory(
    start: Path, data: Path, site: Path, tmp_path: Path, call: str
) -> None:
    given = [str(start), *(rows(data / f"{key}.jsonl") for key in ("questions", "corpus")), SMALL]
    values = "".join(f"{k} = {v!r}\n" for k, v in zip(("MODEL", "QUESTIONS", "CORPUS", "SETTINGS"), given, strict=True))
    program = f"{SIX_LINES}import asyncio\nasync def main(): return train()\n{values}run = {call}\n" + dedent("""\
        import json
        print(json.dumps([agentgrpo.__file__, len(run.metrics()), [e.reward for e in run.episodes()]]))
    """)
    (tmp_path / "six.py").write_text(program)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": str(site)}
    command = [sys.executable, tmp_path / "six.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    file, steps, rewards = json.loads(done.stdout.splitlines()[-1])
    assert (Path(file).parents[1], steps, rewards) == (site, 1, [1.0, 0.0] * 2)
    assert [path.name for path in Path.cwd().iterdir()] == ["runs"]
