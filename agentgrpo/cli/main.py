"""The command line: a verb and its flags, then Hydra for the rest.

    agentgrpo VERB [ARGUMENT] [--flag ...] [group=preset ...] [key.path=value ...]

The verb and its flags are removed from argv, overrides are rewritten in Hydra's spelling, and the real `hydra.main`
composes the configuration, so that -m, --cfg, --info, --config-dir, launchers and completion work. Every job's tree is
checked before anything is built. A user's mistake is reported in one line on stderr, with exit code 2.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from agentgrpo import __version__
from agentgrpo.cli.jobs import Jobs, report
from agentgrpo.config.admission import refuse_secrets
from agentgrpo.config.folders import configs_dir
from agentgrpo.config.other_names import SETTINGS_FILE, other_name
from agentgrpo.config.registry import NESTED, ROOT
from agentgrpo.core.commands import EXAMPLES, SETTINGS, SHARED_FLAGS, VERBS, Command, Verb
from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.interrupts import raise_again
from agentgrpo.core.outside import forks_ended
from agentgrpo.core.renamed import overrides_of_today
from agentgrpo.core.secrets import guarded
from agentgrpo.records.run_dir import checkpoint_in

_WIDTH = 100
"""Columns of the help texts."""


@forks_ended()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code, for several jobs the first one other than 0."""
    words = list(sys.argv[1:] if argv is None else argv)
    with guarded(words):
        return _run(words)


def _run(words: list[str]) -> int:
    debug = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        line, code = read(words), 0
        if line is not None and line.verb.composes:
            with _jobs_of(line, debug=debug) as (jobs, run):
                run()
            code = jobs.exit_code
        elif line is not None:
            entry = _load(line.verb.entry)
            raise_again(leaves=True)  # from here on, the work handles Ctrl-C itself
            command = Command(verb=line.name, arguments=line.arguments, overrides=(), choices={}, snapshot="")
            code = entry({}, command).exit_code
        if not sys.stdout.closed:  # a user's code may have closed it
            sys.stdout.flush()
        return code
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except BrokenPipeError:  # the reader of our output has exited, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that no flush at exit fails
        return 128 + signal.SIGPIPE
    except (Exception, KeyboardInterrupt) as e:
        return report(e, debug)


def run_one(argv: Sequence[str]) -> Path:
    """Run one command line for a Python program and return its run directory. Errors are raised, not printed."""
    with guarded(argv):
        return _run_one(argv)


def _run_one(argv: Sequence[str]) -> Path:
    line = read(list(argv))
    if line is None or line.sweep or any(flag in SHARED_FLAGS and flag != "--config-dir" for flag in line.flags):
        raise ConfigError(f"agentgrpo {' '.join(argv)}; Python runs a single run, with settings such as run.seed=1")
    with _jobs_of(line, debug=False, raises=True) as (jobs, run):
        run()
    if jobs.error is not None:
        raise jobs.error
    return jobs.run_dir


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A verb with its arguments, flags and overrides."""

    name: str
    arguments: Mapping[str, Any]
    """Arguments of the verb."""
    flags: Sequence[str]
    """Flags for Hydra."""
    overrides: Sequence[str]
    presets: Mapping[str, Sequence[str]]
    """group -> its available presets."""
    config_dir: str | None
    """The user's directory of presets."""
    sweep: bool

    @property
    def verb(self) -> Verb:
        return VERBS[self.name]


def read(argv: list[str]) -> CommandLine | None:
    """Parse a command line; returns None if nothing is left to run, as after a help text. Raises ConfigError for a
    verb, flag or word that is not allowed."""
    if argv[:1] == ["help"]:  # agentgrpo help train
        argv = [*argv[1:2], "--help"]
    if not argv or argv[0] in ("-h", "--help"):
        print(help_text(presets()))
        return None
    if argv[0] == "--version":
        print(f"agentgrpo {__version__}")
        return None
    if argv[0] in ("-sc", "--shell-completion") and argv[-1].startswith("query="):
        completed = complete(os.environ.get("COMP_LINE", ""))
        if isinstance(completed, list):
            print(" ".join(completed))
            return None
        os.environ["COMP_LINE"] = completed
    if argv[0] in SHARED_FLAGS or argv[0] == "-sc":
        argv = ["train", *argv]
    name = argv[0]
    if name not in VERBS:
        raise ConfigError(f"verb '{name}'; allowed are {', '.join(VERBS)}.{did_you_mean(name, VERBS)}")
    verb = VERBS[name]
    given, arguments, written = parse(name, argv[1:])
    for flag in ("ckpt", "baseline"):
        named = arguments.get(flag)
        if named and (found := checkpoint_in(Path(named))) != Path(named):
            arguments[flag] = str(found)
    overrides, notes = overrides_of_today(written)
    for note in notes:
        print(f"agentgrpo: {note}", file=sys.stderr)
    if given["config_dir"] and not Path(given["config_dir"]).is_dir():
        raise ConfigError(f"--config-dir {given['config_dir']} is no directory; give the one that holds your presets")
    known = presets(given["config_dir"])
    if given["help"]:
        print(verb_help(name, known))
        return None
    flags = [text for flag in SHARED_FLAGS for text in _as_given(flag, given[_key(flag)])]
    if not verb.composes and (stray := [*flags, *overrides]):
        raise ConfigError(f"{name} has no settings, only {' and '.join(verb.flags)}; leave out {stray[0]}")
    if verb.implies:
        overrides = [*_load(verb.implies)(arguments, overrides), *overrides]
    sweep = given["multirun"] or "hydra.mode=MULTIRUN" in overrides
    if verb.resumes and sweep:
        raise ConfigError(f"{name} goes on with one run; several values and -m are for train and eval")
    return CommandLine(
        name=name,
        arguments=arguments,
        flags=flags,
        overrides=overrides,
        presets=known,
        config_dir=given["config_dir"],
        sweep=sweep,
    )


