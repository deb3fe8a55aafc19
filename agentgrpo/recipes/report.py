"""What a person reads at the end: the comparison as a table, and the verdict in a sentence."""

from __future__ import annotations

from typing import Any

from agentgrpo.recipes.evaluate import METRICS
from agentgrpo.records.screen import Screen

SHOWN = (*METRICS, "reward")


def report(screen: Screen, result: dict[str, Any]) -> None:
    """Print eval.json's content: a table per mode, the kinds of questions, the verdict."""
    oracle = result.get("oracle")
    for mode in ("greedy", "sampled"):
        rows = []
        for name in SHOWN:
            before, after = result[mode]["baseline"][name], result[mode]["trained"][name]
            _, low, high = result[mode]["difference"][name]
            change = f"{(after - before) * 100:+.1f} points" if name == "correctness" else _relative(before, after)
            interval = f"[{low:+.3f}, {high:+.3f}]"
            rows.append(
                [name, f"{before:.3f}", f"{after:.3f}", change, interval] + ([f"{oracle[name]:.3f}"] if oracle else [])
            )
        screen.table(
            f"held-out test, {result['n']} tasks, {mode}",
            ["metric", "before", "after", "change", "95 % interval"] + (["oracle"] if oracle else []),
            rows,
        )
    kinds = result["greedy"]["kinds"]
    if kinds:
        screen.table(
            "by kind of question, greedy: before > after",
            ["kind", "correctness", "rounds", "web", "rerank"],
            [
                [kind]
                + [
                    f"{row['baseline'][name]:.2f} > {row['trained'][name]:.2f}"
                    for name in ("correctness", "search_rounds", "web_searches", "rerank_calls")
                ]
                for kind, row in kinds.items()
            ],
        )
    screen.line(f"verdict: {result['verdict']} ({result['reason']})")


def _relative(before: float, after: float) -> str:
    return f"{(after / before - 1) * 100:+.0f} %" if before else f"{after:+.2f}"
