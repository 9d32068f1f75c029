"""Stretches: operators that follow each other without a collective, as a function of their own in a program's text.

    def step(k, c, const, x, w):
        def stretch(x, w):
            h = k.MatMul(x, w, of="f32")
            y = k.Tanh(h, of="f32")
            del h
            return y,
        (y,) = k.stretch("stretch", stretch, x, w)
        y_1 = c.all_reduce(y, ("tp",), "sum")

So an engine can compile what lies between collectives. The price: what a stretch takes is held until it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autoshard.engines.text import Ending, Lines, Writer
from autoshard.partition.program import Compute, Instruction

LEAST = 2
"""So many operators, at least, are a stretch."""


class Stretched(Writer):
    """A writer of texts with stretches."""

    def parts(self, one: Instruction) -> bool:
        """Whether no stretch goes on from what is before the instruction to it."""
        return not isinstance(one, Compute)

    def run_of(self, pairs: Sequence[Ending], depth: int) -> Lines:
        if depth > 1:
            yield from super().run_of(pairs, depth)
            return
        for run in self._runs(pairs):
            if len(run) < LEAST:
                yield from super().run_of(run, depth)
            else:
                yield from self.stretch(run, depth)

    def _runs(self, pairs: Sequence[Ending]) -> Iterator[list[Ending]]:
        run: list[Ending] = []
        for one, ending in pairs:
            if run and (self.parts(one) or not isinstance(run[-1][0], Compute)):
                yield run
                run = []
            run.append((one, ending))
        yield from [run] if run else ()

    def stretch(self, run: Sequence[Ending], depth: int) -> Lines:
        """Instructions as a function, and its call."""
        results = dict.fromkeys(register for one, _ in run for register in one.results)
        ending = dict.fromkeys(register for _, gone in run for register in gone)
        taken = dict.fromkeys(register for one, _ in run for register in one.operands if register not in results)
        made = [self.names[one] for one in results if one not in ending]
        pad, name = "    " * depth, self.names.new("stretch")
        arguments = ", ".join(self.names[one] for one in taken)
        yield f"{pad}def {name}({arguments}):"
        yield from super().run_of(run, depth + 1)
        yield f"{pad}    return {self._tuple(made)}"
        yield f"{pad}({', '.join(made)},) = k.stretch({name!r}, {name}, {arguments})"
        yield from self.let_go([one for one in ending if one not in results], depth)


__all__ = ["Stretched"]
