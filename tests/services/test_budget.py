"""No call beyond a limit, however many ask at once; what was spent stays spent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentgrpo.config.build import build_node
from agentgrpo.core.durable import Operation, injected
from agentgrpo.core.errors import BudgetSpent, ConfigError, JudgeError, RetrieverError
from agentgrpo.core.types import Message, Passage
from agentgrpo.judges.llm.completer import PROBE, Billed, CompleterService, HttpCompleter, Reply
from agentgrpo.retrieval.services import FetcherService, RerankerService, RetrieverService
from agentgrpo.services.asking import asking_episode, asking_step
from agentgrpo.services.budget import Budget, Prices, SpendingLimits, number
from agentgrpo.services.ledger import Ledger, LedgerEntry
from agentgrpo.services.meter import Meter
from tests.services.stand_ins import Backwards, Changing, Pages, Parrot, limits, meter, said
from tests.test_durable import Crash


async def ask(m: Meter, part: Changing, *queries: str, kind: str = "web") -> list[str]:
    """The first id of each row, or the kind of its failure; "stop" for BudgetSpent."""
    retriever = RetrieverService(part, kind=kind, meter=m)
    rows = await asyncio.gather(*(retriever.search(q, top_k=1) for q in queries), return_exceptions=True)
    told = []
    for row in rows:
        if isinstance(row, BudgetSpent | RetrieverError):
            told.append("stop" if isinstance(row, BudgetSpent) else row.kind)
        else:
            assert not isinstance(row, BaseException)
            told.append(row[0].id)
    return told


def spent(m: Meter) -> dict[str, Any]:
    m.in_use = True
    return dict(m.summary())


# --- run and step


@pytest.mark.parametrize(("limit", "price", "most"), [({"web": 7}, 0.0, 7), ({"money": 0.35}, 0.05, 7)])
async def test_many_at_once_do_not_pass_a_limit_together(
    tmp_path: Path, limit: dict[str, Any], price: float, most: int
) -> None:
    part = Changing(pause=0.01)
    meters = [meter(tmp_path, prices={"web": price}, run=limit) for _ in range(2)]  # as two processes would have
    told = await asyncio.gather(*(ask(m, part, *(f"{i} {n}" for n in range(20))) for i, m in enumerate(meters)))
    assert (len(part.asked), [*told[0], *told[1]].count("stop")) == (most, 40 - most)
    assert spent(meters[0])["calls"] == {"web": most}
    assert spent(meters[0])["money"] == pytest.approx(most * price, abs=1e-12)
    for m in meters:
        await m.close()


def test_who_looks_at_a_limit_keeps_others_from_counting(tmp_path: Path) -> None:
    """As another process would: between its look and its entry nobody else's look may come."""
    budget = Budget(per_run=limits({"web": 1}))
    first, second = Ledger(tmp_path, budget), Ledger(tmp_path, budget)
    assert first.totals() == second.totals() == {}
    with ThreadPoolExecutor(1) as pool:
        with first.transaction() as connection:
            waiting = pool.submit(second.reserve, [LedgerEntry(None, "web", 0)])
            time.sleep(0.2)
            assert not waiting.done()
            connection.execute("INSERT INTO spent VALUES ('run', 'web', 1, 0, 0.0)")
        [refusal] = waiting.result()
    assert refusal is not None
    assert (refusal.key, refusal.text) == ("budget.per_run.calls.web", "1 calls of web of 1 are spent")
    first.close()
    second.close()


@pytest.mark.parametrize("last", ["begin", "commit"])
def test_a_process_that_dies_before_its_commit_has_counted_nothing(tmp_path: Path, last: str) -> None:
    """And those who make processes die are told of both instants."""

    def dying(operation: Operation) -> None:
        if operation.kind == last:
            raise Crash

    ledger = Ledger(tmp_path, Budget())
    with injected(dying), pytest.raises(Crash):
        ledger.reserve([LedgerEntry(0, "web", 1)])
    assert ledger.totals() == {}
    assert ledger.reserve([LedgerEntry(0, "web", 1)]) == [None]
    assert ledger.totals()["web"].calls == 1
    ledger.close()


