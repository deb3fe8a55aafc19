"""The doctor's report for people: a line for each check as it ends, its findings below it, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from agentgrpo.preflight.doctor.finding import Result, Span
from agentgrpo.preflight.doctor.masks import GIVEN, STOP, TRAINED, WRONG
from agentgrpo.records.screen import sanitize

MARKS: Mapping[str, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "note": ("note", "yellow"),
    "problem": ("PROBLEM", "bold red"),
    "skipped": ("skipped", "dim"),
}
LEGEND = (
    ("sampled", TRAINED, "["),
    ("ends a turn", STOP, "{"),
    ("given", GIVEN, ""),
    ("trained on, or not, and should not be so", WRONG, "!!"),
)
"""(what happens to a token, its style, the opening bracket used without colours)."""
CLOSING = {"[": "]", "{": "}", "!!": "!!", "": ""}


class Report:
    """Prints on stdout."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def show(self, result: Result) -> None:
        word, style = MARKS[result.status]
        line = Text.assemble((f"{word:<8}", style), f" {result.name:<20} {result.seconds:6.1f} s  ")
        line.append(sanitize(result.reason or summary(result.facts)), style="dim")
        self._print(line)
        for finding in result.findings:
            self._indented(Text(sanitize(finding.what), style=MARKS[finding.level][1]))
            self._indented(Text(f"why: {sanitize(finding.why)}"))
            if finding.key:
                self._indented(Text(f"key: {sanitize(finding.key)}"))
        if result.picture:
            self._picture(result.picture)

    def verdict(self, results: Sequence[Result]) -> None:
        counts = {status: sum(r.status == status for r in results) for status in MARKS}
        seconds = sum(r.seconds for r in results)
        text = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
        healthy = not counts["problem"]
        said = "no problem found" if healthy else "problems found: fix them before you train"
        self._print(Text(f"{said}: {text}, in {seconds:.1f} s", style="bold green" if healthy else "bold red"))

    def _picture(self, spans: Sequence[Span]) -> None:
        """The tokens of an episode, marked by colours, or by brackets on a console without colours."""
        has_colours = self._console.is_terminal and not self._console.no_color
        opening = {style: "" if has_colours else mark for _, style, mark in LEGEND}
        closing = {style: CLOSING[mark] for style, mark in opening.items()}
        legend = [pair for what, style, _ in LEGEND for pair in ((_framed(what, style, opening, closing), style), " ")]
        self._indented(Text.assemble("an episode: ", *legend))
        pieces = [(_framed(sanitize(text), style, opening, closing), style) for text, style in spans]
        self._indented(Text.assemble(*pieces))

    def _indented(self, text: Text) -> None:
        if self._console.is_terminal:
            self._console.print(Padding(text, (0, 0, 0, 9)))
        else:
            self._print(Text("\n".join(f"{' ' * 9}{line}".rstrip() for line in text.plain.split("\n"))))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True)


def _framed(text: str, style: str, opening: Mapping[str, str], closing: Mapping[str, str]) -> str:
    return f"{opening.get(style, '')}{text}{closing.get(style, '')}"


def summary(facts: Mapping[str, Any]) -> str:
    """The figures and texts of `facts` in one line."""
    shown = []
    for name, value in facts.items():
        if isinstance(value, Mapping) and (inner := summary(value)):
            shown.append(f"{name} ({inner})")
        elif isinstance(value, list) and value and all(isinstance(text, str) for text in value):
            shown.append(f"{name}: {'; '.join(value)}")
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            shown.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(shown)
