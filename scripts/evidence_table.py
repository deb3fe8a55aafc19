"""How well evidence judges separate supported from unsupported episodes: a Markdown table over scripted searches in
worlds that know which passages prove their answers. Nothing is trained.

python scripts/evidence_table.py almanac --seeds 11 12 13
python scripts/evidence_table.py glossary --path FOLDER_OF_WORDNET --seeds 11 12 13 --judges lexical without-corpus gold
python scripts/evidence_table.py almanac --embedder FOLDER_OF_A_MODEL --judges embedding embedding-without-corpus

Each task is played in six scripted ways. `whole` searches each step that the answer needs; `careless` does the same
with a random source and a random choice of reranking; `early` leaves out the last step; `part` uses some words of each
step; `question` searches the question only; `elsewhere` searches the steps of another task. An episode is supported if
all supporting passages were shown. The gate rejects an episode if the judge finds the evidence insufficient after the
last round.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentgrpo.core.chance import uniform
from agentgrpo.core.types import Episode, Task
from agentgrpo.engines.base import SamplingParams
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.environments.search.environment import SearchEnvironments
from agentgrpo.judges.base import EvidenceJudge
from agentgrpo.judges.evidence.embedding import EmbeddingEvidence
from agentgrpo.judges.evidence.gold import GoldEvidence
from agentgrpo.judges.evidence.heuristic import HeuristicEvidence
from agentgrpo.judges.evidence.lexical import LexicalEvidence
from agentgrpo.judges.evidence.measure import JudgedEvidence, evidence_figures, judged_evidence
from agentgrpo.models.encoder import Encoder
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.retrieval.embedded import embedded
from agentgrpo.retrieval.embedder import Embedder, HashingEmbedder, Vectors, query_vectors
from agentgrpo.retrieval.rerank import LexicalReranker
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.worlds.almanac.dataset import Almanac
from agentgrpo.worlds.almanac.world import AlmanacQuestion
from agentgrpo.worlds.glossary.dataset import Glossary

WAYS = ("whole", "careless", "early", "part", "question", "elsewhere")
Step = tuple[str, bool, bool]
"""Query, searched on the web or not, reranked or not."""


def steps_of(world: Almanac | Glossary, task: Task) -> list[Step]:
    """The searches that the answer needs."""
    question: Any = world._questions[task.id]
    if isinstance(question, AlmanacQuestion):
        return [(fact.query, fact.web_only, fact.rule.needs_rerank) for fact in question.hops]
    noun, kind_of = question.noun, "{} is a kind of".format
    queries = {
        "word": [noun.meaning],
        "kind": [kind_of(noun.word)],
        "above": [kind_of(noun.word), kind_of(noun.kind)],
        "both": [noun.meaning, kind_of(noun.word)],
    }[question.kind]
    return [(query, False, False) for query in queries]


def searches(way: str, task: Task, own: Sequence[Step], others: Sequence[Step]) -> list[Step]:
    """The searches of the given way. others: the steps of another task."""

    def chance(what: str) -> float:
        return uniform("evidence", way, task.id, what)

    def by_chance(query: str, what: str) -> Step:
        return query, chance(f"web {what}") < 0.5, chance(f"rerank {what}") < 0.5

    def some_words(query: str, what: str) -> str:
        words = query.split()
        length = 1 + int(chance(f"length {what}") * min(4, len(words)))
        begin = int(chance(f"begin {what}") * (len(words) - length + 1))
        return " ".join(words[begin : begin + length])

    if way == "whole":
        return list(own)
    if way == "careless":
        return [by_chance(query, query) for query, _, _ in own]
    if way == "early":
        return list(own[:-1]) or [by_chance(some_words(own[0][0], "only"), "only")]
    if way == "part":
        return [by_chance(some_words(query, query), query) for query, _, _ in own]
    if way == "question":
        return [by_chance(task.question, "question")]
    return list(others)


async def play(
    world: Almanac | Glossary, tasks: Sequence[Task], judge: EvidenceJudge, *, top_k: int, ways: Iterable[str] = WAYS
) -> list[Episode]:
    """Play every task in every way, without the gate."""
    corpora = world.corpora()
    renderer = PlainRenderer(tokenizer=train_tokenizer([task.question for task in tasks], vocab_size=640))
    own = {task.id: steps_of(world, task) for task in tasks}
    other = dict(zip(own, [*list(own)[len(own) // 2 :], *own], strict=False))
    episodes = []
    for way in ways:
        made = {task.id: searches(way, task, own[task.id], own[other[task.id]]) for task in tasks}

        def say(key: Any, context: str, made: Mapping[str, Sequence[Step]] = made) -> str:
            steps = made[key.task_id]
            if key.turn >= len(steps):
                return "<answer> unknown</answer>"
            query, web, rerank = steps[key.turn]
            source = "web" if web and "web" in corpora else "vdb"
            return f'<search retriever="{source}" rerank="{str(rerank).lower()}"> {query}</search>'

        engine = ScriptedEngine(encode=renderer.encode_action, decode=renderer.decode, script=say, max_context=100_000)
        environment = SearchEnvironments(
            renderer=renderer,
            retrievers=embedded(corpora=corpora, mode="split" if "web" in corpora else "fused"),
            reranker=LexicalReranker(thesaurus=world.thesaurus()),
            evidence=judge,
            describe_tools=False,
            top_k=top_k,
            require_sufficient_evidence_before_answer=False,
            evidence_plateau_min_gain=None,
        )
        runner = PolicyRunner(environment=environment, engine=engine, renderer=renderer)
        sampling = SamplingParams(max_tokens=512)
        episodes += [await runner.run(task, sample_index=0, stream=way, sampling=sampling) for task in tasks]
    return episodes


class Remembering:
    """An embedder that embeds each text once and shares the result among judges and seeds."""

    def __init__(self, embedder: Embedder) -> None:
        self.dim = embedder.dim
        self._embedder = embedder
        self._known: dict[str, Vectors] = {}

    def embed(self, texts: Sequence[str]) -> Vectors:
        if missing := [text for text in dict.fromkeys(texts) if text not in self._known]:
            self._known |= zip(missing, query_vectors(self._embedder, missing), strict=True)
        return np.stack([self._known[text] for text in texts])


def judges_of(
    world: Almanac | Glossary, embedder: Embedder, thresholds: Mapping[str, float]
) -> dict[str, EvidenceJudge]:
    """thresholds: min_score and min_rarity for judges that have them; missing ones keep the judge's default."""
    corpora, thesaurus = world.corpora(), world.thesaurus()
    known: dict[str, dict[str, Any]] = {
        "": {"corpora": corpora, "thesaurus": thesaurus},
        "without-thesaurus": {"corpora": corpora},
        "without-corpus": {},
    }
    judges: dict[str, EvidenceJudge] = {"heuristic": HeuristicEvidence(), "gold": GoldEvidence()}
    for without, given in known.items():
        judges[without or "lexical"] = LexicalEvidence(**given, **thresholds)
        name = f"embedding-{without}" if without else "embedding"
        judges[name] = EmbeddingEvidence(embedder=embedder, **given, **thresholds)
    return judges


