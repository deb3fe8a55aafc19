"""Whether this machine can have the sandbox at all. Where it can, a sandbox that refuses to start is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def _problem() -> str:
    if shutil.which("bwrap") is None:
        return "there is no bwrap: apt-get install bubblewrap"
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    command = [*drop, "bwrap", "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no user namespaces here: {done.stderr.strip()}" if done.returncode else ""


PROBLEM = _problem()
needs_bubblewrap = pytest.mark.skipif(PROBLEM != "", reason=PROBLEM)
