"""How beta (compression) and gamma (validity) trade correct answers against memory size: a grid of runs, and one table
of them.

OMP_NUM_THREADS=1 python scripts/memory_ablation.py --runs runs/ablation --steps 60 --seeds 0 1 2
python scripts/memory_ablation.py --dry-run                       prints the commands of missing runs

A finished run is not repeated; a stopped run is resumed. The runs use the world of experiment=memory. The reward has
the form of Mem-alpha's (Wang et al. 2025, arXiv 2509.25911): compression counts whatever the answers are, whereas
experiment=memory gates it by them. Mem-alpha uses beta 0.05 and gamma 0.1, and its authors' repository runs (beta,
gamma) = (0, 0.1), (0.05, 0), (0.05, 0.1), (0.2, 0.1) and (0.4, 0.1). This small world needs greater weights, because
correct entries bring rewards of 0.5. The lines under the table say whether the runs show the intended effect of the
weights. Figures of other models on other data are not repeated here.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean

BETA, GAMMA = "reward.terms.compression.weight", "reward.terms.validity.weight"
UNGATED = "reward.terms.compression.gated=false"
SHOWN = ("correctness", "memory_tokens", "compression", "validity", "calls_per_chunk")
"""Columns of a greedy evaluation: value before and after training."""
MARGIN = 0.02
"""Least difference of correctness and validity that counts."""
SHRUNK = 0.05
"""Least relative change of the memory size that counts."""
Run = Callable[[Sequence[str]], None]
Found = Mapping["Cell", Mapping[str, Sequence[tuple[float, float]]]]


@dataclass(frozen=True, order=True)
class Cell:
    beta: float
    gamma: float


def command(run: Path, cell: Cell, seed: int, steps: int, overrides: Sequence[str]) -> list[str]:
    """Arguments that start or resume the run; [] if it is finished."""
    if (run / "eval.json").is_file():
        return []
    if (run / "config.yaml").is_file():
        return ["resume", str(run)]
    keys = ["experiment=memory", f"{BETA}={cell.beta:g}", f"{GAMMA}={cell.gamma:g}", UNGATED, f"run.seed={seed}"]
    keys += [f"run.max_steps={steps}", "run.eval_every=0", f"run.dir={run}", "run.log_with=[]", "run.screen=quiet"]
    return ["train", *keys, *overrides]


def agentgrpo(arguments: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-m", "agentgrpo", *arguments], check=True)


def place(runs: Path, cell: Cell, seed: int, steps: int) -> Path:
    return runs / f"beta{cell.beta:g}-gamma{cell.gamma:g}-steps{steps}-seed{seed}"


def figures(runs: Sequence[Path]) -> dict[str, list[tuple[float, float]]]:
    """For one cell: metric -> (before, after) of each finished run."""
    done = [json.loads((run / "eval.json").read_bytes())["greedy"] for run in runs if (run / "eval.json").is_file()]
    return {name: [(greedy["baseline"][name], greedy["trained"][name]) for greedy in done] for name in SHOWN}


def table(found: Mapping[Cell, dict[str, list[tuple[float, float]]]]) -> str:
    """Means over the seeds, before → after, and half the range of the values after training if there are several."""

    def change(pairs: Sequence[tuple[float, float]]) -> str:
        after = [last for _, last in pairs]
        spread = f" (±{(max(after) - min(after)) / 2:.3f})" if len(after) > 1 else ""
        return f"{fmean(first for first, _ in pairs):.3f} → {fmean(after):.3f}{spread}"

    rows = [["beta", "gamma", "runs", *(name.replace("_", " ") for name in SHOWN)]]
    rows += [["---"] * len(rows[0])]
    for cell, of in sorted(found.items()):
        count = len(of[SHOWN[0]])
        rows.append([f"{cell.beta:g}", f"{cell.gamma:g}", str(count), *(change(of[name]) for name in SHOWN)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def shape(found: Found) -> list[str]:
    """Check the intended effect of the weights: along beta at each gamma, and along gamma at the least beta above 0.
    One line for each comparison that the runs allow."""

    def mean(cell: Cell, name: str) -> float:
        return fmean(after for _, after in found[cell][name])

    def said(expected: str, holds: bool, name: str, cells: Sequence[Cell]) -> str:
        values = ", ".join(f"({c.beta:g}, {c.gamma:g}) {mean(c, name):.3f}" for c in cells)
        return f"{'as expected' if holds else 'NOT as expected'}: {expected}: {values}"

    lines = []
    for gamma in sorted({cell.gamma for cell in found}):
        along = sorted(cell for cell in found if cell.gamma == gamma)
        if len(along) > 1:
            sizes, grades = ([mean(cell, name) for cell in along] for name in ("memory_tokens", "correctness"))
            steady = all(b <= a * (1 + SHRUNK) for a, b in pairwise(sizes))
            shrinks = steady and sizes[-1] < sizes[0] * (1 - SHRUNK)
            lines.append(said("the greater beta, the smaller the memory", shrinks, "memory_tokens", along))
            lines.append(said("the greatest beta costs answers", grades[-1] < max(grades) - MARGIN, SHOWN[0], along))
    main = min((cell.beta for cell in found if cell.beta > 0), default=0.0)
    down = sorted(cell for cell in found if cell.beta == main)
    if len(down) > 1:
        for name, what in (("validity", "right entries"), ("correctness", "answers")):
            worse = mean(down[0], name) < mean(down[-1], name) - MARGIN
            lines.append(said(f"the least gamma costs {what}", worse, name, [down[0], down[-1]]))
    return lines


def main(argv: Sequence[str] | None = None, run: Run = agentgrpo) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--beta", type=float, nargs="+", default=[0.0, 0.3, 2.0, 4.0])
    parser.add_argument("--gamma", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--dry-run", action="store_true", help="print the commands and make nothing")
    parser.add_argument("--only-print", action="store_true", help="of the runs that are there")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of every run")
    given = parser.parse_args(argv)
    cells = [Cell(beta, gamma) for beta in sorted({*given.beta}) for gamma in sorted({*given.gamma})]
    for cell in [] if given.only_print else cells:
        for seed in given.seeds:
            arguments = command(place(given.runs, cell, seed, given.steps), cell, seed, given.steps, given.set)
            if arguments:
                print(f"agentgrpo {shlex.join(arguments)}", file=sys.stdout if given.dry_run else sys.stderr)
            if arguments and not given.dry_run:
                run(arguments)
    if given.dry_run:
        return
    runs = {cell: [place(given.runs, cell, seed, given.steps) for seed in given.seeds] for cell in cells}
    found = {cell: of for cell in cells if (of := figures(runs[cell]))[SHOWN[0]]}
    if not found:
        sys.exit(f"{given.runs} has no run that is done; leave out --only-print")
    print(table(found))
    count = sum(len(of[SHOWN[0]]) for of in found.values())
    print(f"\n{count} runs of {given.steps} steps; few seeds and short runs are noise as much as effect")
    print("\n".join(shape(found)))


if __name__ == "__main__":
    main()
