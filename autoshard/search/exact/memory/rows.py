"""Memory rows: what an assignment needs at every moment, and factor graphs with the bytes of moments priced.

Terms of one or two variables are tables over kinds of choices, equal ones one object. A term of more variables is
bounded by what is sure from two of them; `at` knows all terms exactly.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from autoshard.core.strategy import Strategy
from autoshard.cost.memory import HeldBytes, MemoryUse, Term, Variable
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.search.domains import Domain
from autoshard.search.exact.memory.copies import CopySizes, CopyUse, LiveCopies, live_copies_of, scaled
from autoshard.search.factor_graph import FactorGraph, ValueFactor
from autoshard.search.memory_limit import memory_model
from autoshard.search.multi_layout import MultiLayoutCost
from costmodel import live_bytes


@dataclass(frozen=True, eq=False)
class ByteTable:
    """[kinds of the first variable, of the second] bytes, and per variable of which kind each choice is."""

    kinds: tuple[np.ndarray, ...]
    nbytes: np.ndarray

    @cached_property
    def spread(self) -> np.ndarray:
        """Bytes per choice of the only variable."""
        return self.nbytes[self.kinds[0]]


@dataclass(frozen=True, eq=False)
class RowTerm:
    """At least these bytes at the moments first..last; `term` is the number of the term that says so.

    Its table is made when it is first asked for: most moments never bind, and what lies there only for one of them (a
    buffer, say) need not be sized.
    """

    term: int
    first: int
    last: int
    scope: tuple[int, ...]
    make: Callable[[], ByteTable]

    @cached_property
    def table(self) -> ByteTable:
        return self.make()


class MemoryRows:
    """A row per moment: the sum of the terms that cover it.

    Attributes:
        constants: [moments] bytes that are there whatever is chosen.
        pieces: tables of terms of one or two variables.
        wider: numbers of the terms that no piece tells completely.
    """

    def __init__(self, factor_graph: FactorGraph) -> None:
        self.factor_graph, self.model = factor_graph, memory_model(factor_graph.problem)
        self.wider: list[int] = []
        self._known: dict[tuple, ByteTable] = {}
        self._listed: dict[int, Sequence[Strategy | Layout]] = {}
        known: dict[tuple, CopySizes] = {}
        schedule = self.model.schedule
        found = (live_copies_of(factor_graph, factor, schedule, known, self.choices) for factor in factor_graph.factors)
        self.copies = [one for one in found if one is not None]
        self.copied: dict[int, LiveCopies] = {}
        self.moved: dict[int, tuple[LiveCopies, CopyUse]] = {}
        of_part = {self._part_of(one.factor.value): one for one in self.copies}
        fixed, self.pieces = [], []
        for number, term in enumerate(self.model.terms):
            if not term.variables:
                fixed.append((term.first, term.last, term.at(self._nothing)))
                continue
            copies = of_part.get((term.parts[0].variable, _result(term)))
            if copies is not None and self._is_of(copies, number, term):
                self.wider.append(number)
                continue
            sure = self._sure(number, term)
            if sure is None:
                continue
            scope = tuple(factor_graph.position[variable] for variable in sure.variables)
            self.pieces.append(RowTerm(number, term.first, term.last, scope, partial(self._table, sure, scope)))
        self.constants = live_bytes(fixed, self.model.moments).astype(np.int64)

    @property
    def largest(self) -> int:
        """Bytes that are of the order of a plan's."""
        values = max((value.type.nbytes for value in self.factor_graph.graph.values), default=0)
        return max(1, 2 * int(self.constants.max(initial=0)), 2 * values)

    def _is_of(self, copies: LiveCopies, number: int, term: Term) -> bool:
        """Whether the copies of a value, and their buffers, tell of this term."""
        if term.kind == "copy":
            self.copied[number] = copies
        elif term.kind == "buffer" and len(term.parts) > 2:
            for want in copies.wants:
                if want.begin == term.first and want.behind is not None:
                    self.moved[number] = copies, want
        return number in self.copied or number in self.moved

    def _part_of(self, value: Value) -> tuple[Variable, int]:
        made = self.factor_graph.graph.producers.get(value)
        return (value, 0) if made is None else (made[0], made[1])

    @staticmethod
    def _nothing(variable: Variable) -> Strategy | Layout:
        raise KeyError(variable)

    def _sure(self, number: int, term: Term) -> Term | None:
        if len(term.variables) <= 2:
            return term
        self.wider.append(number)
        if not term.surely:
            return None
        return replace(term, parts=term.parts[: term.surely], form=(term.form, "surely"))

    def _table(self, term: Term, scope: tuple[int, ...]) -> ByteTable:
        key = (term.key, *(id(self.factor_graph.choices[place]) for place in scope))
        if key not in self._known:
            kinds, nbytes = term.by_kinds(lambda variable: self.choices(self.factor_graph.position[variable]))
            self._known[key] = ByteTable(tuple(kinds), nbytes)
        return self._known[key]

    def choices(self, place: int) -> Sequence[Strategy | Layout]:
        """What a variable can be."""
        menu = self.factor_graph.choices[place]
        if id(menu) not in self._listed:
            if isinstance(menu, Domain):
                self._listed[id(menu)] = [menu.strategy(row) for row in range(len(menu))]
            else:
                rank = self._rank(place)
                self._listed[id(menu)] = [self.factor_graph.transfers.layout(int(code), rank) for code in menu.codes]
        return self._listed[id(menu)]

    def _rank(self, place: int) -> int:
        variable = self.factor_graph.variables[place]
        assert not isinstance(variable, Node)
        return variable.type.rank

    def use(self, choice: Sequence[int]) -> MemoryUse:
        """What lies in memory when at a choice, exactly."""
        held = tuple(
            HeldBytes(term.what, term.kind, term.first, term.last, nbytes)
            for term, nbytes in zip(self.model.terms, self._nbytes(choice), strict=True)
        )
        return MemoryUse(held, self.model.moments, self.model.schedule.describe)

    def at(self, choice: Sequence[int]) -> np.ndarray:
        """[moments] bytes at a choice, exactly."""
        terms = zip(self.model.terms, self._nbytes(choice), strict=True)
        return live_bytes([(term.first, term.last, nbytes) for term, nbytes in terms], self.model.moments)

    def _nbytes(self, choice: Sequence[int]) -> list[int]:
        chosen = {
            variable: self.choices(place)[choice[place]] for place, variable in enumerate(self.factor_graph.variables)
        }
        return [term.at(chosen.__getitem__) for term in self.model.terms]

    def spots(self, choice: Sequence[int], moment: int) -> list[tuple[int, int]]:
        """Terms that take more at a moment than pieces tell: their numbers, and by how many bytes."""
        alive = [n for n in self.wider if self.model.terms[n].first <= moment <= self.model.terms[n].last]
        known = {piece.term: piece for piece in self.pieces}
        found = []
        for number in alive:
            term = self.model.terms[number]
            more = term.at(lambda v: self.choices(self.factor_graph.position[v])[choice[self.factor_graph.position[v]]])
            if number in self.copied:
                more -= self.copied[number].held(choice, moment)
            elif number in self.moved:
                copies, want = self.moved[number]
                more -= copies.moved(choice, want)
            elif number in known:
                piece = known[number]
                kinds = (of[choice[v]] for of, v in zip(piece.table.kinds, piece.scope, strict=True))
                more -= int(piece.table.nbytes[tuple(kinds)])
            if more > 0:
                found.append((number, more))
        return found

    # -- moments priced

    def priced(self, prices: np.ndarray, work: float = 1.0) -> FactorGraph:
        """Tables whose costs have the bytes of pieces added, at `prices` [moments] per byte.

        Args:
            work: how much a second counts, above 0.
        """
        total = np.concatenate([[0.0], np.cumsum(prices)])
        alone: dict[int, list[tuple[float, ByteTable]]] = {}
        joint: dict[tuple[int, ...], list[tuple[float, ByteTable]]] = {}
        for piece in self.pieces:
            weight = float(total[piece.last + 1] - total[piece.first])
            if weight > 0 and piece.table.nbytes.any():
                if len(piece.scope) == 1:
                    alone.setdefault(piece.scope[0], []).append((weight, piece.table))
                else:
                    joint.setdefault(piece.scope, []).append((weight, piece.table))
        factor_graph = copy.copy(self.factor_graph)
        factor_graph.unary = self._alone(alone, work)
        factor_graph.factors = self._joint(joint, total, work)
        return factor_graph

    def _alone(self, alone: dict[int, list[tuple[float, ByteTable]]], work: float) -> list[np.ndarray]:
        made: dict[tuple, np.ndarray] = {}
        found = []
        for place, costs in enumerate(self.factor_graph.unary):
            parts = alone.get(place, [])
            key = (id(costs) if len(costs) else None, *((weight, id(table)) for weight, table in parts))
            if key not in made:
                base = costs if work == 1.0 else work * costs
                made[key] = base
                if parts:
                    priced = sum(weight * table.spread for weight, table in parts)
                    made[key] = base + priced if len(base) else np.asarray(priced)
            found.append(made[key])
        return found

    def _joint(
        self, joint: dict[tuple[int, ...], list[tuple[float, ByteTable]]], total: np.ndarray, work: float
    ) -> list[ValueFactor]:
        joint, copies = dict(joint), {id(one.factor): one for one in self.copies}
        made: dict[tuple, MultiLayoutCost] = {}
        found = []
        for factor in self.factor_graph.factors:
            parts = joint.pop(factor.scope, [])
            mine = copies.get(id(factor))
            weights = mine.weights(total) if mine else ()
            key = (
                id(factor.multi_layout),
                mine and id(mine.nbytes),
                weights,
                *((weight, id(of)) for weight, of in parts),
            )
            if key not in made:
                multi_layout = factor.multi_layout if work == 1.0 else scaled(factor.multi_layout, work)
                multi_layout = mine.priced(multi_layout, weights) if mine else multi_layout
                made[key] = _merged(multi_layout, parts) if parts else multi_layout
            found.append(ValueFactor(factor.value, factor.scope, made[key]))
        for scope, parts in joint.items():
            key = (None, *((weight, id(table)) for weight, table in parts))
            if key not in made:
                made[key] = _merged(None, parts)
            variable = self.factor_graph.variables[scope[0]]
            value = variable.results[0] if isinstance(variable, Node) else variable
            found.append(ValueFactor(value, scope, made[key]))
        return found


