"""The text between turns: the renderer must only append, and must parse the calls and answers it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

from agentgrpo.config.build import takes
from agentgrpo.core.bounded import bounded
from agentgrpo.core.messages import MalformedCall, ParsedTurn, ToolReply, ToolSpec
from agentgrpo.core.types import ToolCall
from agentgrpo.environments.memory.options import MemoryOptions, schema_of
from agentgrpo.environments.search.grammar import AnswerAction, SearchAction
from agentgrpo.environments.search.options import SearchOptions
from agentgrpo.preflight.doctor.case import Case
from agentgrpo.preflight.doctor.examples import TEXTS, arguments_of
from agentgrpo.preflight.doctor.finding import CheckNotes, Skipped
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.renderers.chat import ChatRenderer, function

TURNS = 4
REPLY = 'a result, "quoted"\nin two lines'
_KEY = "model.renderer"


def specs_of(case: Case) -> Sequence[ToolSpec]:
    """Tools that the policy may call; empty for an agent that calls no tools through the renderer."""
    built, chosen = case.built, case.config["environment"]
    if takes("environment", chosen, "schema"):
        return schema_of(chosen.get("schema", MemoryOptions.schema)).specs
    if takes("environment", chosen, "tools"):
        return tuple(tool.spec for tool in built.equipment.for_environment["tools"].values())
    return ()


async def look_at_template(case: Case, found: CheckNotes) -> None:
    """A conversation of several turns: rendering a later message must not change earlier ones."""
    built = case.built
    task = built.dataset.split("train")[0]
    renderer, specs = built.renderer, specs_of(case)
    if renderer.open(task.messages) != renderer.open(task.messages):
        found.problem(
            "the same messages are opened with other tokens each time",
            why="the samples of a group would not share their prompt, and no episode could be replayed",
            key=_KEY,
        )
    found.facts["renderer"] = type(renderer).__name__
    found.facts["opening tokens"] = len(renderer.open(task.messages))
    if not built.policy.tokenizer.chat_template:
        found.facts["chat template"] = "none"
        return
    texts = _by_template(built.policy.tokenizer, specs, found)
    _prefixes(texts, found)
    if texts and specs and isinstance(renderer, ChatRenderer):
        _same(texts[-1], _by_renderer(renderer, specs), found)


def _call(spec: ToolSpec, turn: int) -> ToolCall:
    return ToolCall(name=spec.name, arguments=arguments_of(spec.parameters), id=f"probe{turn:04d}")


def _messages(tokenizer: Any, specs: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """A question, alternating calls and results, an answer, and a second question with its answer."""
    thought = "<think>\nprobe\n</think>\n\n" if "think>" in str(tokenizer.chat_template) else ""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "probe"}]
    for turn, spec in enumerate(list(specs) * TURNS):
        if turn == TURNS:
            break
        call = _call(spec, turn)
        made = {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments)}}
        messages.append({"role": "assistant", "content": thought, "tool_calls": [made]})
        messages.append({"role": "tool", "name": call.name, "tool_call_id": call.id, "content": REPLY})
    messages.append({"role": "assistant", "content": f"{thought}probe"})
    again = [{"role": "user", "content": "probe again"}, {"role": "assistant", "content": f"{thought}probe"}]
    return [*messages, *again]


def _by_template(tokenizer: Any, specs: Sequence[ToolSpec], found: CheckNotes) -> list[str]:
    """The text of the conversation after each message, as the model's own chat template writes it; empty if the
    template refuses the conversation."""
    messages = _messages(tokenizer, specs)
    tools = [function(spec) for spec in specs] or None
    try:
        write = partial(tokenizer.apply_chat_template, tools=tools, tokenize=False)
        made = bounded(
            lambda: json.dumps([write(messages[: n + 1]) for n in range(len(messages))]), "the chat template"
        )
        texts = [str(text) for text in json.loads(made)]
    except Exception as error:  # chat templates raise arbitrary exceptions
        found.facts["chat template"] = f"refuses calls and results: {' '.join(str(error).split())[:200]}"
        return []
    found.facts["chat template"] = f"{len(messages)} messages rendered"
    return texts


def _prefixes(texts: Sequence[str], found: CheckNotes) -> None:
    for n, (before, after) in enumerate(pairwise(texts)):
        if not after.startswith(before):
            at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
            found.note(
                f"the model's chat template rewrites history: with message {n + 2} it changes what message {n + 1} "
                f"ended with, from {before[max(0, at - 20) : at + 40]!r} to {after[max(0, at - 20) : at + 40]!r}",
                why="here turns are appended and never rendered again, so that training is exact; a server that "
                "renders the conversation anew shows the model other tokens than it was trained on",
                key=_KEY,
            )
            return


def _by_renderer(renderer: ChatRenderer, specs: Sequence[ToolSpec]) -> str:
    """The end of the same conversation, from the first turn on, as our renderer appends it."""
    ids: list[int] = []
    for turn, spec in enumerate((list(specs) * TURNS)[:TURNS]):
        call = _call(spec, turn)
        said = renderer.encode_action(renderer.write(ParsedTurn(calls=(call,))))
        ids += [*said, *renderer.reply([ToolReply(call=call, text=REPLY)], sampled=said)]
    return renderer.decode(ids)


def _same(theirs: str, ours: str, found: CheckNotes) -> None:
    """Only a fact, not a finding: reasoning, and text that the template drops, make the two differ without harm."""
    found.facts["continues as the template does"] = ours.strip() in theirs


async def look_at_parser(case: Case, found: CheckNotes) -> None:
    """Calls and answers, written as a policy would sample them and parsed again."""
    renderer, specs = case.built.renderer, specs_of(case)
    environment = case.built.runner.environment
    if isinstance(environment, SearchOptions):
        _read_searches(environment, case, found)
        return
    if not (specs and hasattr(renderer, "parse")):
        raise Skipped("the policy calls nothing by name")
    speaker = cast(ToolRenderer, renderer)
    turns = [
        ParsedTurn(calls=(ToolCall(name=spec.name, arguments=arguments_of(spec.parameters, variant)),))
        for spec in specs
        for variant in range(len(TEXTS))
    ]
    lost = [turn for turn in turns if not _comes_back(speaker, turn)]
    found.facts |= {"calls": len(turns), "lost": len(lost)}
    if lost:
        read = speaker.parse(speaker.encode_action(speaker.write(lost[0])))
        found.problem(
            f"{len(lost)} of {len(turns)} calls are not read as they were written; the first: "
            f"{_shown(lost[0])} comes back as {_shown(read)}",
            why="tools would be called with other arguments than the policy gave, and it would be graded by that",
            key=_KEY,
        )
    if not takes("environment", case.config["environment"], "schema"):
        _read_answer(speaker, found)


def _comes_back(renderer: ToolRenderer, turn: ParsedTurn) -> bool:
    read = renderer.parse(renderer.encode_action(renderer.write(turn)))
    if len(read.calls) != len(turn.calls):
        return False
    pairs = zip(read.calls, turn.calls, strict=True)
    return all(
        isinstance(a, ToolCall) and isinstance(b, ToolCall) and a.name == b.name and a.arguments == b.arguments
        for a, b in pairs
    )


def _read_answer(renderer: ToolRenderer, found: CheckNotes) -> None:
    for answer in TEXTS:
        read = renderer.parse(renderer.encode_action(renderer.write(ParsedTurn(answer=answer))))
        if read.answer != answer:
            found.problem(
                f"the answer {answer!r} comes back as {read.answer!r}",
                why="what is graded is not what the policy wrote",
                key=_KEY,
            )
            return


def _read_searches(environment: SearchOptions, case: Case, found: CheckNotes) -> None:
    """A query and an answer in the agent's own tags."""
    tags, renderer = environment.planner.tags, case.built.renderer
    for tag, name in (("search", tags.search), ("answer", tags.answer)):
        ids = renderer.encode_action(f"<{name}>probe 1</{name}>")
        action = environment.planner.parse(renderer.decode(ids)).action
        texts = [q.text for q in action.queries] if isinstance(action, SearchAction) else []
        texts += [action.text] if isinstance(action, AnswerAction) else []
        if texts != ["probe 1"]:
            found.problem(
                f"<{name}>probe 1</{name}> is read as {action}",
                why=f"no {tag} of the policy would be understood",
                key="environment.tags",
            )
    found.facts["calls"] = 2


def _shown(turn: ParsedTurn) -> str:
    if not turn.calls:
        return f"no call ({turn.answer or turn.content!r})"
    call = turn.calls[0]
    if isinstance(call, MalformedCall):
        return f"a malformed call ({call.problem})"
    return f"{call.name}({', '.join(f'{k}={v!r}' for k, v in call.arguments.items())})"
