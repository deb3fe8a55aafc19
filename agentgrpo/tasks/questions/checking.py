"""`agentgrpo data check`: report the contents of question-answer files, and the problems that would hurt a run."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from statistics import median

from agentgrpo.tasks.malformed import Malformed
from agentgrpo.tasks.questions.formats import nearly_same, same_answers, same_question
from agentgrpo.tasks.questions.intake import Opened, UsedIds, opened, parts_of
from agentgrpo.tasks.records import read_passages

_EXAMPLES = 3
_NUMBER = re.compile(r"[-+\u2212]?\s*[$€£¥]?\s*\d[\d., ]*(?:/\s*\d+)?\s*%?|[-+\u2212]?\.\d+")
_CONTAINER = re.compile(r"^\s*(?:[\[{(].*[\]})]|array\(.*\).*)\s*$", re.DOTALL)
_NOTHING = frozenset({"nan", "null", "none", "n/a", "[]", "{}"})


@dataclass(slots=True, kw_only=True)
class FileReport:
    """One file, or one part of a data set."""

    name: str
    format: str
    questions: int = 0
    with_answer: int = 0
    sources: dict[str, int] = field(default_factory=dict)
    """data_source -> number of questions, if the rows name a data source."""
    splits: dict[str, int] = field(default_factory=dict)
    question_chars: tuple[int, float, int] = (0, 0.0, 0)
    """Least, median, most."""
    answer_chars: tuple[int, float, int] = (0, 0.0, 0)
    """Least, median, most, of the shortest acceptable answers."""
    asked_again: int = 0
    """Questions that occur before with an answer in common."""
    findings: list[str] = field(default_factory=list)
    """Problems that would hurt a run."""
    notes: list[str] = field(default_factory=list)
    """How its columns were read, and which judge suits its answers."""


@dataclass(slots=True, kw_only=True)
class CorpusReport:
    """The corpus that is searched."""

    name: str
    passages: int
    passage_chars: tuple[int, float, int]
    findings: list[str]


@dataclass(slots=True, kw_only=True)
class DataReport:
    files: list[FileReport]
    findings: list[str]
    """Problems between the files that would hurt a run."""
    notes: list[str]
    corpus: CorpusReport | None = None

    @property
    def hurts(self) -> bool:
        of_corpus = self.corpus.findings if self.corpus else []
        return bool(self.findings or of_corpus or any(file.findings for file in self.files))

    def json(self) -> str:
        return json.dumps(asdict(self) | {"hurts": self.hurts}, indent=2, ensure_ascii=False)

    def lines(self) -> Iterator[str]:
        for file in self.files:
            yield f"{file.name}: {file.format}, {file.questions} questions, {file.with_answer} with an answer"
            for what, counts in (("from", file.sources), ("for", file.splits)):
                if counts:
                    others = file.questions - sum(counts.values())
                    more = f"; {others} for train, or dealt by a hash" if what == "for" and others else ""
                    yield f"  {what} " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())) + more
            for what, (least, middle, most) in (("a question", file.question_chars), ("an answer", file.answer_chars)):
                yield f"  characters of {what}: {least} to {most}, median {middle:g}"
            if file.asked_again:
                yield f"  note: {file.asked_again} questions are asked again"
            yield from (f"  note: {text}" for text in file.notes)
            yield from (f"  finding: {text}" for text in file.findings)
        if corpus := self.corpus:
            least, middle, most = corpus.passage_chars
            yield f"{corpus.name}: {corpus.passages} passages"
            yield f"  characters of a passage: {least} to {most}, median {middle:g}"
            yield from (f"  finding: {text}" for text in corpus.findings)
        yield from (f"note: {text}" for text in self.notes)
        yield from (f"finding: {text}" for text in self.findings)
        if not self.hurts:
            yield "no problem was found"


class _Tally:
    """Counts occurrences of one problem and keeps the first few as examples."""

    def __init__(self, what: str) -> None:
        self._what, self._count, self._examples = what, 0, list[str]()

    def add(self, example: str) -> None:
        self._count += 1
        if len(self._examples) < _EXAMPLES:
            self._examples.append(example)

    def findings(self) -> list[str]:
        more = ", ..." if self._count > len(self._examples) else ""
        return [f"{self._count} {self._what}: {'; '.join(self._examples)}{more}"] if self._count else []


def check(
    names: Sequence[str],
    *,
    format: str = "auto",
    subset: str | None = None,
    keys: Mapping[str, str] | None = None,
    corpus: str | None = None,
    corpus_keys: Mapping[str, str] | None = None,
) -> DataReport:
    """Check files, folders and hub names, given as in task.sources.NAME.path and read as a run reads them, and the
    corpus. keys: the file's names for id, question and answers. Raises DataError if a name is not one of these, or if
    the first record has no known format; malformed rows are findings."""
    seen: dict[str, dict[str, frozenset[str]]] = {}
    files = []
    for name in names:
        for part in parts_of(name, subset=subset, what="data check"):
            file = opened(part, format, keys)
            files.append(_file(file, seen))
    findings, notes = _between(seen)
    searched = None if corpus is None else _corpus(corpus, corpus_keys or {})
    return DataReport(files=files, findings=findings, notes=notes, corpus=searched)


def _corpus(name: str, keys: Mapping[str, str]) -> CorpusReport:
    malformed = Malformed()
    passages = read_passages(name, keys, malformed)
    return CorpusReport(
        name=name,
        passages=len(passages),
        passage_chars=_spread(len(passage.text) for passage in passages),
        findings=[malformed.text] if malformed.count else [],
    )


def _file(file: Opened, seen: dict[str, dict[str, frozenset[str]]]) -> FileReport:
    """seen: group of questions -> question -> answers, for comparing files; this file's are added."""
    report = FileReport(name=file.part.name, format=file.name)
    malformed, odd = Malformed(), _Tally("answers that look like data, not like an answer")
    empty = _Tally("answers with neither letter nor digit")
    conflicts = _Tally("questions asked again with other answers")
    questions, answers, num_numbers = list[int](), list[int](), 0
    sources, splits = Counter[str](), Counter[str]()
    for entry in file.entries(malformed, UsedIds()):
        report.questions += 1
        report.with_answer += bool(entry.answers)
        sources[entry.data_source] += 1
        split = entry.split or file.part.split or ""
        splits[split] += 1
        questions.append(len(entry.question))
        answers += [min(map(len, entry.answers))] if entry.answers else []
        num_numbers += bool(entry.answers) and all(map(_NUMBER.fullmatch, entry.answers))
        for answer in entry.answers:
            if _is_odd(answer):
                odd.add(f"{entry.where}: {answer[:60]!r}")
            elif not any(map(str.isalnum, answer)):
                empty.add(f"{entry.where}: {answer[:60]!r}")
        group = seen.setdefault(f"{file.part.name} ({split})" if entry.split else file.part.name, {})
        same, given = same_question(entry), same_answers(entry.answers)
        if same in group and given and group[same] and not given & group[same]:
            conflicts.add(f"{entry.where}: {entry.question[:80]!r}")
        elif same in group:
            report.asked_again += 1
        group[same] = group.get(same, frozenset()) | given
    report.sources = {name: n for name, n in sources.items() if name}
    report.splits = {name: n for name, n in splits.items() if name}
    report.question_chars, report.answer_chars = _spread(questions), _spread(answers)
    report.notes = [file.note] if file.has_more else []
    if num_numbers:
        report.notes.append(
            f"of {report.with_answer} answers {num_numbers} are numbers; judge=numeric compares them as such"
        )
    if 0 < (unanswered := report.questions - report.with_answer) < report.questions:
        report.notes.append(
            f"{unanswered} questions have no answer, so no attempt at them is right, unless an environment of your own "
            "says what it is worth"
        )
    report.findings = [malformed.text] if malformed.count else []
    report.findings += [text for tally in (odd, empty, conflicts) for text in tally.findings()]
    if report.questions and not report.with_answer:
        report.findings.append(
            "no question has an answer; say what the answers are called (--answers-key KEY), unless an environment of "
            "your own says what an attempt is worth"
        )
    return report


