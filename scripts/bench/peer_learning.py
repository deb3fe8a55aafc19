"""The peer's side of the learning curve: TRL's GRPOTrainer, with the start weights and the tasks of one of our runs.

    OMP_NUM_THREADS=1 python scripts/bench/peer_learning.py RUN --out FILE          (in the peer's environment)

Everything is read from RUN, a finished run: model, tasks in their order, and every setting. Writes a line of JSON per
step. Only TRL's own hooks are used: `tools=`, a chat template, a response template, a second end token.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import datasets
import torch
import transformers
import trl
import yaml
from react_for_trl import CHAT_TEMPLATE, RESPONSE_TEMPLATE, calculator, call_ends, reward

from agentgrpo.renderers.react import ReactRenderer
from agentgrpo.training.adapters import freeze

MICRO_BATCH = 8
Node = Mapping[str, Any]


def tasks_of(run: Path) -> Iterator[Node]:
    """Yield the first episode of every group, in the order in which the run has drawn the tasks."""
    for path in sorted(run.glob("trajectories/train-??????.jsonl")):
        _, *episodes = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        for _, group in itertools.groupby(episodes, key=lambda episode: episode["group"]):
            yield next(group)


def prompt_of(episode: Node, system: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, *episode["prompt_messages"]]


def refuse_other_settings(config: Node) -> None:
    """Both sides must learn in the same way; settings that TRL cannot reproduce are refused."""
    expected = {
        ("algorithm", "loss"): "clipped",
        ("algorithm", "aggregation"): "token_mean",
        ("algorithm", "advantage"): "group_mean",
        ("algorithm", "kl_coef"): 0.0,
        ("optimizer", "warmup_steps"): 0,
        ("optimizer", "final_fraction"): 1,
        ("model", "renderer"): "react",
    }
    for (group, name), value in expected.items():
        if config[group][name] != value:
            raise SystemExit(f"bench: the run has {group}.{name}={config[group][name]}; {value} is what TRL can do too")


def cpu_seconds() -> float:
    return sum(os.times()[:4])


class Log(transformers.TrainerCallback):  # type: ignore[misc]
    """A line of JSON per step, with the trainer's own CPU time from the end of one step to the end of the next."""

    def __init__(self, out: Path) -> None:
        self.out, self.began = out, 0.0
        self.step: dict[str, float] = {}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.began = cpu_seconds()

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        now = cpu_seconds()
        row = {"step": state.global_step - 1, **self.step, "cpu_s": now - self.began}
        with self.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self.began = cpu_seconds()


def build(run: Path, log: Log) -> Any:
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    refuse_other_settings(config)
    rollout, optimizer, environment = config["rollout"], config["optimizer"], config["environment"]
    start = config["model"]["path"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    renderer = ReactRenderer(tokenizer=tokenizer)
    tokenizer.chat_template, tokenizer.response_template = CHAT_TEMPLATE, RESPONSE_TEMPLATE
    model = transformers.AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32)
    freeze(model, config["model"]["freeze"])
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, call_ends(tokenizer)]
    episodes = list(tasks_of(run))
    system = environment["system_prompt"]
    for episode in episodes:
        mine = tokenizer.apply_chat_template(prompt_of(episode, system), tokenize=False, add_generation_prompt=True)
        if mine != episode["rendered_prompt"]:
            raise SystemExit(f"bench: task {episode['task']} opens with {episode['rendered_prompt']!r}, here {mine!r}")

    def right(
        completions: Sequence[Any], completion_ids: Sequence[Any], references: Sequence[Any], **_: Any
    ) -> list[float]:
        rewards = [
            reward(said, ended=ids[-1] == tokenizer.eos_token_id, references=known, renderer=renderer)
            for said, ids, known in zip(completions, completion_ids, references, strict=True)
        ]
        log.step["reward"] = sum(rewards) / len(rewards)
        return rewards

    rows = rollout["tasks_per_step"] * rollout["group_size"]
    max_tokens = rollout["max_tokens"]
    arguments = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="peer-"),
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=rows // MICRO_BATCH,
        num_generations=rollout["group_size"],
        max_completion_length=config["environment"]["max_context"],
        generation_kwargs={"max_new_tokens": max_tokens},
        max_tool_calling_iterations=environment["max_turns"] - 1,
        max_steps=config["run"]["max_steps"],
        shuffle_dataset=False,
        loss_type="dapo",
        scale_rewards="none",
        beta=0.0,
        learning_rate=optimizer["lr"],
        lr_scheduler_type="constant",
        warmup_steps=0,
        adam_beta1=optimizer["betas"][0],
        adam_beta2=optimizer["betas"][1],
        adam_epsilon=optimizer["eps"],
        weight_decay=optimizer["weight_decay"],
        max_grad_norm=optimizer["max_grad_norm"],
        temperature=rollout["temperature"],
        seed=config["run"]["seed"],
        bf16=False,
        fp16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    data = {
        "prompt": [prompt_of(episode, system) for episode in episodes],
        "references": [episode["references"] for episode in episodes],
    }

    class Peer(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate(self, prompts: Any) -> Any:
            began = cpu_seconds()
            out = super()._generate(prompts)
            log.step |= {"rollout_cpu_s": cpu_seconds() - began, "sampled": sum(map(sum, out[2]))}
            return out

    return Peer(
        model=model,
        reward_funcs=right,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict(data),
        processing_class=tokenizer,
        tools=[calculator],
        callbacks=[log],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run of ours that has ended")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    datasets.disable_progress_bars()
    args.out.unlink(missing_ok=True)
    build(args.run, Log(args.out)).train()


if __name__ == "__main__":
    main()
