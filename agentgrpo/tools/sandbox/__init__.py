"""Running programs that a model has written."""

from agentgrpo.tools.sandbox.base import End, Finished, Limits, Program, Sandbox
from agentgrpo.tools.sandbox.bubblewrap import BubblewrapSandbox
from agentgrpo.tools.sandbox.unsafe import UnsafeSubprocess

__all__ = ["BubblewrapSandbox", "End", "Finished", "Limits", "Program", "Sandbox", "UnsafeSubprocess"]
