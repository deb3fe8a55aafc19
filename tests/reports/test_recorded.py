"""What a finished run's own files say of it."""

from __future__ import annotations

from pathlib import Path

import yaml

from agentgrpo.environments.search.metrics import SEARCH_FIGURES
from agentgrpo.records.run_dir import RunDir
from agentgrpo.reports.recorded import prices_of


def test_a_kind_that_neither_evaluation_nor_budget_prices_costs_what_the_environment_says(tmp_path: Path) -> None:
    """As in the run itself (run.build)."""
    budget = {"prices": {"web": 0.5, "vdb": 0.0, "rerank": 0.25, "judge": 3.0}}
    config = {"run": {"eval": {"prices": {"rerank": 0.0}}}, "budget": budget}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    prices = prices_of(RunDir(tmp_path), SEARCH_FIGURES)
    assert prices == {"web": 0.5, "rerank": 0.0}
    assert SEARCH_FIGURES.priced(prices) == {"web": 0.5, "vdb": 0.01, "rerank": 0.0}
