"""`agentgrpo report DIR`: quality and cost of all evaluated runs below a folder. It loads no model.

reading.py    folders --> EvaluatedRun: settings, and every evaluation by task
families.py   runs that answered the same tasks, and the settings that vary among them
points.py     runs of one setting --> Point, with intervals; the Pareto front
counterfactuals.py, prices.py   the share of retrieval in a score; use as a function of price
svg.py, page.py, text.py   the output for people
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.durable import write_atomic
from agentgrpo.core.errors import ConfigError
from agentgrpo.records.html_page import json_text, require_place
from agentgrpo.records.screen import Screen
from agentgrpo.reports.pareto.counterfactuals import counterfactuals
from agentgrpo.reports.pareto.families import RunFamily, families
from agentgrpo.reports.pareto.page import MARK, page
from agentgrpo.reports.pareto.points import points, with_front
from agentgrpo.reports.pareto.prices import sweeps
from agentgrpo.reports.pareto.reading import find
from agentgrpo.reports.pareto.text import show
from agentgrpo.reports.recorded import MODES

PAGE = "report.html"
"""Default file name, in the folder that is reported on."""


def report(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Write the page (with --json only if --out is given). Raises ConfigError if no run was evaluated, if the page
    cannot be written there, or if --out is a file that is not such a page."""
    given = command.arguments
    root = Path(given["folder"])
    out = Path(given["out"]) if given["out"] else None if given["json"] else root / PAGE
    if out is not None:
        require_place(out, verb="report", mark=MARK, example=PAGE)
    found = compared(root)
    if out is not None:
        _make_folder(out.parent)
        write_atomic(out, page(found).encode("utf-8", "replace"))
    if given["json"]:
        print(json_text(found, indent=2))
    else:
        show(Screen("quiet"), found, str(out))
    return VerbResult()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise ConfigError(f"--out: {folder} cannot be made: {e.strerror}; give another place") from e


def compared(root: Path) -> dict[str, Any]:
    """The data that `--json` prints. A figure with an interval is [mean, low, high], at 95 %; low and high are null if
    only the mean is known."""
    runs, skipped = find(root)
    return {
        "folder": str(root),
        "families": [_family(family) for family in families(runs)],
        "skipped": [{"name": name, "reason": reason} for name, reason in skipped],
    }


def _family(family: RunFamily) -> dict[str, Any]:
    modes = {mode: points(family, mode) for mode in MODES}
    return {
        "agent": family.agent,
        "task": family.task,
        "n": family.size,
        "quality": family.quality,
        "varied": list(family.varied),
        "notes": list(family.notes),
        "modes": {mode: [point.to_json() for point in with_front(found)] for mode, found in modes.items()},
        "counterfactuals": {mode: counterfactuals(family, mode) for mode in MODES},
        "sweeps": sweeps(family, modes),
    }
