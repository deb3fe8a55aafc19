"""Which renderer a tokenizer gets, and why one is refused."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from agentgrpo.core.errors import ConfigError
from agentgrpo.core.messages import ParsedTurn, ToolReply
from agentgrpo.core.types import ToolCall
from agentgrpo.renderers.chat import ChatRenderer
from agentgrpo.renderers.choose import NAMES, choose, choose_for_tools, recognise
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.renderers.tags import TagsRenderer
from tests.renderers.families import (
    CHATML,
    GEMMA,
    LLAMA3,
    MISTRAL,
    QWEN3,
    QWEN3_ADDED,
    SMOLLM2,
    SPECIAL,
    TOKENIZERS,
    build,
    family_of,
    tokenizer,
)


@pytest.mark.parametrize("name", [name for name in TOKENIZERS if family_of(name) not in ("react", "tags")])
def test_auto_recognises_the_family_by_its_template(name: str) -> None:
    family = recognise(tokenizer(name))
    assert family is not None
    assert family.name == family_of(name)
    assert isinstance(choose_for_tools("auto", tokenizer=tokenizer(name)), ChatRenderer)


def test_auto_is_react_without_a_known_template_and_plain_without_tools() -> None:
    other = build(SPECIAL["chatml"], eos="<|im_end|>", template="{{ messages[0].content }}")
    for unknown in (tokenizer("react"), other):
        assert recognise(unknown) is None
        assert isinstance(choose_for_tools("auto", tokenizer=unknown), ReactRenderer)
    assert isinstance(choose("auto", tokenizer=tokenizer("qwen3")), PlainRenderer)
    assert isinstance(choose("plain", tokenizer=tokenizer("qwen3")), PlainRenderer)
    assert isinstance(choose("qwen3", tokenizer=tokenizer("qwen3")), ChatRenderer)
    assert isinstance(choose_for_tools("react", tokenizer=tokenizer("qwen3")), ReactRenderer)
    assert isinstance(choose_for_tools("tags", tokenizer=tokenizer("qwen3")), TagsRenderer)


def test_unknown_names_and_plain_with_tools_are_refused() -> None:
    assert NAMES == ("auto", "plain", "react", "tags", "mistral", "llama3", "qwen3", "chatml", "chatml_fenced", "gemma")
    for choice in (choose, choose_for_tools):
        with pytest.raises(
            ConfigError, match=r"renderer 'lama3'; auto, plain, .* are allowed\. Did you mean 'llama3'\?"
        ):
            choice("lama3", tokenizer=tokenizer("react"))
    with pytest.raises(ConfigError, match="renderer 'plain' does not support tools; choose react"):
        choose_for_tools("plain", tokenizer=tokenizer("react"))


@pytest.mark.parametrize(
    "name, special, template, reason",
    [
        ("chatml", SPECIAL["gemma"], CHATML, "this tokenizer has no added tokens <|im_start|> <|im_end|>"),
        ("mistral", SPECIAL["mistral"], None, "this tokenizer has no chat template; choose react"),
        ("mistral", SPECIAL["chatml"], CHATML, "has no added tokens [INST] [/INST] [TOOL_CALLS]"),
        (
            "chatml",
            SPECIAL["chatml"],
            CHATML.replace("<tool_response>", "<result>"),
            'it writes \'ult>\\n"41"\\nprobe',
        ),
        ("chatml", SPECIAL["chatml"], CHATML.replace("<|im_start|>user", "<|im_start|>tool"), "where"),
        (
            "qwen3",
            SPECIAL["chatml"],
            QWEN3.replace('"arguments": ', '"args": '),
            "the chat template does not continue a",
        ),
        (
            "llama3",
            SPECIAL["llama3"],
            LLAMA3.replace("ipython<|end", "tool<|end"),
            "the chat template does not continue",
        ),
        ("gemma", SPECIAL["gemma"], GEMMA.replace("'<end_of_turn>\\n'", "'<end_of_turn>'"), "it writes"),
        ("chatml_fenced", SPECIAL["chatml"], SMOLLM2.replace("m.role +", "'says ' + m.role +"), "it writes"),
        ("mistral", SPECIAL["mistral"], MISTRAL.replace("[INST] ", "[INST]"), "it writes"),
    ],
)
def test_a_tokenizer_of_another_family_is_refused_in_one_line(
    name: str, special: tuple[str, ...], template: str | None, reason: str
) -> None:
    other = build(special, eos=special[2], added=QWEN3_ADDED, template=template)
    with pytest.raises(ConfigError) as caught:
        choose_for_tools(name, tokenizer=other)
    message = str(caught.value)
    assert message.startswith(f"renderer {name}: ")
    assert "choose" in message
    assert "\n" not in message
    assert reason in message


def test_variants_of_a_family_are_told_by_its_template() -> None:
    llama = {"special": SPECIAL["llama3"], "eos": "<|eot_id|>", "bos": "<|begin_of_text|>"}
    raw = LLAMA3.replace("m.content is iterable", "m.content is mapping")
    wrapped = LLAMA3.replace("{{ m.content | tojson }}", "{{ {'output': m.content} | tojson }}")
    assert appended("llama3", build(template=LLAMA3, **llama)).startswith(f'{IPYTHON}"4\\"1"<|eot_id|>')
    assert appended("llama3", build(template=raw, **llama)).startswith(f'{IPYTHON}4"1<|eot_id|>')
    assert appended("llama3", build(template=wrapped, **llama)).startswith(f'{IPYTHON}{{"output": "4\\"1"}}<|eot_id|>')
    mistral = {"special": SPECIAL["mistral"], "eos": "</s>", "bos": "<s>"}
    tight = MISTRAL.replace("[INST] ", "[INST]").replace("_CALLS] ", "_CALLS]").replace("_RESULTS] ", "_RESULTS]")
    results = '{"content": 4"1, "call_id": "probe0000"}[/TOOL_RESULTS]'
    assert appended("mistral", build(template=MISTRAL, **mistral)) == f"[TOOL_RESULTS] {results}"
    assert appended("mistral", build(template=tight, **mistral)) == f"[TOOL_RESULTS]{results}"


IPYTHON = "<|start_header_id|>ipython<|end_header_id|>\n\n"


def appended(name: str, tokenizer: PreTrainedTokenizerFast) -> str:
    speaks = choose_for_tools(name, tokenizer=tokenizer)
    call = ToolCall(name="lookup", arguments={}, id="probe0000")
    sampled = speaks.encode_action(speaks.write(ParsedTurn(calls=(call,))))
    return speaks.decode(speaks.reply([ToolReply(call=call, text='4"1')], sampled=sampled))
