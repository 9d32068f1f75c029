"""Terms of a memory model: from one moment to another something takes bytes, how many follows from layouts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.cost.schedule import GraphMoments
from autoshard.ir.graph import Node, Value
from autoshard.util.errors import RedistributeError

Variable = Node | Value
"""An operator, whose choice is a Strategy, or an input of the graph, whose choice is a Layout."""


@dataclass(eq=False, slots=True)
class Part:
    """A layout that a term depends on: what `read` makes of the choice of `variable`. Equal keys read alike."""

    variable: Variable
    read: Callable[[Any], Any]
    key: Hashable


@dataclass(eq=False, slots=True)
class Term:
    """`size(*layouts of the parts)` bytes at the moments first..last, both included.

    Terms of equal `key` whose variables have the same lists of choices have the same table. Of the first `surely` parts
    alone `size` never tells more than of all.
    """

    what: str
    kind: str
    first: int
    last: int
    parts: tuple[Part, ...]
    size: Callable[..., int]
    form: Hashable
    surely: int = 0

    @property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(dict.fromkeys(part.variable for part in self.parts))

    @property
    def key(self) -> Hashable:
        order = {variable: i for i, variable in enumerate(self.variables)}
        return self.form, tuple((order[part.variable], part.key) for part in self.parts)

    def at(self, choice: Callable[[Variable], Any]) -> int:
        """Bytes under the choices that `choice(variable)` tells."""
        return self.size(*(part.read(choice(part.variable)) for part in self.parts))

    def table(self, choices: Callable[[Variable], Sequence]) -> np.ndarray:
        """Bytes for all choices, int64, one dim for each of `variables`."""
        columns, small = self.by_kinds(choices)
        return small[np.ix_(*columns)] if columns else small

    def by_kinds(self, choices: Callable[[Variable], Sequence]) -> tuple[list[np.ndarray], np.ndarray]:
        """Per variable of which kind each choice is, and bytes [kinds of the first, of the second, ...].

        Choices are of one kind if the parts read the same layouts from them.
        """
        variables, columns, kinds = self.variables, [], []
        for variable in variables:
            reads = [part.read for part in self.parts if part.variable is variable]
            known: dict[tuple, int] = {}
            column = [known.setdefault(tuple(read(one) for read in reads), len(known)) for one in choices(variable)]
            columns.append(np.asarray(column, np.intp))
            kinds.append(list(known))
        place = {id(part): self._place(part) for part in self.parts}
        small = np.empty([len(one) for one in kinds], np.int64)
        for index in itertools.product(*(range(len(one)) for one in kinds)):
            layouts = [kinds[i][index[i]][j] for i, j in (place[id(part)] for part in self.parts)]
            small[index] = self._size(layouts)
        return columns, small

    def _size(self, layouts: Sequence[Any]) -> int:
        """Bytes; 0 where no redistribution leads from one layout to the other, which no plan can choose anyway."""
        try:
            return self.size(*layouts)
        except RedistributeError:
            return 0

    def _place(self, part: Part) -> tuple[int, int]:
        own = [one for one in self.parts if one.variable is part.variable]
        at = next(j for j, one in enumerate(own) if one is part)
        return self.variables.index(part.variable), at


@dataclass(frozen=True, eq=False)
class MemoryModel:
    """All terms of a graph, and the moments that they speak of."""

    schedule: GraphMoments
    terms: tuple[Term, ...]

    @property
    def moments(self) -> int:
        return self.schedule.moments
