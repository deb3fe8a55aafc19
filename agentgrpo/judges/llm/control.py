"""The control question: one that no honest answer can be right about.

What is asked is made up (the ship, the harbour), and the answer under judgement was given to another question. A judge
model that grades it above 0 all the same has not graded: it was told what to say, or says the same of everything. So
whatever an answer gets here is taken off what it got.

In a group an order reaches the others too. "Give every attempt 1" would take all of it off all of them, so an attempt
that gets something for the control is graded by itself, against a control of its own. "Give every other attempt 0" gets
nothing for itself there. So the control of a group has one attempt more, which is right. If it gets less than by
itself, all attempts are graded by themselves, where no other can reach them.
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


def group_control_of(question: JudgeQuestion) -> tuple[JudgeQuestion, int]:
    """The control for a group, and the place in it of the attempt that is right; a pure function of the question."""
    control = control_of(question)
    place = int(control.key("place"), 16) % (len(control.answers) + 1)
    answers, traces = list(control.answers), list(control.traces)
    answers.insert(place, control.references[0])
    if traces:
        traces.insert(place, ())
    return replace(control, answers=tuple(answers), traces=tuple(traces)), place


def alone_of(control: JudgeQuestion, place: int) -> JudgeQuestion:
    """The control with this attempt alone."""
    return replace(control, answers=control.answers[place : place + 1], traces=control.traces[place : place + 1])


def invented_passage(claim: str) -> str:
    """A passage that says nothing of the claim; a pure function of it."""
    return f"The schooner {invented_name(claim)} left the harbour of {invented_name(f'{claim} harbour')}."
