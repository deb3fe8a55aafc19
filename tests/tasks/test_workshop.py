import re
from collections import Counter
from itertools import combinations

import pytest

from agentgrpo.core.errors import ConfigError, DataError
from agentgrpo.core.messages import MalformedCall, ParsedTurn
from agentgrpo.core.types import Task, ToolCall
from agentgrpo.tasks.base import DemonstratedDataset
from agentgrpo.worlds.almanac.world import syllables
from agentgrpo.worlds.workshop.dataset import Workshop
from agentgrpo.worlds.workshop.demonstrator import WorkshopOracle
from agentgrpo.worlds.workshop.world import beginning, draw_problem, items, kinds, value_of

KINDS = ("left", "more", "stock", "convert", "boxes", "none", "price", "cost", "ship", "moved", "pair", "note")


@pytest.fixture(scope="module")
def workshop() -> Workshop:
    return Workshop()


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z]+", text))


def test_it_is_a_function_of_its_seed(workshop: Workshop) -> None:
    assert isinstance(workshop, DemonstratedDataset)
    again, other = Workshop(), Workshop(world_seed=1)
    assert again.fingerprint == workshop.fingerprint != other.fingerprint
    assert again.split("test") == workshop.split("test")
    computed = [i for i, t in enumerate(workshop.split("test")) if t.metadata["kind"] in ("left", "cost", "pair")]
    assert not any(other.split("test")[i].question == workshop.split("test")[i].question for i in computed)
    assert other.demonstration_fingerprint == workshop.demonstration_fingerprint
    assert (workshop.corpora(), workshop.thesaurus()) == ({}, {})


def test_the_world_never_changes_between_versions() -> None:
    """Published figures belong to this world; a change of names, texts or drawing makes it another one."""
    moved = Workshop(world_seed=0).split("test")[9]
    assert (moved.id, moved.question, moved.references) == (
        "workshop-0-test-9-moved",
        "Ida orders 53 zirnuns. What is the cost?",
        ("848",),
    )


