"""A causal language model on this machine, as a judge's completer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgrpo.core.bounded import bounded
from agentgrpo.core.errors import ConfigError, JudgeError, boundary
from agentgrpo.core.types import Message
from agentgrpo.judges.llm.completer import Reply
from agentgrpo.models.loading import local_folder
from agentgrpo.training.remote_code import loaded


class LocalCompleter:
    """Decodes greedily, one prompt at a time, so that a reply does not depend on other prompts. The model is loaded at
    the first prompt and stays in memory; it is never trained."""

    def __init__(self, *, path: str, max_tokens: int = 256, device: str = "cpu", dtype: str = "float32") -> None:
        """path: a folder as transformers writes it, or the name of a model in its cache. max_tokens: maximum tokens of
        a reply."""
        if max_tokens < 1 or not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise ConfigError(
                f"judge.completer: max_tokens={max_tokens}, dtype={dtype}; 1 or more and a type such as float32 or "
                "bfloat16 are allowed"
            )
        self._folder = local_folder(path)
        if not self._folder.is_dir():
            raise ConfigError(f"judge.completer.path={path}: no such folder, and no model of that name in the cache")
        self.identity = f"{self._folder} {_state(self._folder)} {dtype} max_tokens={max_tokens}"
        self._max_tokens, self._device, self._dtype = max_tokens, device, dtype
        self._lock = threading.Lock()

    async def complete(self, messages: Sequence[Message], schema: Mapping[str, Any] | None = None) -> Reply:
        return await asyncio.to_thread(self._complete, messages)

    async def close(self) -> None:
        """Do nothing: memory is freed with the object."""

    @cached_property
    def _parts(self) -> tuple[Any, Any]:
        options: dict[str, Any] = {"local_files_only": True}
        with loaded(self._folder, "judge.completer.path", passing=(OSError,)):
            tokenizer = AutoTokenizer.from_pretrained(self._folder, trust_remote_code=False, **options)
            model = AutoModelForCausalLM.from_pretrained(
                self._folder, trust_remote_code=False, dtype=getattr(torch, self._dtype), **options
            )
        return tokenizer, model.to(self._device).eval().requires_grad_(False)

    def _complete(self, messages: Sequence[Message]) -> Reply:
        with self._lock, boundary(JudgeError, "judge model"), torch.inference_mode():
            tokenizer, model = self._parts
            ids = self._encode(tokenizer, messages)
            prompt = torch.tensor([ids], device=self._device)
            found = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                max_new_tokens=self._max_tokens,
                pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            )
            new = found[0, len(ids) :].tolist()
            text = tokenizer.decode(new, skip_special_tokens=True)
            return Reply(text=text, prompt_tokens=len(ids), completion_tokens=len(new))

    def _encode(self, tokenizer: Any, messages: Sequence[Message]) -> list[int]:
        """Token ids of the messages by the model's chat template, or as plain text if it has none. Control tokens in
        the judged text are broken already (judges.llm.prompt)."""
        if tokenizer.chat_template is None:
            text = "\n\n".join(f"{m.role}: {m.content}" for m in messages) + "\n\nassistant:"
            return list(tokenizer(text)["input_ids"])
        # Some templates have no system role, but all accept its text in front of the first message.
        system = "\n\n".join(m.content for m in messages if m.role == "system")
        first, *rest = [m for m in messages if m.role != "system"]
        chat = [{"role": first.role, "content": f"{system}\n\n{first.content}".strip()}]
        chat += [{"role": m.role, "content": m.content} for m in rest]
        write = partial(tokenizer.apply_chat_template, chat, add_generation_prompt=True, tokenize=False)
        text = bounded(write, "the judge model's chat template")
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _state(folder: Path) -> str:
    """A hash of the names, sizes and times of the model's files, whose content is not read."""
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("*.json"), *folder.glob("*.jinja")])
    return sha256(repr([(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]).encode()).hexdigest()[:16]
