"""The script as a logits processor, for samplers that use transformers' `generate`."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor
from workload import Script


class ScriptedLogits(LogitsProcessor):  # type: ignore[misc]
    """Applies the script to the logits of one `generate` call; the rows of `scores` are the episodes of a step."""

    supports_continuous_batching = False

    def __init__(self, script: Script, step: int, turn: int) -> None:
        self._script, self._at = script, 0
        self._rows = [script.forced(step, row, turn) for row in range(script.work.rows)]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at, self._at = self._at, self._at + 1
        return self._script.apply(scores, [row[at] if at < len(row) else self._script.end for row in self._rows])
