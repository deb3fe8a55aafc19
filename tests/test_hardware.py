"""The hardware group, and which of several processes this one is."""

from __future__ import annotations

import pytest

from agentgrpo.config.hardware import Hardware, Launch, speaks
from agentgrpo.core.errors import ConfigError

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "1234"}
SRUN = {
    "SLURM_JOB_ID": "123456",
    "SLURM_PROCID": "9",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[003-004,007],x1",
}
SUBMITIT = {
    "SUBMITIT_LOCAL_JOB_ID": "27010",
    "SUBMITIT_LOCAL_GLOBALID": "1",
    "SUBMITIT_LOCAL_NTASKS": "2",
    "SUBMITIT_LOCAL_LOCALID": "1",
}


@pytest.mark.parametrize(
    "environment, expected",
    [
        ({}, Launch(0, 1, 0, "127.0.0.1", 29500)),
        (TORCHRUN, Launch(3, 8, 1, "node1", 1234)),
        ({"WORLD_SIZE": "2"}, Launch(0, 2, 0, "127.0.0.1", 29500)),
        (SRUN, Launch(9, 16, 1, "gpu003", 23456)),
        (SRUN | {"SLURM_STEP_NODELIST": "login1,x[2-3]", "MASTER_PORT": "7"}, Launch(9, 16, 1, "login1", 7)),
        (SRUN | TORCHRUN, Launch(3, 8, 1, "node1", 1234)),  # accelerate launch inside of a job
        (SUBMITIT, Launch(1, 2, 1, "127.0.0.1", 27010)),
        (SUBMITIT | {"SLURM_JOB_ID": "5", "SLURM_STEP_NUM_TASKS": "1"}, Launch(1, 2, 1, "127.0.0.1", 27010)),
        ({"SLURM_JOB_ID": "5", "SLURM_NTASKS": "16", "SLURM_PROCID": "0"}, Launch()),  # its batch script itself
    ],
)
def test_launch(environment: dict[str, str], expected: Launch) -> None:
    assert Launch.of(environment) == expected
    assert Launch.of(expected.variables()) == expected


@pytest.mark.parametrize(
    "environment, text",
    [
        ({"WORLD_SIZE": "two"}, "the launcher's variables (WORLD_SIZE, RANK, ...) are no numbers: invalid literal for"),
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1"},
            "SLURM_PROCID=1 and no SLURM_STEP_NUM_TASKS, so the number of processes is unknown; ",
        ),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "rank 2 of 2 processes; allowed are 0 to 1; start it by a launcher"),
    ],
)
def test_launches_that_contradict_themselves(environment: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Launch.of(environment)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    "variables, expected", [({}, True), (TORCHRUN, False), (SUBMITIT, False), ({"WORLD_SIZE": "?"}, True)]
)
def test_one_process_of_a_machine_speaks(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert speaks() is expected


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_timeout_ends(seconds: float) -> None:
    with pytest.raises(ConfigError, match=r"^hardware.process_timeout_s=.*; a finite number > 0 is allowed$"):
        Hardware(process_timeout_s=seconds)
