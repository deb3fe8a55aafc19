"""A Markdown table of the learning results of runs, from their eval.json: one row for each run and mode, with no run
left out. With several runs, further rows give the mean and the range.

python scripts/learning_table.py runs/a runs/b ...

The runs must share one environment; its figures are the columns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any


def head(figures: dict[str, Any]) -> list[str]:
    spent = [label for name, label in figures["by_kind"].items() if name != figures["quality"]]
    return ["run", "mode", figures["quality"], "gain, points [95 %]", *spent, "reward / oracle", "verdict"]


def cells(name: str, mode: str, result: dict[str, Any]) -> list[str]:
    before, after, oracle = result[mode]["baseline"], result[mode]["trained"], result.get("oracle")
    quality, by_kind = result["figures"]["quality"], result["figures"]["by_kind"]
    mean, low, high = (100 * x for x in result[mode]["difference"][quality])

    def change(metric: str) -> str:
        share = f" ({after[metric] / before[metric] - 1:+.0%})" if before[metric] else ""
        return f"{before[metric]:.2f} → {after[metric]:.2f}{share}"

    return [
        name,
        mode,
        f"{before[quality]:.3f} → {after[quality]:.3f}",
        f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]",
        *(change(name) for name in by_kind if name != quality),
        f"{after['reward'] / oracle['reward']:.1%}" if oracle else "",
        result["verdict"],
    ]


def between(mode: str, results: Sequence[dict[str, Any]]) -> list[str]:
    """The mean over the runs and their range: of the quality before and after, of the gain, and of the reward after
    training as a share of the oracle's."""
    quality, blank = results[0]["figures"]["quality"], [""] * (len(head(results[0]["figures"])) - 6)
    before, after = ([result[mode][key][quality] for result in results] for key in ("baseline", "trained"))
    gains = [100 * result[mode]["difference"][quality][0] for result in results]
    shares = [r[mode]["trained"]["reward"] / r["oracle"]["reward"] for r in results if r.get("oracle")]
    reward = f"{fmean(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})" if shares else ""
    return [
        f"mean of {len(results)} (range)",
        mode,
        f"{_range(before)} → {_range(after)}",
        f"{fmean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})",
        *blank,
        reward,
        "",
    ]


def _range(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def table(runs: list[Path]) -> str:
    if unread := [run for run in runs if not (run / "eval.json").is_file()]:
        sys.exit(f"{unread[0]} has no eval.json; give runs that were evaluated")
    results = {run: json.loads((run / "eval.json").read_text(encoding="utf-8")) for run in runs}
    figures = results[runs[0]]["figures"]
    if other := [str(run) for run, result in results.items() if result["figures"] != figures]:
        sys.exit(f"{other[0]} reports other figures than {runs[0]}; give runs of one environment")
    rows = [head(figures), ["---"] * len(head(figures))]
    rows += [cells(run.name, mode, result) for run, result in results.items() for mode in ("greedy", "sampled")]
    if len(runs) > 1:
        rows += [between(mode, list(results.values())) for mode in ("greedy", "sampled")]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("give run directories: python scripts/learning_table.py runs/a runs/b")
    print(table([Path(argument) for argument in sys.argv[1:]]))
