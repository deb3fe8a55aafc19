"""A model on this machine as a judge's completer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgrpo.config.build import build_node
from agentgrpo.core.errors import ConfigError, JudgeError
from agentgrpo.core.types import Message
from agentgrpo.judges.llm.judge import LLMJudge
from agentgrpo.models.completer import LocalCompleter
from tests.builders import task
from tests.engines import tiny

PROMPT = (Message(role="system", content="Grade."), Message(role="user", content="An answer."))
TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "[{{ m['role'] }}] {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.model("llama").save_pretrained(tmp_path)
    tiny.tokenizer().save_pretrained(tmp_path)
    return tmp_path


def greedy(text: str, num_tokens: int) -> list[int]:
    """What the model says after `text`, one forward pass a token."""
    ids = tiny.encode(text)
    model = tiny.model("llama").eval()
    for _ in range(num_tokens):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == tiny.EOS:
            break
    return ids[len(tiny.encode(text)) :]


@pytest.mark.parametrize("template", [None, TEMPLATE])
async def test_it_says_what_is_likeliest_after_the_prompt(folder: Path, template: str | None) -> None:
    tokenizer = tiny.tokenizer()
    text = "system: Grade.\n\nuser: An answer.\n\nassistant:"
    if template:
        (folder / "chat_template.jinja").write_text(template)
        text = "[user] Grade.\n\nAn answer. [assistant]"
    reply = await LocalCompleter(path=str(folder), max_tokens=6).complete(PROMPT)
    new = greedy(text, 6)
    assert reply.text == tokenizer.decode(new, skip_special_tokens=True)
    assert (reply.prompt_tokens, reply.completion_tokens) == (len(tiny.encode(text)), len(new))


async def test_the_model_is_loaded_once_and_reads_one_prompt_at_a_time(folder: Path) -> None:
    class Watched(LocalCompleter):
        live = most = 0

        def _encode(self, tokenizer: Any, messages: Sequence[Message]) -> list[int]:
            self.live += 1
            self.most = max(self.most, self.live)
            time.sleep(0.02)
            self.live -= 1
            return super()._encode(tokenizer, messages)

    completer = Watched(path=str(folder), max_tokens=1)
    await asyncio.gather(*(completer.complete(PROMPT) for _ in range(5)))
    assert completer.most == 1


async def test_many_at_once_say_the_same_as_one_after_the_other(folder: Path) -> None:
    completer = LocalCompleter(path=str(folder), max_tokens=5)
    prompts = [(PROMPT[0], Message(role="user", content=f"answer {n}" * n)) for n in range(1, 6)]
    alone = [await completer.complete(p) for p in prompts]
    assert await asyncio.gather(*(completer.complete(p) for p in reversed(prompts))) == alone[::-1]
    await completer.close()


async def test_a_model_that_cannot_grade_is_an_error_and_no_grade(folder: Path) -> None:
    judge = build_node("judge", {"name": "llm", "completer": {"name": "local", "path": str(folder), "max_tokens": 3}})
    assert isinstance(judge, LLMJudge)
    with pytest.raises(JudgeError, match="the judge model gave no verdict") as raised:
        await judge.grade(task(), ["Castin"])
    assert raised.value.kind == "bad_verdict"


async def test_a_model_that_cannot_be_loaded_is_a_judge_error(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(JudgeError, match="judge model: OSError: "):
        await LocalCompleter(path=str(folder)).complete(PROMPT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "no/such/folder"}, "judge.completer.path=no/such/folder: no such folder, and no model of that name"),
        ({"path": ".", "max_tokens": 0}, "max_tokens=0, dtype=float32; 1 or more"),
        ({"path": ".", "dtype": "float33"}, "dtype=float33"),
        ({"path": ".", "dtype": "nn"}, "dtype=nn"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LocalCompleter(**settings)  # type: ignore[arg-type]


def test_what_says_which_model_it_is(folder: Path) -> None:
    same = LocalCompleter(path=str(folder)), LocalCompleter(path=f"{folder}/")
    assert same[0].identity == same[1].identity
    assert LocalCompleter(path=str(folder), max_tokens=3).identity != same[0].identity
    tiny.model("llama", seed=1).save_pretrained(folder)
    assert LocalCompleter(path=str(folder)).identity != same[0].identity
