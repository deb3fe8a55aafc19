"""What a policy is told that was not trained to search: the tags, the order of things, the limits."""

from __future__ import annotations

from agentgrpo.agents.search.tags import Tags

LEARNED = "Answer with searches."
"""What one is told that has learned all of it from demonstrations."""


def instructions_for(
    tags: Tags, *, web: bool, rerank: bool, fetch: bool, evaluates: bool, max_turns: int, max_queries: int
) -> str:
    """A system message for any model. web, rerank, fetch: what there is to call; evaluates: the evidence of a round is
    rated; max_queries: of an episode that sets no subquestions."""
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
    actions.append(f"<{tags.searches}> with one query per line </{tags.searches}> searches for several things at once.")
    if fetch:
        actions.append(f"<{tags.fetch}>URL</{tags.fetch}> shows a page in full.")
    actions.append(
        f"<{tags.answer}>answer [R1Q1D1]</{tags.answer}> ends the task: the answer alone, as short as possible, and "
        "the labels of the results that it rests on."
    )
    listed = "\n".join(f"- {action}" for action in actions)
    rated = f" <{tags.search_evaluation}> says whether they suffice." if evaluates else ""
    return f"""\
Answer the question with the help of searches. Each of your turns ends with one action, after which you wait:
{listed}
Before it you may think: <{tags.think}>what is known and what is missing</{tags.think}>. Results are shown in \
<{tags.information}>, each behind its label.{rated} A question that has several parts takes one search after the \
other; do not repeat one. You have {max_turns} turns and {max_queries} queries. Search before you answer, unless you \
are certain: then write <{tags.search_decision}>answer</{tags.search_decision}> before the answer.
For example:
<{tags.think}>I must know who founded Acme before I can look up where that person was born.</{tags.think}>
<{tags.search}>founder of Acme</{tags.search}>"""
