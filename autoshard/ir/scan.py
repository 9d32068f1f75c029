"""Scanner: reads one line of text from left to right; its errors show the line and point at the place.

>>> line = Scanner("(4, 6)", 1)
>>> line.take("("), line.several(")", lambda: line.need(re.compile(r"\\d+"), "a number"))
(True, ['4', '6'])
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TypeVar

from autoshard.util.errors import ParseError
from autoshard.util.text import DEPTH

T = TypeVar("T")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


def quote(text: str) -> str:
    """The text in double quotes, as `Scanner.string` reads it."""
    return json.dumps(text, ensure_ascii=False)


class Scanner:
    """A line of text and a place in it; errors point at the place."""

    def __init__(self, text: str, line: int, function: Callable[[str], Callable] | None = None) -> None:
        self.text, self.line, self.position, self.depth = text, line, 0, 0
        self.function = function
        """What makes a function of the text of a graph, where a line may hold one."""

    def error(self, reason: str) -> ParseError:
        return ParseError(f"cannot read line {self.line}: {reason}\n    {self.text}\n    {' ' * self.position}^")

    def skip(self) -> None:
        while self.text.startswith(" ", self.position):
            self.position += 1

    def take(self, mark: str) -> bool:
        """Whether `mark` comes next, behind spaces; if so it is passed."""
        self.skip()
        found = self.text.startswith(mark, self.position)
        self.position += len(mark) if found else 0
        return found

    def expect(self, mark: str) -> None:
        if not self.take(mark):
            raise self.error(f"{mark!r} is expected here")

    def match(self, pattern: re.Pattern) -> re.Match | None:
        self.skip()
        found = pattern.match(self.text, self.position)
        self.position = found.end() if found else self.position
        return found

    def need(self, pattern: re.Pattern, what: str) -> str:
        found = self.match(pattern)
        if found is None:
            raise self.error(f"{what} is expected here")
        return found[0]

    def string(self) -> str:
        """A string in double quotes, with JSON's escapes."""
        return self.unquoted(self.need(STRING, "a string in double quotes"))

    def unquoted(self, quoted: str) -> str:
        """What a string in double quotes says."""
        try:
            text = json.loads(quoted, strict=False)
            text.encode()  # half a character has no bytes
        except ValueError as error:
            raise self.error(f"bad string before here: {error}") from None
        return text

    def nested(self, read: Callable[[], T]) -> T:
        """What `read` reads, one level deeper.

        Raises:
            ParseError: there are more levels than DEPTH.
        """
        if self.depth >= DEPTH:
            raise self.error(f"there are more than {DEPTH} levels of brackets")
        self.depth += 1
        try:
            return read()
        finally:
            self.depth -= 1

    def several(self, close: str, read: Callable[[], T]) -> list[T]:
        """Items separated by commas, up to `close`; a comma may follow the last."""
        items: list[T] = []
        while not self.take(close):
            if items:
                self.expect(",")
                if self.take(close):
                    break
            items.append(self.nested(read))
        return items

    def end(self) -> None:
        self.skip()
        if self.position < len(self.text):
            raise self.error("nothing more may stand here")
