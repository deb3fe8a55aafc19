"""Figures: the numbers of an episode by which eval.json compares policies. They are plain data, so that records can
hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.types import Episode, RewardResult
from agentgrpo.tasks.suite import member_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures that eval.json reports of an environment, and the conditions for PASS.

    `columns` are metrics of an episode; every environment has two more: `cost`, of its calls, and `reward`. Raises
    ValueError for an unknown name, and for a name in only one of `counts` and `prices`.
    """

    columns: tuple[str, ...]
    headline: tuple[str, ...]
    """Columns that scripts rely on, in the order shown; `quality` and `spending` among them."""
    by_kind: tuple[str, ...]
    """Columns shown for each kind of task."""
    quality: str
    """The column that must not fall beyond noise; 0.0 for an episode without a reward."""
    is_graded: bool = True
    """`quality` is the judge's grade of the answer, in [0, 1], whatever it is called; otherwise it is the metric of
    that name, or the reward."""
    spending: str
    """The column that must fall beyond noise. Its name is a plural (search_rounds), for sentences."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Column -> its short name, if it has one."""
    counts: Mapping[str, str] = field(default_factory=dict)
    """Name of a kind of call in run.eval.prices -> the metric of an episode that counts these calls."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Name of a kind of call -> the price of one, unless run.eval.prices has another."""
    ratios: Mapping[str, Mapping[str, tuple[str, str]]] = field(default_factory=dict)
    """Section of eval.json -> name -> (numerator, denominator): metrics that only some episodes have (if the task names
    the passages that prove the answer, for example), or criteria of the judge, as criterion/NAME. The value is the
    ratio of their sums; it is absent if the denominators are 0."""

    members: Mapping[str, Figures] = field(default_factory=dict)
    """The figures of a suite's members, each with its own prices; empty for a single environment."""

    def __post_init__(self) -> None:
        known = {*self.columns, self.quality, "cost", "reward"}
        odd = {*self.headline, *self.by_kind, *self.labels} - known
        odd |= {self.quality, self.spending} - {*self.headline}
        odd |= self.counts.keys() ^ self.prices.keys()
        if odd:
            raise ValueError(f"figures {sorted(odd)}: name columns ({sorted(known)}), and a price for every count")

    @classmethod
    def of_suite(cls, members: Mapping[str, Figures]) -> Figures:
        """Return the figures that all members have: quality and spending, under a member's name if all members use it,
        and the columns with the same name in all."""
        all_of, is_graded = list(members.values()), all(f.is_graded for f in members.values())
        qualities, spent = {f.quality for f in all_of}, {f.spending for f in all_of}
        quality = qualities.pop() if len(qualities) == 1 else "correctness" if is_graded else "quality"
        spending = spent.pop() if len(spent) == 1 else "calls"
        common = [c for c in all_of[0].columns if all(c in f.columns for f in all_of) and c not in (quality, spending)]
        return cls(
            columns=(spending, *common),
            headline=(quality, spending, "cost"),
            by_kind=(quality, spending),
            quality=quality,
            is_graded=is_graded,
            spending=spending,
            members=members,
        )

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Figures:
        """Read the output of `to_json`; that of an old version without columns gives figures without a cost. Raises
        KeyError, TypeError or ValueError for anything else."""
        headline = tuple(map(str, said["headline"]))
        by_kind = said.get("by_kind", ())
        if "columns" not in said:
            own = tuple(name for name in headline if name not in ("cost", "reward"))
            return cls(
                columns=own,
                headline=own,
                by_kind=(),
                quality=said["quality"],
                spending=said.get("thrift", own[-1]),
                counts={"call": ""},  # no metric has this name: the cost is unknown
                prices={"call": 0.0},
            )
        return cls(
            columns=tuple(said["columns"]),
            headline=headline,
            by_kind=tuple(by_kind),
            quality=said["quality"],
            is_graded=said["is_graded"],
            spending=said["spending"] if "spending" in said else said["thrift"],  # its former name
            labels=dict(said["labels"]),
            counts=dict(said["counts"]),
            prices=dict(said["prices"]),
            ratios={
                section: {name: (str(above), str(below)) for name, (above, below) in of.items()}
                for section, of in said.get("ratios", {}).items()
            },
            members={name: cls.from_json(of) for name, of in said.get("members", {}).items()},
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "headline": list(self.headline),
            "by_kind": {name: self.label(name) for name in self.by_kind},
            "quality": self.quality,
            "spending": self.spending,
            "columns": list(self.columns),
            "is_graded": self.is_graded,
            "labels": dict(self.labels),
            "counts": dict(self.counts),
            "prices": dict(self.prices),
            "ratios": {section: {name: list(of) for name, of in row.items()} for section, row in self.ratios.items()},
            **({"members": {name: of.to_json() for name, of in self.members.items()}} if self.members else {}),
        }

    def graded(self) -> Figures:
        """Return the figures with the judge's grade as quality instead of the reward, for a run that pays for the
        grade."""
        if self.quality != "reward":
            return self

        def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple("correctness" if name == "reward" else name for name in names)

        headline, by_kind = renamed(self.headline), renamed(self.by_kind)
        return replace(self, quality="correctness", is_graded=True, headline=headline, by_kind=by_kind)

    def label(self, column: str) -> str:
        return self.labels.get(column, column.replace("_", " "))

    def priced(self, given: Mapping[str, float]) -> dict[str, float]:
        """The price of every kind of call: as given (run.eval.prices), else the environment's default. Raises
        ConfigError for a name that the environment does not know."""
        for name in given:
            if name not in self.counts:
                known = f"{', '.join(self.counts)}; price these" if self.counts else "no calls (tools=none); add tools"
                near = did_you_mean(name, self.counts)
                raise ConfigError(f"run.eval.prices.{name}: this environment counts {known}, or leave it out.{near}")
        return {name: given.get(name, self.prices[name]) for name in self.counts}

    def cost(self, metrics: Mapping[str, float], prices: Mapping[str, float]) -> float:
        """The cost of an episode's calls at `prices` (see `priced`), whatever the reward charges for them."""
        return sum(price * metrics.get(self.counts[name], 0.0) for name, price in prices.items())

    def cost_of(self, episode: Episode, prices: Mapping[str, float]) -> float:
        """The `cost` of an episode, which may belong to a member of a suite."""
        if self.members:
            own = self.members[member_of(episode.task)]
            return own.cost(episode.metrics, own.prices)
        return self.cost(episode.metrics, prices)

    def shared(self, member: str, row: Mapping[str, T]) -> dict[str, T]:
        """For a suite: the columns of a member's row that all members share, under their common names."""
        own = self.members[member]
        named = {**row, self.quality: row[own.quality], self.spending: row[own.spending]}
        return {name: named[name] for name in dict.fromkeys((*self.headline, "reward", *self.columns))}

    def row(self, episode: Episode, reward: RewardResult | None, prices: Mapping[str, float]) -> dict[str, float]:
        """Every column of one episode: the headline first, then the reward, then the others; a missing metric is
        0.0."""
        if self.members:
            member = member_of(episode.task)
            own = self.members[member]
            return self.shared(member, own.row(episode, reward, own.prices))
        metrics = episode.metrics
        quality = metrics.get(self.quality, 0.0) if not self.is_graded else reward.correctness if reward else 0.0
        values = {name: metrics.get(name, 0.0) for name in self.columns} | {self.quality: quality}
        values |= {"cost": self.cost(metrics, prices), "reward": reward.total if reward else 0.0}
        return {name: values[name] for name in (*self.headline, "reward", *values)}

    def ratio_parts(self, episode: Episode, reward: RewardResult | None = None) -> dict[str, float]:
        """Numerators and denominators of `ratios`, as far as they are metrics of the episode or its judge's criteria
        (criterion/NAME)."""
        parts = {part for section in self.ratios.values() for of in section.values() for part in of}
        known = {**episode.metrics, **{f"criterion/{k}": v for k, v in (reward.parts if reward else {}).items()}}
        return {name: known[name] for name in sorted(parts) if name in known}

    def shares(self, means: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """The `ratios` of the means of their parts, without sections in which all are absent."""
        found = {
            section: {
                name: means[above] / means[below]
                for name, (above, below) in row.items()
                if above in means and means.get(below)
            }
            for section, row in self.ratios.items()
        }
        return {section: row for section, row in found.items() if row}
