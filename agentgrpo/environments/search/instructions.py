"""Instructions for a policy that was not trained to search: the tags, the order of actions, the limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agentgrpo.core.types import Message, Passage
from agentgrpo.environments.search import observations as say
from agentgrpo.environments.search.grammar import Tags
from agentgrpo.environments.search.observations import Block


class ExampleEpisode(NamedTuple):
    """An example episode."""

    question: str
    thought: str
    rounds: tuple[tuple[tuple[str, tuple[str, ...]], ...], ...]
    """Queries of each round, with their results."""
    answer: str
    plan: tuple[str, ...] = ()
    """Subquestions, each with a query of the first round."""


EXAMPLES = (
    ExampleEpisode(
        "Who painted Mira?",
        "I must look up who painted Mira.",
        ((("painter of Mira", ("Mira hangs in Lisbon.", "Mira was painted by Ada Lund.")),),),
        "Ada Lund [R1Q1D2]",
    ),
    ExampleEpisode(
        "Where was the founder of Acme born?",
        "I must know who founded Acme before I can look up where that person was born.",
        (
            (("founder of Acme", ("Jane Roe founded Acme.", "Acme makes anvils.")),),
            (("birthplace of Jane Roe", ("Jane Roe was born in Springfield.", "Jane Roe collects stamps.")),),
        ),
        "Springfield [R2Q1D1]",
    ),
    ExampleEpisode(
        "Which is higher, Ora or Vell?",
        "Two heights must be known, and neither search waits for the other.",
        ((("height of Ora", ("Ora is 812 m high.",)), ("height of Vell", ("Vell is 640 m high.",))),),
        "Ora [R1Q1D1] [R1Q2D1]",
        plan=("How high is Ora?", "How high is Vell?"),
    ),
)
LEARNED = "Answer with searches."
"""The system message for a policy that has learned the actions from demonstrations."""


def instructions_for(
    tags: Tags,
    *,
    web: bool,
    rerank: bool,
    fetch: bool,
    evaluates: bool,
    gate: bool,
    direct: bool,
    max_turns: int,
    max_queries: int,
    native: bool = False,
) -> str:
    """Return a system message for any model. native: the model calls tools, which are described elsewhere. web, rerank,
    fetch: actions on offer. evaluates: each round's evidence is rated. gate: answers on insufficient evidence are
    rejected. direct: answers without a search are accepted. max_queries: limit for an episode without subquestions."""
    if native:
        return _of_calls(
            tags, evaluates=evaluates, gate=gate, direct=direct, max_turns=max_turns, max_queries=max_queries
        )
    actions = [f"<{tags.search}>query</{tags.search}> searches documents."]
    if web:
        actions.append(
            f'<{tags.search} retriever="web">query</{tags.search}> searches the web, which costs more: use it where '
            "the documents do not know."
        )
    if rerank:
        actions.append(
            f'<{tags.search} rerank="true">query</{tags.search}> looks at more results and shows the best first; '
            f"<{tags.rerank}/> does so with what has been found."
        )
    if fetch:
        actions.append(
            f'<{tags.fetch}>URL</{tags.fetch}> shows a page, the first part of a long one; <{tags.fetch} part="2">URL'
            f'</{tags.fetch}> shows another part; <{tags.fetch} find="words">URL</{tags.fetch}> the part with these '
            "words."
        )
    actions.append(
        f"<{tags.answer}>answer [R1Q1D1]</{tags.answer}> answers: the answer alone, as short as possible, and the "
        "labels of the results that it rests on."
    )
    listed = "\n".join(f"- {action}" for action in actions)
    rated = f" <{tags.search_evaluation}> says whether they suffice." if evaluates else ""
    gated = " An answer is rejected while they do not." if gate else ""
    certain = (
        " Search before you answer, unless you are certain: then write "
        f"<{tags.search_decision}>answer</{tags.search_decision}> before the answer."
        if direct
        else " Search before you answer."
    )
    return f"""\
