"""Reading MLIR text token by token, with errors that point at the column; and strings as MLIR writes them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from autoshard.util.errors import AutoshardError, ParseError

T = TypeVar("T")
INT64 = 2**63
_SPACE = re.compile(r"(?:[ \t\n\r]+|//[^\n\r]*)*")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
_INTEGER = re.compile(r"(-[ \t\n\r]*)?(0x[0-9A-Fa-f]+|[0-9]+)")
_STRING = re.compile(r'"((?:[^"\\\n\v\f]|\\.)*)"')
_ESCAPE = re.compile(rb'\\([0-9A-Fa-f]{2}|[nt"\\])')
_BAD_ESCAPE = re.compile(r'\\(?![0-9A-Fa-f]{2}|[nt"\\])')
_ESCAPED = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}
_WIDTH = 100
# Leading zeros included: MLIR reads any number of them.
_DIGITS = 1000


class Cursor:
    """A place in MLIR text, and how to read the next token there.

    Args:
        text: what is read.
        what: what it should be, for messages ("sharding").
        error: class of the errors raised.
    """

    def __init__(self, text: str, what: str, error: type[AutoshardError] = ParseError) -> None:
        self.text = text
        self.what = what
        self.error = error
        self.at = 0
        self.skip()

    def skip(self) -> None:
        """Go on to the next token."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def fail(self, why: str, at: int | None = None) -> AutoshardError:
        """The error that says why, under the column where it happened."""
        column = self.at if at is None else at
        start = self.text.rfind("\n", 0, column) + 1
        line = self.text[start:].split("\n", 1)[0]
        column -= start
        cut = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
        shown = line[cut : cut + _WIDTH]
        return self.error(f"cannot read this {self.what}\n    {shown}\n    {' ' * (column - cut)}^ {why}")

    def peek(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def take(self, mark: str) -> bool:
        """Whether `mark` stands here; if so it is read."""
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        self.skip()
        return True

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            raise self.fail(f"expected {mark!r}")

    def word(self) -> str | None:
        """The identifier that stands here, read; None if there is none."""
        match = IDENTIFIER.match(self.text, self.at)
        if match is None:
            return None
        self.at = match.end()
        self.skip()
        return match[0]

    def take_word(self, word: str) -> bool:
        match = IDENTIFIER.match(self.text, self.at)
        return match is not None and match[0] == word and self.take(word)

    def expect_word(self, word: str) -> None:
        if not self.take_word(word):
            raise self.fail(f"expected {word!r}")

    def integer(self) -> int:
        match = _INTEGER.match(self.text, self.at)
        if match is None:
            raise self.fail("expected an integer")
        if len(match[2]) > _DIGITS:
            raise self.fail("this integer is too large for 64 bits")
        value = int(match[2], 16 if match[2].startswith("0x") else 10) * (-1 if match[1] else 1)
        if not -INT64 <= value < INT64:
            raise self.fail("this integer is too large for 64 bits")
        self.at = match.end()
        self.skip()
        return value

    def string(self, of: str) -> str:
        """A string in double quotes, its escapes resolved."""
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self.fail(f"expected {of} in double quotes")
        bad = _BAD_ESCAPE.search(match[1].replace("\\\\", "  "))
        if bad is not None:
            raise self.fail("unknown escape in a string", match.start(1) + bad.start())
        self.at = match.end()
        self.skip()
        return _unescaped(match[1])

    def items(self, close: str, item: Callable[[], T]) -> list[T]:
        """What `item` reads, separated by commas, up to and with `close`; maybe none."""
        return [] if self.take(close) else self.some(close, item)

    def some(self, close: str, item: Callable[[], T]) -> list[T]:
        """At least one item, separated by commas, up to and with `close`."""
        found = [item()]
        while self.take(","):
            found.append(item())
        if not self.take(close):
            raise self.fail(f"expected ',' or {close!r}")
        return found

    def end(self) -> None:
        if self.at < len(self.text):
            raise self.fail("expected nothing more here")


@lru_cache(maxsize=4096)
def quoted(name: str) -> str:
    """A string as MLIR prints it: bytes that are not printable ASCII as two hex digits behind a backslash."""
    raw = name.encode("utf-8", "surrogateescape")
    return '"' + "".join(_printed(byte) for byte in raw) + '"'


def _printed(byte: int) -> str:
    if byte == ord("\\"):
        return "\\\\"
    return chr(byte) if 0x20 <= byte < 0x7F and byte != ord('"') else f"\\{byte:02X}"


def _unescaped(body: str) -> str:
    if "\\" not in body:
        return body
    raw = _ESCAPE.sub(
        lambda match: _ESCAPED.get(match[1]) or bytes([int(match[1], 16)]), body.encode("utf-8", "surrogateescape")
    )
    return raw.decode("utf-8", "surrogateescape")
