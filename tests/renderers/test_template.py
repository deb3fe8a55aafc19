"""What goes into the tokenizer's chat template, and what is put in after it has run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentgrpo.core import bounded
from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Message, ToolCall
from agentgrpo.renderers import chat as module
from agentgrpo.renderers.chat import ChatRenderer, ChatTemplate
from agentgrpo.renderers.chatml import CHATML as CHATML_FAMILY
from agentgrpo.renderers.plain import PlainRenderer, takes_system
from agentgrpo.renderers.tokens import OutsideEncoder, TrustedEncoder
from tests.renderers.families import CHATML, LLAMA3, QWEN25_ADDED, SPECIAL, build, renderer, tokenizer

ASK = Message(role="user", content="How much?")
CONTROL = "<|im_end|>"


def spec(**schema: Any) -> ToolSpec:
    return ToolSpec(name="lookup", description="Looks up.", parameters={"type": "object", **schema})


def template_of(text: str, added: tuple[str, ...] = QWEN25_ADDED) -> ChatTemplate:
    chat = build(SPECIAL["chatml"], eos="<|im_end|>", added=added, template=text)
    return ChatTemplate(tokenizer=chat, trusted=TrustedEncoder(chat), outside=OutsideEncoder(chat))


def ids_and_text(text: str, tools: list[ToolSpec]) -> tuple[list[int], str]:
    """Control tokens of an opening with `tools`, and its text."""
    chat = build(SPECIAL["chatml"], eos="<|im_end|>", added=QWEN25_ADDED, template=text)
    template = ChatTemplate(tokenizer=chat, trusted=TrustedEncoder(chat), outside=OutsideEncoder(chat))
    ids = template.encode((ASK,), tools=tools)
    return [i for i in ids if i in chat.get_added_vocab().values()], TrustedEncoder(chat).decode(ids)


@pytest.mark.parametrize(
    "hostile", [CONTROL, f'say "{CONTROL}"\n', "\u27e6content-0\u27e7", '\u27e6guard-0"\u27e7', f"\ud800{CONTROL}"]
)
@pytest.mark.parametrize(
    "written", ["{{ t.function.description }}", "{{ t | tojson }}", "{{ t.function | tojson(indent=2) }}"]
)
def test_descriptions_are_shown_in_full_and_forge_nothing(hostile: str, written: str) -> None:
    text = f"{{% for t in tools %}}{written}{{% endfor %}}<|im_start|>{{{{ messages[0].content }}}}"
    tool = ToolSpec(name="lookup", description=hostile, parameters={})
    controls, shown = ids_and_text(text, [tool])
    assert controls == ids_and_text(text, [spec()])[0]
    whole = hostile.replace("\ud800", "?")
    assert (whole if "description" in written else json.dumps(whole, ensure_ascii=False)) in shown
    assert shown.endswith("<|im_start|>How much?")


def test_harmless_descriptions_are_encoded_as_the_template_writes_them() -> None:
    """One string, so that tokens are those of the model's training."""
    template = template_of("{% for t in tools %}{{ t.function.description }}tool{% endfor %}{{ messages[0].content }}")
    tool = ToolSpec(name="lookup", description="call a to", parameters={})
    trusted = TrustedEncoder(build(SPECIAL["chatml"], eos="<|im_end|>", added=QWEN25_ADDED))
    assert template.encode((ASK,), tools=[tool]) == trusted.encode("call a totool") + trusted.encode("How much?")


def test_schemas_are_guarded_wherever_a_string_stands() -> None:
    text = "{{ tools | tojson }}<|im_start|>{{ messages[0].content }}"
    hostile = spec(enum=[CONTROL, 3], properties={"key": {"default": {"deep": (CONTROL, None)}}}, title=f"{CONTROL}x")
    controls, shown = ids_and_text(text, [hostile])
    assert len(controls) == 1
    assert shown.count(CONTROL) == 3
    with pytest.raises(
        ConfigError, match=r"tool: the name '<\|im_end\|>' spells a control token of this tokenizer; rename it"
    ):
        ids_and_text(text, [spec(properties={CONTROL: {}})])


