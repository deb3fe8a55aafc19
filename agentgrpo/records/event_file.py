"""TensorBoard's event file, one event per row of tags.

accelerate's tracker writes an event of its own for every tag, about a hundred of them in a step, which takes several
times as long as one event that holds them all. TensorBoard shows both alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter


class EventFile:
    """A new event file in `directory`, with the methods of accelerate's trackers. TensorBoard forgets what older files
    there say of `start_step` and later steps. What was logged is the operating system's when the call returns."""

    def __init__(self, directory: Path, *, start_step: int) -> None:
        self._writer = SummaryWriter(str(directory), purge_step=start_step)
        self._events: Any = self._writer.file_writer  # typed as None there

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """As a text; the hyperparameters that TensorBoard has a page for would be runs of their own on the board."""
        self._writer.add_text("config", "\n".join(f"    {key}: {value}" for key, value in values.items()), 0)
        self._writer.flush()

    def log(self, tags: Mapping[str, float], *, step: int) -> None:
        values = [Summary.Value(tag=tag, simple_value=float(value)) for tag, value in tags.items()]
        self._events.add_summary(Summary(value=values), step)
        self._writer.flush()

    def finish(self) -> None:
        self._writer.close()