Answer the question with the help of searches. Each of your turns ends with one action, after which you wait:
{listed}
Before it you may think: <{tags.think}>what is known and what is missing</{tags.think}>. Results are shown in \
<{tags.information}>, each behind its label.{rated}{gated} Where one thing must be known before the next can be looked \
up, search one after the other; queries that do not depend on each other may go together, each on a line of its own:
<{tags.searches}>
first query
second query
</{tags.searches}>
A question of several parts may be planned before the first search, and [T1] before a query then says which part it is \
for:
<{tags.subquestions}>
T1: first part
T2: second part
</{tags.subquestions}>
Do not repeat a search. You have {max_turns} turns and {max_queries} queries.{certain}"""


def _of_calls(tags: Tags, *, evaluates: bool, gate: bool, direct: bool, max_turns: int, max_queries: int) -> str:
    rated = " It is said whether they suffice." if evaluates else ""
    gated = " An answer is rejected while they do not." if gate else ""
    certain = (
        f", unless you are certain: then write <{tags.search_decision}>answer</{tags.search_decision}> before it."
        if direct
        else "."
    )
    return f"""\
Answer the question with the help of the tools. Results are shown behind their labels, such as [R1Q1D1].{rated}{gated} \
Where one thing must be known before the next can be looked up, search one after the other; queries that do not depend \
on each other may go together, several calls in one turn. A turn without a call is the answer: the answer alone, as \
short as possible, and the labels of the results that it rests on.
A question of several parts may be planned with the first search, whose argument subquestion says which part it is for:
<{tags.subquestions}>
T1: first part
T2: second part
</{tags.subquestions}>
Do not repeat a search. You have {max_turns} turns and {max_queries} queries. Search before you answer{certain}"""


def examples_for(tags: Tags, *, evaluates: bool, in_turns: bool) -> tuple[Message, ...]:
    """Return whole episodes as messages before the question. in_turns: as in Renderer."""
    messages: list[Message] = []
    for example in EXAMPLES:
        messages.append(Message(role="user", content=f"Question: {example.question}"))
        said = list(_said(example, tags, evaluates=evaluates))
        if in_turns:
            messages += [Message(role="user" if i % 2 else "assistant", content=text) for i, text in enumerate(said)]
        else:
            messages.append(Message(role="assistant", content="\n".join(said)))
    return tuple(messages)


def _said(example: ExampleEpisode, tags: Tags, *, evaluates: bool) -> Iterator[str]:
    """Yield the policy's turns and the observations, alternately."""
    before = f"<{tags.think}>{example.thought}</{tags.think}>\n"
    if example.plan:
        parts = "\n".join(f"T{i}: {part}" for i, part in enumerate(example.plan, start=1))
        before += f"<{tags.subquestions}>\n{parts}\n</{tags.subquestions}>\n"
    for number, found in enumerate(example.rounds, start=1):
        if len(found) == 1:
            yield f"{before}<{tags.search}>{found[0][0]}</{tags.search}>"
        else:
            queries = "\n".join(f"[T{i}] {query}" for i, (query, _) in enumerate(found, start=1))
            yield f"{before}<{tags.searches}>\n{queries}\n</{tags.searches}>"
        before = ""
        lines = [
            say.document(f"[R{number}Q{q}D{i}]", Passage(id="", text=text))
            for q, (_, texts) in enumerate(found, start=1)
            for i, text in enumerate(texts, start=1)
        ]
        blocks = [Block(tags.information, lines)]
        blocks += [Block(tags.search_evaluation, [say.evaluation(True)])] if evaluates else []
        yield "".join(piece.text for piece in say.pieces(blocks, tags.names))
    yield f"<{tags.answer}>{example.answer}</{tags.answer}>"


_SEARCH = (say.SEARCH_NOW, say.SEARCH_FIRST, say.INSUFFICIENT, say.NO_ACTION)
_ANSWER = (say.ANSWER_NOW, say.PLATEAU, say.LAST_CHANCE, say.NO_ACTION)


def how(tags: Tags, sentence: str, *, native: bool = False) -> str:
    """Return how to write the action that a sentence of the environment asks for; "" if it asks for none. native: with
    calls."""
    if native:
        calls = ["call search"] * (sentence in _SEARCH) + ["write the answer without a call"] * (sentence in _ANSWER)
        return f" {' or '.join(calls).capitalize()}." if calls else ""
    forms = [f"<{tags.search}>query</{tags.search}>"] * (sentence in _SEARCH)
    forms += [f"<{tags.answer}>answer</{tags.answer}>"] * (sentence in _ANSWER)
    return f" Write {' or '.join(forms)}." if forms else ""
