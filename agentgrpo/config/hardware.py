"""The YAML group `hardware`: where a run computes, in which precision, and how it fits into memory; which of several
processes this one is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agentgrpo.config.values import Count, Positive, check
from agentgrpo.core.compute_threads import usual_threads
from agentgrpo.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The `hardware` group."""

    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights that sample and are trained. bfloat16: half the memory; the updates go to a float32 copy that the
    optimizer keeps, so that none is lost."""
    mixed_precision: Literal["no", "bf16"] = "no"
    """bf16: the trainer's products in bfloat16 (autocast) on weights of `dtype`. The engine samples in `dtype`; what
    this makes of the log-probs is the metric policy/logprob_gap_max."""
    activation_checkpointing: bool | None = None
    """Compute each decoder layer a second time for its gradient instead of keeping what it computed: a third more work,
    far less memory. null = for passes of more than tokens_per_micro_batch tokens; with fsdp for none."""
    tokens_per_micro_batch: Count | None = None
    """Input tokens of one forward and backward pass of the trainer; a longer sample has a pass of its own. null = as
    many as keep about a GiB for the backward pass, from 1024 to 4096."""
    head_chunk_tokens: Count = 256
    """Trained tokens whose logits exist at a time: so many times the vocabulary numbers."""
    threads: Count | None = None
    """null = OMP_NUM_THREADS where it is set, else one per CPU, at most 2."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Of several processes. Each rolls out its share of a step's tasks and computes its share of the gradient; all
    take the same step. ddp: each with all of the weights and of the optimizer's state. fsdp: each with its share of
    them for the decoder layers (FSDP2), and with all the weights once more to sample from."""
    memory_gib: Positive | None = None
    """Of one device, for `agentgrpo plan` alone; null = what this machine has."""
    peak_tflops: Positive | None = None
    """Of one device in bfloat16, as its maker states it, for `agentgrpo plan` alone; null = measured, in `dtype`, where
    the device is here."""
    bandwidth_gib_s: Positive | None = None
    """Of its memory, likewise."""
    process_timeout_s: Positive = 60.0
    """Without a sign of life for so long a process counts as lost, and the run ends on all of them."""

    def __post_init__(self) -> None:
        check("hardware", self)

    @property
    def rounds(self) -> bool:
        """Whether log-probs of engine and trainer differ by rounding: in half precision it depends on the batch."""
        return self.dtype != "float32" or self.mixed_precision != "no"

    @property
    def num_threads(self) -> int:
        """Compute threads."""
        return self.threads or usual_threads()


_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # accelerate launch, torchrun
    ("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NTASKS", "SUBMITIT_LOCAL_LOCALID"),  # hydra/launcher=submitit_local
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # srun, which alone sets the second of them
)
"""Rank, size and rank on the machine, as launchers say them. The second says that it is a launcher's process: in a
batch script or a shell of SLURM there is one process, whatever SLURM_NTASKS says."""


class Launch(NamedTuple):
    """Which of the processes that were started together this one is, and where the first of them is to be met."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Among those of its machine."""
    address: str = "127.0.0.1"
    port: int = 29500

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Launch:
        """As accelerate launch and torchrun say it, or else submitit, or srun; one process where nobody does. Raises
        ConfigError for variables that contradict themselves."""
        e = environment
        names = next((names for names in _VARIABLES if names[1] in e), None)
        if names is None:
            if e.get("SLURM_PROCID", "0") != "0":  # no batch script is that
                raise ConfigError(
                    f"SLURM_PROCID={e['SLURM_PROCID']} and no SLURM_STEP_NUM_TASKS, so that it is unknown of how many "
                    "processes this is one; start them by srun, or set WORLD_SIZE, RANK and LOCAL_RANK"
                )
            return cls()
        try:
            rank, size, local_rank = (int(e.get(name, 0)) for name in names)
            job = int(e.get("SUBMITIT_LOCAL_JOB_ID", e.get("SLURM_JOB_ID", 0)))
            port = int(e.get("MASTER_PORT", 20_000 + job % 10_000 if job else cls().port))
        except ValueError as error:
            raise ConfigError(f"the launcher's variables (WORLD_SIZE, RANK, ...) are no numbers: {error}") from error
        if not 0 <= rank < size:
            raise ConfigError(f"rank {rank} of {size} processes; allowed are 0 to {size - 1}; start it by a launcher")
        address = e.get("MASTER_ADDR") or _first_host(e.get("SLURM_STEP_NODELIST", "")) or cls().address
        return cls(rank, size, local_rank, address, port)

    def variables(self) -> dict[str, str]:
        """The same as variables, for libraries."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def speaks() -> bool:
    """Of several processes on a machine one says what all of them have been told wrong."""
    try:
        return Launch.of().local_rank == 0
    except ConfigError:
        return True


def _first_host(nodes: str) -> str:
    """node[003-004,007],x1 -> node003."""
    match = re.match(r"([^,\[]*)(?:\[(\d+))?", nodes)
    return match[1] + (match[2] or "") if match else ""
