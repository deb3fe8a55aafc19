"""Questions and scores of reasoning-gym; imported only in a separate process."""

from __future__ import annotations

import dataclasses
import json
from functools import lru_cache
from typing import Any

from reasoning_gym.dataset import ProceduralDataset
from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum

from agentgrpo.core.errors import did_you_mean
from agentgrpo.core.numbers import number

_OURS = ("seed", "size")


def rows(*, dataset: dict[str, Any], seed: int, size: int) -> str:
    """Return the JSON of [question, answer or null] for every entry."""
    made = _dataset(json.dumps(dataset), seed, size)
    entries = (made[index] for index in range(size))
    return json.dumps([[str(e["question"]), None if e["answer"] is None else str(e["answer"])] for e in entries])


def score(*, dataset: dict[str, Any], seed: int, size: int, index: int, question: str, answer: str) -> str:
    """Return the JSON of [score from the data set's own score_answer, true]; [0.0, false] if score_answer raises."""
    spec = json.dumps(dataset)
    made, entry = _dataset(spec, seed, size), _entry(spec, seed, size, index)
    if entry["question"] != question:
        raise LookupError(f"{dataset['name']} asks a different question for this seed than when the run began")
    try:
        return json.dumps([number(made.score_answer(answer, entry), dataset["name"]), True])
    except Exception:  # score_answer cannot read the policy's answer
        return json.dumps([0.0, False])


@lru_cache(4096)
def _entry(spec: str, seed: int, size: int, index: int) -> dict[str, Any]:
    entry: dict[str, Any] = _dataset(spec, seed, size)[index]
    return entry


@lru_cache(64)
def _dataset(spec: str, seed: int, size: int) -> ProceduralDataset:
    """Raises ValueError for an unknown name or setting."""
    given = json.loads(spec)
    name, settings, level = given["name"], given["settings"], given["level"]
    if name not in DATASETS:
        listed = "python -c 'from reasoning_gym.factory import DATASETS; print(*DATASETS)'"  # too many for one line
        raise ValueError(f"unknown data set; {listed} lists all.{did_you_mean(name, DATASETS)}")
    kind, config_kind = DATASETS[name]
    allowed = [f.name for f in dataclasses.fields(config_kind) if f.name not in _OURS]
    for key in settings:
        if key not in allowed:
            raise ValueError(f"settings.{key}; {name} takes {', '.join(allowed)}.{did_you_mean(key, allowed)}")
    ours = {"seed": seed, "size": size}
    if level is None:
        return kind(config=config_kind(**settings, **ours))
    if not has_curriculum(name):
        raise ValueError(f"level {level}; {name} has no curriculum: leave environment.level out")
    curriculum = create_curriculum(name)
    curriculum.set_global_level(level)
    return kind(config=dataclasses.replace(curriculum.generate_configuration(ours), **settings))
