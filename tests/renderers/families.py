"""A small byte-level tokenizer for each family, with the family's control tokens and a chat template in its style.

Nothing is downloaded: every byte is a token, a few words are merged, and the templates are written here. They do what
the published ones do where that matters to a renderer: where tools stand, how calls and results are written, what is
refused, and what is rewritten when a conversation is rendered again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from agentgrpo.core.messages import ToolSpec
from agentgrpo.renderers.base import ToolRenderer
from agentgrpo.renderers.chat import ChatRenderer
from agentgrpo.renderers.choose import FAMILIES
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.renderers.tags import TagsRenderer
from agentgrpo.renderers.train_tokenizer import digits_and_plurals, train_tokenizer

_MERGES = [
    ("t", "o"),
    ("o", "l"),
    ("to", "ol"),
    ("c", "a"),
    ("ca", "l"),
    ("cal", "l"),
    ("<", "|"),
    ("|", ">"),
    ("<", "/"),
]

_TOOLS = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}
    {{- '# Tools\\n\\n<tools>' }}{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}
    {{- '\\n</tools>\\n\\nCall as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
"""
_USERS = """\
{%- for m in messages %}
    {%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {%- set content = m.content %}
        {{- '<|im_start|>assistant\\n' }}
"""
_CALLS_AND_RESULTS = """\
        {{- content }}
        {%- for call in m.tool_calls or [] %}
            {%- if not loop.first or content %}{{ '\\n' }}{% endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
CHATML = _TOOLS + _USERS + _CALLS_AND_RESULTS
# the reasoning of turns before the last user message is stripped; that of later ones is written into a block, and the
# last one is given an empty block where it has none
QWEN3 = (
    _TOOLS
    + """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
