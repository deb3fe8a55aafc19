"""Shows the run's numbers on boards: TensorBoard, wandb, mlflow, and other boards with a tracker class in accelerate.

A board is for watching; metrics.jsonl is the record. So a board that fails is dropped with one warning, and the run
continues. A resumed run shows no step twice: TensorBoard is told to forget all steps from the resumed step on
(purge_step). wandb and mlflow continue the run whose id is in trackers.json; a step logged twice has the same values.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any

from agentgrpo.core.durable import write_atomic
from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.records.card import flatten

PROJECT = "agentgrpo"
NAMES = ("tensorboard", "wandb", "mlflow", "aim", "clearml", "comet_ml", "dvclive", "swanlab", "trackio")
"""Allowed names in run.log_with; each is also the name of the package that it needs."""

_log = logging.getLogger(__name__)


class Trackers:
    """The boards of one run. `start_step` is the first step that will be logged; `config` is shown with the numbers.

    Only the packages of `log_with` are imported, and only here (it takes seconds). Build it after accelerate's
    Accelerator, if the run has one, and in the main process only. Raises ConfigError for a name that does not exist, or
    whose package is not installed.
    """

    def __init__(
        self, *, log_with: Sequence[str], run_dir: Path, config: Mapping[str, Any], start_step: int = 0
    ) -> None:
        require_boards(log_with)
        self._run_dir = run_dir
        self._boards: dict[str, Any] = {}
        for name in dict.fromkeys(log_with):
            self._guarded(name, partial(self._start, name, config, start_step))

    def log(self, tags: Mapping[str, float], *, step: int) -> None:
        """Show the tags of one step."""
        for name, board in list(self._boards.items()):
            self._guarded(name, partial(board.log, dict(tags), step=step))

    def close(self) -> None:
        """Flush and end every board; further calls do nothing."""
        for name, board in list(self._boards.items()):
            self._guarded(name, board.finish)
        self._boards.clear()

    def _guarded(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as e:  # other people's code, often with a network behind it
            self._boards.pop(name, None)
            _log.warning("%s is switched off for the rest of the run: %s: %s", name, type(e).__name__, e)

    def _start(self, name: str, config: Mapping[str, Any], start_step: int) -> None:
        if name == "tensorboard":
            self._boards[name] = EventFile(self._run_dir / "tensorboard", start_step=start_step)
        else:
            self._boards[name] = self._accelerate_board(name)
        if start_step == 0:
            plain = (bool, int, float, str, NoneType)
            flat = {key: value if isinstance(value, plain) else str(value) for key, value in flatten(config).items()}
            self._boards[name].store_init_configuration(flat)

    def _accelerate_board(self, name: str) -> Any:
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        PartialState()  # accelerate's own log lines need it
        cls = LOGGER_TYPE_TO_CLASS[name]
        where = (PROJECT, str(self._run_dir)) if cls.requires_logging_directory else (PROJECT,)
        if name == "wandb":
            run = self._remembered("wandb") or self._remember("wandb", secrets.token_hex(8))
            board = cls(*where, id=run, resume="allow", name=self._run_dir.name, dir=str(self._run_dir))
        elif name == "mlflow":
            board = cls(*where, run_id=self._remembered("mlflow"), run_name=self._run_dir.name)
        else:
            board = cls(*where)
        board.start()
        if name == "mlflow":
            self._remember("mlflow", board.tracker.info.run_id)
        return board

    def _remembered(self, name: str) -> str | None:
        path = self._run_dir / "trackers.json"
        return json.loads(path.read_bytes()).get(name) if path.exists() else None

    def _remember(self, name: str, run_id: str) -> str:
        path = self._run_dir / "trackers.json"
        ids = json.loads(path.read_bytes()) if path.exists() else {}
        write_atomic(path, (json.dumps(ids | {name: run_id}, sort_keys=True) + "\n").encode())
        return run_id


def require_boards(log_with: Sequence[str]) -> None:
    """Raises ConfigError for a name that does not exist or whose package is not installed."""
    for name in log_with:
        if name not in NAMES:
            allowed = ", ".join(NAMES)
            raise ConfigError(f"run.log_with names {name!r}; allowed are {allowed}.{did_you_mean(name, NAMES)}")
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"run.log_with names {name!r}, whose package is not installed; pip install {name}, or leave it out"
            )


# --- TensorBoard's event file, one event per row of tags.
#
# accelerate's tracker writes a separate event for every tag, about a hundred in a step. A single event with all tags
# takes a fraction of the time, and TensorBoard shows both alike.


class EventFile:
    """A new event file in `directory`, with the methods of accelerate's trackers. TensorBoard ignores `start_step` and
    later steps in older files there. A logged row has reached the operating system when the call returns."""

    def __init__(self, directory: Path, *, start_step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        self._writer, self._summary = SummaryWriter(str(directory), purge_step=start_step), Summary
        self._events: Any = self._writer.file_writer  # typed as None there

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Log the configuration as a text, because TensorBoard would show hyperparameters as separate runs."""
        self._writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in values.items()), 0)
        self._writer.flush()

    def log(self, tags: Mapping[str, float], *, step: int) -> None:
        values = [self._summary.Value(tag=tag, simple_value=float(value)) for tag, value in tags.items()]
        self._events.add_summary(self._summary(value=values), step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()
