"""Scripted parts for agent tests: a byte-level tokenizer, an engine that samples given texts, retrievers that return
given rows, a judge that returns given verdicts. Each records how it was called."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agentgrpo.core.errors import RetrieverError
from agentgrpo.core.types import Episode, FinishReason, Passage, Task
from agentgrpo.engines.base import Completion, SamplingParams, SeedKey
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.renderers.base import Renderer
from agentgrpo.renderers.plain import PlainRenderer
from tests import builders
from tests.runners import search_runner

ADDED = ("\n<information>\n", "\n</information>\n", "</search>", "<answer>", "</answer>", "<tool_call>")
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, and the added ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")


@cache
def renderer() -> PlainRenderer:
    return PlainRenderer(tokenizer=tokenizer())


@dataclass
class ScriptedEngine:
    """Samples the texts of a script one after the other, whoever asks. log p of the i-th token of a turn: −i/8."""

    script: Sequence[str]
    max_context: int = 10_000
    trainable: bool = True
    contexts: list[str] = field(default_factory=list)
    samplings: list[SamplingParams] = field(default_factory=list)
    keys: list[SeedKey] = field(default_factory=list)
    released: list[tuple[str, str, int]] = field(default_factory=list)
    speaks: Renderer = field(default_factory=lambda: renderer())

    async def generate(self, token_ids: Sequence[int], sampling: SamplingParams, key: SeedKey) -> Completion:
        ids = self.speaks.encode_action(self.script[len(self.keys)])[: sampling.max_tokens]
        self.contexts.append(self.speaks.decode(token_ids))
        self.samplings.append(sampling)
        self.keys.append(key)
        await asyncio.sleep(0)
        return Completion(
            token_ids=ids,
            logprobs=tuple(-i / 8 for i in range(len(ids))),
            finish_reason=FinishReason.STOP,
            policy_version=3,
            time_queue=0.25,
            time_generate=0.5,
        )

    def release(self, key: SeedKey) -> None:
        self.released.append(key.episode)

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        raise NotImplementedError

    async def load_weights(self, policy_version: int) -> None:
        raise NotImplementedError

    async def close(self) -> None: ...


@dataclass
class ScriptedRetriever:
    """Rows by query; a query that is not listed finds nothing, an error is raised."""

    rows: Mapping[str, Sequence[Passage] | Exception]
    calls: list[tuple[str, int]] = field(default_factory=list)
    live: int = 0
    most_live: int = 0

    async def search(self, query: str, *, top_k: int) -> list[Passage]:
        self.calls.append((query, top_k))
        self.live += 1
        self.most_live = max(self.most_live, self.live)
        await asyncio.sleep(0)
        self.live -= 1
        row = self.rows.get(query, ())
        if isinstance(row, Exception):
            raise row
        return list(row)[:top_k]

    async def close(self) -> None: ...


@dataclass
class ReversingReranker:
    """Best last."""

    calls: list[tuple[str, tuple[str, ...], int]] = field(default_factory=list)

    async def rerank(self, query: str, passages: Sequence[Passage], *, top_k: int) -> list[Passage]:
        self.calls.append((query, tuple(p.id for p in passages), top_k))
        await asyncio.sleep(0)
        return list(passages)[::-1][:top_k]


@dataclass
class ScriptedFetcher:
    pages: Mapping[str, Passage | RetrieverError]
    calls: list[tuple[str, ...]] = field(default_factory=list)

    async def fetch(self, urls: Sequence[str]) -> list[Passage | RetrieverError]:
        self.calls.append(tuple(urls))
        return [self.pages[url] for url in urls]


@dataclass
class ScriptedJudge:
    """(sufficient, score) of every round that showed something, in order; the last one holds on."""

    verdicts: Sequence[tuple[bool, float]] = ((True, 0.75),)
    rounds: list[list[QueryResults]] = field(default_factory=list)
    seen: list[list[str]] = field(default_factory=list)

    def judge_round(self, task: Task, results: Sequence[QueryResults], seen: Sequence[Passage]) -> EvidenceGrade:
        sufficient, score = self.verdicts[min(len(self.rounds), len(self.verdicts) - 1)]
        self.rounds.append(list(results))
        self.seen.append([p.id for p in seen])
        return EvidenceGrade(sufficient=sufficient, score=score, num_sufficient_queries=len(results) * sufficient)


VELMOR = builders.passage("v1", "Velmor was founded by Castin.", title="Velmor", url="http://x.test/velmor#history")
CASTIN = builders.passage("c1", "Castin was born in Roka.")
CHATTER = builders.passage("n1", "Tours of Velmor\nare \t popular.")
ROWS: Mapping[str, Sequence[Passage] | Exception] = {
    "founded Velmor": (VELMOR, CHATTER),
    "born Castin": (CASTIN, CHATTER),
    "chatter": (CHATTER,),
    "all": (VELMOR, CASTIN, CHATTER),
}


PROMPT = "Answer with searches.\nQuestion: Where was the founder of Velmor born?\n"
HOP_1 = '<search retriever="web" rerank="true"> founded Velmor</search>'
HOP_2 = '<search retriever="vdb" rerank="false"> born Castin</search>'
ANSWER = "<answer> Roka [R2Q1D1]</answer>"
SHOWN_1 = (
    "\n<information>\n[R1Q1D1] (Title: Velmor) Velmor was founded by Castin. URL: http://x.test/velmor#history\n"
    "[R1Q1D2] Tours of Velmor are popular.\n</information>\n"
)
SHOWN_2 = "\n<information>\n[R2Q1D1] Castin was born in Roka.\n</information>\n"

NOTHING = {
    "search_rounds": 0.0,
    "search_queries": 0.0,
    "search_cache_hits": 0.0,
    "automatic_searches": 0.0,
    "repeated_search_queries": 0.0,
    "search_limit_hits": 0.0,
    "fetched_pages": 0.0,
    "answer_rejections": 0.0,
    "active_subquestions": 0.0,
    "direct_answers": 0.0,
    "evidence_sufficient_rounds": 0.0,
    "evidence_insufficient_rounds": 0.0,
    "search_quality_score": 0.0,
    "duplicate_search_results_removed": 0.0,
    "web_searches": 0.0,
    "vdb_searches": 0.0,
    "web_served": 0.0,
    "vdb_served": 0.0,
    "web_calls": 0.0,
    "vdb_calls": 0.0,
    "web_fraction": 0.0,
    "rerank_rate": 0.0,
    "rerank_requested": 0.0,
    "rerank_calls": 0.0,
    "rerank_skipped": 0.0,
    "evidence_score_final": 0.0,
    "evidence_gain_total": 0.0,
    "early_stops": 0.0,
    "format_error_turns": 0.0,
    "exit_answered": 0.0,
    "exit_max_turns": 0.0,
    "exit_search_limit": 0.0,
    "exit_format_error_limit": 0.0,
    "exit_no_action": 0.0,
    "exit_context_overflow": 0.0,
    "exit_timeout": 0.0,
    "exit_error": 0.0,
    "forced_final_answer": 0.0,
    "plateau_early_stop": 0.0,
    "effective_search_limit": 5.0,
    "repeated_query_ratio": 0.0,
    "subquestion_coverage_ratio": 1.0,
    "rounds_used": 0.0,
    "budget_used_ratio": 0.0,
    "citation_count": 0.0,
    "answer_allowed": 0.0,
    "final_evidence_sufficient": 0.0,
    "useful_fetched_pages": 0.0,
    "unnecessary_fetch_count": 0.0,
    "answer_when_evidence_insufficient": 0.0,
    "search_budget_exhausted_without_answer": 0.0,
    "tool_turns": 0.0,
}
LAST_CHANCE = "\n<answer_feedback>\nThis is the last turn. Answer now.\n</answer_feedback>\n"
LIMIT = "\n<search_feedback>\nThe search limit is reached. Answer now.\n</search_feedback>\n"
NO_ACTION = "\n<decision_feedback>\nNo action was found. Search or answer.\n</decision_feedback>\n"
DECIDED = "<search_decision>internal knowledge</search_decision>"


@dataclass
class Played:
    """An episode and the parts it was played with."""

    episode: Episode
    engine: ScriptedEngine
    vdb: ScriptedRetriever
    web: ScriptedRetriever | None
    judge: ScriptedJudge
    turns: list[tuple[int, str | None, int]]

    @property
    def told(self) -> list[str]:
        """Texts of everything observed after the opening."""
        return [s.text for s in self.episode.branches[0].segments if s.role == "tool"]


async def play(
    *script: str,
    verdicts: Sequence[tuple[bool, float]] = ((True, 0.75),),
    vdb: Mapping[str, Sequence[Passage] | Exception] = ROWS,
    web: Mapping[str, Sequence[Passage] | Exception] | None = ROWS,
    question: str = "Where was the founder of Velmor born?",
    metadata: Mapping[str, object] | None = None,
    max_context: int = 10_000,
    max_tokens: int = 1_000,
    **options: object,
) -> Played:
    """One episode of exactly these turns. Plateau stop and evaluation lines are off unless asked for."""
    engine = ScriptedEngine(script, max_context=max_context)
    judge = ScriptedJudge(verdicts)
    retrievers = {"vdb": ScriptedRetriever(vdb)} | ({} if web is None else {"web": ScriptedRetriever(web)})
    turns: list[tuple[int, str | None, int]] = []

    async def on_turn(turn: int, tool_name: str | None, num_docs: int) -> None:
        turns.append((turn, tool_name, num_docs))

    defaults: dict[str, object] = {
        "describe_tools": False,
        "evidence_plateau_min_gain": None,
        "show_search_evaluation": False,
    }
    agent = search_runner(
        engine=engine,
        renderer=renderer(),
        retrievers=retrievers,
        evidence=judge,
        on_turn=on_turn,
        **(defaults | options),  # type: ignore[arg-type]
    )
    task = builders.task(question, "Roka", id="t7", **(metadata or {}))
    episode = await agent.run(task, sample_index=2, stream="train/3", sampling=SamplingParams(max_tokens=max_tokens))
    assert len(engine.keys) == len(script), f"{len(engine.keys)} of {len(script)} scripted turns were sampled"
    return Played(episode, engine, retrievers["vdb"], retrievers.get("web"), judge, turns)
