"""Tasks of what is drawn from a seed."""

from __future__ import annotations

import pytest

from agentgrpo.core.errors import ConfigError
from agentgrpo.tasks.base import SPLITS
from agentgrpo.tasks.seeds import SPACE, Seeds, seeds_of


def test_no_seed_is_in_two_splits_of_any_run() -> None:
    sizes = {"train": 30, "dev": 10, "test": 20}
    found = [seeds_of(seed, sizes) for seed in (0, 15, SPACE - 30)]
    of = {split: {number for one in found for number in one[split]} for split in SPLITS}
    assert {split: len(numbers) for split, numbers in of.items()} == {"train": 75, "dev": 30, "test": 55}
    assert not of["train"] & of["test"]
    assert not of["train"] & of["dev"]
    assert not of["dev"] & of["test"]
    assert max(of["test"]) < 2**32
    with pytest.raises(ConfigError, match=r"task\.seed=-1; 0 to"):
        seeds_of(-1, sizes)


def test_games_are_dealt_in_turn() -> None:
    tasks = Seeds(kinds=("A-v0", "B-v0"), seed=3, train_tasks=3, dev_tasks=1, test_tasks=2)
    assert [task.metadata for task in tasks.split("train")] == [
        {"kind": "A-v0", "seed": 3},
        {"kind": "B-v0", "seed": 4},
        {"kind": "A-v0", "seed": 5},
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
