"""Executes the policy's tool turns: search rounds, reranks and page fetches, from queries to observation blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable

from agentgrpo.core.errors import JudgeError, RetrieverError, boundary
from agentgrpo.core.stages import Stage, calling
from agentgrpo.core.types import Outcome, Passage, Task, ToolRecord
from agentgrpo.environments.search import observations as say
from agentgrpo.environments.search.context import Contexts
from agentgrpo.environments.search.grammar import FetchAction, Query, Tags, clean, document_id, page_of
from agentgrpo.environments.search.observations import Block, Line
from agentgrpo.environments.search.options import SearchOptions
from agentgrpo.environments.search.retrieval import QueryResult, Retrieval
from agentgrpo.environments.search.state import OpenedPage, SearchState, effective_search_limit, on_plateau
from agentgrpo.judges.base import EvidenceGrade, QueryResults
from agentgrpo.services.budget import OVER_BUDGET
from agentgrpo.services.page_parts import open_part


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The result of one search turn. Lines are keyed by the query's position in its turn."""

    shown: Mapping[int, Sequence[Line]]
    """For each query that was sent or whose results are shown again: its documents, or a line saying that there are
    none."""
    refused: Mapping[int, Line]
    """The reason why a query was not sent."""
    remarks: Sequence[Line] = ()
    """Remarks on the whole round: requests that were not served as asked."""
    evaluation: Line | None = None
    uncovered: Sequence[Line] = ()
    sent: bool
    """Whether a query was sent; False if every query was refused."""
    over_limit: bool
    """Whether a query was refused because the search limit was reached."""
    num_shown: int = 0
    plateau: bool = False

    def blocks(self, tags: Tags) -> list[Block]:
        """Return all lines as blocks, for a policy that writes tags."""
        parts = (
            (tags.information, [line for lines in self.shown.values() for line in lines]),
            (tags.search_evaluation, [] if self.evaluation is None else [self.evaluation]),
            (tags.search_feedback, [*self.refused.values(), *self.remarks]),
            (tags.subquestions_feedback, self.uncovered),
        )
        return [Block(tag, lines) for tag, lines in parts if lines or (tag == tags.information and self.shown)]


