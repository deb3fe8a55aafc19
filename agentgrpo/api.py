"""The Python API: the command line without a shell.

    run = agentgrpo.train("MODEL", "questions.jsonl", "corpus.jsonl", rewards=[brief], steps=100)

The arguments are turned into the words that a user would type, and the command line does the rest. An error that the
command line would print in one line on stderr is raised instead: an AgentGrpoError, or whatever your own code raised.
Ctrl-C stops a run as it does on the command line: the first one raises Preempted, and `resume` goes on with the run;
a second one ends the process.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentgrpo.cli.main import run_one
from agentgrpo.config.admission import literal
from agentgrpo.config.hardware import Launch
from agentgrpo.core.durable import write_atomic
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.records.run_dir import RunDir

Rows = str | Path | Iterable[Mapping[str, Any]]
"""A file, or the rows that it would hold."""
Code = str | Callable[..., Any]
"""A function or class of your own, or the name of a preset."""


def train(
    model: str | Path | None = None,
    questions: Rows | None = None,
    corpus: Rows | None = None,
    rewards: Sequence[Code] | Code = (),
    steps: int | None = None,
    overrides: Sequence[str] = (),
    *,
    environment: Code | None = None,
    tools: Sequence[Code] | Code = (),
    judge: Code | None = None,
    run_dir: str | Path | None = None,
) -> RunDir:
    """Run `agentgrpo train` and return the run directory when the run is over.

    model: model.path. questions, corpus: task.questions and task.corpus, each a file or its rows; rows are saved in
    the run directory. If model, questions and corpus are all missing, the embedded example is trained. rewards: one or
    several functions that map an episode to a number, or classes (rewards.base.RewardTerm). They are the whole reward,
    unless `overrides` choose a reward=PRESET: then they are added to it. environment, tools, judge: your own classes
    and functions, or the names of presets. steps: run.max_steps. overrides: all other settings, in the spelling of the
    command line. run_dir: run.dir, by default a fresh directory in runs/."""
    words = [*_listed(overrides)]
    chosen = {word.lstrip("+").partition("=")[0] for word in words}
    parts = _code(environment=environment, tools=tools, judge=judge)
    terms = _terms(rewards)
    parts += ["reward=own", *terms] if terms and "reward" not in chosen else terms
    own = [*_several(rewards), *_several(tools), *(part for part in (environment, judge) if part is not None)]
    if of_program := [getattr(code, "__name__", "") for code in own if getattr(code, "__module__", "") == "__main__"]:
        print(
            f"agentgrpo: note: {', '.join(of_program)} of the program itself, where the command line finds nothing: go "
            "on with agentgrpo.resume from this program, or put it into a module of its own before the run",
            file=sys.stderr,
        )
    words += [*parts, *_settings(**{"model.path": model, "run.max_steps": steps})]
    with _data(run_dir, questions=questions, corpus=corpus) as data:
        return _run("train", *words, *data)


def resume(
    run: RunDir | str | Path,
    rewards: Sequence[Code] | Code = (),
    overrides: Sequence[str] = (),
    *,
    environment: Code | None = None,
    tools: Sequence[Code] | Code = (),
    judge: Code | None = None,
) -> RunDir:
    """Run `agentgrpo resume`. rewards, environment, tools, judge: the ones that the run was trained with, as far as
    they are your own code."""
    parts = _code(environment=environment, tools=tools, judge=judge)
    return _run("resume", str(_path(run)), *parts, *_terms(rewards), *_listed(overrides))


def evaluate(
    checkpoint: RunDir | str | Path,
    rewards: Sequence[Code] | Code = (),
    overrides: Sequence[str] = (),
    *,
    environment: Code | None = None,
    tools: Sequence[Code] | Code = (),
    judge: Code | None = None,
    baseline: str | Path | None = None,
    run_dir: str | Path | None = None,
) -> RunDir:
    """Run `agentgrpo eval` and return the directory of the evaluation. checkpoint: its folder, or a run, whose newest
    checkpoint is then used. rewards, environment, tools, judge: as for `resume`. baseline: the checkpoint or model to
    compare with, by default the weights that the run started from."""
    parts = _code(environment=environment, tools=tools, judge=judge)
    flags = ["--ckpt", str(_path(checkpoint)), *([] if baseline is None else ["--baseline", str(baseline)])]
    words = [*parts, *_terms(rewards), *_listed(overrides), *_settings(**{"run.dir": run_dir})]
    return _run("eval", *flags, *words)


def _run(*argv: str) -> RunDir:
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            f"a run was started in the thread {threading.current_thread().name}; only the main thread receives "
            "Ctrl-C and SIGTERM: call it in the main thread, or in a new process"
        )
    with _apart_from_the_loop():
        return RunDir(run_one(argv))


@contextmanager
def _apart_from_the_loop() -> Iterator[None]:
    """Let the run start its own event loop although this thread already runs one, such as a notebook's; that loop is
    suspended. The run stays in the main thread, which receives signals."""
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    task, before = asyncio.current_task(loop), signal.getsignal(signal.SIGINT)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio.run would cancel a task that waits
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        asyncio.set_event_loop(loop)
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)


def _path(run: RunDir | str | Path) -> Path:
    return run.path if isinstance(run, RunDir) else Path(run)


def _listed(overrides: Sequence[str]) -> Sequence[str]:
    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r}; a list of them is needed: overrides=[{overrides!r}]")
    return overrides


def _settings(**values: object) -> list[str]:
    """Return KEY=VALUE words for the values that are not None."""
    found = {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
    return [f"{key}={literal(value)}" for key, value in found.items() if value is not None]


# --- The user's own code, named in a configuration.


def _several(code: Sequence[Code] | Code) -> Sequence[Code]:
    return code if isinstance(code, Sequence) and not isinstance(code, str) else [code]


def _code(*, environment: Code | None, tools: Sequence[Code] | Code, judge: Code | None) -> list[str]:
    """Return the words that choose these parts."""
    one = {"environment": environment, "judge": judge}
    words = [f"{group}={_location(group, code)}" for group, code in one.items() if code is not None]
    named = [_location(f"tools[{i}]", code) for i, code in enumerate(_several(tools))]
    return [*words, *([f"tools=[{','.join(named)}]"] if named else [])]


def _terms(rewards: Sequence[Code] | Code) -> list[str]:
    named = [_location(f"rewards[{i}]", code) for i, code in enumerate(_several(rewards))]
    names = [text.rpartition(":")[2] for text in named]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"rewards has two entries named {twice[0]}, and the records use that name; rename one")
    return [f"++reward.terms.{name}.name={text}" for name, text in zip(names, named, strict=True)]


def _location(argument: str, code: Code) -> str:
    """Return module:name of a function or class. Return a str unchanged, but refuse presets as reward terms."""
    if isinstance(code, str) and (":" in code or not argument.startswith("rewards")):
        return code
    name, module = getattr(code, "__name__", ""), getattr(code, "__module__", "")
    if getattr(sys.modules.get(module), name, None) is not code:
        raise ConfigError(
            f"{argument}={code!r}; a function or class that its module holds under its own name is needed: write it "
            "with def, outside of any function"
        )
    return f"{module}:{name}"


# --- Rows, saved as files in the run directory.


@contextmanager
def _data(run_dir: str | Path | None, **given: Rows | None) -> Iterator[list[str]]:
    """Yield the settings for run directory and data. On exit, delete the saved rows if the run left nothing else."""
    rows = {key: value for key, value in given.items() if value is not None and not isinstance(value, str | Path)}
    files = {f"{key}.jsonl": b"".join(_lines(key, value)) for key, value in rows.items()}
    if rows and Launch.of().size > 1:
        raise ConfigError(f"{' and '.join(rows)} as rows, with several processes; give files that all of them can read")
    is_new = run_dir is None or not Path(run_dir).exists()
    if rows and run_dir is None:
        from agentgrpo.config.compose import fresh_dir

        run_dir = fresh_dir("own")
    folder = Path(run_dir or "")
    kept = {key: folder / f"{key}.jsonl" if key in rows else value for key, value in given.items()}
    if there := [str(folder / name) for name in files if (folder / name).exists()]:
        raise ConfigError(f"{there[0]} is there already; choose another run_dir, or resume its run")
    for name, content in files.items():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / name, content)
    try:
        yield _settings(**{"run.dir": run_dir}, **{f"task.{key}": value for key, value in kept.items()})
    finally:
        if files and {path.name for path in folder.iterdir()} == {*files}:
            for name in files:
                (folder / name).unlink()
            if is_new:
                folder.rmdir()


def _lines(key: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{key}[{i}]={row!r}; a mapping is needed, with the keys of a line of the file")
        try:
            yield json.dumps(dict(row), ensure_ascii=False).encode() + b"\n"
        except (TypeError, ValueError) as e:
            raise DataError(f"{key}[{i}]: {e}; plain JSON values are allowed") from e