async def test_what_was_spent_stays_and_a_larger_limit_goes_on(tmp_path: Path) -> None:
    part, first = Changing("timeout"), meter(tmp_path, prices={"web": 1.0}, run={"money": 2.0})
    assert await ask(first, part, "a") == ["timeout"]  # it may be billed all the same
    assert await ask(first, part, "b", "c") == ["b/2", "stop"]
    with pytest.raises(BudgetSpent) as e:
        await RetrieverService(part, kind="web", meter=first).search("d", top_k=1)
    assert str(e.value) == (
        "the budget is spent: budget.per_run.money=2, 2 of 2 are spent, and one more web may cost 1"
    )
    assert (e.value.raised, e.value.exit_code) == ("budget.per_run.money=4", 11)
    await first.close()
    second = meter(tmp_path, prices={"web": 1.0}, run={"money": 3.0})
    second.in_use = True
    second.begin()
    assert await ask(second, part, "e", "f") == ["e/3", "stop"]
    assert (spent(second)["money"], second.bill()["money"]) == (3.0, 1.0)
    await second.close()


async def test_what_is_free_is_not_stopped_by_money_and_what_is_replayed_costs_nothing(tmp_path: Path) -> None:
    part, m = Changing(), meter(tmp_path, "fill", prices={"web": 1.0}, run={"money": 1.0})
    assert await ask(m, part, "a") == ["a/1"]
    assert await ask(m, part, "b") == ["stop"]
    assert await ask(m, part, "b", kind="vdb") == ["b/2"]
    assert await ask(m, part, "a", "a") == ["a/1", "a/1"]
    assert spent(m)["calls"] == {"vdb": 1, "web": 1}
    await m.close()


async def test_each_go_at_a_step_has_its_own_limit_and_evaluations_have_none(tmp_path: Path) -> None:
    part, m = Changing(), meter(tmp_path, step={"web": 2}, run={"web": 7})
    m.in_use = True
    for go, last in ((0, "stop"), (1, "stop")):
        with asking_step(go):
            told = await ask(m, part, *(f"{go} {i}" for i in range(3)))
        assert (told[2], told.count("stop")) == (last, 1)
    assert await ask(m, part, "eval 1") == ["eval 1/5"]
    m.begin()
    with asking_step(1):
        assert await ask(m, part, "again 1", "again 2", "again 3") == ["again 1/6", "again 2/7", "stop"]
    assert await ask(m, part, "eval 2") == ["stop"]
    assert spent(m)["calls"] == {"web": 7}
    await m.close()


async def test_seconds_are_those_of_calls_side_by_side_added_up(tmp_path: Path) -> None:
    part, m = Changing(pause=0.2), meter(tmp_path, run={"seconds": 0.39})
    assert await ask(m, part, "a") == ["a/1"]
    assert await ask(m, part, "b", "c") == ["b/2", "c/3"]
    assert await ask(m, part, "d") == ["stop"]
    assert 0.6 <= spent(m)["seconds"] < 60
    await m.close()


async def test_tokens_are_paid_as_they_were_and_set_aside_before(tmp_path: Path) -> None:
    m = meter(tmp_path, prices={"judge": 0.5}, run={"money": 4.0})
    parrot = Parrot()
    judge = Billed(
        CompleterService(parrot, kind="judge", meter=m), prompt_price=100.0, completion_price=0.0, setting="judge"
    )
    await judge.complete(said("one two"))  # 0.5 and 2 of 1,000 tokens at 100
    assert (spent(m)["money"], judge.counts["cost"]) == (0.7, 0.2)
    with pytest.raises(BudgetSpent, match=r"0\.7 of 4 are spent, and one more judge may cost 5\.4"):
        await judge.complete(said("one two" + " " * 20))
    assert parrot.asked == 1
    await m.close()


async def test_calls_whose_price_is_not_known_yet_pass_no_limit_together(tmp_path: Path) -> None:
    m = meter(tmp_path, run={"money": 5.0})
    parrot = Parrot(tokens=lambda text: 1, pause=0.01)
    judge = Billed(
        CompleterService(parrot, kind="judge", meter=m), prompt_price=100.0, completion_price=0.0, setting="judge"
    )
    # 0.1 each, and up to 3 before that is known: who does not fit beside the others waits until it is
    told = await asyncio.gather(*(judge.complete(said(f"{i:08}")) for i in range(30)), return_exceptions=True)
    stopped = [t for t in told if isinstance(t, BudgetSpent)]
    assert len(stopped) == 30 - parrot.asked
    assert 1.5 < spent(m)["money"] <= 5.0
    assert spent(m)["money"] == pytest.approx(parrot.asked * 0.1)
    await m.close()


