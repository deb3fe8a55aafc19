"""The model card of a checkpoint: README.md beside its weights."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [agentgrpo, grpo, reinforcement-learning]
{base_model}---

# {task}, step {step}

A policy trained with GRPO by agentgrpo {version}: {step} steps on the task {task}, starting from {base}.

## Use

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "."  # the folder of this file
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder)
```

Beside an `adapter_config.json` these weights are a LoRA adapter: the package peft must be installed and the base model
be where that file says; `agentgrpo export --ckpt FOLDER --merge OUT` makes one model of both.

`agentgrpo eval --ckpt FOLDER` runs it as the agent it was trained as, on held-out tasks. The folder `trainer` and
`manifest.json` are for resuming the training; nothing else needs them.

## Metrics of the last step

{metrics}

## Configuration

```yaml
{config}
```
"""


def model_card(
    *,
    task: str,
    base: str,
    step: int,
    metrics: Mapping[str, float],
    config: Mapping[str, Any],
    version: str,
) -> str:
    """Markdown with the metadata block that model hubs read. A pure function: equal arguments, equal text.

    `base` is the model that training started from (a hub id is linked), `step` counts completed steps, `metrics` are
    the last step's tags, `config` is the run's unresolved configuration, `version` the toolkit's.
    """
    rows = "\n".join(f"| {_text(tag)} | {_number(metrics[tag])} |" for tag in sorted(metrics))
    return _CARD.format(
        base_model=f"base_model: {base}\n" if _HUB_ID.fullmatch(base) else "",
        task=_text(task),
        base=_text(base),
        step=step,
        version=version,
        metrics=f"| metric | value |\n|---|---:|\n{rows}" if rows else "None yet: these are the start weights.",
        config="\n".join(f"{key}: {json.dumps(value, default=str)}" for key, value in sorted(flatten(config).items())),
    )


def flatten(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"run": {"seed": 0}} -> {"run.seed": 0}; an empty mapping stays a value."""
    flat: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "not finite"


def _text(text: str) -> str:
    """`text` on one line, with markup escaped, since a task's name or a path may hold anything."""
    return re.sub(r"([\\|`*_<\[#])", r"\\\1", " ".join(text.split()))