def test_splits_are_balanced_in_any_prefix(workshop: Workshop) -> None:
    sizes = {name: len(workshop.split(name)) for name in ("train", "dev", "test")}
    assert sizes == {"train": 6000, "dev": 240, "test": 960}
    for n in (12, 480):
        assert Counter(t.metadata["kind"] for t in workshop.split("test")[:n]) == dict.fromkeys(KINDS, n // 12)
    everything = [t.id for name in sizes for t in workshop.split(name)]
    assert len(set(everything)) == len(everything)


def test_a_name_is_cut_after_its_first_syllable_and_nothing_else_is() -> None:
    cut = re.compile(beginning())
    for pool in ("train", "dev", "test"):
        for name in items(pool):
            assert [m.span() for m in cut.finditer(f"a {name} 5")] == [(1, 2 + _first_syllable(name))]
            assert cut.match(name)
    text = "Ida orders crates with boxes of coins. How many centimetres? prices weights imports unknown key xzirnun"
    assert cut.findall(text) == []


def _first_syllable(name: str) -> int:
    firsts, seconds = syllables()
    [length] = [len(a) for a in firsts if name.startswith(a.lower()) and name[len(a) :] in seconds]
    return length


@pytest.mark.parametrize("world_seed", [0, 7])
def test_no_held_out_name_occurs_in_training(world_seed: int) -> None:
    workshop = Workshop(world_seed=world_seed)
    pools = {pool: set(items(pool)) for pool in ("train", "dev", "test")}
    assert {pool: len(names) for pool, names in pools.items()} == {"train": 1829, "dev": 134, "test": 481}
    assert all(a.isdisjoint(b) for a, b in combinations(pools.values(), 2))
    assert not any(name.endswith("s") for names in pools.values() for name in names)
    held_out = pools["dev"] | pools["test"]
    held_out |= {f"{name}s" for name in held_out}
    tasks = [*workshop.split("train")[:1200], *(t for w in workshop.demonstration_worlds(10, 105) for t in w.tasks)]
    seen = {w for t in tasks for text in (t.question, *t.metadata["files"].values()) for w in words(text)}
    assert len(seen) > 1000
    assert seen.isdisjoint(held_out)


def test_what_a_task_says_of_itself(workshop: Workshop) -> None:
    """The ideal: 1.67 calls a task, python in one kind, look-ups in six, none at all in one."""
    totals: Counter[str] = Counter()
    for task in workshop.split("test")[:480]:
        shown = " ".join(task.metadata["files"].values())
        assert set(task.metadata["milestones"]) <= set(shown.split())
        assert bool(task.metadata["milestones"]) is ("lookup" in task.metadata["ideal_calls"])
        totals.update(task.metadata["ideal_calls"])
    assert totals == {"calculator": 9 * 40, "python": 40, "lookup": 8 * 40, "read_file": 40}


def test_answers_follow_from_question_and_files(workshop: Workshop) -> None:
    by_kind = {t.metadata["kind"]: t for t in workshop.split("test")[:12]}

    def numbers(kind: str) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", by_kind[kind].question)]

    def rows(kind: str, table: str) -> dict[str, str]:
        lines = by_kind[kind].metadata["files"][f"{table}.txt"].splitlines()
        return {name: value for name, _, value in (line.partition(" ") for line in lines)}

    def answer(kind: str) -> int:
        return int(by_kind[kind].references[0])

    a, b, c = numbers("left")
    assert answer("left") == a * b - c
    a, b, c = numbers("stock")
    assert answer("stock") == a * c + b
    a, b = numbers("convert")
    assert answer("convert") == 100 * a + b
    a, b = numbers("boxes")
    assert a < b
    assert answer("boxes") == sum(range(a, b + 1))
    assert answer("none") == numbers("none")[0]
    a, b = numbers("ship")
    assert answer("ship") == a * int(rows("ship", "weights")[_thing(by_kind["ship"])]) + b
    moved = _thing(by_kind["moved"])
    assert rows("moved", "prices")[moved] == "see imports"
    assert answer("moved") == numbers("moved")[0] * int(rows("moved", "imports")[moved])
    (a, b), (x, y) = numbers("pair"), re.findall(r"\d+ ([a-z]+)s", by_kind["pair"].question)
    prices = rows("pair", "prices")
    assert answer("pair") == a * int(prices[x]) + b * int(prices[y])
    count, thing = re.fullmatch(r"Order (\d+) ([a-z]+)s\n", by_kind["note"].metadata["files"]["note.txt"]).groups()  # type: ignore[union-attr]
    assert answer("note") == int(count) * int(rows("note", "prices")[thing])


def _thing(task: Task) -> str:
    found = re.search(r"\d+ ([a-z]+)s", task.question)
    assert found
    return found[1]


def test_demonstration_worlds(workshop: Workshop) -> None:
    worlds = list(workshop.demonstration_worlds(3, 105))
    turns = {kind: 5 * (3 if kind == "none" else 4 if kind == "pair" else 2) for kind in KINDS}
    turns |= dict.fromkeys(("left", "more", "stock", "convert", "boxes", "price"), 5)
    assert Counter(t.metadata["kind"] for t in worlds[0].tasks) == turns
    assert len({t.id for w in worlds for t in w.tasks}) == 3 * 105
    assert next(iter(workshop.demonstration_worlds(1, 105))).tasks == worlds[0].tasks
    assert Workshop(habits={"python": 0.5}).demonstration_fingerprint != workshop.demonstration_fingerprint


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2*3+4", 10), ("2+3*4", 14), ("(2+3)*4", 20), ("7-9", -2), ("sum(range(2,5))", 9), ("sum(range(2,4+1))", 9)],
)
def test_values_of_expressions(expression: str, value: int) -> None:
    assert value_of(expression) == value


@pytest.mark.parametrize("expression", ["", "2+", "x", "7//2", "2**9", "True", "1.5", "max(1,2)", "sum([1])", "-1"])
def test_other_expressions_have_none(expression: str) -> None:
    with pytest.raises(ValueError, match="'"):
        value_of(expression)


# --- demonstrators


def test_the_oracle_goes_where_it_is_sent(workshop: Workshop) -> None:
    task = workshop.split("test")[9]
    oracle = workshop.oracle(task)
    first = oracle.next_turn([])
    assert first == ParsedTurn(
        calls=(ToolCall(name="lookup", arguments={"table": "prices", "key": f" {_thing(task)}"}),)
    )
    told = f"error: {_thing(task)} is in imports"
    second = oracle.next_turn([told])
    assert second == ParsedTurn(
        calls=(ToolCall(name="lookup", arguments={"table": "imports", "key": f" {_thing(task)}"}),)
    )
    third = oracle.next_turn([told, "44"])
    assert third == ParsedTurn(calls=(ToolCall(name="calculator", arguments={"expression": "53*44"}),))
    assert oracle.next_turn([told, "44", "2332"]) == ParsedTurn(answer="2332")