def _result(term: Term) -> int:
    """Which result of its variable a copy is of; -1 if it is none of one."""
    key = term.parts[0].key
    if isinstance(key, tuple):
        return int(key[-1]) if key[0] in ("result", "left") else -1
    return 0 if key == "input" else -1


def _merged(multi_layout: MultiLayoutCost | None, parts: Sequence[tuple[float, ByteTable]]) -> MultiLayoutCost:
    """A price of a maker and one user, with bytes added."""
    maker = [table.kinds[0] for _, table in parts] + ([multi_layout.maker] if multi_layout else [])
    user = [table.kinds[1] for _, table in parts] + ([multi_layout.kinds[0]] if multi_layout else [])
    rows, by_maker = np.unique(np.stack(maker, axis=1), axis=0, return_inverse=True)
    columns, by_user = np.unique(np.stack(user, axis=1), axis=0, return_inverse=True)
    total = np.zeros((len(rows), len(columns)))
    for i, (weight, table) in enumerate(parts):
        total += weight * table.nbytes[np.ix_(rows[:, i], columns[:, i])]
    if multi_layout:
        total += multi_layout.by_kinds[np.ix_(rows[:, -1], columns[:, -1])]
    wants = np.arange(len(columns))[:, None]
    return MultiLayoutCost(total, np.zeros(len(rows)), by_maker.reshape(-1), (wants,), (by_user.reshape(-1),))
