"""Bytes of all terms of a memory model at once, for given choices: what a moment needs, of many drafts in turn.

What parts read is read once for all terms, and gets a number; terms of one form are rows of numbers, and equal rows are
sized once and for all drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from autoshard.cost.memory_terms import MemoryModel, Term, Variable
from autoshard.util.errors import RedistributeError
from costmodel import live_bytes


class LiveTerms:
    """The terms of a model, grouped by form; remembers what it has sized."""

    def __init__(self, model: MemoryModel) -> None:
        self.model = model
        self._slots: dict[tuple, int] = {}
        self._reads: list[tuple[Variable, Callable[[Any], Any]]] = []
        self._numbers: dict[Any, int] = {}
        spans = [(one.first, one.last) for one in model.terms]
        self._spans = np.asarray(spans, np.int64).reshape(-1, 2)
        places: dict[tuple[Hashable, int], list[int]] = {}
        for i, term in enumerate(model.terms):
            places.setdefault((term.form, len(term.parts)), []).append(i)
        self._forms = [self._form([model.terms[i] for i in where], where) for where in places.values()]

    def _form(self, terms: Sequence[Term], places: Sequence[int]) -> _Form:
        slots = [[self._slot(part.variable, part.key, part.read) for part in term.parts] for term in terms]
        return _Form(terms[0].size, np.asarray(places), np.asarray(slots, np.int64).reshape(len(terms), -1))

    def _slot(self, variable: Variable, key: Hashable, read: Callable[[Any], Any]) -> int:
        """The place of what equal parts of one variable read."""
        found = self._slots.setdefault((variable, key), len(self._reads))
        if found == len(self._reads):
            self._reads.append((variable, read))
        return found

    def timeline(self, choice: Callable[[Variable], Any]) -> np.ndarray:
        """Bytes at each moment, int64, under the choices that `choice(variable)` tells; what no redistribution leads to
        takes nothing, as no plan can choose it."""
        numbers, nbytes = self._numbers, np.zeros(len(self._spans), np.int64)
        read = [numbers.setdefault(read(choice(variable)), len(numbers)) for variable, read in self._reads]
        things = list(numbers)
        told = np.asarray(read, np.int64)
        for form in self._forms:
            nbytes[form.places] = form.nbytes(told, things)
        return live_bytes(np.column_stack([self._spans, nbytes]), self.model.moments)


class _Form:
    """Terms of one form: `slots` [terms, parts] tell where what they depend on is read."""

    def __init__(self, size: Callable[..., int], places: np.ndarray, slots: np.ndarray) -> None:
        self.size, self.places, self.slots = size, places, slots
        self.known: dict[tuple[int, ...], int] = {}

    def nbytes(self, told: np.ndarray, things: Sequence[Any]) -> np.ndarray:
        """Bytes of each term; `told` has the number of what each slot reads, `things` what the numbers mean."""
        if not self.slots.shape[1]:
            return np.full(len(self.places), self._sized((), things))
        rows = list(map(tuple, told[self.slots].tolist()))
        return np.asarray([self._sized(row, things) for row in rows], np.int64)

    def _sized(self, row: tuple[int, ...], things: Sequence[Any]) -> int:
        known = self.known.get(row)
        if known is None:
            try:
                known = self.size(*[things[i] for i in row])
            except RedistributeError:
                known = 0
            self.known[row] = known
        return known
