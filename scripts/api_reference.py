"""Write agentgrpo/docs/api.md from the docstrings: the parts of the package that users implement, call or read.

python scripts/api_reference.py            writes it
python scripts/api_reference.py --check    exits with 1 if it is not up to date

The sources are read, not imported. A class is shown with its own lines, without private members and bodies.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "agentgrpo"
PAGE = PACKAGE / "docs" / "api.md"
PARTS = {
    "From Python": ("api.py",),
    "Nouns": ("core/types.py", "core/messages.py", "core/errors.py"),
    "Contracts: what a class of yours has to have": (
        "rewards/base.py",
        "tools/base.py",
        "judges/base.py",
        "judges/judger.py",
        "retrieval/base.py",
        "tasks/base.py",
        "environments/base.py",
        "environments/figures.py",
        "environments/memory/base.py",
        "rollout/demonstrations/base.py",
        "renderers/base.py",
        "engines/base.py",
        "tools/sandbox/base.py",
    ),
    "Reading a run": (
        "records/run_dir.py",
        "records/trajectories.py",
        "records/metrics.py",
    ),
}
HEAD = """\
# API

The parts of agentgrpo that you implement, call or read, made from the docstrings by `make docs`. Your own class needs
the methods of its protocol and no base class; the page of its kind says how a configuration names it.
"""
SHOWN_SPECIALS = ("__init__", "__call__")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def is_shown(name: str) -> bool:
    return not name.startswith("_") or name in SHOWN_SPECIALS


def names_of(node: ast.stmt) -> list[str]:
    """The names that an assignment at module or class level defines."""
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    return [t.id for t in node.targets if isinstance(t, ast.Name)] if isinstance(node, ast.Assign) else []


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def lines_of(source: list[str], first: ast.stmt, last: ast.stmt | None = None) -> list[str]:
    return source[first.lineno - 1 : (last or first).end_lineno]


def outline(source: list[str], node: Definition) -> list[str]:
    """The lines of a function without its body, or of a class without its docstring, private members and bodies."""
    start = min(node.lineno, *(d.lineno for d in node.decorator_list)) if node.decorator_list else node.lineno
    head = source[start - 1 : max(node.lineno, node.body[0].lineno - 1)]
    if isinstance(node, ast.ClassDef):
        while head and not head[-1].rstrip().endswith(":"):
            head.pop()
        return [*head, *members(source, node)]
    if node.body[0].lineno == node.lineno:  # async def close(self) -> None: ...
        return head
    if not is_text(node.body[0]):
        return [*head[:-1], f"{head[-1]} ..."]
    return [*head, *lines_of(source, node.body[0])]


def members(source: list[str], node: ast.ClassDef) -> list[str]:
    lines: list[str] = []
    body = node.body[1:] if is_text(node.body[0]) else node.body
    for i, statement in enumerate(body):
        if isinstance(statement, Definition):
            if is_shown(statement.name):
                lines += [""] * bool(lines) + outline(source, statement)
        elif any(map(is_shown, names_of(statement))):
            text = body[i + 1] if i + 1 < len(body) and is_text(body[i + 1]) else None
            lines += lines_of(source, statement, text)
    return lines or ["    ..."]


def prose(text: str) -> str:
    """Convert a docstring to Markdown: escape text that looks like a tag; indented blocks stay code."""
    lines = []
    for line in text.split("\n"):
        spans = line.split("`")
        spans[::2] = [s if line.startswith("    ") else s.replace("<", "\\<") for s in spans[::2]]
        lines.append("`".join(spans))
    return "\n".join(lines)


def of_module(path: Path) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    source, tree = text.split("\n"), ast.parse(text)
    yield f"### {dotted(path)}\n"
    yield prose(ast.get_docstring(tree) or "") + "\n"
    for i, node in enumerate(tree.body):
        if isinstance(node, Definition) and is_shown(node.name):
            about = ast.get_docstring(node) if isinstance(node, ast.ClassDef) else None
            yield f"#### {node.name}\n"
            yield from [prose(about) + "\n"] if about else []
            yield "\n".join(["```py", *outline(source, node), "```\n"])
        elif any(map(is_shown, names_of(node))):
            text_after = tree.body[i + 1] if i + 1 < len(tree.body) and is_text(tree.body[i + 1]) else None
            yield "\n".join(["```py", *lines_of(source, node, text_after), "```\n"])


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def page() -> str:
    parts = [HEAD]
    for title, files in PARTS.items():
        links = [f"[{dotted(PACKAGE / f)}](#{dotted(PACKAGE / f).replace('.', '')})" for f in files]
        parts.append(f"- {title}: {', '.join(links)}")
    parts.append("")
    for title, files in PARTS.items():
        parts += [f"## {title}\n", *(block for file in files for block in of_module(PACKAGE / file))]
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    made = page()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != made)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
