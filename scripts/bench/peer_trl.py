"""The peer: TRL's GRPOTrainer on a workload; everything except the prescribed lengths is its own unmodified code.

    OMP_NUM_THREADS=1 python scripts/bench/peer_trl.py --work tiny/latency-0        (in the peer's environment)

It uses its best settings on a CPU: fp32, no gradient checkpointing, micro-batches of 8.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import datasets
import transformers
import trl
from measure import Stopwatch, only_the_report_on_stdout, report
from scripted_logits import ScriptedLogits
from workload import Script, model
from works import works

MICRO_BATCH = 8


class Progress:
    """The trainer's position in the workload. TRL calls the tools row by row, turn by turn."""

    def __init__(self) -> None:
        self.step, self.turn, self.calls = -1, 0, 0

    def next_step(self) -> None:
        self.step, self.turn, self.calls = self.step + 1, 0, 0


def build(work_name: str, steps: int, watch: Stopwatch, counts: dict[str, list[int]]) -> Any:
    """Build the trainer; it writes its times into `watch` and its tokens per step into `counts`."""
    work = works()[work_name]
    script, at = Script(work), Progress()
    script.prepare(steps + 1)
    tok = script.tokenizer
    template = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tok.chat_template = template.read_text(encoding="utf-8")
    policy = model(work)
    plain_generate = policy.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        scripted = transformers.LogitsProcessorList([ScriptedLogits(script, at.step, at.turn)])
        at.turn += 1
        return plain_generate(*args, logits_processor=scripted, **kwargs)

    policy.generate = generate

    def search(query: str) -> str:
        """Search the web for a query and return the best passages.

        Args:
            query: the search query
        """
        turn, row = divmod(at.calls, work.rows)
        at.calls += 1
        if work.latency_s:
            time.sleep(work.latency_s)
        return script.reply(at.step, row, turn)

    class Peer(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate(self, prompts: Any) -> Any:
            at.next_step()
            with watch.stage("rollout"):
                out = super()._generate(prompts)
            masks = out[2] if out[2] is not None else [[1] * len(c) for c in out[1]]
            counts["sampled"].append(sum(map(sum, masks)))
            counts["tokens"].append(sum(len(a) + len(b) for a, b in zip(out[0], out[1], strict=True)))
            return out

    class Steps(transformers.TrainerCallback):  # type: ignore[misc]
        began = (0.0, 0.0)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began = (time.perf_counter(), time.process_time())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            now = (time.perf_counter(), time.process_time())
            watch.add("step", now[0] - self.began[0], now[1] - self.began[1])
            self.began = now

    dice = random.Random(7)
    config = trl.GRPOConfig(
        output_dir=tempfile.mkdtemp(prefix="peer-"),
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=work.rows // MICRO_BATCH,
        num_generations=work.group_size,
        max_completion_length=work.most_sampled_or_injected,
        max_tool_calling_iterations=work.turns,
        max_steps=steps + 1,
        bf16=False,
        fp16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        learning_rate=1e-6,
        beta=0.0,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        temperature=1.0,
        seed=0,
    )
    questions = [[{"role": "user", "content": script.question(i)}] for i in range(work.tasks * (steps + 2))]
    return Peer(
        model=policy,
        reward_funcs=lambda completions, **_: [dice.random() for _ in completions],
        args=config,
        train_dataset=datasets.Dataset.from_dict({"prompt": questions}),
        processing_class=tok,
        tools=None if work.turns == 1 else [search],
        callbacks=[Steps()],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", required=True, choices=works())
    parser.add_argument("--steps", type=int, default=3, help="measured steps; one more runs first")
    args = parser.parse_args()
    datasets.disable_progress_bars()
    with only_the_report_on_stdout() as out:
        watch, counts = Stopwatch(), dict[str, list[int]](sampled=[], tokens=[])
        build(args.work, args.steps, watch, counts).train()
        work = {name: values[1:] for name, values in counts.items()}
        report(out, watch.figures(), work, ("trl", "transformers", "torch"))


if __name__ == "__main__":
    main()
