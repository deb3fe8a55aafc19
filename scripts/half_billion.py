"""Check that a model with half a billion weights trains end to end on this machine. The weights are random, so it
learns nothing.

    OMP_NUM_THREADS=1 python scripts/half_billion.py                the shape of Qwen2.5-0.5B: 2 GiB of disk, minutes
    OMP_NUM_THREADS=1 python scripts/half_billion.py --shape small  the same with a small one, in seconds

Runs a real `agentgrpo train` in a separate process, in bfloat16 with a LoRA adapter: rollouts with searches, a judge,
training steps and a checkpoint. Prints the seconds of a step, steps an hour, the process's peak memory, and the
estimates of `agentgrpo plan` for the same settings.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml
from transformers import AutoModelForCausalLM

from agentgrpo.models.loading import config_of
from agentgrpo.renderers.train_tokenizer import train_tokenizer
from agentgrpo.worlds.almanac.dataset import Almanac

ROOT = Path(__file__).parent.parent
WORLD = ["task.num_companies=12", "task.dev_companies=4", "task.test_companies=4"]
SETTINGS = [
    "experiment=almanac",
    *WORLD,
    "model=path",
    "model.lora.rank=8",
    "model.lora.targets=[q_proj,v_proj]",
    "environment.system_prompt=Answer with searches.",
    "environment.max_turns=2",
    "environment.max_search_limit=1",
    "environment.top_k=1",
    "engine.max_context=256",
    "rollout.tasks_per_step=2",
    "rollout.group_size=2",
    "rollout.max_tokens=8",
    "reward=correctness",
    "+reward.terms.parity.name=tests.e2e.parity:Parity",
    "+reward.terms.parity.weight=1.0",
    "hardware.dtype=bfloat16",
    "hardware.activation_checkpointing=true",
    "hardware.tokens_per_micro_batch=256",
    "run.eval_every=0",
    "run.final_eval=false",
    "run.screen=quiet",
    "run.log_with=[]",
    "guards=none",
]
WHOLE = ["model.lora.rank=null", "model.lora.targets=all-linear", "hardware.dtype=float32"]
"""Train every weight in float32: memory large enough to compare with the plan, where an adapter would be lost in the
noise.
"""
SMALL = {
    "model_type": "qwen2",
    "vocab_size": 32768,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
PROGRAM = """
import sys
from agentgrpo.cli.main import main
code = main(sys.argv[1:])
line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(int(line.split()[1]) * 1024)
sys.exit(code)
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    parameters: int
    steps: int
    step_s: float
    """Median."""
    peak_bytes: int
    """Peak resident memory of the training process."""
    imports_bytes: int
    """Peak resident memory of a process that only plans: the libraries without weights."""
    planned_bytes: int
    planned_s: float
    """Upper estimate, with every context full."""


def shape(name: str) -> dict[str, Any]:
    """The keys of the shape's config.json."""
    preset = ROOT / "configs" / "model" / "qwen2_5_0_5b.yaml"
    found: dict[str, Any] = yaml.safe_load(preset.read_text(encoding="utf-8"))["shape"]
    return SMALL if name == "small" else found


def write_model(folder: Path, facts: dict[str, Any]) -> None:
    """Save random weights in bfloat16 with a small tokenizer: most ids of the vocabulary are unused."""
    world = next(iter(Almanac(num_companies=12, dev_companies=4, test_companies=4).demonstration_worlds(1, 1)))
    texts = [passage.text for passages in world.corpora().values() for passage in passages]
    tokenizer = train_tokenizer(texts, vocab_size=600)
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = config_of(facts)
    for name, value in ids.items():
        setattr(config, name, value)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def run(arguments: Sequence[str]) -> tuple[str, int]:
    """Return (output of `agentgrpo ARGUMENTS`, its peak resident memory in bytes)."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments]
    done = subprocess.run(command, check=False, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"agentgrpo {' '.join(arguments)}: exit code {done.returncode}")
    *text, peak = done.stdout.splitlines()
    return "\n".join(text), int(peak)


def measure(name: str, steps: int, folder: Path, *, whole: bool = False) -> Measured:
    write_model(folder / "model", shape(name))
    settings = [
        *SETTINGS,
        *(WHOLE if whole else []),
        f"model.path='{folder / 'model'}'",
        f"run.max_steps={steps}",
        "hardware.threads=1",
    ]
    planned, imports = run(["plan", *settings, "--json"])
    plan = json.loads(planned)
    run_dir = folder / "run"
    _, peak = run(["train", *settings, f"run.dir='{run_dir}'", f"run.checkpoint_every={steps}"])
    rows = [json.loads(line) for line in (run_dir / "timings.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = [row["time/generation"] + row["time/train"] for row in rows if "time/train" in row]
    return Measured(
        parameters=plan["model"]["parameters"],
        steps=len(seconds),
        step_s=median(seconds),
        peak_bytes=peak,
        imports_bytes=imports,
        planned_bytes=plan["memory"]["need_bytes"],
        planned_s=sum(plan["step"]["seconds"].values()),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=["0.5b", "small"], default="0.5b")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--whole", action="store_true", help="train all weights in float32, instead of an adapter")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.shape, given.steps, Path(folder), whole=given.whole)
    if given.json:
        print(json.dumps(asdict(found)))
        return 0
    own = found.peak_bytes - found.imports_bytes
    print(f"{found.parameters:,} parameters, {'all trained' if given.whole else 'bfloat16, LoRA'}; {found.steps} steps")
    print(f"a step: {found.step_s:.1f} s, {3600 / found.step_s:.0f} an hour; planned at most {found.planned_s:.1f} s")
    print(
        f"peak memory: {found.peak_bytes / 2**30:.2f} GiB, {own / 2**30:.2f} beyond the libraries'; planned "
        f"{found.planned_bytes / 2**30:.2f}, {found.planned_bytes / own:.2f} of that"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
