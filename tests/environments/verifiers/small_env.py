"""Environments of verifiers as their authors write them, of its own classes; it knows nothing of agentgrpo."""

from __future__ import annotations

import verifiers as vf
from datasets import Dataset


def length(completion, **kwargs) -> float:
    return min(1.0, len(completion[-1]["content"] or "") / 20)


def is_right(completion, answer, **kwargs) -> float:
    return float(answer in (completion[-1]["content"] or ""))


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def rows(numbers: range) -> Dataset:
    return Dataset.from_list([{"question": f"What is {i}+1?", "answer": str(i + 1)} for i in numbers])


def load_environment(tools: bool = False, held_out: int = 0):
    rubric = vf.Rubric(funcs=[length, is_right], weights=[1.0, 0.5])
    given = {"dataset": rows(range(12)), "rubric": rubric}
    if held_out:
        given["eval_dataset"] = rows(range(20, 20 + held_out))
    return vf.ToolEnv(tools=[add], max_turns=3, **given) if tools else vf.SingleTurnEnv(**given)
