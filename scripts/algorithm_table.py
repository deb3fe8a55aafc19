"""Train the embedded world with every algorithm preset and print what each has learned: one row for each preset.

OMP_NUM_THREADS=1 python scripts/algorithm_table.py --runs runs/algorithms --steps 30 --seeds 0 1 2

An existing run is not repeated, and a run that a guard halts is not resumed: the last column counts it, the other
columns leave it out. KL is measured at the last step: the mean log-prob difference of its sampled tokens to the start
weights (unbiased, whatever the algorithm's own KL term).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from agentgrpo.cli.main import presets
from agentgrpo.core.errors import TrainingError
from agentgrpo.core.types import Branch, TrainingSample
from agentgrpo.records.metrics import read_metrics
from agentgrpo.records.run_dir import EVAL, STOPPED
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.training.policy import Policy, load_policy

SHOWN = 3
"""Number of columns of eval.json that are shown, in the order of figures.by_kind."""
EDGE = 5
"""The mean reward of the first EDGE steps is compared with that of the last EDGE steps."""


def train(bundle: str, seed: int, steps: int, run: Path, overrides: Sequence[str]) -> None:
    """Train the run unless it is finished or halted. Raises CalledProcessError."""
    if (run / EVAL).is_file() or (run / STOPPED).is_file():
        return
    print(f"training {run}", file=sys.stderr)
    keys = [f"algorithm={bundle}", f"run.seed={seed}", f"run.max_steps={steps}", f"run.dir={run}"]
    keys += ["algorithm.max_sampled_tokens=128"] if bundle == "dr_grpo" else []  # the tiny model's turns are short
    keys += ["run.eval_every=0", f"run.checkpoint_every={steps}", "run.eval.tasks=200", "run.log_with=[]", *overrides]
    made = subprocess.run([sys.executable, "-W", "ignore", "-m", "agentgrpo", "train", *keys, "run.screen=quiet"])
    if made.returncode != TrainingError.exit_code:
        made.check_returncode()


def samples(run: Path, step: int) -> Iterator[TrainingSample]:
    for record in read_trajectories(run / "trajectories" / f"train-{step:06d}.jsonl"):
        for branch in record.branches:
            yield _sample(record.group, record.sample_index, branch)


def _sample(group: str, index: int, branch: Branch) -> TrainingSample:
    return TrainingSample(
        group_id=group,
        sample_index=index,
        token_ids=branch.token_ids,
        loss_mask=branch.loss_mask,
        rollout_logprobs=branch.logprobs,
        advantage=0.0,
        num_prompt_tokens=branch.num_prompt_tokens,
        policy_version=0,
    )


def kl_to(start: Policy, run: Path, step: int) -> float:
    """KL of `step` to the start weights in nats per sampled token."""
    total, tokens = 0.0, 0
    for sample, logprobs in start.logprobs(list(samples(run, step))):
        own = [x for x, m in zip(sample.rollout_logprobs, sample.loss_mask, strict=True) if m]
        total += sum(own) - float(logprobs.double().sum())
        tokens += len(own)
    return total / tokens


def figures(run: Path) -> dict[str, Any]:
    rows = list(read_metrics(run / "metrics.jsonl"))
    trained = [row for row in rows if "reward/mean" in row]
    result = json.loads((run / EVAL).read_text(encoding="utf-8"))
    columns = list(result["figures"]["by_kind"].items())[:SHOWN]
    last = max(row["step"] for row in trained)
    return {
        "reward": [fmean(row["reward/mean"] for row in part) for part in (trained[:EDGE], trained[-EDGE:])],
        **{label: [result["greedy"][side][name] for side in ("baseline", "trained")] for name, label in columns},
        "KL": kl_to(load_policy(run / "checkpoints" / "step-000000"), run, last),
        "clipped": max(row.get("policy/clip_fraction", 0.0) for row in trained),
        "entropy": trained[-1].get("policy/entropy", 0.0),
    }


def row_of(runs: Sequence[dict[str, Any]]) -> list[str]:
    def change(name: str) -> str:
        before, after = (fmean(run[name][i] for run in runs) for i in (0, 1))
        spread = max(run[name][1] for run in runs) - min(run[name][1] for run in runs)
        return f"{before:.3f} → {after:.3f} (±{spread / 2:.3f})"

    return [
        *(change(name) for name in list(runs[0])[: SHOWN + 1]),
        f"{median(run['KL'] for run in runs):.3f}",
        f"{max(run['clipped'] for run in runs):.2%}",
        f"{median(run['entropy'] for run in runs):.3f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/algorithms"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--algorithms", nargs="+", default=[name for name in presets()["algorithm"] if name != "sft"])
    parser.add_argument("--only-print", action="store_true", help="of the runs that are there")
    parser.add_argument("overrides", nargs="*", help="settings of every run, such as run.eval.tasks=50")
    arguments = parser.parse_args()
    head: list[str] = []
    rows: list[list[str]] = []
    for bundle in arguments.algorithms:
        runs = [arguments.runs / f"{bundle}-{seed}" for seed in arguments.seeds]
        if not arguments.only_print:
            for seed, run in zip(arguments.seeds, runs, strict=True):
                train(bundle, seed, arguments.steps, run, arguments.overrides)
        ended = [figures(run) for run in runs if (run / EVAL).is_file()]
        halted = sum((run / STOPPED).is_file() for run in runs)
        if ended:
            head = list(ended[0])
        rows.append([f"`{bundle}`", *(row_of(ended) if ended else []), f"{halted} of {halted + len(ended)}"])
    table = [["algorithm", *head, "halted"], ["---"] * (len(head) + 2), *rows]
    print("\n".join("| " + " | ".join(row) + " |" for row in table))


if __name__ == "__main__":
    main()
