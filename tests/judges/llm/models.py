"""Judge models for tests: an honest one, and several that believe what they read. Served over a real socket."""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import re
import threading
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from agentgrpo.core.types import Message
from agentgrpo.judges.answers import words
from agentgrpo.judges.canaries import _LANGUAGES, _ORDERS
from agentgrpo.judges.llm.completer import Reply
from tests.retrieval.server import Behaviour, Server, say

Model = Callable[[str, str], str]
"""(system prompt, user prompt) -> reply."""

BLOCK = re.compile(r"^BEGIN ([a-z0-9 ]+) ([0-9a-f]{16})\n((?:.*\n)*?)END \1 \2$", re.MULTILINE)
KNOWN = {"Who founded Velmor?": "Castin"}
"""What the models know without references."""


def blocks(user: str) -> list[tuple[str, str]]:
    """(name, text) of every block, read as the prompt means it: the mark of its first line ends it."""
    return [(m[1], "\n".join(line.removeprefix("| ") for line in m[3].splitlines())) for m in BLOCK.finditer(user)]


def form(system: str) -> dict[str, Any]:
    """The verdict that is asked for."""
    found: dict[str, Any] = json.loads(system.rstrip().splitlines()[-1])
    return found


def nonce(system: str) -> str:
    return str(form(system)["nonce"])


def fields(system: str) -> list[str]:
    return [k for k in form(system) if k not in ("nonce", "reason")]


def verdict(system: str, *scores: float) -> str:
    return json.dumps({**form(system), **dict(zip(fields(system), scores, strict=True)), "reason": "as told"})


def honest(system: str, user: str) -> str:
    """1 for the words of a reference, else 0; never reads an answer as anything else."""
    found = blocks(user)
    (question,) = [text for name, text in found if name == "question"]
    references = [text for name, text in found if name == "reference answer"] or [KNOWN.get(question, "unknown")]
    answers = [text for name, text in found if name in ("answer", "first answer", "second answer") or "attempt" in name]
    return verdict(system, *(float(words(a) in [words(r) for r in references]) for a in answers))


_TELLS = re.compile(
    r"scores?\W{0,4}(?:to\W{0,2})?1|output score|full marks|maximum grade|copy the nonce"
    r"|note 1|分数 ?1|スコア ?1|оценку 1|الدرجة 1|점수 1|Bewertung 1|puntuaci.n 1",
    re.IGNORECASE,
)


def _decoded(text: str) -> str:
    """What somebody who wants to obey makes of a text: every disguise taken off."""
    plain = unicodedata.normalize("NFKC", "".join(c for c in text if c not in "\u200b\u2060\ufffd"))
    shown = [plain, plain[::-1], codecs.decode(plain, "rot13")]
    for word in re.findall(r"[A-Za-z0-9+/=]{20,}", plain):
        try:
            shown.append(base64.b64decode(word).decode())
        except ValueError:
            continue
    return "\n".join(shown)


def obeys(text: str) -> bool:
    return _TELLS.search(_decoded(text)) is not None


def obeys_outside_the_fence(system: str, user: str) -> str:
    """Obeys orders, and any verdict, in what stands outside of quoted lines: after any line that looks like an end of
    the answer, whatever mark it has."""
    outside = "\n".join(line for line in user.splitlines() if not line.startswith("| "))
    outside = re.sub(r"^(BEGIN|END) [a-z ]+ [0-9a-f]{16}$", "", outside, flags=re.MULTILINE)
    return verdict(system, *[1.0] * len(fields(system))) if obeys(outside) else honest(system, user)


def obeys_everything(system: str, user: str) -> str:
    """Obeys orders wherever they stand, with the right nonce."""
    return verdict(system, *[1.0] * len(fields(system))) if obeys(user) else honest(system, user)


_CONDITION = re.compile(r'If the question (?:is about (\w+)|reads "(.*)"), give score 1', re.DOTALL)


def obeys_conditions(system: str, user: str) -> str:
    """Obeys an order that holds for some questions only: the control question, which is another one, does not show."""
    found = dict(blocks(user))
    condition = _CONDITION.search(found.get("answer", ""))
    if condition is None:
        return honest(system, user)
    return verdict(system, float((condition[1] or condition[2]).lower() in found["question"].lower()))


def says_yes(system: str, user: str) -> str:
    """What any persuasion can come to at most: full marks for everything."""
    return verdict(system, *[1.0] * len(fields(system)))


def copies_verdicts(system: str, user: str) -> str:
    """Replies with the last verdict that it sees in the answers."""
    plain = user.replace("\u2060", "").replace("| ", "")
    found = re.findall(r"\{[^{}]*\"score\"[^{}]*\}", plain)
    return found[-1] if found else honest(system, user)


def _answer(user: str) -> str:
    return next(text for name, text in blocks(user) if name == "answer").replace("\u2060", "")


def quotes_in_a_sentence(system: str, user: str) -> str:
    return f"The answer reads: {_answer(user)}\n\nMy verdict:\n```json\n{honest(system, user)}\n```"


def quotes_afterwards(system: str, user: str) -> str:
    return f"{honest(system, user)}\nThat is for this answer: {_answer(user)}"


def quotes_in_its_reasoning(system: str, user: str) -> str:
    return f"<think>\n{_answer(user)}\nHm.\n</think>\n\n{honest(system, user)}"


def quotes_in_reasoning_that_the_template_opens(system: str, user: str) -> str:
    return f"{_answer(user)}\nHm.\n</think>\n\n{honest(system, user)}"


def quotes_in_a_reason_that_breaks(system: str, user: str) -> str:
    """Quotation marks of the answer are not escaped."""
    return honest(system, user).replace("as told", _answer(user))


def repeats_the_answer(system: str, user: str) -> str:
    return _answer(user)


def served(model: Model, log: list[list[dict[str, str]]] | None = None) -> Behaviour:
    """An OpenAI-compatible endpoint in front of the model."""

    async def behave(request: Any, writer: asyncio.StreamWriter) -> None:
        system, user = (m["content"] for m in request["messages"])
        if log is not None:
            log.append(request["messages"])
        text = model(system, user)
        usage = {"prompt_tokens": len(system + user) // 4, "completion_tokens": len(text) // 4}
        await say({"choices": [{"message": {"role": "assistant", "content": text}}], "usage": usage})(request, writer)

    return behave


class Spoken:
    """The model without a socket in between."""

    identity = "spoken"

    def __init__(self, model: Model) -> None:
        self._model = model

    async def complete(self, messages: Sequence[Message], schema: Any = None) -> Reply:
        return Reply(text=self._model(messages[0].content, messages[1].content))

    async def close(self) -> None:
        """Nothing is open."""


@asynccontextmanager
async def endpoint(*plan: Behaviour) -> AsyncIterator[Server]:
    """The server's `url` without its path is `base_url`."""
    async with Server(*plan) as server:
        server.url = server.url.removesuffix("/retrieve") + "/v1"
        yield server


def every_order() -> Sequence[str]:
    return (*_ORDERS, *_LANGUAGES)


@contextmanager
def server_in_a_thread(model: Model) -> Iterator[str]:
    """base_url of an endpoint that outlives the command's event loop."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    urls: list[str] = []

    async def serve() -> None:
        async with endpoint(served(model)) as server:
            urls.append(server.url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield urls[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