@contextmanager
def _jobs_of(line: CommandLine, *, debug: bool, raises: bool = False) -> Iterator[tuple[Jobs, Callable[[], None]]]:
    """Yield the Jobs of the line, and a function that runs them all; on exit, end the Jobs."""
    from agentgrpo.config.compose import run_hydra

    jobs, primary, words = _words_of(line, debug=debug, raises=raises)
    try:
        yield jobs, partial(run_hydra, jobs.one, primary, words, configs_dir())
    finally:
        jobs.end()


def _words_of(line: CommandLine, *, debug: bool, raises: bool) -> tuple[Jobs, str, list[str]]:
    """Return the Jobs, the configuration that Hydra starts from, and the words for Hydra."""
    from agentgrpo.config import compose
    from agentgrpo.config.hardware import speaks
    from agentgrpo.config.implied import implied
    from agentgrpo.config.overrides import normalise, parse, place_sweep, swept_values

    verb, sweep = line.verb, line.sweep
    known = compose.Presets([configs_dir(), *([Path(line.config_dir)] if line.config_dir else [])], line.presets)
    overrides = normalise(line.overrides, line.presets, sweep=sweep)
    if sweep:
        refuse_secrets(swept_values(overrides))  # before Hydra writes them down
    if verb.keeps_nothing:
        overrides = ["run.dir=.", *overrides]  # otherwise a fresh directory would be made
    is_ours = not any(o.key_or_group == "run.dir" and Path(str(o.value())).exists() for o in parse(overrides))
    if verb.resumes:
        composed, overrides = compose.of_run(overrides, known, line.arguments[verb.positional], resumes=True)
    elif (run_dir := compose.run_of(line.arguments.get("ckpt"), overrides)) and not sweep:
        composed, overrides = compose.of_run(overrides, known, run_dir, resumes=False)
    else:
        composed = compose.of_presets(known, verb.presets)
        overrides, notes = implied(overrides, known, learns=not verb.presets)
        for note in notes if speaks() else ():
            print(f"agentgrpo: note: {note}", file=sys.stderr)
        overrides = place_sweep(overrides) if sweep else overrides
    load, make = partial(_load, verb.entry), composed.make
    jobs = Jobs(load, line.name, line.arguments, make, sweep=sweep, is_ours=is_ours, debug=debug, raises=raises)
    return jobs, composed.primary, [*line.flags, *overrides]


