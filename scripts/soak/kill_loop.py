"""SIGKILL short runs at random moments, again and again, and compare every file with a run that was never killed.

    python -m scripts.soak.kill_loop [--kills 200] [--seed 0] [--kinds search services tools memory] [key=value ...]

Four kinds of runs: an agent that searches; the same with services (an HTTP retriever, a judge model, a budget, a
cassette, kept verdicts); an agent that calls tools in the sandbox; an agent that writes a memory. A run is killed and
resumed until it reaches its end; then all its files must equal those of the run without a kill (see alike.py).

A kill comes after a random time, or at a durable operation (a write, a rename, a commit); half of the kills at a write
tear it. Computations are thus hit in proportion to their length, and the short moments between two files in proportion
to their number. Processes are forked from one that has imported everything. Prints the phases that were hit, and a
closing line "N passed, N failed" that counts the runs that reached their end.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from scripts.soak.alike import alike, paid_problems
from scripts.soak.moments import Moment, dying_at
from tests.e2e.conftest import HASTY, SMALL_DIARIES, SMALL_WORLD, start_of
from tests.e2e.forked import forked
from tests.e2e.stand_ins import Services, services
from tests.training.several import CONTEXT, PRELOADED

SMALL_WORKSHOP = [
    *("experiment=tools", "task.train_tasks=48", "task.dev_tasks=12", "task.test_tasks=24"),
    *("model.worlds=24", "model.tasks_per_world=60", "model.tokenizer_worlds=4"),
]
"""A warm start of half a CPU-minute, after which the policy calls its tools."""
KINDS: Mapping[str, Sequence[str]] = {
    "search": [*SMALL_WORLD, "run.eval.tasks=6"],
    "services": [
        *(*SMALL_WORLD, "budget=search_api", "budget.per_run.money=1000", "cassette=fill"),
        *("run.eval.tasks=4", "judge.canaries_per_eval=2"),
        "judge.min_overlap=null",  # a policy that is hardly ever right is asked about wrong answers too
    ],
    "tools": [*SMALL_WORKSHOP, "run.eval.tasks=6"],
    "memory": [*SMALL_DIARIES, "run.eval.tasks=2", "run.max_steps=3"],
}
"""Runs of the first two kinds begin with the weights of `start`, the others with weights that they make and keep."""
COMMON = [
    "hardware.threads=1",
    "run.screen=plain",
    "run.log_with=[tensorboard]",
    "run.profile=true",
    "run.max_steps=4",
    "run.checkpoint_every=2",
    "run.eval_every=3",
    "run.eval_tasks=2",
    "rollout.tasks_per_step=2",
    "rollout.group_size=3",
]
PRICES = {"vdb": 0.001, "web": 0.015, "judge": 0.002}
PROBE = "Is 1 + 1 equal to 2?"
"""The question that every process asks a judge model when it begins; it is not counted."""
OUTSIDE = ("judge.completer.", "judge.cache=", "cassette.path=", "retriever.")
"""Settings that a run directory may not decide: connections, and files elsewhere."""
AT_ONCE = 8
"""Maximum concurrent calls of one kind."""
SHORTER = 0.6
"""Share of a whole life within which the other lives are killed."""
LIMIT_S = 600
KILLED = -signal.SIGKILL


class Stuck(Exception):
    """A run that nobody killed does not reach its end."""


# --- One life: a process that is killed at a moment, or not at all.


@dataclass(frozen=True, kw_only=True)
class Life:
    code: int
    """Exit code of the process; negative for a signal."""
    phase: str
    """The phase in which it ended."""
    operations: int
    """Durable operations before its last phase; all operations if the process was not killed."""
    seconds: float


def live(arguments: Sequence[str], home: Path, moment: Moment) -> Life:
    notes, log, began = home.with_suffix(".notes"), home.with_suffix(".log"), time.monotonic()
    notes.unlink(missing_ok=True)
    variables = {"TMPDIR": str(home / "tmp"), "JUDGE_KEY": "sk-stand-in"}
    with forked(arguments, home, log, around=partial(dying_at, moment, notes), **variables) as process:
        process.join(LIMIT_S if moment.seconds is None else moment.seconds)
        if process.is_alive() and moment.seconds is None:
            raise Stuck(f"has not ended after {LIMIT_S} s")
        process.kill()
        process.join()
    noted = notes.read_text().splitlines() if notes.exists() else []
    operations, phase = (noted or ["0 the start"])[-1].split(" ", 1)
    code = process.exitcode
    assert code is not None
    return Life(code=code, phase=phase, operations=int(operations), seconds=time.monotonic() - began)


# --- One run: lives until it is complete.


@dataclass(kw_only=True)
class Kills:
    """Counts of kills and of compared runs."""

    rng: random.Random
    most: int
    per_run: int = 10
    count: int = 0
    passed: int = 0
    failed: int = 0
    phases: Counter[str] = field(default_factory=Counter)

    def moment(self, whole: Life) -> Moment:
        """A random moment in a life, relative to the complete life `whole`; most lives resume a run and are shorter."""
        if self.rng.random() < 0.5:
            return Moment(seconds=self.rng.uniform(0, SHORTER * whole.seconds))
        last = max(1, int(SHORTER * whole.operations))
        return Moment(operation=self.rng.randint(1, last), torn=self.rng.random() < 0.5)


def began(home: Path) -> Path:
    """An empty directory for a run."""
    shutil.rmtree(home, ignore_errors=True)
    home.with_suffix(".log").unlink(missing_ok=True)
    (home / "tmp").mkdir(parents=True)
    return home


def survive(settings: Sequence[str], home: Path, next_moment: Callable[[], Moment], kills: Kills) -> list[Life]:
    """Train, kill and resume until the run has reached its end; return its lives."""
    run_dir, lives, left = home / "run", list[Life](), min(kills.per_run, kills.most - kills.count)
    needed = [setting for setting in settings if setting.startswith(OUTSIDE)]
    began(home)
    while True:
        is_begun = (run_dir / "config.yaml").exists()
        arguments = ["resume", str(run_dir), *needed] if is_begun else ["train", *settings, f"run.dir='{run_dir}'"]
        life = live(arguments, home, next_moment() if len(lives) < left else Moment())
        lives.append(life)
        if life.code == 0:
            return lives
        if life.code != KILLED:
            said = home.with_suffix(".log").read_text()[-3000:]
            raise Stuck(f"ended with exit code {life.code} after {len(lives) - 1} kills:\n{said}")
        kills.count += 1
        kills.phases[life.phase] += 1


def kill(
    kind: str,
    kills: Kills,
    scratch: Path,
    *,
    start: Path,
    overrides: Sequence[str] = (),
) -> list[str]:
    """Make runs of this kind until `kills.most` processes have been killed; return the differences from the run without
    a kill.
    """
    home, differs = scratch / kind, list[str]()  # the same path for every run: checkpoints contain it
    with services() if kind == "services" else nullcontext() as asked:
        begins = ["model=path", f"model.path='{start}'"] if kind in ("search", "services") else []
        settings = [*COMMON, *KINDS[kind], *begins, *paying(asked, home), *overrides]
        live(["--version"], began(home), Moment())  # starts the fork server, which takes long, before any life is timed
        (whole,) = survive(settings, home, Moment, Kills(rng=kills.rng, most=0))
        expected, bought = alike(home), taken(asked)
        while kills.count < kills.most:
            try:
                lives = survive(settings, home, partial(kills.moment, whole), kills)
            except Stuck as e:
                kills.failed += 1
                return [*differs, f"{kind}: it {e}"]
            found = alike(home)
            differing = sorted(n for n in expected.keys() | found.keys() if expected.get(n, GONE) != found.get(n, GONE))
            here = [f"{name}: {difference(expected.get(name, GONE), found.get(name, GONE))}" for name in differing]
            interrupted = AT_ONCE * (len(lives) - 1)
            here += paid_problems(home, bought, taken(asked), prices=PRICES, interrupted=interrupted)
            kills.passed, kills.failed = kills.passed + (not here), kills.failed + bool(here)
            differs += [f"{kind}: {problem}" for problem in here]
            runs = kills.passed + kills.failed
            print(f"{kind}: {kills.count} kills, {runs} runs; a whole life: {whole.seconds:.1f} s", flush=True)
    return differs


def paying(asked: Services | None, home: Path) -> list[str]:
    """Settings with the addresses of the services, and the files of paid results."""
    if asked is None:
        return []
    kept = [f"judge.cache='{home / 'verdicts.sqlite'}'", f"cassette.path='{home / 'tape.sqlite'}'"]
    more = ["judge.prompt_price=0", "budget.prices.judge=0.002"]
    return [*asked.arguments, *kept, *more]


def taken(asked: Services | None) -> dict[str, Counter[str]]:
    """Return the requests that the services received since the last call of this function."""
    if asked is None:
        return {}
    found = {}
    for name, server in (("vdb", asked.vdb), ("web", asked.web)):
        found[name] = Counter(query for request in server.requests for query in request["queries"])
        server.requests.clear()
    found["judge"] = Counter(question for question in asked.judged if PROBE not in question)
    asked.judged.clear()
    return found


GONE = "no such file"


def difference(expected: object, found: object) -> str:
    """Describe a difference for people, by the beginnings of both contents."""
    if isinstance(expected, bytes) and isinstance(found, bytes):
        at = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), -1)
        return f"{len(expected)} bytes, with kills {len(found)}; they differ from byte {at} on"
    shown = [f"{len(c)} bytes" if isinstance(c, bytes) else str(c)[:1000] for c in (expected, found)]
    return f"without a kill {shown[0]}; with kills {shown[1]}"


def cli() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200, help="in all, shared out over the kinds")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills-per-run", type=int, default=10)
    parser.add_argument("overrides", nargs="*", help="further settings, such as algorithm.max_staleness=1")
    options = parser.parse_args()
    CONTEXT.set_forkserver_preload([*PRELOADED, "scripts.soak.kill_loop", "torch.utils.tensorboard"])
    print(f"seed {options.seed}")
    total, began_at = Kills(rng=random.Random(options.seed), most=0), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        start = start_of([*SMALL_WORLD, *HASTY], Path(scratch) / "start")
        for number, kind in enumerate(options.kinds):
            most = (options.kills * (number + 1)) // len(options.kinds) - (options.kills * number) // len(options.kinds)
            kills = Kills(rng=random.Random(f"{options.seed} {kind}"), most=most, per_run=options.kills_per_run)
            for problem in kill(kind, kills, Path(scratch), start=start, overrides=options.overrides):
                print(problem, flush=True)
            total.count += kills.count
            total.passed, total.failed = total.passed + kills.passed, total.failed + kills.failed
            total.phases += kills.phases
    for phase, count in total.phases.most_common():
        print(f"{count:5} in {phase}")
    print(f"{time.monotonic() - began_at:.0f} s")
    print(f"{total.count} kills: {total.passed} passed, {total.failed} failed")
    raise SystemExit(total.failed > 0)


if __name__ == "__main__":
    cli()
