"""The command line: a verb and its flags, then Hydra for the rest.

    agentgrpo VERB [ARGUMENT] [--flag ...] [group=preset ...] [key.path=value ...]

The verb and its own flags are taken off argv, overrides are put into the one spelling that Hydra takes, and the real
`hydra.main` composes, so that -m, --cfg, --info, --config-dir, launchers and completion work. Every job's tree is
checked before anything is built. A mistake of the user's is one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import agentgrpo
from agentgrpo import __version__
from agentgrpo.cli.jobs import Jobs, report
from agentgrpo.config.registry import NESTED, ROOT
from agentgrpo.core.commands import EXAMPLES, SHARED_FLAGS, VERBS, Command, Verb, VerbResult
from agentgrpo.core.errors import ConfigError, did_you_mean
from agentgrpo.core.interrupts import raise_again
from agentgrpo.core.renamed import overrides_of_today


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code."""
    debug = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        code = _main(list(sys.argv[1:] if argv is None else argv), debug)
        sys.stdout.flush()
        return code
    except SystemExit as e:
        return e.code if isinstance(e.code, int) else int(e.code is not None)
    except BrokenPipeError:  # whoever read what we print has left, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor is there anybody to flush for
        return 128 + signal.SIGPIPE
    except (Exception, KeyboardInterrupt) as e:
        return report(e, debug)


def _main(argv: list[str], debug: bool) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(help_text(presets()))
        return 0
    if argv[0] == "--version":
        print(f"agentgrpo {__version__}")
        return 0
    if argv[0] in ("-sc", "--shell-completion") and argv[-1].startswith("query="):
        completed = complete(os.environ.get("COMP_LINE", ""))
        if isinstance(completed, list):
            print(" ".join(completed))
            return 0
        os.environ["COMP_LINE"] = completed
    if argv[0] in SHARED_FLAGS or argv[0] == "-sc":
        argv = ["train", *argv]
    if argv[0] not in VERBS:
        raise ConfigError(f"verb '{argv[0]}'; allowed are {', '.join(VERBS)}.{did_you_mean(argv[0], VERBS)}")
    return run(argv[0], argv[1:], debug)


def run(name: str, argv: Sequence[str], debug: bool = False) -> int:
    """One verb: its arguments taken off, Hydra given the rest, its entry called for every job; the exit code, that of
    the first job with one other than 0."""
    verb = VERBS[name]
    given, arguments, written = parse(name, argv)
    overrides, notes = overrides_of_today(written)
    for note in notes:
        print(f"agentgrpo: {note}", file=sys.stderr)
    if given["config_dir"] and not Path(given["config_dir"]).is_dir():
        raise ConfigError(f"--config-dir {given['config_dir']} is no directory; give the one that holds your presets")
    known = presets(given["config_dir"])
    if given["help"]:
        print(verb_help(name, known))
        return 0
    flags = [text for flag in SHARED_FLAGS for text in _as_given(flag, given[_key(flag)])]
    if not verb.composes:
        if stray := [*flags, *overrides]:
            raise ConfigError(f"{name} has no settings, only {' and '.join(verb.flags)}; leave out {stray[0]}")
        command = Command(verb=name, arguments=arguments, overrides=(), choices={}, snapshot="")
        return _call(verb, {}, command).exit_code
    if verb.implies:
        overrides = [*_load(verb.implies)(arguments, overrides), *overrides]
    sweep = given["multirun"] or "hydra.mode=MULTIRUN" in overrides
    if verb.resumes and sweep:
        raise ConfigError(f"{name} goes on with one run; several values and -m are for train and eval")
    return _compose(Jobs(_call, verb, name, arguments, sweep=sweep, debug=debug), flags, overrides, known)


def _compose(jobs: Jobs, flags: Sequence[str], given: Sequence[str], known: Mapping[str, Sequence[str]]) -> int:
    from agentgrpo.config import compose
    from agentgrpo.config.overrides import normalise, parse, place_sweep

    verb, sweep = jobs.verb, jobs.sweep
    overrides = normalise(given, known, sweep=sweep)
    if verb.keeps_nothing:
        overrides = ["run.dir=.", *overrides]  # or a fresh directory would be made
    is_ours = not any(o.key_or_group == "run.dir" and Path(str(o.value())).exists() for o in parse(overrides))
    try:
        if verb.resumes:
            run_dir = jobs.arguments[verb.positional]
            compose.rerun_hydra(jobs, flags, overrides, configs_dir(), run_dir, resumes=True)
        elif (run_dir := compose.run_of(jobs.arguments.get("ckpt"), overrides)) and not sweep:
            compose.rerun_hydra(jobs, flags, overrides, configs_dir(), run_dir, resumes=False)
        else:
            compose.run_hydra(jobs, flags, place_sweep(overrides) if sweep else overrides, configs_dir())
    finally:
        jobs.end(is_ours=is_ours)
    return jobs.exit_code


