"""The text of a PDF, read by pypdf in a separate process: a stranger's file may take any time and memory."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

TIMEOUT_S = 20.0
MAX_MEMORY = 2**30
MAX_CHARS = 2 * 2**20


class PdfError(Exception):
    """The text of a PDF cannot be read."""


def text_of_pdf(body: bytes) -> str:
    """Return the text of a PDF, at most MAX_CHARS; "" for scanned pages. Raises PdfError. Slow: call it in a thread."""
    if find_spec("pypdf") is None:
        raise PdfError("a PDF needs the package pypdf; install it: pip install 'agentgrpo[pdf]'")
    try:
        done = subprocess.run([sys.executable, "-m", __name__], input=body, capture_output=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as e:
        raise PdfError(f"a PDF that could not be read within {TIMEOUT_S:g} s") from e
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise PdfError(f"a PDF that cannot be read: {reason[:200]}")
    return done.stdout.decode("utf-8")


def main() -> None:
    """Read a PDF from standard input and write its text to standard output."""
    import io
    import resource

    from pypdf import PdfReader

    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    left = MAX_CHARS
    for page in PdfReader(io.BytesIO(sys.stdin.buffer.read())).pages:
        text = page.extract_text()[:left]
        sys.stdout.buffer.write(f"{text}\n".encode("utf-8", "replace"))
        left -= len(text)
        if left <= 0:
            return


if __name__ == "__main__":
    main()