def row(name: str, seed: str, judged: Sequence[JudgedEvidence]) -> str:
    figures = evidence_figures(judged)
    kept = [figures[f"sufficient_where_{name}"] or 0.0 for name in ("unsupported", "supported")]
    rejected = " | ".join(f"{1 - share:.1%}" for share in kept)
    return (
        f"| {name} | {seed} | {figures['auc']:.3f} | {rejected} | {figures['supported']} + {figures['unsupported']} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=["almanac", "glossary"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--top-k", type=int, default=None)
    parser.add_argument("--path", type=Path, default=Path("/usr/share/wordnet"), help="of WordNet")
    parser.add_argument("--split", default="test")
    parser.add_argument("--asked", nargs="+", default=["word", "kind", "above", "both"], help="kinds, of the glossary")
    parser.add_argument("--judges", nargs="+", default=["lexical", "heuristic"])
    parser.add_argument("--embedder", default=None, help="folder of an encoder without prefixes; else the hashing one")
    parser.add_argument("--min-score", type=float, default=None)
    parser.add_argument("--min-rarity", type=float, default=None)
    given = parser.parse_args()
    embedder = Remembering(
        Encoder(path=given.embedder, query_prefix="", passage_prefix="", query_batch_size=32)
        if given.embedder
        else HashingEmbedder()
    )
    chosen = {"min_score": given.min_score, "min_rarity": given.min_rarity}
    thresholds = {name: value for name, value in chosen.items() if value is not None}
    print("| judge | seed | AUC | rejects of the unsupported | of the supported | episodes |")
    print("| --- | --- | --- | --- | --- | --- |")
    for seed in given.seeds:
        world = (
            Almanac(world_seed=seed)
            if given.world == "almanac"
            else Glossary(path=str(given.path), world_seed=seed, asked=given.asked)
        )
        tasks, top_k = world.split(given.split)[: given.tasks], given.top_k or (2 if given.world == "almanac" else 5)
        judges = judges_of(world, embedder, thresholds)
        for name in given.judges:
            judge = judges[name]
            episodes = asyncio.run(play(world, tasks, judge, top_k=top_k))
            print(row(name, str(seed), judged_evidence(episodes)), flush=True)


if __name__ == "__main__":
    main()
