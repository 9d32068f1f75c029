"""The door of all exports: the forms that plans of one kind can be written in, by name, each with what makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from autoshard.exporters.json_text import json_text
from autoshard.util.errors import PlanError
from autoshard.util.files import write_atomically
from autoshard.util.gc_paused import gc_paused
from autoshard.util.near import did_you_mean

P = TypeVar("P")
Made = Callable[[P], Any]
Saved = Callable[[P, str | Path], list[Path]]


@dataclass(frozen=True)
class ExportForms(Generic[P]):
    """The forms of plans of one kind: for each name what it is, and what makes it.

    Attributes:
        of: what is exported, in words: "a plan".
        texts: forms that are text, or data for JSON, with the function that makes it.
        files: forms that are several files, or bytes, with the function that writes them to names that begin with a
            path.
        folders: forms that are a folder of files, with the function that writes them into it.
        elsewhere: names of forms that plans of another kind have, which a message then tells apart from no form.
        hint: what to say where one of these is asked for.

    >>> forms = ExportForms("a plan", texts={"names": ("the names of its values", lambda plan: "x\\n")})
    >>> forms.text(None, "names")
    'x\\n'
    """

    of: str
    texts: Mapping[str, tuple[str, Made[P]]] = field(default_factory=dict)
    files: Mapping[str, tuple[str, Saved[P]]] = field(default_factory=dict)
    folders: Mapping[str, tuple[str, Saved[P]]] = field(default_factory=dict)
    elsewhere: tuple[str, ...] = ()
    hint: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all forms."""
        return (*self.texts, *self.files, *self.folders)

    def check(self, to: str, is_file: bool = True) -> None:
        """Check the name of a form.

        Args:
            is_file: whether a file or folder is named to write it to, which all but texts need.

        Raises:
            PlanError: there is no such form, or it needs a file or a folder.
        """
        if to not in self.names:
            raise PlanError(self._unknown(to))
        for forms, place in ((self.files, "the file to write (-o FILE)"), (self.folders, "its folder (-o DIR)")):
            if to in forms and not is_file:
                raise PlanError(f"{to} is {forms[to][0]}: name {place}")

    def _unknown(self, to: str) -> str:
        if to in self.elsewhere:
            return f"{self.of} has no form {to!r}{self.hint}; its forms are {', '.join(self.names)}"
        hint = did_you_mean(to, self.names, 1)
        return f"cannot export {self.of} to {to!r}{hint}; the forms are {', '.join(self.names)}"

    @gc_paused()
    def text(self, planned: P, to: str) -> str:
        """The text of a plan in one of the texts.

        Raises:
            PlanError: an unknown form, one that needs files, or one that cannot say this plan.
        """
        self.check(to, is_file=False)
        found = self.texts[to][1](planned)
        return found if isinstance(found, str) else json_text(found)

    def save(self, planned: P, to: str, path: str | Path) -> list[Path]:
        """Write a form to a file, to files whose names begin with `path`, or into that folder, each file whole or not
        at all; the files.

        Raises:
            PlanError: as for `text`, or a file cannot be written.
        """
        self.check(to)
        if to in self.texts:
            return [write_atomically(path, self.text(planned, to), PlanError)]
        return {**self.files, **self.folders}[to][1](planned, path)

    def export(self, planned: P, to: str, path: str | Path | None = None) -> str:
        """The text of a form, also written to a file if there is a path; of files or a folder the paths, one a line.

        Raises:
            PlanError: as for `save`.
        """
        if path is None:
            return self.text(planned, to)
        paths = self.save(planned, to, path)
        return paths[0].read_text(encoding="utf-8") if to in self.texts else "\n".join(map(str, paths))
