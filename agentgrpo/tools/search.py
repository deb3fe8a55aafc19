"""The tool `search`: returns passages of any retriever for a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgrpo.core.errors import ConfigError, RetrieverError, ToolError, boundary
from agentgrpo.core.messages import ToolSpec
from agentgrpo.core.types import Outcome, Passage
from agentgrpo.retrieval.base import Retriever
from agentgrpo.services.budget import OVER_BUDGET
from agentgrpo.tools.base import ToolResult, Workspace


class SearchTool:
    """Returns labelled passages, best first:

        [1] title: text
        [2] text

    With several retrievers the policy may choose one. An empty query -> invalid_args; a failing retriever raises
    ToolError with the retriever's own kind of failure."""

    def __init__(
        self,
        *,
        retrievers: Mapping[str, Retriever],
        top_k: int = 3,
        max_passage_chars: int = 2000,
        max_query_chars: int = 1000,
    ) -> None:
        """retrievers: by name; the first is used if the policy names none. The caller closes them. Raises
        ConfigError."""
        if not retrievers:
            raise ConfigError("tool search: there is no retriever; configure one: retriever=embedded")
        if top_k < 1 or max_passage_chars < 1 or max_query_chars < 1:
            limits = f"top_k={top_k}, max_passage_chars={max_passage_chars}, max_query_chars={max_query_chars}"
            raise ConfigError(f"tool search: {limits}; 1 or more are allowed")
        self._retrievers, self._top_k = dict(retrievers), top_k
        self._max_passage_chars, self._max_query_chars = max_passage_chars, max_query_chars
        names = list(self._retrievers)
        properties: dict[str, Any] = {"query": {"type": "string", "description": "What to search for"}}
        if len(names) > 1:
            about = f"Which index to search; {names[0]} if left out"
            properties["retriever"] = {"type": "string", "enum": names, "description": about}
        self.spec = ToolSpec(
            name="search",
            description=f"Searches for passages of text; answers with the best {top_k}.",
            parameters={
                "type": "object",
                "properties": properties,
                "required": ["query"],
                "additionalProperties": False,
            },
        )

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        query = _single_line(arguments["query"])
        if not query:
            return ToolResult.refused("the query is empty")
        if len(query) > self._max_query_chars:
            return ToolResult.refused(
                f"a query of {len(query)} characters; at most {self._max_query_chars} are allowed"
            )
        name = arguments.get("retriever", next(iter(self._retrievers)))
        try:
            with boundary(RetrieverError, f"retriever {name}"):
                passages = (await self._retrievers[name].search(query, top_k=self._top_k))[: self._top_k]
        except RetrieverError as e:
            if e.kind == OVER_BUDGET:
                return ToolResult.refused("the budget for these searches is spent")
            raise ToolError(f"tool search: {e}", kind=e.kind) from e
        return ToolResult(
            outcome=Outcome.SUCCESS,
            text="\n".join(self._row(i, p) for i, p in enumerate(passages, 1)) or "nothing found",
            num_results=len(passages),
            result_ids=tuple(p.id for p in passages),
        )

    async def close(self) -> None:
        pass

    def _row(self, number: int, passage: Passage) -> str:
        title, text = _single_line(passage.title), _single_line(passage.text)
        if len(text) > self._max_passage_chars:
            text = f"{text[: self._max_passage_chars]}..."
        return f"[{number}] {title}: {text}" if title else f"[{number}] {text}"


def _single_line(text: str) -> str:
    """Fold white space, so that a passage cannot break out of its row; half a surrogate pair becomes "?"."""
    return " ".join(text.split()).encode("utf-8", "replace").decode("utf-8")
