"""The text of a program as a generator that pauses: after what a model returns, and before the first update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autoshard.engines.stretches import Stretched
from autoshard.engines.text import Ending, Lines, Writer
from autoshard.partition.program import Instruction, Program, Register


class PausingWriter(Writer):
    """Writes a program as a generator that yields registers before instructions.

    Args:
        pauses: for each pause the number of the instruction before which it is, and what it yields.
    """

    def __init__(self, program: Program, pauses: Iterable[tuple[int, Sequence[Register]]]) -> None:
        super().__init__(program)
        self._before: dict[int, list[Sequence[Register]]] = {}
        for at, registers in pauses:
            self._before.setdefault(at, []).append(registers)
        self._numbers = {one: i for i, one in enumerate(program.instructions)}

    def instruction(self, one: Instruction, depth: int) -> Lines:
        if depth == 1:
            yield from self._pauses(self._numbers.get(one), depth)
        yield from super().instruction(one, depth)

    def block(self, instructions: Sequence[Instruction], last_uses: Any, outputs: Any, depth: int) -> Lines:
        *lines, last = super().block(instructions, last_uses, outputs, depth)
        yield from lines
        if instructions is self.program.instructions:
            yield from self._pauses(len(instructions), depth)
        yield last

    def _pauses(self, at: int | None, depth: int) -> Lines:
        for registers in self._before.get(-1 if at is None else at, ()):
            yield f"{'    ' * depth}yield {self._tuple(self.names[one] for one in registers)}"


class PausingStretched(PausingWriter, Stretched):
    """The same with stretches, which end where it pauses."""

    def parts(self, one: Instruction) -> bool:
        return super().parts(one) or self._numbers.get(one) in self._before

    def stretch(self, run: Sequence[Ending], depth: int) -> Lines:
        yield from self._pauses(self._numbers.get(run[0][0]), depth)
        yield from super().stretch(run, depth)


__all__ = ["PausingStretched", "PausingWriter"]
