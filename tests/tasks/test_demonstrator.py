from collections import Counter
from collections.abc import Sequence

from agentgrpo.worlds.almanac.dataset import Almanac
from agentgrpo.worlds.almanac.demonstrator import UNKNOWN, AlmanacHabits, AlmanacOracle, Spendthrift
from agentgrpo.worlds.almanac.world import AlmanacFact, AlmanacQuestion

ONE_HOP = AlmanacQuestion(
    kind="founder",
    text="Who founded Velmor?",
    hops=(AlmanacFact(relation="founder", subject="Velmor", value="Castin"),),
)
TWO_HOPS = AlmanacQuestion(
    kind="maker+hq",
    text="Where is the maker of Dorsin headquartered?",
    hops=(
        AlmanacFact(relation="maker", subject="Dorsin", value="Velmor"),
        AlmanacFact(relation="hq", subject="Velmor", value="Takbus"),
    ),
)
PRICE = AlmanacQuestion(
    kind="price",
    text="What is the latest price of Dorsin?",
    hops=(AlmanacFact(relation="price", subject="Dorsin", value="45"),),
)
NEVER = dict.fromkeys(("web", "web_needed", "rerank", "rerank_needed", "idle", "give_up", "half_way", "unknown"), 0.0)


def after(question: AlmanacQuestion, *rounds: tuple[str, Sequence[str]]) -> str:
    """The context after rounds of (action, lines shown)."""
    context = f"Answer with searches.\nQuestion: {question.text}\n"
    for number, (action, lines) in enumerate(rounds, start=1):
        shown = "\n".join(f"[R{number}Q1D{i}] {line}" for i, line in enumerate(lines, start=1))
        context += f"{action}\n<information>\n{shown}\n</information>\n"
    return context


def spendthrift(question: AlmanacQuestion, **habits: float) -> Spendthrift:
    return Spendthrift(question, AlmanacHabits(**{**NEVER, **habits}), key="t0")  # type: ignore[arg-type]


def test_oracle_in_one_hop() -> None:
    action = '<search retriever="vdb" rerank="false"> founded Velmor</search>'
    assert AlmanacOracle(ONE_HOP).act(after(ONE_HOP)) == action
    shown = ["Some poets praise Velmor.", "Velmor was founded by Castin."]
    assert AlmanacOracle(ONE_HOP).act(after(ONE_HOP, (action, shown))) == "<answer> Castin [R1Q1D2]</answer>"


def test_oracle_reranks_only_the_hop_that_needs_it() -> None:
    first = '<search retriever="vdb" rerank="false"> origin Dorsin</search>'
    second = '<search retriever="vdb" rerank="true"> headquarters Velmor</search>'
    rounds = [(first, ["By origin Dorsin is from Velmor."])]
    assert AlmanacOracle(TWO_HOPS).act(after(TWO_HOPS)) == first
    assert AlmanacOracle(TWO_HOPS).act(after(TWO_HOPS, *rounds)) == second
    rounds.append((second, ["The main office of Velmor is near Takbus."]))
    assert AlmanacOracle(TWO_HOPS).act(after(TWO_HOPS, *rounds)) == "<answer> Takbus [R2Q1D1]</answer>"


def test_oracle_uses_the_web_for_what_is_new() -> None:
    action = '<search retriever="web" rerank="false"> price Dorsin</search>'
    assert AlmanacOracle(PRICE).act(after(PRICE)) == action
    stale = after(PRICE, (action, ["Years ago the price of Dorsin was 20 dollars."]))
    assert AlmanacOracle(PRICE).act(stale) == UNKNOWN


def test_a_spendthrift_without_habits_is_frugal() -> None:
    policy = spendthrift(ONE_HOP)
    action = '<search retriever="vdb" rerank="false"> founded Velmor</search>'
    assert policy.act(after(ONE_HOP)) == action
    found = after(ONE_HOP, (action, ["Velmor was founded by Castin."]))
    assert policy.act(found) == "<answer> Castin [R1Q1D1]</answer>"