async def test_a_reply_as_long_as_the_request_allows_passes_no_limit(tmp_path: Path) -> None:
    """extra says what is sent: the limit that the model obeys is not max_tokens."""

    class Talker(HttpCompleter):
        async def complete(self, messages: Sequence[Message], schema: Any = None) -> Reply:
            await asyncio.sleep(0.01)
            size = sum(len(m.content.encode()) for m in messages)
            return Reply(text="yes", prompt_tokens=size, completion_tokens=4000)

    m = meter(tmp_path, run={"money": 1.0})
    talker = Talker(model="r", extra={"max_tokens": None, "max_completion_tokens": 4000})
    judge = Billed(
        CompleterService(talker, kind="judge", meter=m), prompt_price=0.001, completion_price=0.01, setting="judge"
    )
    asked = (judge.complete(said(f"\u5168{i}")) for i in range(60))
    told = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(t, Reply) for t in told) == 24
    assert 0.96 <= spent(m)["money"] <= 1.0
    await m.close()


def test_a_reply_without_a_limit_is_refused_where_money_is_limited(tmp_path: Path) -> None:
    endless = HttpCompleter(model="r", extra={"max_tokens": None})
    for limit in ({"run": {"money": 1.0}}, {"step": {"money": 1.0}}):
        part = CompleterService(endless, kind="judge", meter=meter(tmp_path, **limit))
        part.at_prices(1.0, 0.0)
        with pytest.raises(ConfigError, match=r"no limit on tokens; give completer\.max_tokens"):
            part.at_prices(0.0, 1.0)
    CompleterService(endless, kind="judge", meter=meter(tmp_path, run={"judge": 1})).at_prices(0.0, 1.0)


@pytest.mark.parametrize(
    ("kind", "money"), [("transport", 0.5), ("http_4xx", 0.5), ("http_429", 0.5), ("timeout", 25.5)]
)
async def test_a_call_that_no_model_answered_costs_its_own_price(tmp_path: Path, kind: str, money: float) -> None:
    class Broken(Parrot):
        async def complete(self, messages: Sequence[Message], schema: Any = None) -> Reply:
            raise JudgeError("no answer", kind=kind)

    m = meter(tmp_path, prices={"judge": 0.5})
    part = CompleterService(Broken(), kind="judge", meter=m)
    part.at_prices(1000.0, 0.0)
    with pytest.raises(JudgeError):
        await part.complete(said("one"))  # 3 bytes, 16 around them, 6 of the identity
    assert spent(m)["money"] == money
    await m.close()


@pytest.mark.parametrize(
    ("value", "text"),
    [(500_000, "500000"), (246_913_578, "246913578"), (2.0, "2"), (0.1, "0.1"), (1_200_000.5, "1200000.5")],
)
def test_a_limit_is_printed_as_a_command_line_takes_it(value: float, text: str) -> None:
    assert number(value) == text


async def test_the_probe_of_a_web_search_is_a_call_and_those_of_others_are_made_every_time(tmp_path: Path) -> None:
    class Probeable(Changing):
        probes = 0

        async def probe(self) -> None:
            self.probes += 1

    part, m = Probeable(), meter(tmp_path, "fill", run={"web": 1})
    for kind in ("web", "vdb"):
        retriever = RetrieverService(part, kind=kind, meter=m)
        await retriever.probe()
        await retriever.probe()
    assert (part.probes, spent(m)["calls"]) == (3, {"web": 1})
    assert await ask(m, part, "a") == ["stop"]
    await m.close()
    live, replay = meter(tmp_path, run={"web": 1}), meter(tmp_path, "strict")
    with pytest.raises(BudgetSpent):
        await RetrieverService(part, kind="web", meter=live).probe()
    for kind in ("web", "vdb"):
        await RetrieverService(part, kind=kind, meter=replay).probe()
    assert part.probes == 3
    await live.close()
    await replay.close()


async def test_the_probe_of_a_model_asks_it_whatever_is_recorded(tmp_path: Path) -> None:
    for mode, asked in (("live", 2), ("fill", 2), ("strict", 0)):
        parrot, m = Parrot(), meter(tmp_path, mode)
        judge = Billed(
            CompleterService(parrot, kind="judge", meter=m), prompt_price=0.0, completion_price=0.0, setting="judge"
        )
        if mode == "fill":
            await judge.complete(PROBE)
            parrot.asked = 0
        await judge.probe()
        await judge.probe()
        assert parrot.asked == asked
        await m.close()


# --- an episode


