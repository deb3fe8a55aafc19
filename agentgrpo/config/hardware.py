"""The YAML group `hardware`: a run's device, precision and memory use; also the rank of this process among several."""

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
    """Type of the weights that are sampled from and trained. bfloat16: half the memory; updates go to a float32 copy in
    the optimizer, so that no update is lost."""
    mixed_precision: Literal["no", "bf16"] = "no"
    """bf16: the trainer's products in bfloat16 (autocast) on weights of `dtype`. The engine samples in `dtype`; the
    resulting difference of log-probs is the metric policy/logprob_gap_max."""
    activation_checkpointing: bool | None = None
    """Recompute each decoder layer for its gradient instead of keeping its activations: a third more work, far less
    memory. null = for passes of more than tokens_per_micro_batch tokens; with fsdp never."""
    tokens_per_micro_batch: Count | None = None
    """Input tokens of one forward and backward pass of the trainer; a longer sample has a separate pass. null = 1024 to
    4096, so that a pass keeps about a GiB for its backward pass."""
    head_chunk_tokens: Count = 256
    """Trained tokens whose logits exist at a time: this number times the vocabulary size."""
    threads: Count | None = None
    """Compute threads; null = OMP_NUM_THREADS if it is set, else one per CPU, at most 2."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Strategy of several processes. Each process rolls out its share of a step's tasks and computes its share of the
    gradient; all take the same step. ddp: each process has all weights and the whole optimizer state. fsdp: each
    process has its share of both for the decoder layers (FSDP2), and a copy of all weights to sample from."""
    memory_gib: Positive | None = None
    """Memory of one device, only for `agentgrpo plan`; null = the memory of this machine."""
    peak_tflops: Positive | None = None
    """Maker's figure for one device in bfloat16, only for `agentgrpo plan`; null = measured, in `dtype`, if present."""
    bandwidth_gib_s: Positive | None = None
    """Memory bandwidth of one device, only for `agentgrpo plan`; null = measured, likewise."""
    process_timeout_s: Positive = 60.0
    """Seconds without a sign of life after which a process counts as lost and the run ends on all processes."""

    def __post_init__(self) -> None:
        check("hardware", self)

    @property
    def rounds(self) -> bool:
        """Whether log-probs of engine and trainer differ by rounding, which depends on the batch in half precision."""
        return self.dtype != "float32" or self.mixed_precision != "no"

    @property
    def num_threads(self) -> int:
        """Number of compute threads."""
        return self.threads or usual_threads()


_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # accelerate launch, torchrun
    ("SUBMITIT_LOCAL_GLOBALID", "SUBMITIT_LOCAL_NTASKS", "SUBMITIT_LOCAL_LOCALID"),  # hydra/launcher=submitit_local
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # srun; only srun sets the second variable
)
"""Variables of launchers: rank, number of processes, and rank on the machine. The second variable shows that a launcher
started this process: a batch script or shell of SLURM is a single process, whatever SLURM_NTASKS is."""


class Launch(NamedTuple):
    """Rank of this process among those that were started together, and the address of the first process."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among the processes of its machine."""
    address: str = "127.0.0.1"
    port: int = 29500

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Launch:
        """Read the variables of accelerate launch and torchrun, or else submitit, or else srun; without them, this is a
        single process. Raises ConfigError for contradictory variables."""
        e = environment
        names = next((names for names in _VARIABLES if names[1] in e), None)
        if names is None:
            if e.get("SLURM_PROCID", "0") != "0":  # impossible for a batch script
                raise ConfigError(
                    f"SLURM_PROCID={e['SLURM_PROCID']} and no SLURM_STEP_NUM_TASKS, so the number of processes is "
                    "unknown; start them by srun, or set WORLD_SIZE, RANK and LOCAL_RANK"
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
        """Return the rank and address as environment variables, for libraries."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
        }


def speaks() -> bool:
    """Whether this process reports mistakes that all processes of the machine have in common: only the first does."""
    try:
        return Launch.of().local_rank == 0
    except ConfigError:
        return True


def _first_host(nodes: str) -> str:
    """Return the first host of a SLURM list: node[003-004,007],x1 -> node003."""
    match = re.match(r"([^,\[]*)(?:\[(\d+))?", nodes)
    return match[1] + (match[2] or "") if match else ""
