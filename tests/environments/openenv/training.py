"""Short runs of a tiny model in the folder `desk`, in a server that they start."""

from __future__ import annotations

from pathlib import Path

from agentgrpo.cli.main import main

SERVED = Path(__file__).with_name("served.py")


def command(kind: str, sessions: int = 64) -> str:
    return f"environment.command='python \"{SERVED}\" {kind} {{port}} {sessions}'"


def trained(*settings: str, run: str = "run", steps: int = 2) -> Path:
    given = ["experiment=none", "model.path=model", "environment=openenv"]
    given += ["algorithm.advantage=none", "rollout.max_tokens=24", "rollout.tasks_per_step=2"]
    given += ["rollout.group_size=2", "hardware.threads=1", f"run.max_steps={steps}", "run.eval_every=0"]
    given += ["run.final_eval=false", "run.screen=quiet", "run.log_with=[]", f"run.dir={run}"]
    given += ["environment.start_timeout_s=600", "environment.timeout_s=600"]  # whatever else the machine does
    assert main(["train", *given, *settings]) == 0
    return Path(run)