async def test_an_episode_s_limit_is_told_and_is_nobody_else_s(tmp_path: Path) -> None:
    part, m = Changing(), meter(tmp_path, prices={"web": 0.3, "vdb": 0.1}, episode={"web": 2, "money": 0.8})
    with asking_episode():
        assert await ask(m, part, "a", "b", "c") == ["a/1", "b/2", "over_budget"]
        assert await ask(m, part, "d", "e", kind="vdb") == ["d/3", "e/4"]
        assert await ask(m, part, "f", kind="vdb") == ["over_budget"]
        assert await ask(m, part, "g", kind="rerank") == ["g/5"]  # free
    with asking_episode():
        assert await ask(m, part, "a") == ["a/6"]
    assert await ask(m, part, "h", "i", "j") == ["h/7", "i/8", "j/9"]
    with asking_episode():
        assert await ask(m, part, "k", "l") == ["k/10", "l/11"]
        with pytest.raises(RetrieverError, match=r"^budget\.per_episode\.calls\.web=2 is spent$"):
            await RetrieverService(part, kind="web", meter=m).search("m", top_k=1)
    await m.close()


async def test_a_replay_meets_an_episode_s_limits_where_the_recording_did(tmp_path: Path) -> None:
    for mode in ("fill", "strict"):
        part = Changing(pause=0.03)
        m = meter(tmp_path, mode, prices={"web": 1.0}, episode={"money": 2.0})
        with asking_episode():
            assert await ask(m, part, "a", "b", "c") == ["a/1", "b/2", "over_budget"]
        await m.close()


async def test_pages_are_calls_each_and_rerankers_and_models_have_their_own(tmp_path: Path) -> None:
    m = meter(tmp_path, episode={"fetch": 2, "rerank": 1}, run={"reader": 1})
    pages = Pages()
    with asking_episode():
        rows = await FetcherService(pages, meter=m).fetch(["a", "b", "c"])
        assert [r.kind if isinstance(r, RetrieverError) else r.id for r in rows] == ["a", "b", "over_budget"]
        reranker = RerankerService(Backwards(), meter=m)
        assert len(await reranker.rerank("q", [Passage(id="a", text="t")], top_k=1)) == 1
        with pytest.raises(RetrieverError, match="rerank=1 is spent"):
            await reranker.rerank("q", [Passage(id="b", text="t")], top_k=1)
        reader = CompleterService(Parrot(), kind="reader", meter=m)
        await reader.complete(said("one"))
        with pytest.raises(BudgetSpent, match=r"budget\.per_run\.calls\.reader=1, 1 calls of reader of 1 are spent$"):
            await reader.complete(said("two"))
    await m.close()


# --- the node


def test_the_node_of_a_configuration() -> None:
    built = build_node("budget", {"prices": {"web": 0.005}, "per_run": {"calls": {"web": 100}, "money": 5}})
    assert built == Budget(prices=Prices(web=0.005), per_run=limits({"web": 100, "money": 5}))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"prices": {"web": -1.0}}, "budget.prices.web=-1.0; 0 or more is allowed"),
        ({"prices": {"web": float("nan")}}, "budget.prices.web=nan; 0 or more is allowed"),
        (
            {"prices": {"wep": 1.0}},
            "unknown key budget.prices.wep; allowed are web, vdb, rerank, fetch, mcp, judge, ",
        ),
        ({"per_run": {"money": -1.0}}, "budget.per_run.money=-1.0; 0 or more is allowed, and null for no limit"),
        ({"per_step": {"calls": {"vdb": -1}}}, "budget.per_step.calls.vdb=-1; 0 or more is allowed"),
        ({"per_episode": {"seconds": 1.0}}, "unknown key budget.per_episode.seconds; allowed are money, calls"),
        (
            {"per_episode": {"calls": {"judge": 3}}},
            "budget.per_episode.calls.judge: allowed are web, vdb, rerank, fetch, mcp; a model's calls are limited by",
        ),
    ],
)
def test_mistakes_are_named(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        build_node("budget", node)
    assert str(e.value).startswith(message)


def test_a_limit_of_nothing_is_a_limit() -> None:
    assert SpendingLimits(money=0.0).passed_by("web", 1, calls=0, money_spent=0, seconds=0.0) == ("money", 0.0)
    assert limits({"web": 0}).passed_by("web", 0, calls=0, money_spent=0, seconds=0.0) == ("calls.web", 0)
    assert SpendingLimits().passed_by("web", 10**12, calls=10**9, money_spent=10**15, seconds=1e9) is None


@pytest.mark.parametrize("setting", ["judge", "environment.reader", "environment.validity"])
def test_prices_of_tokens_are_checked_in_one_place(setting: str) -> None:
    for name in ("prompt_price", "completion_price"):
        prices = {"prompt_price": 0.0, "completion_price": 0.0, name: -1.0}
        with pytest.raises(ConfigError, match=rf"{setting}\.{name}=-1\.0; 0 or more is allowed"):
            Billed(Parrot(), **prices, setting=setting)
