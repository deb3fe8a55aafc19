"""Search-R1's questions (Jin et al. 2025, arXiv 2503.09516), as parquet or JSON lines, and FlashRAG's, which they are
made from:

    {"id": "train_0", "question": "...", "golden_answers": ["...", ...], "data_source": "nq",
     "prompt": [{"role": "user", "content": "INSTRUCTIONS Question: ..."}], "ability": "fact-reasoning",
     "reward_model": {"style": "rule", "ground_truth": {"target": ["...", ...]}},
     "extra_info": {"split": "train", "index": 0}}

The prompt's instructions are for another agent's tags: where there is no "question", what follows its last "Question:"
is the question. `extra_info.split` is believed of dev and test; training rows may be dealt to dev.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentgrpo.tasks.questions.entry import Entry
from agentgrpo.tasks.records import Node, shown

_MARK = "Question:"
_HELD_OUT = {"test": "test", "dev": "dev", "validation": "dev", "val": "dev"}


def search_r1(node: Node) -> Iterator[Entry]:
    source = node.optional_text("data_source")
    extra = node.get("extra_info") if node.has("extra_info") else None
    own = node.optional_text("id") or (extra.optional_text("index") if extra else "")
    said = extra.optional_text("split") if extra else ""
    yield Entry(
        where=node.where,
        id=f"{source}-{own}" if source and own else own,
        question=node.text("question") if node.has("question") else _asked(node),
        answers=_answers(node),
        data_source=source,
        split=_HELD_OUT.get(said),
        metadata=_kind(node),
    )


def _answers(node: Node) -> tuple[str, ...]:
    if node.object().get("golden_answers"):
        return node.answers("golden_answers")
    if not node.has("reward_model"):
        return ()
    truth = node.get("reward_model").get("ground_truth")
    if isinstance(truth.value, dict):
        return truth.answers("target") if truth.object().get("target") else ()
    return node.get("reward_model").answers("ground_truth") if truth.value else ()


def _kind(node: Node) -> dict[str, Any]:
    """What FlashRAG keeps of HotpotQA and the like."""
    given = node.object().get("metadata")
    return {k: given[k] for k in ("type", "level") if given.get(k) is not None} if isinstance(given, dict) else {}


def _asked(node: Node) -> str:
    prompt = node.get("prompt")
    if isinstance(prompt.value, str):
        text = prompt.value
    else:
        users = [m.optional_text("content") for m in prompt.elements() if m.object().get("role") == "user"]
        text = users[-1] if users else ""
    question = text.rpartition(_MARK)[2].strip()
    if not question:
        prompt.refuse(f"{shown(text)}; a user message that asks something is needed, or a key 'question'")
    return question
