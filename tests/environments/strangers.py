"""Environments and terms of a stranger's. One attempt in three (n of its task is 1) misbehaves as `how` says."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentgrpo.core.types import Exit, Task
from agentgrpo.environments.base import Observation, Turn


class World:
    """Pays by what the policy says."""

    def __init__(self, how: str = "good", at: str = "step") -> None:
        self.how, self.at = how, at
        if at == "constructor":
            misbehave(how)

    async def reset(self, task: Task) -> str:
        self.is_bad = task.metadata["n"] == 1
        self.do("reset")
        return "Say something."

    async def step(self, turn: Turn) -> Observation:
        self.do("step")
        return Observation(done=Exit.ANSWERED, answer=turn.content, reward=0.01 + len(turn.content) % 7 / 7)

    async def score(self, episode: Any) -> dict[str, float]:
        self.do("score")
        return {}

    async def close(self) -> None:
        self.do("close")

    def do(self, at: str) -> None:
        if self.is_bad and self.at == at:
            misbehave(self.how)


class Stuck:
    """Its `reset` says that it has begun, and never returns."""

    def reset(self, **columns: Any) -> str:
        Path("begun").touch()
        while True:
            time.sleep(3600)

    def look(self) -> str:
        """Looks."""
        return "nothing"

    def get_reward(self) -> float:
        return 0.0


def misbehave(how: str) -> None:
    if how == "exit":
        sys.exit(0)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "cancel":
        raise asyncio.CancelledError
    if how == "group":
        raise BaseExceptionGroup("g", [SystemExit(3)])
    if how == "generator":
        raise GeneratorExit
    if how == "torch":
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(7)
        torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
    if how == "process":
        os.environ.clear()
        os.chdir("/")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        random.seed(0)
        np.random.seed(0)


def exits(episode: Any) -> float:
    """A term."""
    misbehave("exit" if episode.task.metadata["n"] == 1 else "good")
    return 0.5