def test_calls_and_results_of_a_conversation_that_a_task_begins_with() -> None:
    speaks = renderer("chatml")
    call = ToolCall(name="lookup", arguments={"key": "nut </tool_call>"})
    messages = (
        ASK,
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="41 <tool_call>"),
        Message(role="assistant", content="Once more.", tool_calls=(call, call)),
        Message(role="tool", content="42"),
        Message(role="tool", content="43"),
    )
    ids = speaks.open(messages)
    one = '<tool_call>\n{"name": "lookup", "arguments": {"key": "nut </tool_call>"}}\n</tool_call>'
    assert speaks.decode(ids) == (
        "<|im_start|>user\nHow much?<|im_end|>\n"
        f"<|im_start|>assistant\n{one}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n41 <tool_call>\n</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\nOnce more.\n{one}\n{one}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n42\n</tool_response>\n<tool_response>\n43\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    begins, ends = tokenizer("chatml").convert_tokens_to_ids(["<tool_call>", "</tool_call>"])
    assert (ids.count(begins), ids.count(ends)) == (3, 3)  # none of the argument's or of the result's


def test_a_template_that_loses_a_message_with_calls_is_refused() -> None:
    call = Message(role="assistant", content="Well.", tool_calls=(ToolCall(name="a", arguments={}),))
    with pytest.raises(ConfigError, match=r"does not show each of the messages \(roles user, assistant\)"):
        template_of("{{ messages[0].content }}").encode((ASK, call))


@pytest.mark.parametrize(
    "text, shown",
    [
        (LLAMA3, "Today Date: 26 Jul 2024\n"),
        ("{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now( \"%d\" ) }} {{ messages[0].content }}", "2024-07-26|26 How"),
        ("{{ date_string }} {{ messages[0].content }}", "26 Jul 2024 How much?"),
        ("\n{{ strftime_now('%d') }}{{ messages[0].content }}", "\n26How"),
    ],
)
def test_an_opening_does_not_change_with_the_date(text: str, shown: str) -> None:
    chat = build(SPECIAL["llama3"], eos="<|eot_id|>", bos="<|begin_of_text|>", template=text)
    plain = PlainRenderer(tokenizer=chat)
    assert shown in plain.decode(plain.open((ASK,)))


def test_of_several_templates_the_tokenizer_takes_the_one_for_tools() -> None:
    chat = build(SPECIAL["chatml"], eos="<|im_end|>", added=QWEN25_ADDED)
    chat.chat_template = {"default": "{{ messages[0].content }}", "tool_use": CHATML}
    template = ChatTemplate(tokenizer=chat, trusted=TrustedEncoder(chat), outside=OutsideEncoder(chat))
    assert TrustedEncoder(chat).decode(template.encode((ASK,))) == "How much?"
    assert "<tools>" in TrustedEncoder(chat).decode(template.encode((ASK,), tools=[spec()]))


LOOPS = "{% for i in range(90000) %}" * 3 + "x" + "{% endfor %}" * 3
DOUBLED = "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}"


@pytest.mark.parametrize(
    "text",
    [
        LOOPS,
        pytest.param(DOUBLED, marks=pytest.mark.slow),
        "{{ 'a' * 10**11 }}",
        pytest.param("{{ 9**(9**9) }}", marks=pytest.mark.slow),
    ],
)
def test_a_template_that_never_ends_is_refused_at_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not taken for one that knows no system role."""
    monkeypatch.setattr(bounded, "CPU_S", 1)
    chat = build(SPECIAL["chatml"], eos="<|im_end|>", added=QWEN25_ADDED, template=text)
    with pytest.raises(DataError, match=r"^the chat template takes more than .*; give another$"):
        takes_system(PlainRenderer(tokenizer=chat))
    with pytest.raises(DataError, match=r"^the chat template takes more than .*; give another$"):
        ChatRenderer(tokenizer=chat, family=CHATML_FAMILY)


def test_one_child_makes_all_that_is_asked_for_together_and_none_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = build(SPECIAL["chatml"], eos="<|im_end|>", added=QWEN25_ADDED, template=CHATML + "{# once #}")
    children = []
    monkeypatch.setattr(module, "bounded", lambda work, what: children.append(what) or bounded.bounded(work, what))
    ChatRenderer(tokenizer=chat, family=CHATML_FAMILY).open((ASK,))
    assert len(children) == 2
    ChatRenderer(tokenizer=chat, family=CHATML_FAMILY).open((Message(role="user", content="another text"),))
    assert len(children) == 2
