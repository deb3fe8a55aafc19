"""The control question: one that no honest answer can be right about.

What is asked is made up (the ship, the harbour), and the answer under judgement was given to another question. A judge
model that grades it above 0 all the same has not graded: it was told what to say, or says the same of everything. So
whatever an answer gets here is taken off what it got.
"""

from __future__ import annotations

from dataclasses import replace

from agentgrpo.judges.answers import words
from agentgrpo.judges.llm.prompt import JudgeQuestion, digest

_SYLLABLES = (
    "bar",
    "cas",
    "dor",
    "fel",
    "gan",
    "hul",
    "jor",
    "kel",
    "lum",
    "mar",
    "nor",
    "pel",
    "rin",
    "sor",
    "tav",
    "vel",
)
_FORMS = (
    "Which harbour did the schooner {} leave on its last voyage?",
    "In which town was the clockmaker {} born?",
    "Which river flows through the village of {}?",
    "Who was the first mayor of {}?",
)


def invented_name(seed: str) -> str:
    """A name of four syllables that no text of this world holds; a pure function of the seed."""
    number = int(digest("name", seed), 16)
    return "".join(_SYLLABLES[(number >> (4 * i)) & 15] for i in range(4)).capitalize()


def control_of(question: JudgeQuestion) -> JudgeQuestion:
    """The control for a question, about the same answers; a pure function of it."""
    seed, attempt = question.key("control"), 0
    given = {word for answer in question.answers for word in words(answer)}
    while (reference := invented_name(f"{seed} {attempt}")).lower() in given:
        attempt += 1
    text = _FORMS[int(seed, 16) % len(_FORMS)].format(invented_name(seed))
    return replace(question, text=text, references=(reference,), vote=0)


def invented_passage(claim: str) -> str:
    """A passage that says nothing of the claim; a pure function of it."""
    return f"The schooner {invented_name(claim)} left the harbour of {invented_name(f'{claim} harbour')}."
