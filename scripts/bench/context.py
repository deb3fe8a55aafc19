"""Measure the savings of fresh contexts in long research, and their effect on rewards: a Markdown table over scripted
searches in the world of task=archive. Nothing is trained.

python scripts/bench/context.py --tasks 100 --max-tokens 4000

A search shows 30 short passages, some 500 tokens. Each task is a chain of facts; each fact needs its own search in one
source, and if necessary in the other. The policy is a script that knows the wording of the world and reads only its
context: the passages shown, the searches listed there, and the summary that it has written itself. `longest context`:
maximum tokens over all episodes. `read`: tokens before each turn, summed over the turns: the tokens that a policy
without a prompt cache computes. `branches`: tokens of all branches, which an update computes. `attention`: pairs of
tokens in these branches, relative to those of one context. `reward`: correctness 1, citations 0.3, the price of each
search 0.01 (vdb) and 0.05 (web).
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from functools import cache
from statistics import fmean

from agentgrpo.core.types import Episode, EpisodeGroup, Task
from agentgrpo.engines.base import SamplingParams, SeedKey
from agentgrpo.engines.scripted import ScriptedEngine
from agentgrpo.environments.search.context import ASK, LISTED, SHARE, ContextRule, dropping, summarising
from agentgrpo.environments.search.environment import SearchEnvironments
from agentgrpo.environments.search.grammar import Tags
from agentgrpo.environments.search.instructions import instructions_for
from agentgrpo.judges.answers import ExactMatch
from agentgrpo.judges.evidence.heuristic import HeuristicEvidence
from agentgrpo.renderers.plain import PlainRenderer
from agentgrpo.renderers.tokens import FastTokenizer
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.retrieval.embedded import embedded
from agentgrpo.rewards.citations import CitationSupport
from agentgrpo.rewards.costs import RetrieverCost
from agentgrpo.rewards.reward import Reward
from agentgrpo.rewards.terms import Correctness
from agentgrpo.rollout.loop import PolicyRunner
from agentgrpo.worlds.archive.dataset import Archive
from agentgrpo.worlds.archive.demonstrator import search
from agentgrpo.worlds.archive.world import ArchiveFact, ArchiveQuestion

KIND = "maker+parent+founder+teacher+birthplace+twin+mayor+teacher+birthplace+mayor+doctor+birthplace"
PRICES = {"vdb": -0.01, "web": -0.05}
_TAG = re.compile(r'<search retriever="(web|vdb)"> *(.*?) *</search>')
_LISTED = re.compile(r"^- (web|vdb): (.*?): ", re.MULTILINE)
_SHOWN = re.compile(r"^(\[R\d+Q\d+D\d+\]) (.*?)(?: URL: \S+)?$", re.MULTILINE)


class Researcher:
    """Writes the next turn of one task."""

    def __init__(self, question: ArchiveQuestion) -> None:
        [self.chain] = question.chains

    def act(self, context: str) -> str:
        context = context[context.rindex("\nQuestion: ") :]  # skips the examples
        shown = _SHOWN.findall(context)
        asked = {(source, query.lower()) for source, query in [*_TAG.findall(context), *_LISTED.findall(context)]}
        if context.rstrip().endswith(ASK):
            return self._summary(shown)
        queries = {query for _, query in asked}
        for fact, next_ in zip(self.chain, [*self.chain[1:], None], strict=True):
            known = any(fact.tells(sentence) == fact.value for _, sentence in shown)
            if not known and (next_ is None or next_.query.lower() not in queries):
                return self._look_for(fact, asked)
        label = next(label for label, sentence in shown if self.chain[-1].tells(sentence) == self.chain[-1].value)
        return f"<answer> {self.chain[-1].value} {label}</answer>"

    def _look_for(self, fact: ArchiveFact, asked: set[tuple[str, str]]) -> str:
        """Search the vdb first for settled facts; if all sources were searched and the passage is no longer shown,
        search again in the source that has it.
        """
        sources = ("vdb", "web") if fact.rule.told == "settled" else ("web",)
        fresh = [source for source in sources if (source, fact.query.lower()) not in asked]
        return search(fresh[0] if fresh else sources[-1] if fact.in_vdb != fact.value else sources[0], fact.query)

    def _summary(self, shown: Sequence[tuple[str, str]]) -> str:
        told = [(label, text) for label, text in shown if any(fact.tells(text) == fact.value for fact in self.chain)]
        lines = "".join(f"\n{label} {text}" for label, text in dict.fromkeys(told))
        return f"<summary>{lines}\n</summary>"


@cache
def tokenizer(world: Archive) -> FastTokenizer:
    """A tokenizer with about four letters a token, like those of large models."""
    texts = [f"[R{i % 9 + 1}Q1D{i % 5 + 1}] {p.text}" for i, p in enumerate(world.corpora()["web"][:3000])]
    told = instructions_for(
        Tags(),
        web=True,
        rerank=False,
        fetch=False,
        evaluates=True,
        gate=False,
        direct=True,
        max_turns=60,
        max_queries=60,
    )
    return train_tokenizer([*texts, *[told, ASK, LISTED] * 50], vocab_size=4000)


async def play(world: Archive, tasks: Sequence[Task], rule: ContextRule | None, max_context: int) -> list[Episode]:
    renderer = PlainRenderer(tokenizer=tokenizer(world))
    by_task = {task.id: Researcher(world.question(task)) for task in tasks}

    def say(key: SeedKey, context: str) -> str:
        return by_task[key.task_id].act(context)

    corpora = {name: passages for name, passages in world.corpora().items() if name != "pages"}
    environment = SearchEnvironments(
        renderer=renderer,
        retrievers=embedded(corpora=corpora, mode="split"),
        evidence=HeuristicEvidence(),
        context=rule,
        max_context=None,
        top_k=30,
        rerank_candidates=30,
        max_turns=60,
        max_search_limit=60,
        search_budget_per_subquestion=0,
        require_sufficient_evidence_before_answer=False,
    )
    engine = ScriptedEngine(encode=renderer.encode_action, decode=renderer.decode, script=say, max_context=max_context)
    runner = PolicyRunner(environment=environment, engine=engine, renderer=renderer)
    sampling = SamplingParams(max_tokens=1024)
    return [await runner.run(task, sample_index=0, stream="bench", sampling=sampling) for task in tasks]


async def rewards(episodes: Sequence[Episode]) -> list[float]:
    terms = {
        "correctness": Correctness(weight=1.0),
        "citations": CitationSupport(weight=0.3),
        "costs": RetrieverCost(**PRICES),
    }
    reward = Reward(judge=ExactMatch(), terms=terms)
    scored = [await reward.score(EpisodeGroup(task=e.task, episodes=(e,))) for e in episodes]
    return [group.rewards[0].total for group in scored if group.rewards[0] is not None]


def read(episode: Episode) -> int:
    """Tokens before each sampled turn, added up."""
    total = 0
    for branch in episode.branches:
        before = 0
        for segment in branch.segments:
            total += before if segment.sampled else 0
            before += len(segment.token_ids)
    return total


def lengths(episode: Episode) -> list[int]:
    return [len(branch.token_ids) for branch in episode.branches]


def row(name: str, episodes: Sequence[Episode], alone: Sequence[Episode]) -> str:
    found = asyncio.run(rewards(episodes))
    pairs, before = (fmean(sum(n * n for n in lengths(e)) for e in of) for of in (episodes, alone))
    right = fmean(e.answer is not None and e.answer in e.task.references for e in episodes)
    cells = [
        f"{fmean(e.metrics['search_queries'] for e in episodes):.1f}",
        f"{fmean(len(e.branches) for e in episodes):.1f}",
        f"{max(n for e in episodes for n in lengths(e)):,}",
        f"{fmean(map(read, episodes)):,.0f}",
        f"{fmean(sum(lengths(e)) for e in episodes):,.0f}",
        f"{pairs / before:.2f}",
        f"{right:.2f}",
        f"{fmean(found):.3f}",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=4000, help="of a context, after which a fresh one is opened")
    parser.add_argument("--max-context", type=int, default=100_000, help="that the engine holds")
    parser.add_argument("--kind", default=KIND)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    world = Archive(asked=[given.kind], shown=["founder"], world_seed=given.seed)
    tasks = world.split("test")[: given.tasks]
    alone = asyncio.run(play(world, tasks, None, given.max_context))
    within = int(given.max_tokens / SHARE)
    print("| context | searches | contexts | longest context | read | branches | attention | right | reward |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    print(row("none", alone, alone), flush=True)
    for name, rule in (
        ("none", None),
        ("drop", dropping(max_tokens=given.max_tokens)),
        ("summary", summarising(max_tokens=given.max_tokens)),
    ):
        print(
            row(f"{name}, within {within:,} tokens", asyncio.run(play(world, tasks, rule, within)), alone), flush=True
        )


if __name__ == "__main__":
    main()
