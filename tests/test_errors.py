"""Errors of other people's code in messages of ours."""

import pytest

from agentgrpo.core.errors import EnvironmentFailure, boundary, line_of, text_of


class _Raises(Exception):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error

    __repr__ = __str__


class _NoText(Exception):
    def __str__(self) -> str:
        return 1  # type: ignore[return-value]


class _Slippery(str):
    def __getitem__(self, key: object) -> str:
        raise RuntimeError("no part of it")

    __iter__ = __len__ = __format__ = __str__ = __getitem__  # type: ignore[assignment]


class _Speaks(Exception):
    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class _NoName(type):
    @property
    def __name__(cls) -> str:
        raise RuntimeError("no name")


class _Nameless(Exception, metaclass=_NoName):
    pass


def _named(name: str) -> Exception:
    kind: type[Exception] = type(name, (Exception,), {})
    return kind("told")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such row"), "ValueError: no such row"),
        (KeyError("row"), "KeyError: 'row'"),
        (ValueError(), "ValueError"),
        (_Raises(RuntimeError("no")), "_Raises: it has no text, for asking it raises RuntimeError"),
        (_Raises(SystemExit(0)), "_Raises: it has no text, for asking it raises SystemExit"),
        (_Raises(KeyboardInterrupt()), "_Raises: it has no text, for asking it raises KeyboardInterrupt"),
        (_Raises(_Raises(ValueError())), "_Raises: it has no text, for asking it raises _Raises"),
        (_NoText(), "_NoText: it has no text, for asking it raises TypeError"),
        (_Speaks(_Slippery("told all the same")), "_Speaks: told all the same"),
        (_Nameless("told"), "_Nameless: told"),
        (_named("a\x1b[2Jb"), "a [2Jb: told"),
        (ValueError("\x1b]0;title\x07 red\x1b[31m \u202eback\u200b\ud800 \x00"), "ValueError: ]0;title red [31m back"),
        (ValueError("one\n\n  two\r\n\ttoo\u2028three"), "ValueError: one two too three"),
    ],
)
def test_an_error_is_repeated_as_one_line_that_can_be_printed(error: Exception, line: str) -> None:
    assert line_of(error) == line
    with pytest.raises(EnvironmentFailure) as raised, boundary(EnvironmentFailure, "reset"):
        raise error
    here = test_an_error_is_repeated_as_one_line_that_can_be_printed
    assert str(raised.value).startswith(f"reset: {line} (test_errors.py:")
    assert str(raised.value).endswith(f" in {here.__name__})")


@pytest.mark.parametrize(("part", "times"), [("x", 50_000_000), ("line\n", 10**6), ("\n", 10**6), ("\ud800 ", 10**6)])
def test_an_error_of_any_length_is_repeated_up_to_a_bound(part: str, times: int) -> None:
    text = part * times
    for error in (ValueError(text), _Speaks(_Slippery(text)), EnvironmentFailure(text), _named("n" * 1_000_000)):
        line = line_of(error)
        assert len(line) < 2100
        assert line.isprintable()
        assert line.startswith(type(error).__name__[:100])
        assert text_of(error) == line.partition(": ")[2]
    assert text_of(ValueError(text)).endswith(" ...")


def test_a_text_within_the_bound_is_repeated_whole() -> None:
    text = " ".join(["word"] * 200)
    assert text_of(ValueError(text)) == text
    assert text_of(ValueError(text + " end")) == f"{text} ..."