def _call(verb: Verb, config: dict[str, Any], command: Command) -> VerbResult:
    entry = _load(verb.entry)
    raise_again()  # what is under way from here on knows how to end
    outcome: VerbResult = entry(config, command)
    return outcome


def _load(location: str) -> Any:
    module, _, function = location.partition(":")
    return getattr(import_module(module), function)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse(name: str, argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """(shared flags, the verb's own arguments, overrides). Raises ConfigError for a flag that does not exist."""
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
            raise ConfigError(
                f"{name} has no flag {text}; its flags are {', '.join(flags)}.{did_you_mean(text, flags)}"
            )
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


def configs_dir() -> Path:
    """The presets: inside an installed package, beside the package in a checkout."""
    package = Path(agentgrpo.__file__).parent
    inside = package / "_configs"
    return inside if inside.is_dir() else package.parent / "configs"


def presets(config_dir: str | None = None) -> dict[str, list[str]]:
    """group -> its presets, those in the user's directory after ours; "retriever/web" for a group in a group."""
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
    """What a shell may offer at the end of `line`, or the line that Hydra is to complete: without verb and flags."""
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
    """Of the command line as a whole."""
    lines = [__doc__.splitlines()[2].strip(), "", "Verbs; agentgrpo VERB --help says more of one"] if __doc__ else []
    for name, verb in VERBS.items():
        lines.append(f"  {_called(name):<24}{verb.summary}")
        lines += _flags_of(verb, indent=4)
    lines += ["", "Flags of every verb", *_shared_flags()]
    lines += ["", "Presets, chosen by group=preset; each is a file in", f"  {configs_dir()}"]
    lines += [f"  {group.replace('/', '.'):<15}{' '.join(names)}" for group, names in known.items()]
    return "\n".join([*lines, "", "Examples", EXAMPLES])


def verb_help(name: str, known: Mapping[str, Sequence[str]]) -> str:
    """Of one verb."""
    verb = VERBS[name]
    settings = "[group=preset ...] [key.path=value ...]"
    if verb.resumes:
        settings = "[key.path=value ...]"
    usage = ["agentgrpo", _called(name), *(["[--flag ...]"] if verb.flags or verb.composes else [])]
    lines = [" ".join([*usage, settings] if verb.composes else usage), f"  {verb.summary}"]
    if words := [word.upper() for word in (verb.positional, verb.also) if word]:
        lines += ["", "Words", *(f"  {word:<24}{text}" for word, text in zip(words, verb.words, strict=True))]
    if verb.flags:
        lines += ["", "Flags", *_flags_of(verb, indent=2)]
    if verb.composes:
        lines += ["", "Flags of every verb", *_shared_flags(), "", "Settings"]
        if not verb.resumes:
            lines.append(f"  {'group=preset':<24}agentgrpo --help lists {len(known)} groups and their presets")
        shown = f"agentgrpo {name} {verb.positional.upper()}".rstrip()
        lines.append(f"  {'key.path=value':<24}{shown} --cfg job prints all keys")
    return "\n".join([*lines, "", "Examples", *(f"  {line}" for line in verb.examples)])


def _called(name: str) -> str:
    verb = VERBS[name]
    also = verb.also.upper() if verb.least else f"[{verb.also.upper()}]"
    return f"{name} {verb.positional.upper()} {also if verb.also else ''}".rstrip()


def _flags_of(verb: Verb, *, indent: int) -> list[str]:
    flags = verb.flags.items()
    return [f"{' ' * indent}{f'{flag} {metavar}':<{26 - indent}}{text}" for flag, (metavar, text) in flags]


def _shared_flags() -> list[str]:
    lines = []
    for flag, (short, how, text) in SHARED_FLAGS.items():
        value = how.get("metavar") or "|".join(how.get("choices", []))
        lines.append(f"  {f'{flag} {value}'.strip() + (f', {short}' if short else ''):<24}{text}")
    return lines
