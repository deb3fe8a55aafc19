"""Make the pictures of README and docs from real runs.

python scripts/pictures.py screen [--step 90] [OVERRIDE ...]   trains the embedded example up to that step with the live
                                                               screen on a recorded terminal: images/screen.svg
python scripts/pictures.py view RUN [OUT.png] [--hash "#..."]  the page of `agentgrpo view` of that run in Chromium (the
                                                               extra browser), a view of it: images/view.png
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from agentgrpo.cli import verbs
from agentgrpo.cli.main import main as agentgrpo
from agentgrpo.records.screen import Screen

IMAGES = Path(__file__).parent.parent / "agentgrpo" / "docs" / "images"
COLUMNS = 100
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""The SVG format without fonts from the network."""
RESUMABLE = 75


def recorded(step: int, out: Path) -> type[Screen]:
    """Return a live screen on a recording terminal. After `step`, it saves the current screen to `out` and interrupts
    the run as Ctrl-C does."""
    console = Console(record=True, force_terminal=True, width=COLUMNS, file=io.StringIO(), highlight=False)

    class Recorded(Screen):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            del args
            super().__init__(**{**kwargs, "mode": "live", "console": console})
            self.is_due = False

        def metrics(self, at: int, tags: Mapping[str, float]) -> None:
            super().metrics(at, tags)
            self.is_due = at == step

        def advance(self, n: int = 1) -> None:
            super().advance(n)
            if self.is_due:
                self.is_due = False
                console.export_text(clear=True)  # drop all earlier frames
                self.close()  # draws the last frame
                out.write_text(console.export_svg(title="agentgrpo train", code_format=FORMAT), encoding="utf-8")
                os.kill(os.getpid(), signal.SIGINT)

    return Recorded


def screen(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="pictures.py screen")
    parser.add_argument("--step", type=int, default=90)
    parser.add_argument("--out", type=Path, default=IMAGES / "screen.svg")
    given, overrides = parser.parse_known_args(arguments)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    verbs.Screen = recorded(given.step, given.out)  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        code = agentgrpo(["train", "+reward=retriever_aware", f"run.dir={folder}/run", "run.log_with=[]", *overrides])
    return 0 if code == RESUMABLE and given.out.is_file() else 1


def view(arguments: list[str]) -> int:
    from playwright.sync_api import sync_playwright  # in the extra browser; the other pictures do not need it

    parser = argparse.ArgumentParser(prog="pictures.py view")
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=IMAGES / "view.png")
    parser.add_argument("--hash", default="#overview", help="the address of a view, as the page shows it")
    parser.add_argument("--size", default="1440x900")
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args(arguments)
    width, height = map(int, given.size.split("x"))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page_file = Path(folder) / "view.html"
        if code := agentgrpo(["view", str(given.run), "--out", str(page_file)]):
            return code
        path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        flags = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = driver.chromium.launch(executable_path=path, args=flags)
        scheme: Any = "dark" if given.dark else "light"
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
        page.goto(f"{page_file.as_uri()}{given.hash}")
        page.wait_for_selector("html[data-ready][data-indexed]", timeout=120_000)
        page.screenshot(path=given.out, animations="disabled")
        browser.close()
    return 0


PICTURES: Mapping[str, Callable[[list[str]], int]] = {"screen": screen, "view": view}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PICTURES:
        sys.exit(f"{__doc__}\na picture is needed: {', '.join(PICTURES)}")
    sys.exit(PICTURES[sys.argv[1]](sys.argv[2:]))
