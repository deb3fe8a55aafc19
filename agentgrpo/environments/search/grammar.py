"""The grammar of actions and its only parser, for the loop and for planners outside it.

    <think>...</think>                               skipped: nothing inside it is an action
    <search_decision>answer</search_decision>        a plan, no action
    <subquestions>T1: ...</subquestions>             a plan, no action; lines without an id get T1, T2, ...
    <search retriever="web" rerank="true">query</search>
    <searches>one query per line, or <query>...</query> children; "[T1] query" belongs to subquestion T1</searches>
    <rerank/>
    <fetch>URLs, split on newlines and commas</fetch>
    <fetch part="2">URL</fetch>                      a later part of a long page
    <fetch find="two words">URL</fetch>              the part with these words; with part=, from that part on
    <answer>text</answer>

Only closed tags with content count: an empty query or answer is no action. Attributes may have any order and quoting; a
missing or unknown retriever means vdb, and only the word true turns rerank on. The attributes of <searches> apply to
its queries unless a <query> has its own.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, TypeAlias

from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.types import Citation, Passage
from agentgrpo.core.untrusted import visible

# --- The names of the tags that the policy writes and that wrap the environment's observations.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """Every tag's name, by its name in the code. Raises ConfigError for an invalid name and for a name used twice."""

    think: str = "think"
    search_decision: str = "search_decision"
    subquestions: str = "subquestions"
    search: str = "search"
    searches: str = "searches"
    rerank: str = "rerank"
    fetch: str = "fetch"
    answer: str = "answer"

    information: str = "information"
    search_evaluation: str = "search_evaluation"
    full_page: str = "full_page"
    subquestions_feedback: str = "subquestions_feedback"
    decision_feedback: str = "decision_feedback"
    answer_feedback: str = "answer_feedback"
    search_feedback: str = "search_feedback"

    def __post_init__(self) -> None:
        used: dict[str, str] = {}
        for tag, name in asdict(self).items():
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
                raise ConfigError(f"tags.{tag} '{name}': letters, digits, _ and - are allowed; rename it")
            if (other := used.setdefault(name.lower(), tag)) != tag:
                raise ConfigError(f"tags.{tag} '{name}': also the name of tags.{other}; each tag needs its own")

    @classmethod
    def named(cls, names: Mapping[str, str]) -> Tags:
        """Return the default names, except for the given ones. Raises ConfigError for a tag that does not exist."""
        known = [f.name for f in fields(cls)]
        for tag in names:
            if tag not in known:
                raise ConfigError(f"tags.{tag}: {', '.join(known)} are allowed.{did_you_mean(tag, known)}")
        return cls(**names)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tags, as they are written."""
        return tuple(asdict(self).values())

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end a turn: the ends of actions."""
        closing = tuple(f"</{name}>" for name in (self.search, self.searches, self.fetch, self.answer))
        return (*closing, f"<{self.rerank}/>")


# --- Result labels "[R1Q2D3]", which documents they name, and the citations that use them.

_MARKER = re.compile(r"\[R\d+Q\d+D\d+\]")
_OPENS_LINE = re.compile(r"(?:^|\n)[^\S\n]*(?:(?:[-*+•·]|\d{1,3}[.)])[^\S\n]*)?\Z")
_KEY_CHARS = 512


def single_line(text: str) -> str:
    """Fold white space, so that no document can break out of its line; an unpaired surrogate becomes "?"."""
    return " ".join(text.split()).encode("utf-8", "replace").decode()


def clean(passage: Passage) -> Passage:
    """Return the passage with text, title and URL on a single line each, without invisible characters."""
    text, title, url = (visible(single_line(part)).strip() for part in (passage.text, passage.title, passage.url))
    if (text, title, url) == (passage.text, passage.title, passage.url):
        return passage
    return replace(passage, text=text, title=title, url=url)


def page_of(url: str) -> str:
    """The URL without its fragment."""
    return url.partition("#")[0]


def document_id(passage: Passage) -> str:
    """Return the key by which passages are one document: the id, else the URL without fragment, else the title, else
    the first 512 characters."""
    return passage.id or page_of(passage.url) or passage.title or passage.text[:_KEY_CHARS]


def strip_markers(text: str) -> str:
    """Return the text without citation markers (existing or not) and the white space before them, trimmed."""
    return _without_markers(text).strip()


def _without_markers(text: str) -> str:
    *heads, tail = _MARKER.split(text)
    return "".join(head.rstrip() for head in heads) + tail


