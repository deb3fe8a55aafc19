"""The jobs of one command line: each is run and its error printed; a sweep lists all errors again at its end."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgrpo.config.hardware import speaks
from agentgrpo.core.commands import VERBS, Command, VerbResult
from agentgrpo.core.errors import AgentGrpoError, ConfigError, MalformedRows, Preempted, ProcessError, ProcessExit
from agentgrpo.core.interrupts import INTERRUPTED, SAID, is_of_interrupt, raise_again, tidy_before
from agentgrpo.core.secrets import guarded
from agentgrpo.core.untrusted import printable

if TYPE_CHECKING:
    from agentgrpo.config.compose import Job

_OF_HYDRA = "multirun.yaml"
"""File that Hydra writes into the directory of a sweep."""
Entry = Callable[[dict[str, Any], Command], VerbResult]
"""The function of a verb, called with a checked configuration."""


def report(error: BaseException, debug: bool = False) -> int:
    """Print an error on stderr: one line for a known error (one per malformed row), a traceback for a bug. Returns the
    exit code."""
    interrupted = is_of_interrupt(error)
    known = interrupted or isinstance(error, AgentGrpoError)
    if debug or not known:
        print(printable("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if known and (isinstance(error, ProcessError) or speaks()):
        text = str(error) if isinstance(error, MalformedRows) else _one_line(error)
        print(SAID if interrupted else f"agentgrpo: {printable(text)}", file=sys.stderr)
    if interrupted:
        return INTERRUPTED
    return error.exit_code if isinstance(error, AgentGrpoError) else 1


def _of_user(exit: SystemExit) -> ConfigError:
    """Convert a SystemExit raised by a user's code."""
    at = traceback.extract_tb(exit.__traceback__)[-1]
    return ConfigError(
        f"{at.filename}:{at.lineno} has called for the end of the program (SystemExit: {exit}); code of yours that "
        "cannot go on raises an error"
    )


def _one_line(error: BaseException, kind: str = "") -> str:
    text = " ".join(line.strip() for line in str(error).splitlines())
    return f"{kind}: {text}" if kind else text


class Jobs:
    """Runs the jobs of a command line: `one` is called once per job, with the tree that Hydra composed; `end` after the
    last job.

    load: imports the function of the verb `name`. make: turns a tree into the checked Job (compose.Composition).
    is_ours: the sweep's directory was made for it, and is removed if no job has left anything there. raises: the caller
    raises `error`, so nothing is printed about it."""

    error: BaseException | None = None
    """The error of the single job, if `raises` is set."""
    run_dir: Path
    """The run directory of the last composed job."""

    def __init__(
        self,
        load: Callable[[], Entry],
        name: str,
        arguments: Mapping[str, Any],
        make: Callable[[Any], Job],
        *,
        sweep: bool,
        is_ours: bool,
        debug: bool,
        raises: bool = False,
    ) -> None:
        self._load, self._name, self._arguments, self._make = load, name, arguments, make
        self._sweep, self._is_ours, self._debug = sweep, is_ours, debug
        self._raises = raises
        self._codes: list[int] = []
        self._overrides: list[tuple[str, ...]] = []
        self._failed: list[tuple[Path | None, tuple[str, ...], str]] = []
        self._folders: set[Path] = set()
        self._process = os.getpid()

    @guarded()  # also in a launcher's worker
    def one(self, tree: Any) -> float | None:
        """Run a job and return its objective. A failure is printed, so that a sweep goes on; raises ProcessExit for a
        stop that can be resumed, KeyboardInterrupt, and in a launcher's worker any error of the job."""
        from agentgrpo.config.compose import swept

        folder, overrides = swept() if self._sweep else (None, ())
        self._overrides.append(overrides)
        try:
            job = self._make(tree)
            self.run_dir = Path(job.config["run"]["dir"])
            folder = self.run_dir if job.is_fresh else folder
            if folder is not None:
                tidy_before(partial(_remove_empty, folder))
            if self._sweep:
                print(f"agentgrpo: {folder}: {' '.join(overrides)}", file=sys.stderr)
            command = Command(
                verb=self._name,
                arguments=self._arguments,
                overrides=job.overrides,
                choices=job.choices,
                is_fresh=job.is_fresh,
                snapshot=job.snapshot,
            )
            entry = self._load()
            raise_again(leaves=False)  # from here on, the work handles Ctrl-C itself
            code, objective = entry(job.config, command)
        except ProcessExit:
            raise
        except (Exception, KeyboardInterrupt, SystemExit, GeneratorExit, BaseExceptionGroup) as caught:
            error = _of_user(caught) if isinstance(caught, SystemExit) else caught
            self._empty(folder)
            code, objective = self._reported(error), None
            why = _one_line(error) if isinstance(error, AgentGrpoError) else _one_line(error, type(error).__name__)
        else:
            why = f"exit code {code}"
            if VERBS[self._name].keeps_nothing:
                self._empty(folder)
        self._codes.append(code)
        if code:
            self._failed.append((folder, overrides, why))
        return objective

    def _reported(self, error: BaseException) -> int:
        if is_of_interrupt(error):
            raise KeyboardInterrupt from error  # ends a sweep, too
        if self._raises:  # not raised here, where Hydra would wrap it
            self.error = error
            return 1
        code = report(error, self._debug)
        if os.getpid() != self._process:
            raise error  # in a launcher's worker, the launcher reports the failure
        if isinstance(error, Preempted):
            raise ProcessExit(code) from error  # likewise
        return code

    def _empty(self, folder: Path | None) -> None:
        if folder is not None:
            self._folders.add(folder)
            _remove_empty(folder)

    def end(self) -> None:
        """Print the failed jobs of a sweep on stderr, a line each, with the overrides that not all jobs share."""
        if not self._sweep:
            return
        for folder in {folder.parent for folder in self._folders} if self._is_ours else ():
            if folder.is_dir() and [path.name for path in folder.iterdir()] == [_OF_HYDRA]:
                (folder / _OF_HYDRA).unlink()
            _remove_empty(folder)
        if self._failed:
            print(f"agentgrpo: {len(self._failed)} of {len(self._codes)} jobs failed:", file=sys.stderr)
        for place, overrides, why in self._failed:
            own = " ".join(o for o in overrides if not all(o in others for others in self._overrides))
            said = f"{place}: {own}{': ' if own else ''}{why}"
            print(f"agentgrpo:   {printable(said)}", file=sys.stderr)

    @property
    def exit_code(self) -> int:
        """The exit code of the first job that failed, else 0."""
        return next((code for code in self._codes if code), 0)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds something
        folder.rmdir()
