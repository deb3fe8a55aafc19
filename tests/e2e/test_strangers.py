"""A stranger's way in: the wheel, an empty directory, programs as agentgrpo/docs/environments.md says."""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import rows
from tests.e2e.test_models import made

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "my_env.py": '''
class Shop:
    """Nothing of it knows who trains: TRL's environment_factory takes it as it is."""

    def __init__(self):
        self.basket = []

    def reset(self, **kwargs) -> str | None:
        self.basket = []
        self.wanted = kwargs["wanted"]
        return f" You are asked for: {self.wanted}."

    def add(self, item: str, count: int = 1) -> str:
        """
        Put something into the basket.

        Args:
            item: What to buy.
            count: How many of it.

        Returns:
            How much is in the basket.
        """
        self.basket += [item] * count
        return f"{len(self.basket)} in the basket"

    def get_reward(self) -> float:
        return self.basket.count(self.wanted) + 0.25 * len(self.basket)
''',
    "my_losses.py": """
from agentgrpo.grpo.losses import LossInputs, TokenLoss, log_ratio, per_token


@per_token
def mine(x: LossInputs, *, limit: float = 2.0) -> TokenLoss:
    ratio = log_ratio(x.logprobs, x.old_logprobs).exp()
    return TokenLoss(-ratio * x.advantages, ratio.detach(), clipped=ratio > limit)
""",
    "my_terms.py": """
def brief(episode) -> float:
    return -len(episode.turns) / 10
""",
    "coding.py": """
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from agentgrpo.core.types import Episode, Exit, Task
from agentgrpo.environments.base import Observation, Turn


class Coding:
    quality = "tests_passed"

    async def reset(self, task: Task) -> str:
        self.folder = Path(tempfile.mkdtemp(prefix="coding-", dir="."))
        return "Write TEXT = ... in Python."

    async def step(self, turn: Turn) -> Observation | str:
        (self.folder / "answer.py").write_text(f"TEXT = {turn.content!r}\\n")
        if turn.index == 0:
            return "Once more."
        return Observation(done=Exit.ANSWERED, answer=turn.content)

    async def score(self, episode: Episode) -> dict[str, float]:
        (self.folder / "hidden.py").write_text("from answer import TEXT; print(float(len(TEXT) % 2))")
        run = await asyncio.create_subprocess_exec(
            sys.executable, "hidden.py", cwd=self.folder, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await run.communicate()
        return {"tests_passed": float(out)}

    async def close(self) -> None:
        shutil.rmtree(self.folder)
""",
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"item": "%s"}}\n</tool_call>'
SMALL = [
    *("experiment=none", "task.questions=tasks.jsonl", "model.path=model", "environment.max_turns=3"),
    *("rollout.max_tokens=64", "rollout.tasks_per_step=2", "rollout.group_size=4", "guards=none"),
    *("run.max_steps=3", "run.final_eval=false", "run.eval_every=0", "run.screen=plain", "run.log_with=[]"),
    "hardware.threads=1",
]