def marker_places(text: str) -> dict[str, tuple[int, ...]]:
    """Return the places of each marker of `text` in `strip_markers(text)` (core.types.Citation.places)."""
    joined = _without_markers(text)
    stripped, leading = joined.strip(), len(joined) - len(joined.lstrip())
    places: dict[str, list[int]] = {}
    length, before, opens = 0, 0, True
    for match in _MARKER.finditer(text):
        between = text[before : match.start()]
        length += len(between.rstrip())
        # a marker right after another has the same place
        opens = _OPENS_LINE.search(between) is not None if between.strip() or "\n" in between else opens
        before = match.end()
        at = min(max(0, length - leading), len(stripped))
        if opens:
            at += len(stripped[at:]) - len(stripped[at:].lstrip())
        places.setdefault(match[0], []).append(at)
    return {marker: tuple(found) for marker, found in places.items()}


class Labels:
    """The documents shown so far and their markers.

    [R{round}Q{query}D{document}], 1-based. round counts the turns that showed something new. query is the place of the
    query, or of the URL, in its turn. document is the place among the results that the query showed.
    """

    def __init__(self) -> None:
        self.documents: dict[str, Passage] = {}
        """Every distinct document by its document_id, in the order shown; includes the text of its page once that is
        fetched."""
        self._round = 0
        self._document: dict[str, str] = {}
        """document_id by marker."""
        self._first_marker: dict[str, str] = {}

    def add_round(self, rows: Sequence[tuple[int, Sequence[Passage]]]) -> list[list[str]]:
        """Label one round's (query number, passages) rows; return the markers row by row. Without any passage, no round
        is counted."""
        if not any(passages for _, passages in rows):
            return [[] for _ in rows]
        self._round += 1
        return [[self._add(number, i, p) for i, p in enumerate(passages, start=1)] for number, passages in rows]

    def add_pages(self, pages: Sequence[tuple[int, Passage]]) -> list[str]:
        """Label the pages of one turn, (place of the URL, page with the text shown). If a known document has a page's
        URL, the page is that document, which gains the text. Other pages are labelled as a round."""
        keys = [self._with_url(page.url) for _, page in pages]
        for key, (_, page) in zip(keys, pages, strict=True):
            if key is not None:
                self.documents[key] = replace(self.documents[key], text=_joined(self.documents[key].text, page.text))
        self.add_round([(place, [page]) for key, (place, page) in zip(keys, pages, strict=True) if key is None])
        return [self._first_marker[key or document_id(page)] for key, (_, page) in zip(keys, pages, strict=True)]

    def _add(self, query: int, document: int, passage: Passage) -> str:
        marker = f"[R{self._round}Q{query}D{document}]"
        key = document_id(passage)
        self._document[marker] = key
        self.documents.setdefault(key, passage)
        self._first_marker.setdefault(key, marker)
        return marker

    def marker_of(self, passage: Passage) -> str:
        """Return the first marker of a document that has been shown. Raises KeyError for an unknown document."""
        return self._first_marker[document_id(passage)]

    def _with_url(self, url: str) -> str | None:
        """Return the first document with this URL, ignoring fragments."""
        page = page_of(url)
        return next((key for key, p in self.documents.items() if p.url and page_of(p.url) == page), None)

    def cite(self, answer: str) -> tuple[Citation, ...]:
        """Return the existing markers in `answer`, each once, in order."""
        return tuple(
            Citation(doc_id=key, marker=marker, text=self.documents[key].text, places=places)
            for marker, places in marker_places(answer).items()
            if (key := self._document.get(marker)) is not None
        )

    def cited(self, citations: Sequence[Citation]) -> list[Passage]:
        """Return the passages behind citations that `cite` made."""
        return [self.documents[c.doc_id] for c in citations]


def _joined(before: str, after: str) -> str:
    """Join two texts, unless one contains the other."""
    return before if after in before else after if before in after else f"{before} {after}"


RetrieverName: TypeAlias = Literal["web", "vdb"]
Decision: TypeAlias = Literal["answer", "search", "none"]
QueryKey: TypeAlias = tuple[str, str, bool]

