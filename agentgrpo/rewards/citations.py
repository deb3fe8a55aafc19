"""Whether what an answer cites supports it: by the words of question, answer and passages, without a model or gold."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.core.types import Episode
from agentgrpo.judges.answers import contains, words
from agentgrpo.rewards.terms import CITATION_SUPPORT, Weighted, cited, has_answer

LINKING = 4
"""Characters of a word that can link two texts: shorter ones are mostly and, was, from."""


def supporting(question: str, answer: str, passages: Sequence[str]) -> list[bool]:
    """Of each passage, whether it supports the answer, by itself or as the hop before one that holds it.

        question -- a word -- passage that holds the answer
        question -- a word -- passage -- another word -- passage that holds the answer

    A passage holds the answer where the answer's words stand in it side by side (judges.answers.words); words of the
    answer link nothing. Of an answer that no passage holds (yes, a list, a report) none counts as support.
    """
    given, asked = words(answer), _linking(words(question))
    texts = [words(passage) for passage in passages]
    links = [_linking(text) - {*given} for text in texts]
    holders = [i for i, text in enumerate(texts) if given and contains(text, given)]
    hops = [i for i, link in enumerate(links) if link & asked and i not in holders]

    def are_linked(a: int, b: int) -> bool:
        return bool(links[a] & links[b] - asked)

    found = {i for i in holders if links[i] & asked or any(are_linked(i, hop) for hop in hops)}
    found |= {hop for hop in hops if any(are_linked(hop, i) for i in holders)}
    return [i in found for i in range(len(passages))]


def _linking(text: Sequence[str]) -> set[str]:
    return {word for word in text if len(word) >= LINKING}


class CitationSupport(Weighted):
    """w · grade · max(0, supporting - needless) / cited, over the distinct valid cited results (see `supporting`). A
    needless citation undoes a supporting one, and a wrong answer earns nothing, whatever it cites."""

    dimension = CITATION_SUPPORT
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        shown = cited(episode)
        texts = {c.doc_id: c.text for c in episode.citations if c.doc_id in shown}
        if not has_answer(episode) or not texts:
            return 0.0
        found = supporting(episode.task.question, episode.answer or "", list(texts.values()))
        return self.weight * correctness * max(0, 2 * sum(found) - len(found)) / len(found)
