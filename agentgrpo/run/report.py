"""The report at the end: the comparison as a table, and the verdict in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentgrpo.core.types import ScoredGroup
from agentgrpo.records.screen import Screen
from agentgrpo.run.plateau import plateau_line

_NAMES = {"sft": "sft_oracle"}
"""Baseline -> its name in tables, if that differs."""
LEAST_START = 0.0005
"""Least value that the table's three digits show as more than 0."""
LARGEST = 10.0


def report(screen: Screen, result: dict[str, Any], rows: Sequence[Mapping[str, Any]] = ()) -> None:
    """Print eval.json's content: details first, and last the greedy table with the verdict, so that a small terminal
    still shows it. The screen is closed first, so nothing is drawn below. rows: of metrics.jsonl, for a run.
    """
    screen.close()
    figures = result["figures"]
    report_mode(screen, result, "sampled")
    for name, member in result.get("suite", {}).items():
        report_mode(screen, member, "greedy", of=f"{name}: ")
    kinds, kind = result["greedy"]["kinds"], "member" if "suite" in result else "kind"
    if kinds:
        screen.table(
            f"by {'member' if 'suite' in result else 'kind of question'}, greedy: before → after",
            [kind, *figures["by_kind"].values()],
            [
                [kind] + [f"{row['baseline'][name]:.2f} → {row['trained'][name]:.2f}" for name in figures["by_kind"]]
                for kind, row in kinds.items()
            ],
        )
    if sources := result["greedy"].get("sources"):
        screen.table(
            "by data source, greedy: before → after",
            ["source", "tasks", *figures["by_kind"].values()],
            [
                [source, str(row["n"])]
                + [f"{row['baseline'][name]:.2f} → {row['trained'][name]:.2f}" for name in figures["by_kind"]]
                for source, row in sources.items()
            ],
        )
    report_shares(screen, result)
    _report_baselines(screen, result)
    for mode in ("greedy", "sampled"):
        _report_failures(screen, mode, result[mode], figures["quality"])
    report_mode(screen, result, "greedy")
    for line in closing_lines(result, rows):
        screen.line(line)