class ToolTurns:
    """One episode's tool turns. Changes the state; `records` holds every call as it happened, `gains` the evidence gain
    of each turn that had one."""

    def __init__(self, options: SearchOptions, task: Task, state: SearchState) -> None:
        self._options, self._task, self._state = options, task, state
        self._tags = options.planner.tags
        self._retrieval = Retrieval(
            retrievers=options.retrievers_of(task),
            reranker=options.reranker,
            top_k=options.top_k,
            rerank_candidates=options.rerank_candidates,
            max_concurrent=options.max_concurrent_queries,
        )
        self.in_sight: Contexts | None = None
        """The contexts, which know what the policy still sees; None = everything shown so far."""
        self.displayed: set[str] = set()
        self.opened: set[OpenedPage] = set()
        """Ids of the documents, and the pages, shown in the current turn."""
        self.records: list[ToolRecord] = []
        self.gains: dict[int, float] = {}

    @property
    def limit(self) -> int:
        """The effective search limit, in queries."""
        options = self._options
        return effective_search_limit(
            base=options.base_search_limit,
            per_subquestion=options.search_budget_per_subquestion,
            cap=options.max_search_limit_cap,
            num_subquestions=len(self._state.subquestions),
        )

    async def search(
        self, queries: Sequence[Query], turn: int, *, automatic: bool = False, numbered: bool = True
    ) -> Searched:
        """Send the queries that are neither repeated nor over the limit, as one round; other queries get feedback.
        automatic: the environment makes the round, and the policy gets no credit for its gain. numbered: lines of
        several queries have the query's number."""
        sent, repeated, over = self._screen(queries)
        again = [i for i in repeated if any(map(self._is_hidden, self._state.asked[queries[i].key]))]
        repeated = [i for i in repeated if i not in again]
        self._state.counts["repeated_search_queries"] += len(repeated)
        self._state.counts["recalled_searches"] += len(again)
        number = {i: i + 1 if numbered and len(queries) > 1 else None for i in range(len(queries))}
        shown: dict[int, list[Line]] = {}
        num_shown, gain = 0, 0.0
        shortfalls: set[str] = set()
        if sent:
            found = await self._retrieval.search([queries[i] for i in sent])
            shortfalls.update(name for row in found for name in row.shortfalls)
            rows = self._take(dict(zip(sent, found, strict=True)), queries, turn, automatic)
            shown |= self._show(rows, queries, number)
            num_shown = sum(len(passages) for passages in rows.values())
            gain = await self._evaluate({queries[i]: passages for i, passages in rows.items()})
            self._state.counts["automatic_searches"] += automatic
            if not automatic:
                self.gains[turn] = gain
        for i in again:
            passages = self._state.asked[queries[i].key]
            shown[i] = self._shown_again(passages)
            recalled: dict[str, object] = {"query": queries[i].text, "retriever": queries[i].retriever}
            self._record("recall", recalled, Outcome.SUCCESS, turn, results=passages, cached=True)
        for i, detail in [(i, "repeated") for i in repeated] + [(i, "over the search limit") for i in over]:
            self._record("search", _arguments(queries[i]), Outcome.INVALID_ARGS, turn, detail=detail)
        plateau = bool(sent and self._state.retrieved_docs) and on_plateau(
            gain=gain,
            sufficient=self._state.evidence_sufficient,
            min_gain=self._options.evidence_plateau_min_gain,
            requires_sufficient=self._options.plateau_requires_sufficient,
        )
        evaluates = bool(sent) and self._options.show_search_evaluation
        return Searched(
            shown=shown,
            refused={i: say.repeated(number[i], self._markers(self._state.asked[queries[i].key])) for i in repeated}
            | {i: say.refused(number[i]) for i in over},
            remarks=[say.sentence(text) for name, text in say.SHORTFALLS.items() if name in shortfalls],
            evaluation=say.evaluation(self._state.evidence_sufficient) if evaluates else None,
            uncovered=say.uncovered(self._state.uncovered),
            sent=bool(sent),
            over_limit=bool(over),
            num_shown=num_shown,
            plateau=plateau,
        )

    def _screen(self, queries: Sequence[Query]) -> tuple[list[int], list[int], list[int]]:
        """Return the positions of queries to send, of repeated queries and of queries over the limit. Repeating costs
        no budget."""
        sent: list[int] = []
        repeated: list[int] = []
        over: list[int] = []
        state, limit = self._state, self.limit
        for i, query in enumerate(queries):
            if self._options.planner.is_duplicate(query, state.asked):
                repeated.append(i)
            elif state.counts["search_queries"] >= limit:
                over.append(i)
            else:
                state.ask(query)
                state.counts["search_queries"] += 1
                sent.append(i)
        state.counts["search_limit_hits"] += len(over)
        return sent, repeated, over

    def _take(
        self, found: dict[int, QueryResult], queries: Sequence[Query], turn: int, automatic: bool
    ) -> dict[int, list[Passage]]:
        """Count and record the results; return the passages to show, by position of their query."""
        state = self._state
        state.search_rounds += 1
        rows: dict[int, list[Passage]] = {}
        new: set[str] = set()
        for i, row in found.items():
            query = queries[i]
            state.asked[query.key] = tuple(row.passages)
            state.counts[f"{query.retriever}_searches"] += 1
            state.counts[f"{row.served}_served"] += 1
            state.counts.update(f"{name}_calls" for name in row.asked)
            state.counts["search_cache_hits"] += row.cached
            state.counts["rerank_requested"] += query.rerank
            state.counts["rerank_calls"] += row.reranked
            state.counts["rerank_skipped"] += query.rerank and not row.reranked
            if row.passages and query.subquestion is not None:
                state.covered.add(query.subquestion)
            rows[i] = self._without_known(row.passages, new)
            self._record(
                "search",
                _arguments(query) | {"served": row.served},
                Outcome.SUCCESS,
                turn,
                results=row.passages,
                cached=row.cached,
                detail=row.detail,
                cost=sum(map(self._price, row.asked)) + self._price("rerank") * row.reranked,
                by_environment=automatic,
            )
        return rows

    def _without_known(self, passages: Sequence[Passage], new: set[str]) -> list[Passage]:
        """Return the passages that neither an earlier round nor this one has shown. new: ids of this round, extended
        here."""
        if not self._options.deduplicate_search_results:
            return list(passages)
        kept = []
        for passage in passages:
            key = document_id(passage)
            if key not in new and key not in self._state.labels.documents:
                new.add(key)
                kept.append(passage)
        self._state.counts["duplicate_search_results_removed"] += len(passages) - len(kept)
        return kept

    def _show(
        self, rows: dict[int, list[Passage]], queries: Sequence[Query], number: dict[int, int | None]
    ) -> dict[int, list[Line]]:
        state = self._state
        markers = state.labels.add_round([(i + 1, passages) for i, passages in rows.items()])
        shown: dict[int, list[Line]] = {}
        for (i, passages), labels in zip(rows.items(), markers, strict=True):
            state.retrieved_docs.extend(passages)
            self.displayed.update(map(document_id, passages))
            shown[i] = [say.document(m, p) for m, p in zip(labels, passages, strict=True)]
            if not passages:
                shown[i].append(say.nothing(number[i], self._markers(state.asked[queries[i].key])))
        for i in rows:
            shown[i] += self._shown_again(state.asked[queries[i].key])
        return shown

    def _is_hidden(self, passage: Passage) -> bool:
        """Return whether the passage is no longer in the context."""
        known, id_ = self.in_sight, document_id(passage)
        return known is not None and id_ not in known.documents and id_ not in self.displayed

    def _shown_again(self, passages: Sequence[Passage]) -> list[Line]:
        """Return lines for the passages that are hidden, under their labels."""
        lines: list[Line] = []
        for passage in passages:
            if self._is_hidden(passage):
                self.displayed.add(document_id(passage))
                lines.append(say.document(self._state.labels.marker_of(passage), passage))
        return lines

    def _markers(self, passages: Sequence[Passage]) -> list[str]:
        return list(dict.fromkeys(self._state.labels.marker_of(p) for p in passages))

    async def _evaluate(self, rows: dict[Query, list[Passage]]) -> float:
        """Return the round's evidence gain. A round that showed nothing is insufficient and changes nothing else."""
        state = self._state
        if not any(rows.values()):
            state.counts["evidence_insufficient_rounds"] += 1
            return 0.0
        results = [
            QueryResults(query=q.text, passages=tuple(passages), subquestion=q.subquestion)
            for q, passages in rows.items()
        ]
        with boundary(JudgeError, "evidence judge"):
            judged = self._options.evidence.judge_round(self._task, results, tuple(state.labels.documents.values()))
            if isawaitable(judged):
                with calling(Stage.TOOLS):
                    judged = await judged
            if not isinstance(judged, EvidenceGrade):
                raise TypeError(f"a {type(judged).__name__} came back; an EvidenceGrade is needed")
            verdict = judged
        state.counts[f"evidence_{'sufficient' if verdict.sufficient else 'insufficient'}_rounds"] += 1
        return state.judge(verdict)

    async def rerank(self, turn: int) -> list[Block]:
        """Rerank the retrieved passages by the question and keep the best top_k, under their labels."""
        state = self._state
        state.counts["rerank_requested"] += 1
        why = say.NOTHING_TO_RERANK
        try:
            documents = await self._retrieval.rerank(state.question, state.retrieved_docs)
        except RetrieverError as e:
            if e.kind != OVER_BUDGET:
                raise
            documents, why = None, say.SHORTFALLS["rerank"]
        if documents is None:
            state.counts["rerank_skipped"] += 1
            self._record("rerank", {}, Outcome.INVALID_ARGS, turn, detail=why)
            return [Block(self._tags.search_feedback, [say.sentence(why)])]
        state.counts["rerank_calls"] += 1
        state.retrieved_docs = documents
        self.displayed.update(map(document_id, documents))
        self._record("rerank", {}, Outcome.SUCCESS, turn, results=documents, cost=self._price("rerank"))
        lines = [say.document(state.labels.marker_of(p), p) for p in documents]
        return [Block(self._tags.information, lines)]

    async def fetch(self, action: FetchAction, turn: int) -> list[Block]:
        """Show the first max_url_fetch pages, or the wanted part of them, that have not been shown. A page that fails
        gets feedback; a fetcher that raises is a RetrieverError."""
        state, options = self._state, self._options
        fresh: dict[OpenedPage, str] = {}
        for url in action.urls:
            opened = OpenedPage(page_of(url), action.part, action.find.casefold())
            if opened not in state.fetched or (self.in_sight is not None and opened not in self.in_sight.pages):
                fresh.setdefault(opened, url)
        if options.fetcher is None:
            for url in action.urls:
                self._record("fetch", _page_arguments(action, url), Outcome.TOOL_NOT_FOUND, turn)
            return [Block(self._tags.search_feedback, [say.sentence(say.NO_FETCHER)])]
        wanted = dict(list(fresh.items())[: options.max_url_fetch])
        unknown = [url for opened, url in wanted.items() if opened not in state.fetched]
        with boundary(RetrieverError, "page fetcher"), calling(Stage.TOOLS):
            fetched = iter(await options.fetcher.fetch(unknown) if unknown else [])
        found = [state.fetched[o] if o in state.fetched else next(fetched) for o in wanted]
        pages: list[tuple[int, Passage]] = []
        notes: list[str] = []
        spent = absent = 0
        for (opened, url), row in zip(wanted.items(), found, strict=True):
            arguments = _page_arguments(action, url)
            if isinstance(row, RetrieverError) and row.kind == OVER_BUDGET:
                spent += 1
                self._record("fetch", arguments, Outcome.INVALID_ARGS, turn, detail=say.SHORTFALLS["fetch"])
                continue
            if isinstance(row, RetrieverError):
                outcome = Outcome.TIMEOUT if row.kind == "timeout" else Outcome.RUNTIME_ERROR
                self._record("fetch", arguments, outcome, turn, detail=row.kind, cost=self._price("fetch"))
                continue
            is_known = opened in state.fetched
            page = state.fetched[opened] = clean(replace(row, url=row.url or url))
            self.opened.add(opened)
            part = open_part(page.text, max_chars=options.max_full_page_chars, part=action.part, find=action.find)
            results = [] if part is None else [page]
            name, cost = ("recall", 0.0) if is_known else ("fetch", self._price("fetch"))
            state.counts["recalled_searches"] += is_known
            self._record(name, arguments, Outcome.SUCCESS, turn, results=results, cached=is_known, cost=cost)
            if part is None:
                absent += 1
                continue
            pages.append((action.urls.index(url) + 1, replace(page, text=part.text)))
            notes.append(part.note)
        lines: list[Line] = []
        for marker, (_, page), note in zip(state.labels.add_pages(pages), pages, notes, strict=True):
            self.displayed.add(document_id(page))
            lines += [say.document(marker, page), *([say.sentence(note)] if note else [])]
        blocks = [Block(self._tags.full_page, lines)] if lines else []
        feedback = [say.not_there(absent)] if absent else []
        if missing := len(action.urls) - len(pages) - absent:
            feedback.append(say.not_fetched(missing))
        if spent:
            feedback.append(say.sentence(say.SHORTFALLS["fetch"]))
        return [*blocks, Block(self._tags.search_feedback, feedback)] if feedback else blocks

    def _record(
        self,
        name: str,
        arguments: dict[str, object],
        outcome: Outcome,
        turn: int,
        *,
        results: Sequence[Passage] = (),
        cached: bool = False,
        detail: str = "",
        cost: float = 0.0,
        by_environment: bool = False,
    ) -> None:
        self.records.append(
            ToolRecord(
                name=name,
                arguments=arguments,
                outcome=outcome,
                turn=turn,
                num_results=len(results),
                result_ids=tuple(document_id(p) for p in results),
                cached=cached,
                detail=detail,
                cost=cost,
                by_environment=by_environment,
            )
        )

    def _price(self, kind: str) -> float:
        return self._options.call_prices.get(kind, 0.0)


def _arguments(query: Query) -> dict[str, object]:
    return {
        "query": query.text,
        "retriever": query.retriever,
        "rerank": query.rerank,
        "subquestion": query.subquestion,
    }


def _page_arguments(action: FetchAction, url: str) -> dict[str, object]:
    arguments: dict[str, object] = {"url": url}
    arguments |= {"part": action.part} if action.part > 1 else {}
    return arguments | ({"find": action.find} if action.find else {})
