"""`agentgrpo` and `python -m agentgrpo`: the command line, with Ctrl-C looked after before it is imported."""

from __future__ import annotations

import sys

from agentgrpo.core.interrupts import end_at_once


def main() -> int:
    """The exit code."""
    end_at_once()
    from agentgrpo.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
