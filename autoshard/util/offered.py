"""What a module says of a name that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from autoshard.util.near import did_you_mean


class NotOfferedError(AttributeError):
    """A name that a module lacks, and those near to it: looked for when the message is read, as tools that look for an
    object's home ask every module for every name. `instead` says what to take in its place, where somebody knows."""

    def __init__(self, message: str, name: str, known: Callable[[], Iterable[str]], instead: str = "") -> None:
        super().__init__(message, name=name)
        self._known, self._instead = known, instead

    def __str__(self) -> str:
        if self._instead:
            return f"{super().__str__()}; {self._instead}"
        return super().__str__() + did_you_mean(self.name, self._known())
