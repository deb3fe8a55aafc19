"""What a policy is told that was not trained to search: the tags, the order of things, the limits."""

from __future__ import annotations

from agentgrpo.agents.search.tags import Tags

LEARNED = "Answer with searches."
"""What one is told that has learned all of it from demonstrations."""


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
) -> str:
    """A system message for any model. web, rerank, fetch: what there is to call; evaluates: the evidence of a round is
    rated; gate: an answer on insufficient evidence is rejected; direct: one without a search is accepted;
    max_queries: of an episode that sets no subquestions."""
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
        actions.append(f"<{tags.fetch}>URL</{tags.fetch}> shows a page, up to a length.")
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
Do not repeat a search. You have {max_turns} turns and {max_queries} queries.{certain}
For example:
<{tags.think}>I must know who founded Acme before I can look up where that person was born.</{tags.think}>
<{tags.search}>founder of Acme</{tags.search}>"""
