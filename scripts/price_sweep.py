"""The effect of a call's price: runs at several prices, their counterfactual evaluations, and one page about them.

OMP_NUM_THREADS=1 python scripts/price_sweep.py --runs runs/prices --prices 0 0.05 0.1 0.2 0.4 --seeds 0 1
python scripts/price_sweep.py --dry-run                           prints the commands of missing runs

A finished run is not repeated; a stopped run is resumed. The runs are those of `agentgrpo train -m` with
reward.terms.retriever_cost.web=0,-0.05,... run.seed=0,1, in folders with descriptive names. For the first seed the
sweep also runs `agentgrpo eval --ckpt ... counterfactual=blank` (and shuffled, swapped) at each price. `agentgrpo
report` reads the results of both commands.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgrpo.records.run_dir import RunDir

KEY = "reward.terms.retriever_cost.web"
COUNTERFACTUALS = ("blank", "shuffled", "swapped")
Run = Callable[[Sequence[str]], None]


@dataclass(frozen=True)
class Sweep:
    runs: Path
    key: str
    prices: Sequence[float]
    seeds: Sequence[int]
    steps: int
    counterfactuals: Sequence[str]
    overrides: Sequence[str]
    """Settings of every run."""

    def place(self, price: float, seed: int) -> Path:
        return self.runs / f"{self.key.split('.')[-1]}{price:g}-steps{self.steps}-seed{seed}"

    def commands(self) -> Iterator[list[str]]:
        """Yield the commands for missing runs, each after all earlier ones are done."""
        for seed in self.seeds:  # a stopped sweep then has all prices of some seeds
            for price in self.prices:
                run = self.place(price, seed)
                yield from self._training(run, price, seed)
                for name in self.counterfactuals if seed == self.seeds[0] else ():
                    yield from self._evaluation(run, name)
        yield ["report", str(self.runs)]

    def _training(self, run: Path, price: float, seed: int) -> Iterator[list[str]]:
        if (run / "eval.json").is_file():
            return
        if (run / "config.yaml").is_file():
            yield ["resume", str(run)]
            return
        keys = [f"{self.key}={0.0 - price:g}", f"run.seed={seed}", f"run.max_steps={self.steps}", f"run.dir='{run}'"]
        yield ["train", "+reward=retriever_aware", "run.screen=quiet", *keys, *self.overrides]

    def _evaluation(self, run: Path, name: str) -> Iterator[list[str]]:
        out = run / name
        if (out / "eval.json").is_file():
            return
        done = [*RunDir(run).checkpoints().values()] if (run / "config.yaml").is_file() else []
        checkpoint = done[-1] if done else run / "checkpoints" / f"step-{self.steps:06d}"
        yield ["eval", "--ckpt", str(checkpoint), f"counterfactual={name}", f"run.dir='{out}'"]


def agentgrpo(arguments: Sequence[str]) -> None:
    code = subprocess.run([sys.executable, "-W", "ignore", "-m", "agentgrpo", *arguments], check=False).returncode
    if code:  # the command has printed the reason; the sweep continues from here when restarted
        sys.exit(code if code > 0 else 128 - code)


def main(argv: Sequence[str] | None = None, run: Run = agentgrpo) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/prices"))
    parser.add_argument("--key", default=KEY, help="what is priced: the reward has minus the price")
    parser.add_argument("--prices", type=float, nargs="+", default=[0.0, 0.05, 0.1, 0.2, 0.4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--counterfactuals", nargs="*", choices=COUNTERFACTUALS, default=COUNTERFACTUALS)
    parser.add_argument("--dry-run", action="store_true", help="print the commands and make nothing")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run")
    given = parser.parse_args(argv)
    sweep = Sweep(
        given.runs, given.key, given.prices, given.seeds, given.steps, given.counterfactuals, given.set
    )  # fmt: skip
    for arguments in sweep.commands():
        print(f"agentgrpo {shlex.join(arguments)}", file=sys.stdout if given.dry_run else sys.stderr)
        if not given.dry_run:
            run(arguments)


if __name__ == "__main__":
    main()