FALLBACK_QUERY_CHARS = 256
_DECISIONS: dict[str, Decision] = {
    **dict.fromkeys(("answer", "internal", "internal_knowledge", "direct_answer"), "answer"),
    **dict.fromkeys(("search", "retrieve", "external", "need_search"), "search"),
}
_ATTRIBUTE = re.compile(r"([\w-]+)\s*=\s*[\"'“”‘’]*([^\s\"'“”‘’>/]*)")
_PART = re.compile(r"""\bpart\s*=\s*[\"'“”‘’]*0*([1-9][0-9]{0,5})(?![0-9])""", re.IGNORECASE)
_FIND = re.compile(r"""\bfind\s*=\s*(?:[\"“”]([^\"“”]*)|['‘’]([^'‘’]*)|([^\s\"'“”‘’]+))""", re.IGNORECASE)
_BULLETS = re.compile(r"\s*(?:(?:[-*+–—]\s+|[•·]\s*|\(?\d{1,3}[.)]\s+)){0,2}")
_BINDING = re.compile(r"\[([^\[\]]{1,64})\]\s*:?\s*(?=\S)")
_NAMED_LINE = re.compile(r"\[?([^\s:\[\]]{1,64})\]?\s*:\s*(?=\S)")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_-]")
_QUERY_TAG = re.compile(r"</?query(?=[\s/>])[^>]*>", re.IGNORECASE)


def normalise_query(text: str) -> str:
    """Fold white space and case, so that equal queries compare equal."""
    return " ".join(text.split()).casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query, on one line."""

    text: str
    retriever: RetrieverName = "vdb"
    rerank: bool = False
    subquestion: str | None = None

    @property
    def key(self) -> QueryKey:
        """Equal for the same words, retriever and rerank flag."""
        return (self.retriever, normalise_query(self.text), self.rerank)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAction:
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class RerankAction:
    """Reorder the passages retrieved so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchAction:
    urls: tuple[str, ...]
    part: int = 1
    find: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerAction:
    """`text` as written, citation markers included."""

    text: str


Action: TypeAlias = SearchAction | RerankAction | FetchAction | AnswerAction


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTurn:
    """The content of one sampled turn. action None: the turn has no action."""

    action: Action | None = None
    decision: Decision = "none"
    subquestions: tuple[tuple[str, str], ...] = ()
    """(id, text), in order."""

    @property
    def plans(self) -> bool:
        """Whether the turn states a plan."""
        return self.decision != "none" or bool(self.subquestions)


class Planner:
    """Parses sampled text into typed actions. Never raises, whatever the text."""

    def __init__(self, tags: Tags | None = None) -> None:
        self.tags = tags or Tags()
        self._think = _Element(self.tags.think)
        self._decision = _Element(self.tags.search_decision)
        self._subquestions = _Element(self.tags.subquestions)
        self._searches = _Element(self.tags.searches, self.tags.search)
        self._query = _Element("query")
        self._rerank = re.compile(rf"<{re.escape(self.tags.rerank)}\s*/?>", re.IGNORECASE)
        self._fetch = _Element(self.tags.fetch)
        self._answer = _Element(self.tags.answer)

    def parse(self, text: str) -> SearchTurn:
        """Return decision, subquestions and the one action of a turn; precedence search > rerank > fetch > answer."""
        if "<" not in text:
            return SearchTurn()
        text = self._think.blanked(text)
        decisions = [_decision(match["body"]) for match in self._decision.matches(text)]
        subquestions = _subquestions("\n".join(match["body"] for match in self._subquestions.matches(text)))
        return SearchTurn(
            action=self._action(text),
            decision=decisions[-1] if decisions else "none",
            subquestions=tuple(subquestions.items()),
        )

    def decide(self, text: str) -> Action:
        """Return the action of `text`; text without an action is taken as a search for its first line."""
        return self.parse(text).action or self.fallback(text)

    def fallback(self, text: str) -> SearchAction:
        """Return a vdb search for the first non-empty line of `text`, cut to 256 characters; blank text gives no
        query."""
        line = next((line.strip() for line in text.splitlines() if line.strip()), "")[:FALLBACK_QUERY_CHARS]
        return SearchAction(queries=(Query(text=line),) if line else ())

    def without_thoughts(self, text: str) -> str:
        return self._think.blanked(text)

    def with_answer(self, said: SearchTurn, text: str) -> SearchTurn:
        """Return the turn `said` of a policy that calls tools, with the answer in `text`: the content of the answer
        tag, else all text except thoughts and plans. Text with another action's tag is neither an action nor an
        answer."""
        if isinstance(said.action, AnswerAction):
            return said
        rest = self._subquestions.blanked(self._decision.blanked(self._think.blanked(text)))
        is_answer = said.action is None and bool(strip_markers(rest))
        return replace(said, action=AnswerAction(text=rest) if is_answer else None)

    def is_duplicate(self, query: Query, asked: Container[QueryKey]) -> bool:
        """Return whether the same words, after white-space and case normalisation, were asked of the same retriever
        with the same rerank flag. Another retriever or rerank flag makes a new search, which can bring new
        documents."""
        return query.key in asked

    def _action(self, text: str) -> Action | None:
        if queries := tuple(self._queries(text)):
            return SearchAction(queries=queries)
        if self._rerank.search(text):
            return RerankAction()
        fetches = list(self._fetch.matches(text))
        pages = re.split(r"[\n,]", "\n".join(match["body"] for match in fetches))
        if urls := tuple(dict.fromkeys(page.strip() for page in pages if page.strip())):
            return _fetch(urls, fetches[0]["attributes"])
        for match in self._answer.matches(text):
            if strip_markers(match["body"]):
                return AnswerAction(text=match["body"])
        return None

    def _queries(self, text: str) -> Iterator[Query]:
        for match in self._searches.matches(text):
            attributes = _attributes(match["attributes"])
            if match["name"].lower() == self.tags.search.lower():
                rows = [(match["body"], attributes)]
            elif children := list(self._query.matches(match["body"])):
                rows = [(child["body"], attributes | _attributes(child["attributes"])) for child in children]
            else:
                rows = [(_unbullet(_QUERY_TAG.sub("", line)), attributes) for line in match["body"].splitlines()]
            for words, options in rows:
                query = _query(words, options)
                if query.text:
                    yield query


