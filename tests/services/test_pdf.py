"""PDFs as pages: read in a process of their own, or refused in one line."""

from __future__ import annotations

import pytest

from agentgrpo.services import pdf
from agentgrpo.services.pages import PageError, WebPage, read


def made(text: str) -> bytes:
    """A PDF of one page, by hand."""
    drawn = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R /Resources 6 0 R >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Font << /F1 5 0 R >> >>",
    ]
    body, at = b"%PDF-1.4\n", []
    for number, of in enumerate(objects, start=1):
        at.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, of)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in at)
    size = len(objects) + 1
    tail = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (size, len(body))
    return body + b"xref\n0 %d\n0000000000 65535 f \n" % size + table + tail


async def text_of(body: bytes) -> str:
    return await read(WebPage(url="http://x.test/a.pdf", content_type="application/pdf; q=1", body=body))


async def test_the_text_of_a_pdf() -> None:
    pytest.importorskip("pypdf")
    assert (await text_of(made("Velmor was founded by Castin."))).strip() == "Velmor was founded by Castin."


async def test_a_broken_pdf_is_one_page_s_failure() -> None:
    pytest.importorskip("pypdf")
    with pytest.raises(PageError, match="a PDF that cannot be read: ") as e:
        await text_of(b"%PDF-1.4 and no more")
    assert e.value.kind == "no_text"


async def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "find_spec", lambda name: None)
    with pytest.raises(PageError, match=r"needs the package pypdf; install it: pip install 'agentgrpo\[pdf\]'") as e:
        await text_of(made("x"))
    assert e.value.kind == "no_text"
