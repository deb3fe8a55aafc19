"""Tools that call external services: each call becomes a request to the meter.

A request holds the tool's description and the arguments of the call, not the service's address. A transient failure (a
page that was too slow) is shown to the policy but not recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from agentgrpo.core.errors import RetrieverError, ToolError
from agentgrpo.core.types import Outcome
from agentgrpo.retrieval.services import PAGE_FACTS
from agentgrpo.services.budget import OVER_BUDGET
from agentgrpo.services.meter import Meter
from agentgrpo.services.service import Form, Request
from agentgrpo.tools.base import Tool, ToolBefore, ToolResult, Toolset, Workspace


class _Passing(ToolError):
    """Carries a transient result, which is not recorded."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result.text, kind=result.detail or str(result.outcome))
        self.result = result


def _row(result: ToolResult) -> dict[str, Any]:
    return {
        "outcome": str(result.outcome),
        "text": result.text,
        "num_results": result.num_results,
        "result_ids": list(result.result_ids),
        "detail": result.detail,
    }


def _result(row: Mapping[str, Any]) -> ToolResult:
    return ToolResult(**{**row, "outcome": Outcome(row["outcome"]), "result_ids": tuple(row["result_ids"])})


_RESULT: Form[ToolResult] = Form(write=_row, read=_result, error=ToolError)


class ToolService(ToolBefore):
    """kind: fetch or mcp; prices and limits go by it. Beyond a limit of the episode, the policy is told so."""

    def __init__(self, real: Tool, *, kind: str, meter: Meter) -> None:
        super().__init__(real)
        self._kind, self._meter = kind, meter
        said = json.dumps([self.spec.name, self.spec.description, self.spec.parameters], default=repr, sort_keys=True)
        told = sha256(said.encode()).hexdigest()[:16]
        self._service = str(getattr(real, "identity", f"{kind} {self.spec.name} {told}"))

    async def prepare(self, workspace: Workspace) -> None:
        """Skipped when all requests are replayed."""
        if not self._meter.replays_only:
            await super().prepare(workspace)

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace) -> ToolResult:
        """Raises ToolError; BudgetSpent and CassetteMiss end the run."""

        async def live() -> ToolResult:
            result = await self._real.call(arguments, workspace)
            if self._passes(result):
                raise _Passing(result)
            return result

        try:
            json.dumps(arguments, allow_nan=False)
        except ValueError:
            return ToolResult.refused("a number is not finite; none such can be sent")
        try:
            body = {"service": self._service, "arguments": arguments}
            has_effects = self._kind == "mcp"
            request = Request(kind=self._kind, body=body, live=live, form=_RESULT, has_effects=has_effects)
            return (await self._meter.ask(request)).value
        except _Passing as e:
            return e.result
        except RetrieverError as e:
            if e.kind != OVER_BUDGET:
                raise
            return ToolResult.failed(str(e))

    def _passes(self, result: ToolResult) -> bool:
        if result.outcome is Outcome.TIMEOUT:
            return True
        return self._kind == "fetch" and result.outcome is Outcome.RUNTIME_ERROR and result.detail not in PAGE_FACTS


class ToolsetService:
    """A Toolset with each of its tools wrapped in a ToolService."""

    def __init__(self, real: Toolset, *, kind: str, meter: Meter) -> None:
        self.tools = [ToolService(tool, kind=kind, meter=meter) for tool in real.tools]
        self._real = real

    async def close(self) -> None:
        await self._real.close()
