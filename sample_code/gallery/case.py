"""A case of the gallery: an issue of a peer as a small program, and what measuring it leads to."""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

WRONG, REFUSES, MORE, EQUAL, LESS = "wrong numbers", "refuses", "more bytes", "equal", "fewer bytes"


@dataclass(frozen=True)
class Case:
    """An issue as a program.

    Attributes:
        issue: where it was told: owner/name#number.
        trouble: what the thread says goes wrong.
        mesh: axes and sizes, "x=4 y=2".
        layouts: how each input lies; the last, if there is one more than inputs, how the output shall lie.
        inputs: (shape, element type) of each input, or the array itself.
        program: the program, of inputs to the output.
        explicit: whether the peer is asked with the mesh's axes explicit, as the thread does (JAX).
    """

    name: str
    issue: str
    title: str
    trouble: str
    mesh: str
    inputs: tuple
    layouts: tuple[str, ...]
    program: Callable
    explicit: bool = False

    @property
    def source(self) -> str:
        """The program's text, its decorator left out."""
        lines = textwrap.dedent(inspect.getsource(self.program)).splitlines()
        begin = next(i for i, line in enumerate(lines) if line.startswith("def "))
        return "\n".join(lines[begin:])

    @property
    def link(self) -> str:
        owner, _, number = self.issue.partition("#")
        return f"https://github.com/{owner}/issues/{number}"


@dataclass
class Side:
    """What one of both does: refuses with a message, or gives numbers and moves bytes (those a device sends)."""

    refused: str = ""
    right: bool = True
    bytes: float = 0.0
    collectives: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, nbytes: float) -> None:
        self.collectives = dict(Counter(self.collectives) + Counter([kind.replace("_", "-")]))
        self.bytes += nbytes


def verdict(theirs: Side, ours: Side) -> str:
    """What the peer does, beside ours."""
    if theirs.refused:
        return REFUSES
    if not theirs.right:
        return WRONG
    if abs(theirs.bytes - ours.bytes) <= 1e-6 * max(1.0, ours.bytes):
        return EQUAL
    return MORE if theirs.bytes > ours.bytes else LESS


def case(cases: list[Case], issue: str, title: str, mesh: str, inputs: tuple, layouts: tuple[str, ...], **more: Any):
    """Register a program as a case of a peer; its docstring is the trouble."""

    def register(program: Callable) -> Callable:
        trouble = " ".join((program.__doc__ or "").split())
        cases.append(Case(program.__name__, issue, title, trouble, mesh, inputs, layouts, program, **more))
        return program

    return register
