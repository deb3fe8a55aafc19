"""200 episodes of searches are replayed: all of them repeat themselves, and a changed document is located."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from agentgrpo.cli.main import main
from agentgrpo.core.types import Passage
from agentgrpo.records.trajectories import read_trajectories
from agentgrpo.reports.replay.divergence import AROUND, CUT
from agentgrpo.worlds.almanac.dataset import Almanac
from tests.e2e.conftest import Run

pytestmark = pytest.mark.slow


def test_two_hundred_episodes_repeat_themselves(
    train: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ["run.checkpoint_every=1", "run.keep_last=3", "run.eval_every=0", "run.final_eval=false"]
    run_dir = train("run.max_steps=2", "rollout.tasks_per_step=25", "rollout.group_size=8", *kept)

    def replay(*arguments: str, code: int = 0) -> dict[str, object]:
        capsys.readouterr()
        assert main(["replay", str(run_dir), "--all", "--json", *arguments]) == code
        result: dict[str, object] = json.loads(capsys.readouterr().out)
        return result

    for arguments in (["--step", "0"], ["--tools", "live"]):
        result = replay(*arguments)
        assert (result["diverged"], len(result["episodes"])) == (None, 200)  # type: ignore[arg-type]

    records = {r.id: r for r in read_trajectories(run_dir / "trajectories" / "train-000001.jsonl")}
    shown = next(id for r in records.values() for id in r.retrieved_ids)
    own = Almanac.training_corpora

    def changed(self: Almanac) -> Mapping[str, Sequence[Passage]]:
        """One document closes with another mark: what is found for it, and where, stays as it was."""
        return {
            name: [replace(p, text=f"{p.text[:-1]}!") if p.id == shown else p for p in passages]
            for name, passages in own(self).items()
        }

    monkeypatch.setattr(Almanac, "training_corpora", changed)
    assert replay()["diverged"] is None, "what was recorded is put before the engine"
    result = replay("--tools", "live", code=1)
    found = {row["id"]: row["diverged"] for row in result["episodes"] if row["diverged"]}  # type: ignore[attr-defined]
    assert found.keys() == {id for id, r in records.items() if shown in r.retrieved_ids}
    for id, divergence in found.items():
        first = next(c for c in records[id].agent["tools"] if shown in c["result_ids"])
        asked = {"name": first["name"], "arguments": first["arguments"]}
        assert (divergence["kind"], divergence["turn"], divergence["call"]) == ("tool", first["turn"], asked)
        spot = at if (at := divergence["character"]) <= AROUND else AROUND + len(CUT)
        assert (divergence["expected_text"][spot], divergence["found_text"][spot]) == (".", "!")
