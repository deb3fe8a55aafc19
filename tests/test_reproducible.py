"""Which exact mode MKL is asked for, by what the CPU says of itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentgrpo.core.reproducible import VARIABLE, _strict_mode

INTEL = "vendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx2"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (f"{INTEL} avx512f avx512bw avx512vl amx_tile\n", "AVX512,STRICT"),
        (f"{INTEL}\n", "AVX2,STRICT"),
        ("vendor_id\t: GenuineIntel\nflags\t\t: fpu sse2\n", ""),
        ("vendor_id\t: AuthenticAMD\nflags\t\t: fpu sse2 avx2 avx512f avx512bw avx512vl\n", ""),
        ("processor\t: 0\n", ""),
    ],
)
def test_the_mode_follows_the_cpu(text: str, mode: str, tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert _strict_mode(tmp_path / "cpuinfo") == mode


def test_without_a_description_of_the_cpu_there_is_none(tmp_path: Path) -> None:
    assert _strict_mode(tmp_path / "nothing") == ""


def test_what_the_user_has_set_stays() -> None:
    program = f"import os, agentgrpo; print(os.environ[{VARIABLE!r}])"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {VARIABLE: "COMPATIBLE"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "COMPATIBLE\n"
