"""`agentgrpo replay`: runs recorded episodes again and reports where they first diverge from the record.

    weights.py     a file of RUN/trajectories --> the weights that sampled it, if the run keeps them
    parts.py       configuration and weights --> agent, engine and equipment, with nothing written to RUN
    forced.py      --tools record: gives the engine each recorded context, turn by turn; no tool is called
    live.py        --tools live: runs the agent with the tools and retrievers as they are now
    reciting.py    replays the recorded turns in live mode if the engine promises no bits
    comparing.py   recorded and found --> Divergence
    report.py      Divergence --> lines

The engine gives an episode the same tokens and bit-identical log-probs whatever runs beside it, so an episode must
repeat itself exactly when run alone. For an engine without this promise (vllm, sglang) the log-probs of the recorded
tokens are compared, within the tolerance of a weight sync. RUN is only read: no lock, no spending, no trajectories.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from rich.console import Console

from agentgrpo.config.build import PartNode
from agentgrpo.config.hardware import Launch
from agentgrpo.core.commands import Command, VerbResult, shell_line
from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.records.html_page import json_text
from agentgrpo.records.run_dir import RunDir, TrajectoryFile
from agentgrpo.records.screen import Bar, Screen
from agentgrpo.records.trajectories import TrajectoryRecord, read_trajectories
from agentgrpo.reports.damage import warn_of_damage
from agentgrpo.reports.replay.divergence import Divergence, turns_of
from agentgrpo.reports.replay.parts import Replayed
from agentgrpo.reports.replay.report import lines
from agentgrpo.reports.replay.weights import Kept, RecordedWeights
from agentgrpo.reports.show import find_episode

__all__ = ["replay"]

TOOLS = ("record", "live")


def replay(config: dict[str, Any], command: Command) -> VerbResult:
    """Exit code 0 if every episode repeats itself, else 1. Raises ConfigError for an episode that was not recorded, or
    whose weights were not kept."""
    if Launch.of().rank:
        return VerbResult()
    given = command.arguments
    tools = _tools(given)
    _refuse_foreign(config)
    run = RunDir(Path(given["run_dir"]))
    warn_of_damage([run])
    kept = Kept(run, None if given["ckpt"] is None else Path(given["ckpt"]))
    file = kept.file(name=given["file"], step=given["step"])
    records, left_out = _records(file, given["episode"], has_to_speak=tools == "record")
    weights = kept.weights(file, records)
    screen = Screen("quiet", Console(stderr=True, highlight=False, quiet=tools == "record"))
    logging.captureWarnings(True)
    transformers.logging.disable_progress_bar()
    with ExitStack() as open_, Bar(what="episodes") as bar:
        scratch = open_.enter_context(TemporaryDirectory(prefix="agentgrpo-replay-"))
        parts = Replayed(config, command.snapshot, run, weights, screen, Path(scratch), tools=tools)
        found = asyncio.run(parts.replay(file, records, bar))
    _say(file, tools, weights, records, found, left_out, parts.notes, as_json=given["json"])
    return VerbResult(exit_code=int(any(d is not None for d in found)))


def _tools(given: Any) -> str:
    """The value of --tools. Raises ConfigError for an unknown value, or unless exactly one of --episode and --all is
    given."""
    tools: str = given["tools"] or "record"
    if tools not in TOOLS:
        raise ConfigError(f"--tools {tools}; {' and '.join(TOOLS)} are allowed.{did_you_mean(tools, TOOLS)}")
    if given["all"] == (given["episode"] is not None):
        raise ConfigError(
            "replay needs one of --episode ID and --all; the episodes of a file are listed by "
            f"{shell_line('show', given['run_dir'])}"
        )
    return tools


def _refuse_foreign(config: dict[str, Any]) -> None:
    engine = PartNode("engine", config["engine"])
    if engine.says("trainable") is False:
        raise ConfigError(
            f"engine={engine.name} does not sample from this run's weights and gives no exact log-probs, so its "
            "output cannot be replayed. Replay a run that uses another engine"
        )


def _records(
    file: TrajectoryFile, id: str | None, *, has_to_speak: bool
) -> tuple[list[TrajectoryRecord], list[TrajectoryRecord]]:
    """(records to replay, records without anything to compare). has_to_speak: sampled tokens are required. Raises
    ConfigError if no record remains."""
    asked = list(read_trajectories(file.path)) if id is None else [find_episode(file.path, id)]
    recorded = [r for r in asked if r.agent["messages"]]
    if not recorded:
        error = asked[0].error or {"kind": "unknown", "message": ""} if asked else {"kind": "empty", "message": ""}
        raise ConfigError(
            f"{file.name}: nothing was recorded to replay ({error['kind']}: {error['message']}); choose another "
            "--episode or --file"
        )
    if any(r.is_demonstrated for r in recorded):
        raise ConfigError(
            f"{file.name} holds demonstrations, which no policy has sampled: there is nothing to replay; choose "
            "another --file, such as eval-end-greedy"
        )
    kept = [r for r in recorded if not has_to_speak or any(turns_of(r.branches))]
    if not kept:
        raise ConfigError(
            f"{file.name} holds no tokens that were sampled (run.record_tokens=false, or an evaluation of an older "
            "version): only its texts can be compared, with --tools live"
        )
    ids = {r.id for r in kept}
    return kept, [r for r in asked if r.id not in ids]


def _say(
    file: TrajectoryFile,
    tools: str,
    weights: RecordedWeights,
    records: list[TrajectoryRecord],
    found: list[Divergence | None],
    left_out: list[TrajectoryRecord],
    notes: list[str],
    *,
    as_json: bool,
) -> None:
    first = next((d for d in found if d is not None), None)
    if as_json:
        rows = [{"id": r.id, "diverged": d and d.to_json()} for r, d in zip(records, found, strict=True)]
        about = {"file": file.name, "tools": tools, "weights": weights.name, "notes": notes}
        skipped = [r.id for r in left_out]
        print(json_text({**about, "episodes": rows, "skipped": skipped, "diverged": first and first.to_json()}))
        return
    screen = Screen("quiet")
    for line in lines(file, tools, weights, found, left_out, notes):
        screen.text(line.text, style=line.style, indent=line.indent)
