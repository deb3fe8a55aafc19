"""Short runs of a tiny model in the folder `desk`."""

from __future__ import annotations

from pathlib import Path

from agentgrpo.cli.main import main


def trained(*settings: str, run: str) -> Path:
    """A run of three steps."""
    given = ["experiment=none", "task.questions=q.jsonl", "model.path=model", "environment=program"]
    given += ["algorithm.advantage=none", "rollout.max_tokens=24", "rollout.tasks_per_step=2"]
    given += ["rollout.group_size=2", "hardware.threads=1", "run.max_steps=3", "run.eval_every=0"]
    given += ["run.final_eval=false", "run.screen=quiet", "run.log_with=[]", f"run.dir={run}"]
    assert main(["train", *given, *settings]) == 0
    return Path(run)