"""
    + _USERS
    + """\
        {%- set thoughts = '' %}
        {%- if '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (thoughts or loop.last) %}
            {{- '<think>\\n' + thoughts + '\\n</think>\\n\\n' }}
        {%- endif %}
"""
    + _CALLS_AND_RESULTS
)
# as the "Thinking" models': the block is opened for the policy
QWEN3_OPEN = QWEN3.replace(
    "{{ '<|im_start|>assistant\\n' }}{% endif %}", "{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"
)
LLAMA3 = """\
{{- bos_token }}
{%- if strftime_now is defined %}{% set today = strftime_now('%d %b %Y') %}{% else %}{% set today = '?' %}{% endif %}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{ 'Environment: ipython\\n' }}{% endif %}
{{- 'Today Date: ' + today + '\\n\\n' + system + '<|eot_id|>' }}
{%- if tools %}
    {%- set asked = messages[0].content | trim %}{% set messages = messages[1:] %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\nAnswer with {"name": ..., "parameters": ...}.\\n\\n' }}
    {%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ '\\n\\n' }}{% endfor %}
    {{- asked + '<|eot_id|>' }}
{%- endif %}
{%- for m in messages %}
    {%- if 'tool_calls' in m %}
        {%- if m.tool_calls | length != 1 %}{{ raise_exception('only single tool-calls at once') }}{% endif %}
        {%- set call = m.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{ '}<|eot_id|>' }}
    {%- elif m.role == 'tool' %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if m.content is iterable %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}
        {{- '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""
# the tools stand before the last user message: they move when another one follows
MISTRAL = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content + '\\n\\n' %}{% set messages = messages[1:] %}
{%- else %}{% set system = '' %}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- if tools and loop.index0 == ns.last %}
            {{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST] ' }}{% if loop.last %}{{ system }}{% endif %}{{ m.content + '[/INST]' }}
    {%- elif m.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception('Tool call IDs should have length 9') }}{% endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
            {%- if not loop.last %}{{ ', ' }}{% endif %}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- elif m.role == 'assistant' %}
        {{- ' ' + m.content + eos_token }}
    {%- elif m.role == 'tool' %}
        {{- '[TOOL_RESULTS] {"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}{{ raise_exception('Only user, assistant and tool roles are supported') }}
    {%- endif %}
{%- endfor %}
"""
GEMMA = """\
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
    {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content | trim }}
    {{- '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""
SMOLLM2 = """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
PHI4 = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}
"""
SPECIAL = {
    "chatml": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    "llama3": (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    ),
    "mistral": (
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[TOOL_CALLS]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ),
    "gemma": ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
}
QWEN25_ADDED = ("<tool_call>", "</tool_call>")
QWEN3_ADDED = (*QWEN25_ADDED, "<tool_response>", "</tool_response>", "<think>", "</think>")
GEMMA_PLAIN = ("\n", "\n\n", "\u2581\u2581", "<td>")
REACT_ADDED = ("Action: ", "\nAction Input: ", "\nObservation:", "Final Answer: ", '{"key": "', '"}', "error:")

TAGS_ADDED = ("<insert>", "</insert>", "<skip>", "<lookup>", "</lookup>", "<result>", "</result>", '{"key": "', '"}')
TAGS_TOOLS = tuple(
    ToolSpec(name=name, description=f"The tool {name}.", parameters={"type": "object", "properties": properties})
    for name, properties in {
        "insert": {"content": {"type": "string"}},
        "delete": {"key": {"type": "string"}},
        "note": {"kind": {"type": "string"}, "content": {"type": "string"}},
        "skip": {},
    }.items()
)
"""Those that renderer tags knows of; lookup and python it does not."""


def build(
    special: tuple[str, ...],
    *,
    eos: str,
    bos: str | None = None,
    added: tuple[str, ...] = (),
    template: str | None = None,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE with a few merges; `bos` is put before every text, as Llama's and Gemma's tokenizers do."""
    vocab = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for left, right in _MERGES:
        vocab[left + right] = len(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=list(_MERGES)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in added])
    if bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, bos_token=bos, chat_template=template)


def sentencepiece(
    special: tuple[str, ...], *, eos: str, bos: str, template: str | None, scheme: str, plain: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    """As Mistral's and Gemma's: spaces are letters, unknown letters fall back to bytes. `scheme` "first" puts a space
    before a text, as Mistral's does; `plain` are added tokens that are words of the vocabulary too, as Gemma has."""
    letters = [chr(i) for i in range(33, 127)]
    vocab = {
        t: i for i, t in enumerate((*special, *(f"<0x{i:02X}>" for i in range(256)), "\u2581", *letters, "\u00e9"))
    }
    merges = []
    for word in plain:
        for end in range(1, len(word) + 1):
            if word[:end] not in vocab:
                vocab[word[:end]] = len(vocab)
            if end > 1:
                merges.append((word[: end - 1], word[end - 1]))
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=special[0]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in plain])
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=eos, bos_token=bos, chat_template=template)


def _qwen(template: str, added: tuple[str, ...]) -> PreTrainedTokenizerFast:
    return build(SPECIAL["chatml"], eos="<|im_end|>", added=added, template=template)


def _tags() -> PreTrainedTokenizerFast:
    texts = [f"Memory:\n Velmor{n} lives in Castin\nChunk: Velmor{n} lives in Roka." for n in range(11, 60)]
    return train_tokenizer(texts, vocab_size=400, control_strings=TAGS_ADDED, words=())


def _react() -> PreTrainedTokenizerFast:
    texts = [f"Question: What is the cost of {n} verdrens? lookup prices" for n in range(11, 60)]
    return train_tokenizer(
        texts, vocab_size=400, control_strings=REACT_ADDED, words=(), pre_tokenizer=digits_and_plurals
    )


TOKENIZERS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "react": _react,
    "react in chat": lambda: _qwen(CHATML, QWEN25_ADDED),
    "tags": _tags,
    "tags in chat": lambda: _qwen(CHATML, QWEN25_ADDED),
    "chatml": lambda: _qwen(CHATML, QWEN25_ADDED),
    "chatml, tags as text": lambda: _qwen(CHATML, ()),
    "qwen3": lambda: _qwen(QWEN3, QWEN3_ADDED),
    "qwen3, opened": lambda: _qwen(QWEN3_OPEN, QWEN3_ADDED),
    "llama3": lambda: build(SPECIAL["llama3"], eos="<|eot_id|>", bos="<|begin_of_text|>", template=LLAMA3),
    "mistral": lambda: build(SPECIAL["mistral"], eos="</s>", bos="<s>", template=MISTRAL),
    "mistral, pieces": lambda: sentencepiece(
        SPECIAL["mistral"], eos="</s>", bos="<s>", template=MISTRAL, scheme="first"
    ),
    "gemma": lambda: build(SPECIAL["gemma"], eos="<eos>", bos="<bos>", template=GEMMA),
    "chatml_fenced": lambda: build(SPECIAL["chatml"], eos="<|im_end|>", template=SMOLLM2),
    "chatml_fenced, phi": lambda: build((*SPECIAL["chatml"], "<|im_sep|>"), eos="<|im_end|>", template=PHI4),
    "gemma, pieces": lambda: sentencepiece(
        SPECIAL["gemma"], eos="<eos>", bos="<bos>", template=GEMMA, scheme="never", plain=GEMMA_PLAIN
    ),
}
"""Every renderer under test, by name: the word before a comma or a space is the family's."""


@cache
def tokenizer(name: str) -> PreTrainedTokenizerFast:
    return TOKENIZERS[name]()


@cache
def renderer(name: str) -> ToolRenderer:
    family = next((f for f in FAMILIES if f.name == family_of(name)), None)
    if family_of(name) == "tags":
        return TagsRenderer(tokenizer=tokenizer(name), tools=TAGS_TOOLS)
    if family is None:
        return ReactRenderer(tokenizer=tokenizer(name))
    return ChatRenderer(tokenizer=tokenizer(name), family=family)


def controls(name: str) -> dict[str, int]:
    """Id by text of the added tokens that are not plain vocabulary too."""
    return {text: i for text, i in tokenizer(name).get_added_vocab().items() if text not in GEMMA_PLAIN}


def family_of(name: str) -> str:
    return name.replace(",", " ").split()[0]