def test_a_spendthrift_looks_around_once_more() -> None:
    policy = spendthrift(ONE_HOP, web=1.0, rerank=1.0, idle=1.0)
    first, second = (
        f'<search retriever="web" rerank="true"> {query}</search>' for query in ("founded Velmor", "about Velmor")
    )
    rounds = [(first, ["Velmor was founded by Castin."])]
    assert policy.act(after(ONE_HOP)) == first
    assert policy.act(after(ONE_HOP, *rounds)) == second
    rounds.append((second, ["Some poets praise Velmor."]))
    assert policy.act(after(ONE_HOP, *rounds)) == "<answer> Castin [R1Q1D1]</answer>"


def test_a_search_that_brought_nothing_is_tried_in_the_other_place_once() -> None:
    policy = spendthrift(PRICE)
    first, second = (f'<search retriever="{r}" rerank="false"> price Dorsin</search>' for r in ("vdb", "web"))
    stale = ["Years ago the price of Dorsin was 20 dollars."]
    assert policy.act(after(PRICE)) == first
    assert policy.act(after(PRICE, (first, stale))) == second
    assert policy.act(after(PRICE, (first, stale), (second, stale))) == UNKNOWN
    assert spendthrift(PRICE, give_up=1.0).act(after(PRICE, (first, stale))) == UNKNOWN


def test_mixing_up_the_hops() -> None:
    first = '<search retriever="vdb" rerank="false"> origin Dorsin</search>'
    second = '<search retriever="vdb" rerank="false"> headquarters Velmor</search>'
    policy = spendthrift(TWO_HOPS, half_way=1.0)
    rounds = [(first, ["By origin Dorsin is from Velmor."])]
    assert policy.act(after(TWO_HOPS, *rounds)) == second
    rounds.append((second, ["The main office of Velmor is near Takbus."]))
    assert policy.act(after(TWO_HOPS, *rounds)) == "<answer> Velmor [R1Q1D1]</answer>"
    assert spendthrift(TWO_HOPS).act(after(TWO_HOPS, *rounds)) == "<answer> Takbus [R2Q1D1]</answer>"


def test_doubt_and_the_search_limit() -> None:
    search = '<search retriever="vdb" rerank="false"> founded Velmor</search>'
    found = after(ONE_HOP, (search, ["Velmor was founded by Castin."]))
    assert spendthrift(ONE_HOP, unknown=1.0).act(found) == UNKNOWN
    limited = spendthrift(ONE_HOP, idle=1.0, max_searches=1)
    assert limited.act(found) == "<answer> Castin [R1Q1D1]</answer>"
    nothing = after(ONE_HOP, (search, ["Some poets praise Velmor."]))
    assert limited.act(nothing) == UNKNOWN


def test_habits_hold_as_frequencies() -> None:
    """First actions of 1800 demonstrations: web 62 % (90 % where needed), rerank 55 % (80 % where needed)."""
    first = Counter[tuple[bool, bool, bool]]()
    habits = {"web": 0.62, "web_needed": 0.9, "rerank": 0.55, "rerank_needed": 0.8}
    for world in Almanac(habits=habits).demonstration_worlds(20, 90):
        for task in world.tasks:
            action = world.demonstrator(task).act(f"Question: {task.question}\n")
            kind = task.metadata["kind"].partition("+")[0]
            first["web", kind in ("price", "chief"), 'retriever="web"' in action] += 1  # type: ignore[index]
            first["rerank", kind == "hq", 'rerank="true"' in action] += 1  # type: ignore[index]

    def share(what: str, needed: bool) -> float:
        yes, no = first[what, needed, True], first[what, needed, False]  # type: ignore[index]
        return yes / (yes + no)

    assert abs(share("web", False) - 0.62) < 0.04
    assert abs(share("web", True) - 0.90) < 0.04
    assert abs(share("rerank", False) - 0.55) < 0.04
    assert abs(share("rerank", True) - 0.80) < 0.10
