"""The episodes of experiment=smollm2 in TRL's terms: chat template, response template and reward.

    Action: calculator
    Action Input: {"expression": "12*31-17"}
    Observation: 355
    Final Answer: 355<|im_end|>

TRL ends a turn at a token, ours at the text "\\nObservation:". The token that ends a call is therefore the last one of
"Observation", and the ":" after it belongs to the tool's reply: ours samples it and trains on it, TRL receives it.

This module imports nothing of TRL, so that our tests can use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgrpo.judges.answers import words
from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.tools.calculator import Calculator

OBSERVATION = "\nObservation"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}{{ ': ' + message.content + '\\n' }}"
    "{% elif message.tool_calls %}{{ '<|im_start|>assistant\\n' }}"
    "{% for call in message.tool_calls %}"
    "{{ 'Action: ' + call.function.name + '\\nAction Input: ' + (call.function.arguments | tojson) }}"
    "{% endfor %}{{ '\\nObservation<|im_end|>' }}"
    "{% else %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""The model's own template, with calls and replies in the text format of the cold start. TRL takes the text after the
last <|im_end|> as a reply; the text after a call is never part of an episode."""
RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    # Every turn begins after the end of a line: of the opening, or of a reply.
    "start_anchor": "\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r"Action:[ ]*(?P<name>[^\n]*)\nAction Input:",
            "close": OBSERVATION,
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}
_CALCULATOR = Calculator()


def call_ends(tokenizer: Any) -> int:
    """The token that ends a call."""
    return int(tokenizer(f"}}{OBSERVATION}", add_special_tokens=False)["input_ids"][-1])


def calculator(expression: str) -> str:
    """Calculates exactly.

    Args:
        expression: an arithmetic expression, such as 12.5
    """
    return _CALCULATOR.calculate(expression).text


def reward(
    completion: Sequence[Mapping[str, Any]], *, ended: bool, references: Sequence[str], renderer: ReactRenderer
) -> float:
    """Return 1 for the correct answer, by the rule of judge=exact_match and reward=correctness, else 0. completion:
    TRL's messages of an episode. ended: whether the last turn ended by itself."""
    last = completion[-1]
    if last["role"] != "assistant" or last.get("tool_calls"):
        return 0.0
    end = renderer.stop_token_ids if ended else ()
    answer = renderer.parse((*renderer.encode_action(last["content"]), *end)).answer
    return float(answer is not None and words(answer) in [words(reference) for reference in references])