def closing_lines(result: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines below the tables: falls by kind, the plateau and the verdict."""
    for row in result.get("fell", ()):
        mean, low, high = row["difference"]
        level = f"{100 - 5 / row['kinds']:.3g} % interval [{low:+.3f}, {high:+.3f}]"
        of = f"{row['n']} tasks, {row['kinds']} kinds" if row["kinds"] > 1 else f"{row['n']} tasks"
        quality = result["figures"]["quality"].replace("_", " ")
        yield f"fell: {row['kind']}, {row['mode']}: {quality} {mean:+.3f}, {level} ({of})"
    if line := plateau_line(rows):
        yield line
    for name, member in result.get("suite", {}).items():
        yield f"{name}: {verdict_line(member)}"
    yield verdict_line(result)


def verdict_line(result: Mapping[str, Any]) -> str:
    return f"verdict: {result['verdict']} ({result['reason']})"


def report_mode(screen: Screen, result: Mapping[str, Any], mode: str, *, of: str = "") -> None:
    """Print the headline figures before and after as a table, with `of` at the start of its title."""
    figures = result["figures"]
    trained = {name: row[mode] for name, row in result.get("baselines", {}).items() if mode in row}
    beside = {"oracle": result["oracle"]} if "oracle" in result else {}
    beside |= {_NAMES.get(name, name): means for name, means in trained.items()}
    rows = []
    for name in dict.fromkeys((*figures["headline"], "reward")):
        before, after = result[mode]["baseline"][name], result[mode]["trained"][name]
        _, low, high = result[mode]["difference"][name]
        is_share = name == figures["quality"] and figures.get("is_graded", True)
        change = f"{(after - before) * 100:+.1f} points" if is_share else _relative(before, after)
        interval = f"[{low:+.3f}, {high:+.3f}]"
        others = [f"{means[name]:.3f}" for means in beside.values()]
        rows.append([name, f"{before:.3f}", f"{after:.3f}", change, interval, *others])
    screen.table(
        f"{of}held-out test, {result['n']} tasks, {mode}",
        ["metric", "before", "after", "change", "95 % interval", *beside],
        rows,
    )


def report_shares(screen: Screen, result: Mapping[str, Any]) -> None:
    """Print each section of Figures.ratios, before and after. (Shares by kind of question are in eval.json.)"""
    for section, names in result["figures"].get("ratios", {}).items():
        if section not in result["greedy"]:
            continue
        screen.table(
            f"{section}: before → after",
            ["", *(name.replace("_", " ") for name in names)],
            [[mode, *(_change(result[mode][section], name) for name in names)] for mode in ("greedy", "sampled")],
        )


def _change(of: Mapping[str, Mapping[str, float]], name: str) -> str:
    before, after = (of.get(policy, {}).get(name) for policy in ("baseline", "trained"))
    return " → ".join("-" if value is None else f"{value:.2f}" for value in (before, after))


def _report_baselines(screen: Screen, result: dict[str, Any]) -> None:
    """Print the policies and the baselines in one table, and the notes on the baselines."""
    baselines, figures = result.get("baselines", {}), result["figures"]
    if not baselines:
        return
    headline, quality = figures["headline"], figures["quality"]
    policies = {"before": result["greedy"]["baseline"], "after": result["greedy"]["trained"]}
    policies |= {"oracle": result["oracle"]} if "oracle" in result else {}
    rows = [[name, *(f"{row[column]:.3f}" for column in headline), ""] for name, row in policies.items()]
    for name, row in baselines.items():
        mean, low, high = row["gain"]
        gain = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
        rows.append([_NAMES.get(name, name), *(f"{row[column]:.3f}" for column in headline), gain])
    screen.table(
        "beside baselines, greedy, the same tasks",
        ["", *headline, f"{quality} gained on it"],
        rows,
    )
    for note in dict.fromkeys(row["note"] for row in baselines.values() if row["note"]):
        names = ", ".join(_NAMES.get(name, name) for name, row in baselines.items() if row["note"] == note)
        screen.line(f"note: {names}: {note}")


def _report_failures(screen: Screen, mode: str, result: dict[str, Any], quality: str) -> None:
    """Print a line if tasks failed: how many, and the quality if they count as wrong."""
    failures, overall = result["failures"], result["denominator"]
    if any(failures.values()):
        before, after = overall["baseline"][quality], overall["trained"][quality]
        screen.line(
            f"note: {mode}, {failures['baseline']} tasks before and {failures['trained']} after failed for "
            f"infrastructure reasons and are left out above; over all {overall['n']}, failed = wrong, {quality} is "
            f"{before:.3f} before and {after:.3f} after"
        )


def _relative(before: float, after: float) -> str:
    """Format the change in per cent, or as a difference if `before` is about 0 or `after` is LARGEST times as much."""
    is_share = before >= LEAST_START and after < LARGEST * before
    return f"{(after / before - 1) * 100:+.0f} %" if is_share else f"{after - before:+.3f}"


# --- Progress of a run besides numbers: the stages of a warm start, and an episode of the step.


def show_stages(screen: Screen) -> Callable[[str, int, int], None]:
    """Return a callback (stage, units done, total units) that shows a warm start's progress, after a note on it."""
    stage, shown = "", 0

    def show(name: str, done: int, total: int) -> None:
        nonlocal stage, shown
        if not stage:
            screen.line("note: the start weights are made before the first step: minutes, once; a cache keeps them")
        if name != stage:
            screen.stage(name, total)
            stage, shown = name, 0
        screen.advance(done - shown)
        shown = done

    return show


def report_episode(screen: Screen, scored: ScoredGroup) -> None:
    """Print a group's single episode: its full text, the reference and its reward."""
    [episode], [reward] = scored.group.episodes, scored.rewards
    for branch in episode.branches:
        screen.text("".join(segment.text for segment in branch.segments), indent=2)
    for reference in episode.task.references[:1]:
        screen.line(f"reference: {reference}")
    if reward is not None:
        terms = ", ".join(f"{name} {value:+.3f}" for name, value in reward.terms.items())
        screen.line(f"reward: {reward.total:+.3f} ({terms})")
    screen.line("note: one question compares no policies; a verdict takes at least 2 test questions, better 400")


def show_episode(screen: Screen, scored: Sequence[ScoredGroup]) -> None:
    """Show the first scored episode of a step, with its reward."""
    for group in scored:
        for episode, reward in zip(group.group.episodes, group.rewards, strict=True):
            if episode.branches and reward is not None:
                text = "".join(s.text for s in episode.branches[0].segments)
                known = "".join(f"reference: {reference}  " for reference in episode.task.references[:1])
                screen.trajectory(f"{text}\n{known}reward: {reward.total:+.3f}")
                return
