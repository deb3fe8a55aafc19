"""`agentgrpo` and `python -m agentgrpo`: the command line, with Ctrl-C handled before the heavy imports."""

from __future__ import annotations

import sys

from agentgrpo.core.interrupts import end_at_once


def main() -> int:
    """Run the command line and return its exit code."""
    end_at_once()
    from agentgrpo.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