def _is_odd(answer: str) -> bool:
    """Whether the answer is a written-out list, object or missing value, or a solution with its result."""
    if answer.strip().lower() in _NOTHING or "####" in answer:
        return True
    if not _CONTAINER.match(answer):
        return False
    if answer.lstrip().startswith("array("):
        return True
    for parse in (json.loads, ast.literal_eval):
        try:
            return isinstance(parse(answer), list | dict | tuple | set)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return False


def _between(seen: dict[str, dict[str, frozenset[str]]]) -> tuple[list[str], list[str]]:
    """Return (findings, notes) on every pair of groups of questions."""
    findings, notes = [], []
    near = {name: {nearly_same(same) for same in group} for name, group in seen.items()}
    for one, other in combinations(seen, 2):
        if shared := seen[one].keys() & seen[other].keys():
            examples = "; ".join(repr(text[:80]) for text in sorted(shared)[:_EXAMPLES])
            findings.append(f"{len(shared)} questions are in both {one} and {other}: {examples}")
        if also := len(near[one] & near[other]) - len({nearly_same(same) for same in shared}):
            notes.append(f"{also} questions of {one} are nearly the same in {other}: the same words, in another order")
    return findings, notes


def _spread(lengths: Iterable[int]) -> tuple[int, float, int]:
    found = list(lengths)
    return (min(found), float(median(found)), max(found)) if found else (0, 0.0, 0)
