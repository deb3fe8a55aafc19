"""`agentgrpo show`: a run and its episodes, for people to read. It loads no model and none of the libraries of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentgrpo.commands import Command, Outcome
from agentgrpo.recipes.browsing import find_episode, listing
from agentgrpo.recipes.episode_text import episode_lines
from agentgrpo.recipes.overview import overview
from agentgrpo.records.run_dir import RunDir
from agentgrpo.records.screen import Screen


def show(config: Mapping[str, Any], command: Command) -> Outcome:
    """The run as a whole; of a file of it one episode as text, or a table of all. Raises ConfigError for what is not
    there."""
    given = command.arguments
    run, screen = RunDir(Path(given["run_dir"])), Screen("quiet")
    if not (given["list"] or any(given[name] is not None for name in ("episode", "file", "step"))):
        overview(screen, run)
        return Outcome()
    path = run.trajectory_file(name=given["file"], step=given["step"]).path
    if given["episode"] is None:
        columns, rows = listing(path)
        screen.line(str(path))
        screen.table(f"{len(rows)} episodes", columns, rows)
    else:
        record = find_episode(path, given["episode"])
        screen.line(str(path))
        for line in episode_lines(record):
            screen.text(line.text, style=line.style, indent=line.indent)
    return Outcome()