class _Element:
    """Finds closed elements with one of these names."""

    def __init__(self, *names: str) -> None:
        either = "|".join(re.escape(name) for name in names)
        self._pattern = re.compile(
            rf"<(?P<name>{either})(?=[\s/>])(?P<attributes>[^>]*)>(?P<body>.*?)</(?P=name)\s*>",
            re.DOTALL | re.IGNORECASE,
        )
        self._closing = tuple(f"</{name.lower()}" for name in names)

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """Yield matches with the groups name, attributes and body."""
        # otherwise each of a thousand unclosed opening tags would cost a scan to the end
        return self._pattern.finditer(text) if self._is_closed(text) else iter(())

    def blanked(self, text: str) -> str:
        """Return the text with a space in place of every match."""
        return self._pattern.sub(" ", text) if self._is_closed(text) else text

    def _is_closed(self, text: str) -> bool:
        lower = text.lower()
        return any(closing in lower for closing in self._closing)


def _attributes(text: str) -> dict[str, str]:
    return {name.lower(): value.lower() for name, value in _ATTRIBUTE.findall(text)}


def _fetch(urls: tuple[str, ...], attributes: str) -> FetchAction:
    part, find = _PART.search(attributes), _FIND.search(attributes)
    words = next((group for group in find.groups() if group is not None), "") if find else ""
    return FetchAction(urls=urls, part=int(part[1]) if part else 1, find=" ".join(words.split()))


def _decision(body: str) -> Decision:
    return _DECISIONS.get("_".join(re.findall(r"[a-z]+", body.lower())), "none")


def sanitised(id_: str) -> str | None:
    """Return the cleaned id of a subquestion; None if nothing is left."""
    return _NOT_IN_ID.sub("", id_) or None


def _query(words: str, options: Mapping[str, str]) -> Query:
    text, subquestion = " ".join(words.split()), None
    if (binding := _BINDING.match(text)) and (id_ := sanitised(binding[1])):
        text, subquestion = text[binding.end() :], id_
    return Query(
        text=text,
        retriever="web" if options.get("retriever") == "web" else "vdb",
        rerank=options.get("rerank") == "true",
        subquestion=subquestion,
    )


def _unbullet(line: str) -> str:
    match = _BULLETS.match(line)
    return line[match.end() :] if match else line


def _subquestions(body: str) -> dict[str, str]:
    """Return id -> text for every line; a line without an id gets T and its place, or the next free number."""
    found: dict[str, str] = {}
    for line in body.splitlines():
        text = " ".join(_unbullet(line).split())
        if not text:
            continue
        named = _NAMED_LINE.match(text)
        id_ = _NOT_IN_ID.sub("", named[1]) if named else ""
        if named and id_:
            text = text[named.end() :]
        else:
            number = len(found) + 1
            while f"T{number}" in found:
                number += 1
            id_ = f"T{number}"
        found[id_] = text
    return found
