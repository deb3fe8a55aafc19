"""Write agentgrpo/docs/settings.md from the presets: groups, the purpose of each preset, and the keys of each group's
default preset.

python scripts/settings_reference.py            writes it
python scripts/settings_reference.py --check    exits with 1 if it is not up to date
"""

from __future__ import annotations

import re
import sys
from itertools import takewhile
from pathlib import Path

import yaml

from agentgrpo.config import registry

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
PAGE = ROOT / "agentgrpo" / "docs" / "settings.md"
HEAD = """\
# Settings

Made from the presets by `make docs`. `group=preset` chooses a file of `configs/`, `key.path=value` sets one key of it;
the command line overrides the presets. `agentgrpo train --cfg job` prints the resulting configuration. Put presets of
your own into a folder of the same shape, and name it with `--config-dir`. A default run is `experiment=almanac`;
`experiment=none` has only the defaults.
"""
_COMMAND = re.compile(r"(\w+=\S+ )*(agentgrpo|accelerate|@package) ")


def defaults() -> dict[str, str]:
    """Group -> its default preset, in order."""
    listed = yaml.safe_load((CONFIGS / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    pairs = [next(iter(entry.items())) for entry in listed if isinstance(entry, dict)]
    return {group: str(preset) for group, preset in pairs if not group.startswith("override ")}


def about(path: Path) -> str:
    """Return the first two sentences of a preset's opening comment, without command lines and examples."""
    words: list[str] = []
    for line in takewhile(lambda s: s.startswith("#"), path.read_text("utf-8").split("\n")):
        text = line.removeprefix("#").strip()
        if _COMMAND.match(text) or line.startswith("#   "):
            if words:
                break
        else:
            words.append(text)
    sentences = re.split(r"(?<=\.) (?=[A-Z])", " ".join(words))
    return " ".join(s for s in sentences[:2] if s.endswith((".", ")"))).replace("|", "\\|")


def groups() -> list[str]:
    """Group names in the order of a configuration; a nested group follows its parent."""
    order = [*registry.ROOT]
    found = {path.parent.relative_to(CONFIGS).as_posix() for path in CONFIGS.glob("*/**/*.yaml")}
    return sorted(found, key=lambda g: (order.index(g.split("/")[0]) if g.split("/")[0] in order else len(order), g))


def section(group: str) -> str:
    files = sorted((CONFIGS / group).glob("*.yaml"))
    rows = [f"| `{group.replace('/', '.')}={path.stem}` | {about(path)} |" for path in files]
    lines = [f"## {group}\n", "| preset | |", "| --- | --- |", *rows, ""]
    preset = defaults().get(group)
    if preset and group != "experiment" and preset != "none":
        body = (CONFIGS / group / f"{preset}.yaml").read_text(encoding="utf-8").strip()
        lines += [f"The keys of `{group}={preset}`, the default:\n", "```yaml", body, "```", ""]
    return "\n".join(lines)


def page() -> str:
    return "\n".join([HEAD, *map(section, groups())]).rstrip() + "\n"


def main() -> int:
    made = page()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != made)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