def _load(location: str) -> Any:
    module, _, function = location.partition(":")
    return getattr(import_module(module), function)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(name: str, argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Return (shared flags, the verb's arguments, overrides). Raises ConfigError for an unknown flag."""
    verb, parser = VERBS[name], _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("-h", "--help", action="store_true")
    for flag, (short, how, _) in SHARED_FLAGS.items():
        parser.add_argument(*([short] if short else []), flag, **how)
    for flag, (metavar, _) in verb.flags.items():
        parser.add_argument(flag, action="store" if metavar else "store_true")
    namespace, rest = parser.parse_known_args(argv)
    given, flags = vars(namespace), [*verb.flags, *SHARED_FLAGS, "--help"]
    for text in rest:
        if text.startswith("-"):
            setting = text.strip("-").partition("=")[0].replace("-", "_")
            is_file = setting in ("config", "config_file", "config_path")
            near = f" A{SETTINGS_FILE[1:]}" if is_file else did_you_mean(text, flags) or other_name(setting)
            raise ConfigError(
                f"{name} has no flag {text}; its flags are {', '.join(flags)}, and a setting is written KEY=VALUE."
                f"{near}"
            )
        if text == "help":
            raise ConfigError(f"help is no setting; agentgrpo {name} --help says more of {name}")
    arguments = {_key(flag): given[_key(flag)] for flag in verb.flags}
    if verb.positional and not given["help"]:
        if not rest:
            raise ConfigError(f"{name} needs {verb.positional.upper()}: agentgrpo {name} {verb.positional.upper()} ...")
        arguments[verb.positional] = rest.pop(0)
        if verb.also:
            if len(rest) < verb.least:
                usage = f"agentgrpo {name} {arguments[verb.positional]} {verb.also.upper()} ..."
                raise ConfigError(f"{name} needs {verb.also.upper()}: {usage}")
            arguments[verb.also], rest = rest, []
    return given, arguments, rest


def _key(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _as_given(flag: str, value: object) -> list[str]:
    return [flag] if value is True else [] if value in (None, False) else [flag, str(value)]


def presets(config_dir: str | None = None) -> dict[str, list[str]]:
    """Return group -> its presets, ours before the user's; "retriever/web" for a group in a group."""
    groups: dict[str, list[str]] = {}
    for folder in sorted(folder for folder in configs_dir().iterdir() if folder.is_dir()):
        inner = NESTED.get(ROOT.get(folder.name, ""), {})
        groups |= {folder.name: []} | {f"{folder.name}/{key}": [] for key in inner if (folder / key).is_dir()}
    for root in (configs_dir(), *([Path(config_dir)] if config_dir else [])):
        for group, names in groups.items():
            found = [file.relative_to(root).with_suffix("").as_posix() for file in (root / group).rglob("*.yaml")]
            own = [
                name for name in found if not any(name.startswith(f"{g}/") for g in groups if g.startswith(f"{group}/"))
            ]
            names += sorted(name for n in own if (name := n.removeprefix(f"{group}/")) not in names)
    return groups


def complete(line: str) -> list[str] | str:
    """Return the completions at the end of `line`, or the line for Hydra to complete, without verb and flags."""
    words = line.split()
    last = "" if line.endswith(" ") else words.pop()
    if len(words) < 2:
        return [verb for verb in VERBS if verb.startswith(last)] if words else []
    if last.startswith("-"):
        own = VERBS[words[1]].flags if words[1] in VERBS else {}
        return [flag for flag in (*own, *SHARED_FLAGS) if flag.startswith(last)]
    groups = presets()
    keys = [
        w.removeprefix("+") if w.partition("=")[0].removeprefix("+") in groups else w for w in words[2:] if "=" in w
    ]
    return " ".join(["agentgrpo", *keys, last])


def help_text(known: Mapping[str, Sequence[str]]) -> str:
    """Return the help text of the whole command line."""
    lines = [__doc__.splitlines()[2].strip(), "", "Verbs; agentgrpo VERB --help says more of one"] if __doc__ else []
    for name, verb in VERBS.items():
        lines += _row(_called(name), verb.summary)
        lines += _flags_of(verb, indent=4)
    lines += ["", "Flags of every verb", *_shared_flags()]
    lines += ["", "Presets, chosen by group=preset; each is a file in", f"  {configs_dir()}"]
    for group, names in known.items():
        lines += _row(group.replace("/", "."), " ".join(names))
    return "\n".join([*lines, "", "Examples", EXAMPLES])


def _row(word: str, text: str, *, indent: int = 2) -> list[str]:
    """Return a word with its text beside it, wrapped to screen width."""
    at = 26
    first = f"{' ' * indent}{word}"
    first = first.ljust(at) if len(first) < at else f"{first} "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=" " * at, break_long_words=False, break_on_hyphens=False
    ) or [first.rstrip()]


def verb_help(name: str, known: Mapping[str, Sequence[str]]) -> str:
    """Return the help text of one verb."""
    verb = VERBS[name]
    settings = "[group=preset ...] [key.path=value ...]"
    if verb.resumes:
        settings = "[key.path=value ...]"
    usage = ["agentgrpo", _called(name), *(["[--flag ...]"] if verb.flags or verb.composes else [])]
    lines = [" ".join([*usage, settings] if verb.composes else usage), f"  {verb.summary}"]
    if words := [word.upper() for word in (verb.positional, verb.also) if word]:
        lines += ["", "Words", *(line for row in zip(words, verb.words, strict=True) for line in _row(*row))]
    if verb.flags:
        lines += ["", "Flags", *_flags_of(verb, indent=2)]
    if verb.composes:
        lines += ["", "Flags of every verb", *_shared_flags(), "", "Settings"]
        shown = f"agentgrpo {name} {verb.positional.upper()}".rstrip()
        for key, (default, text) in SETTINGS.items() if not verb.resumes else ():
            lines += _row(f"{key}={default or '...'}", text)
        if not verb.resumes:
            lines += _row("group=preset", f"agentgrpo --help lists {len(known)} groups and their presets")
        lines += _row("key.path=value", f"{shown} --cfg job prints all keys")
    return "\n".join([*lines, "", "Examples", *(f"  {line}" for line in verb.examples)])


def _called(name: str) -> str:
    verb = VERBS[name]
    also = verb.also.upper() if verb.least else f"[{verb.also.upper()}]"
    return f"{name} {verb.positional.upper()} {also if verb.also else ''}".rstrip()


def _flags_of(verb: Verb, *, indent: int) -> list[str]:
    rows = (_row(f"{flag} {metavar}".rstrip(), text, indent=indent) for flag, (metavar, text) in verb.flags.items())
    return [line for row in rows for line in row]


def _shared_flags() -> list[str]:
    lines = []
    for flag, (short, how, text) in SHARED_FLAGS.items():
        value = how.get("metavar") or "|".join(how.get("choices", []))
        lines += _row(f"{flag} {value}".strip() + (f", {short}" if short else ""), text)
    return lines
