"""Tasks of what is drawn from a seed."""

from __future__ import annotations

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.seeds import BLOCK, SPACE, Seeds, seeds_of


def test_no_seed_is_in_two_splits_or_two_runs() -> None:
    sizes = {"train": 30, "dev": 10, "test": 20}
    found = [seeds_of(seed, sizes) for seed in (0, 1, SPACE // BLOCK - 1)]
    of = {split: {number for one in found for number in one[split]} for split in SPLITS}
    assert {split: len(numbers) for split, numbers in of.items()} == {"train": 90, "dev": 30, "test": 60}
    assert not of["train"] & of["test"]
    assert not of["train"] & of["dev"]
    assert not of["dev"] & of["test"]
    assert max(of["test"]) < 2**32
    for seed in (-1, SPACE // BLOCK):
        with pytest.raises(ConfigError, match=rf"task\.seed={seed}; 0 to 9999 are allowed"):
            seeds_of(seed, sizes)


def test_games_are_dealt_in_turn() -> None:
    tasks = Seeds(kinds=("A-v0", "B-v0"), seed=3, train_tasks=3, dev_tasks=1, test_tasks=2)
    assert [task.metadata for task in tasks.split("train")] == [
        {"kind": "A-v0", "seed": 3 * BLOCK},
        {"kind": "B-v0", "seed": 3 * BLOCK + 1},
        {"kind": "A-v0", "seed": 3 * BLOCK + 2},
    ]
    assert len({task.id for split in SPLITS for task in tasks.split(split)}) == 6
    assert tasks.fingerprint != Seeds(kinds="A-v0", seed=3, train_tasks=3, dev_tasks=1, test_tasks=2).fingerprint


@pytest.mark.parametrize("games", [(), ("A", "A")])
def test_one_or_several_different_games_are_named(games: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="name one, or several different ones"):
        Seeds(kinds=games)


def test_without_kinds_a_task_is_its_seed_alone_behind_the_instruction() -> None:
    [first, _] = Seeds(train_tasks=2, dev_tasks=0, test_tasks=0, instruction="Guess.").split("train")
    assert (first.id, first.metadata, [m.content for m in first.messages]) == ("seed:0", {"seed": 0}, ["Guess."])
    with pytest.raises(ConfigError, match=r"task\.instruction is empty"):
        Seeds(instruction="")