def test_the_oracle_programs_only_what_needs_a_program_and_answers_what_is_plain(workshop: Workshop) -> None:
    boxes, none = workshop.split("test")[4:6]
    a, b = re.findall(r"\d+", boxes.question)
    [call] = workshop.oracle(boxes).next_turn([]).calls
    assert call == ToolCall(name="python", arguments={"code": f"print(sum(range({a},{b}+1)))"})
    assert workshop.oracle(none).next_turn([]) == ParsedTurn(answer=none.references[0])


def first_turns(**habits: float) -> list[tuple[str, ParsedTurn]]:
    """(kind, first turn) of 1050 demonstrations."""
    worlds = list(Workshop(train_tasks=1, dev_tasks=1, test_tasks=1, habits=habits).demonstration_worlds(10, 105))
    return [(t.metadata["kind"], w.demonstrator(t).next_turn([])) for w in worlds for t in w.tasks]


CAREFUL = dict.fromkeys(
    (
        *("malformed", "unknown_tool", "letters", "plural", "read", "needless", "wrong", "half_done", "give_up"),
        *("give_up_key", "repeat", "python"),
    ),
    0.0,
)


def test_without_bad_habits_the_careless_does_what_the_oracle_does() -> None:
    workshop = Workshop(train_tasks=1, dev_tasks=1, test_tasks=1, habits={**CAREFUL, "python_needed": 1.0})
    [world] = workshop.demonstration_worlds(1, 105)
    for index, task in enumerate(world.tasks):
        kind = kinds()[task.metadata["kind"]]
        oracle = WorkshopOracle(draw_problem(kind, "train", "demonstration-0", index))
        assert world.demonstrator(task).next_turn([]) == oracle.next_turn([])


def test_habits_hold_as_frequencies() -> None:
    def share(wanted: list[bool]) -> float:
        return sum(wanted) / len(wanted)

    turns = first_turns()
    calls = [call for _, turn in turns for call in turn.calls]
    malformed = [isinstance(call, MalformedCall) or "input" in call.arguments for call in calls]
    assert abs(share(malformed) - 0.1) < 0.03
    assert abs(share([call.name in ("calc", "search") for call in calls]) - 0.1) < 0.03
    assert abs(share([bool(turn.calls) for kind, turn in turns if kind == "none"]) - 0.55) < 0.09
    plain = first_turns(**{**CAREFUL, "python": 0.6, "plural": 0.6, "read": 0.3})
    computed = [turn.calls[0].name for kind, turn in plain if kind in ("left", "more", "stock", "convert")]
    assert abs(share([name == "python" for name in computed]) - 0.6) < 0.08
    looked = [turn.calls[0] for kind, turn in plain if kind in ("cost", "ship", "moved", "pair")]
    assert abs(share([call.name == "read_file" for call in looked]) - 0.3) < 0.06
    keys = [call.arguments["key"] for call in looked if isinstance(call, ToolCall) and call.name == "lookup"]
    assert abs(share([key.endswith("s") for key in keys]) - 0.6) < 0.08
    half = first_turns(**{**CAREFUL, "half_done": 0.6})
    stock = [turn.calls[0] for kind, turn in half if kind == "stock"]
    assert (
        abs(share(["+" not in call.arguments["expression"] for call in stock if isinstance(call, ToolCall)]) - 0.6)
        < 0.2
    )


def test_the_same_answers_get_the_same_turn(workshop: Workshop) -> None:
    [world] = workshop.demonstration_worlds(1, 42)
    acts = [[world.demonstrator(task).next_turn([]) for task in world.tasks] for _ in range(2)]
    assert acts[0] == acts[1]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"test_tasks": 0}, "test_tasks=0; at least 1"),
        ({"habits": {"pythn": 0.5}}, r"habits.pythn; .*Did you mean 'python'\?"),
        ({"habits": {"python": 1.5}}, r"habits.python=1.5; a probability in \[0, 1\]"),
        ({"habits": {"max_calls": 0}}, "habits.max_calls=0; at least 1"),
    ],
)
def test_refused_settings(settings: dict, says: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(ConfigError, match=says):
        Workshop(**settings)


def test_refused_requests(workshop: Workshop) -> None:
    with pytest.raises(DataError, match=r"split 'tset'; this task set has train, dev, test. Did you mean 'test'\?"):
        workshop.split("tset")
    with pytest.raises(DataError, match="is not of this world"):
        workshop.oracle(Workshop(world_seed=1).split("test")[0])
