"""A Markdown table of what runs have learned, from their eval.json: one row per run and mode, every run, none left out.

python scripts/learning_table.py runs/a runs/b ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HEAD = ("run", "mode", "correctness", "gain, points [95 %]", "rounds", "web", "rerank", "reward / oracle", "verdict")


def cells(name: str, mode: str, result: dict[str, Any]) -> list[str]:
    before, after, oracle = result[mode]["baseline"], result[mode]["trained"], result.get("oracle")
    mean, low, high = (100 * x for x in result[mode]["difference"]["correctness"])

    def change(metric: str) -> str:
        share = f" ({after[metric] / before[metric] - 1:+.0%})" if before[metric] else ""
        return f"{before[metric]:.2f} → {after[metric]:.2f}{share}"

    return [
        name,
        mode,
        f"{before['correctness']:.3f} → {after['correctness']:.3f}",
        f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]",
        change("search_rounds"),
        change("web_searches"),
        change("rerank_calls"),
        f"{after['reward'] / oracle['reward']:.1%}" if oracle else "",
        result["verdict"],
    ]


def table(runs: list[Path]) -> str:
    rows = [list(HEAD), ["---"] * len(HEAD)]
    for run in runs:
        result = json.loads((run / "eval.json").read_text(encoding="utf-8"))
        rows += [cells(run.name, mode, result) for mode in ("greedy", "sampled")]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("give run directories: python scripts/learning_table.py runs/a runs/b")
    print(table([Path(argument) for argument in sys.argv[1:]]))
