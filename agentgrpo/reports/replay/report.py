"""Print the result of a replay for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from agentgrpo.records.lines import FAILED, HEADING, QUIET, TextLine, called, counted, one_line
from agentgrpo.records.run_dir import TrajectoryFile
from agentgrpo.records.trajectories import TrajectoryRecord
from agentgrpo.reports.replay.divergence import AROUND, CUT, Divergence
from agentgrpo.reports.replay.weights import RecordedWeights

_SHOWN = 5
"""Number of divergences shown in full; the rest is only counted."""


def lines(
    file: TrajectoryFile,
    tools: str,
    weights: RecordedWeights,
    found: Sequence[Divergence | None],
    left_out: Sequence[TrajectoryRecord],
    notes: Sequence[str],
) -> Iterator[TextLine]:
    what = f"{counted(len(found), 'episode')} replayed, tools={tools}"
    yield TextLine(f"{file.name}: {what}, weights {weights.name}", HEADING)
    for note in notes:
        yield TextLine(f"note: {one_line(note)}", QUIET, indent=2)
    if left_out:
        yield TextLine(
            f"{counted(len(left_out), 'episode')} left out: nothing that could be compared was recorded", QUIET, 2
        )
    diverged = [d for d in found if d is not None]
    if not diverged:
        yield TextLine("no divergence", HEADING)
        return
    for divergence in diverged[:_SHOWN]:
        yield TextLine("")
        yield from _divergence_lines(divergence)
    yield TextLine("")
    kinds = ", ".join(f"{kind}: {n}" for kind, n in sorted(Counter(d.kind for d in diverged).items()))
    yield TextLine(f"{len(diverged)} of {counted(len(found), 'episode')} diverged ({kinds})", FAILED)


def _divergence_lines(d: Divergence) -> Iterator[TextLine]:
    yield TextLine(f"{one_line(d.episode)}: {_where(d)}", FAILED)
    for call in [d.call] if d.call else d.calls:
        which = "call" if d.call or len(d.calls) == 1 else "one of the calls"
        yield TextLine(f"{which}: {called(call['name'], call['arguments'])}", indent=2)
    for side, value, text, logprob in (
        ("recorded", d.expected, d.expected_text, d.expected_logprob),
        ("found", d.found, d.found_text, d.found_logprob),
    ):
        yield TextLine(f"{side:<9} {_value(value, text, logprob, d.character)}", indent=2)


def _where(d: Divergence) -> str:
    after = "after turn" if d.kind == "tool" else "turn"
    character = d.character if d.token is None else None
    places = [("branch", d.branch or None), (after, d.turn), ("token", d.token), ("character", character)]
    spot = ", ".join(f"{name} {number}" for name, number in places if number is not None)
    what = {
        "token": "another text" if d.token is None else "another token was sampled",
        "logprob": "another log-prob",
        "length": "the turn ends elsewhere",
        "prompt": "another prompt",
        "tool": "another reply",
        "answer": "another answer",
        "exit": "another end",
        "reward": f"another reward ({d.term})" if d.term else "another reward",
    }[d.kind]
    return f"{what}: {spot}" if spot else what


def _value(value: Any, text: str, logprob: float | None, character: int | None) -> str:
    """The value or text of one side, with the differing position marked."""
    shown = [] if value is None else [repr(value)]
    if logprob is not None and value != logprob:
        shown.append(f"log-prob {logprob!r}")
    if text and character is not None:
        at = character if character <= AROUND else AROUND + len(CUT)
        shown.append(f"{text[:at]!r} >> {text[at:]!r}")
    elif text:
        shown.append(repr(text))
    return ", ".join(shown) or "nothing"
