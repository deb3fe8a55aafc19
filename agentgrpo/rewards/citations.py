"""Checks whether citations support an answer, by words of question, answer and passages, without a model or gold."""

from __future__ import annotations

from collections.abc import Sequence

from agentgrpo.core.types import Episode
from agentgrpo.judges.answers import contains, words
from agentgrpo.rewards.terms import CITATION_SUPPORT, Weighted, cited, has_answer

LINKING = 4
"""Minimum characters of a word that can link two texts; many shorter words (the, and, was) occur everywhere."""


def supporting(question: str, answer: str, passages: Sequence[str]) -> list[bool]:
    """Whether each passage supports the answer, by itself or as the hop before a passage that holds the answer.

        question -- a word -- passage that holds the answer
        question -- a word -- passage -- another word -- passage that holds the answer

    A passage holds the answer if the answer's words occur in it side by side (judges.answers.words). Words of the
    answer are not links. If no passage holds the answer (yes, a list, a report), no passage counts as support.
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
    needless citation cancels a supporting one, and a wrong answer earns nothing, whatever it cites."""

    dimension = CITATION_SUPPORT
    is_cost = False

    def __call__(self, episode: Episode, correctness: float) -> float:
        shown = cited(episode)
        texts = {c.doc_id: c.text for c in episode.citations if c.doc_id in shown}
        if not has_answer(episode) or not texts:
            return 0.0
        found = supporting(episode.task.question, episode.answer or "", list(texts.values()))
        return self.weight * correctness * max(0, 2 * sum(found) - len(found)) / len(found)
