"""`agentgrpo view`: runs as a page for any browser that needs neither a server nor a network.

source.py     a run's files --> episodes, each as an index row and an object
pieces.py     tokens --> the characters that each of them spells
ratios.py     --ratio: tokens --> probability ratios under other weights; the only module that uses torch
facts.py      a run --> settings, curves, comparison
blocks.py     all of these --> named blocks of JSON
page.py       blocks and assets --> HTML
embedding.py  the page as a file; snapshot.py and serving.py serve it over HTTP
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgrpo.core.commands import Command, VerbResult
from agentgrpo.core.errors import ConfigError
from agentgrpo.records.html_page import require_place
from agentgrpo.records.run_dir import RunDir
from agentgrpo.reports.damage import warn_of_damage

if TYPE_CHECKING:
    from agentgrpo.reports.view.ratios import Ratios
    from agentgrpo.reports.view.source import RunSource

__all__ = ["view"]

PAGE = "view.html"
"""Default file name, in the directory of the first run."""
_SAID = 5
"""Number of damaged files named on the terminal."""
_OURS = b'<meta name="agentgrpo-source"'


def view(config: Mapping[str, Any], command: Command) -> VerbResult:
    """Write the page, or serve it until interrupted. Raises ConfigError if a directory is not a run, the page cannot be
    written to --out, or the port is not available; StorageError; CheckpointError for damaged weights."""
    given = command.arguments
    _refuse_contradictions(given)
    runs = [RunDir(Path(path)) for path in (given["run_dir"], *given["others"])]
    warn_of_damage(runs)
    if given["serve"]:
        return _serve(runs, port=_port(given["port"]), ratio=given["ratio"])
    out = Path(given["out"]) if given["out"] is not None else runs[0].path / PAGE
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: there is no folder {out.parent}; make it, or give a place in one that exists")
    require_place(out, verb="view", mark=_OURS, example=PAGE)
    return _write(runs, out, ratio=given["ratio"])


def _write(runs: Sequence[RunDir], out: Path, *, ratio: str | None) -> VerbResult:
    from agentgrpo.records.screen import Bar
    from agentgrpo.reports.view.embedding import write_page
    from agentgrpo.reports.view.page import page_of

    sources, ratios = _opened(runs, ratio)
    with Bar(what="episodes") as bar:
        reached = partial(bar.reached, "reading")
        written = write_page(out, sources, page_of("embedded"), ratios=ratios, ratio_of=ratio, reached=reached)
    for line in written.damage[:_SAID]:
        _warn(f"{line} (what could be read is shown)")
    if len(written.damage) > _SAID:
        _warn(f"... and {len(written.damage) - _SAID} more, which the page names")
    size = f"{written.num_bytes / 1e6:.1f} MB"
    where = out.resolve().as_uri()
    print(f"{out}: {written.num_episodes:,} episodes, {size}; open it with a browser: {where}")
    return VerbResult()


def _serve(runs: Sequence[RunDir], *, port: int, ratio: str | None) -> VerbResult:
    from agentgrpo.reports.view.page import page_of
    from agentgrpo.reports.view.serving import PageServer
    from agentgrpo.reports.view.snapshot import Snapshot

    sources, ratios = _opened(runs, ratio)
    with PageServer(Snapshot(sources, ratios=ratios, ratio_of=ratio), page_of("served"), port=port) as server:
        names = ", ".join(source.name for source in sources)
        print(f"{server.url} shows {names} to browsers of this machine; Ctrl-C ends it", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nstopped", flush=True)
    return VerbResult()


def _opened(runs: Sequence[RunDir], ratio: str | None) -> tuple[list[RunSource], Ratios | None]:
    from agentgrpo.reports.view.facts import names_of
    from agentgrpo.reports.view.source import RunSource

    sources = [RunSource(run, name) for run, name in zip(runs, names_of(runs), strict=True)]
    for source in sources:
        if problem := source.find_tokenizer():
            _warn(f"{problem} (texts are not divided into tokens)")
    if ratio is None:
        return sources, None
    from agentgrpo.reports.view.ratios import Ratios

    return sources, Ratios(Path(ratio), sources)


def _refuse_contradictions(given: Mapping[str, Any]) -> None:
    if given["serve"] and given["out"] is not None:
        raise ConfigError("--serve writes no file; leave out --serve or --out")
    if given["port"] is not None and not given["serve"]:
        raise ConfigError(f"--port {given['port']} is for --serve; add --serve, or leave it out")


def _port(given: str | None) -> int:
    if given is None:
        return 0
    if not (given.isascii() and given.isdigit() and int(given[:6]) < 1 << 16):
        raise ConfigError(f"--port {given}; allowed are 0 (any free port) to 65535")
    return int(given)


def _warn(line: str) -> None:
    print(f"agentgrpo: {line}", file=sys.stderr)