def taught(folder: Path, *lines: str) -> None:
    """A tiny model that says one of `lines`, whatever it is told: what a chat model would have brought along."""
    made("qwen3", folder, initializer_range=0.05)
    words, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    chance = random.Random(0)
    opening, *said = [
        words(text, add_special_tokens=False)["input_ids"]
        for text in ("<|im_start|>assistant\n", *(f"{line}<|im_end|>" for line in lines))
    ]
    for _ in range(150):
        ids: list[int] = []
        labels: list[int] = []
        while len(ids) < 600:
            ahead = [*chance.choices(range(len(words)), k=chance.randrange(40)), *opening]
            line = chance.choice(said)
            ids += ahead + line
            labels += [-100] * len(ahead) + line
        model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel is installed, without what it needs: that is the tests' own."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    kept = ["--no-build-isolation"] if find_spec("hatchling") else []
    subprocess.run([*pip, "wheel", "--no-deps", *kept, "-w", str(folder / "dist"), str(ROOT)], check=True)
    [wheel] = (folder / "dist").glob("agentgrpo-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a desk of mine")
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
    lines = [
        {"prompt": [{"role": "user", "content": f"Go shopping, number {i}."}], "wanted": wanted, "split": split}
        for i, (wanted, split) in enumerate([("figs", "train"), ("pears", "train"), ("figs", "test")] * 4)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    taught(folder / "model", "done", CALL % "figs", CALL % "pears")
    return folder


def agentgrpo(site: Path, desk: Path, *arguments: str, code: int = 0) -> str:
    """What the installed command says, on the desk."""
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-P", "-m", "agentgrpo", *arguments]
    done = subprocess.run(command, cwd=desk, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def trained(site: Path, desk: Path, name: str, *given: str) -> list[dict[str, Any]]:
    """Trained for three steps, evaluated as the run itself says, and resumed by what the refusal says; the episodes of
    all four steps."""
    run, few = desk / name, ["run.eval.tasks=4", "run.eval.samples_per_task=1"]
    said = agentgrpo(site, desk, "train", *SMALL, *given, f"run.dir={name}")
    following = next(line for line in said.splitlines() if line.startswith("or: "))
    evaluate = shlex.split(following.removeprefix("or: "))
    agentgrpo(site, desk, *evaluate[1:], f"run.dir={name}-eval", *few)
    assert json.loads((desk / f"{name}-eval" / "eval.json").read_text())["n"] == 4
    refused = agentgrpo(site, desk, "resume", name, "run.max_steps=4", code=2)
    assert refused.count("\n") == 1
    named = shlex.split(refused.rpartition("name it on this command line: ")[2])
    assert named == evaluate[4:]
    agentgrpo(site, desk, "resume", name, "run.max_steps=4", *named)
    assert [row["step"] for row in rows(run / "metrics.jsonl")] == [0, 1, 2, 3]
    assert (run / "checkpoints" / "step-000004").is_dir()
    return [row for path in sorted((run / "trajectories").glob("train-??????.jsonl")) for row in rows(path)[1:]]


def test_the_command_is_the_wheels(site: Path, desk: Path) -> None:
    ask = [sys.executable, "-P", "-c", "import agentgrpo; print(agentgrpo.__file__)"]
    found = subprocess.check_output(ask, cwd=desk, env={**os.environ, "PYTHONPATH": str(site)}, text=True)
    assert Path(found.strip()) == site / "agentgrpo" / "__init__.py"
    assert (site / "agentgrpo" / "py.typed").is_file()
    assert (site / "agentgrpo" / "docs" / "environments.md").is_file()


def test_a_class_of_tools_a_term_and_a_loss(site: Path, desk: Path) -> None:
    episodes = trained(
        *(site, desk, "shop", "environment=my_env:Shop", "reward=environment"),
        *("+reward.terms.brief.name=my_terms:brief", "algorithm.loss=my_losses:mine", "+algorithm.loss_args.limit=0.5"),
    )
    assert len(episodes) == 4 * 2 * 4
    bought = set()
    for row in episodes:
        metrics, paid = row["environment"]["metrics"], row["environment"]["outcome"]["reward"]
        calls = metrics["tool_calls"] - metrics["failed_calls"]
        wanted = paid - 0.25 * calls
        assert wanted in range(int(calls) + 1)  # as the basket was at the end
        assert row["reward_terms"] == {"outcome": paid, "brief": pytest.approx(-metrics["turns"] / 10)}
        assert row["reward"] == pytest.approx(paid - metrics["turns"] / 10)
        assert f"You are asked for: {row['metadata']['wanted']}." in row["rendered_prompt"]
        bought.add((calls, wanted))
    assert len(bought) >= 3
    assert [row["policy/clip_fraction"] for row in rows(desk / "shop" / "metrics.jsonl")] == [1.0] * 4  # above 0.5


def test_a_class_that_answers_turns_and_runs_hidden_tests(site: Path, desk: Path) -> None:
    episodes = trained(
        *(site, desk, "coding", "environment=coding:Coding", "reward=environment"),
        "reward.terms.outcome.name=environment.tests_passed",
    )
    assert len(episodes) == 4 * 2 * 4
    for row in episodes:
        assert row["environment"]["outcome"] == {"tests_passed": len(row["answer"]) % 2, "reward": 0.0}
        assert row["reward"] == len(row["answer"]) % 2
        assert "<|im_end|>" not in row["answer"]
    assert {row["reward"] for row in episodes} == {0.0, 1.0}
    assert list(desk.glob("coding-*")) == [desk / "coding-eval"]
    assert json.loads((desk / "coding-eval" / "eval.json").read_text())["figures"]["quality"] == "tests_passed"
