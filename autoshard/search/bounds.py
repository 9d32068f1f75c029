"""A lower bound for all plans, and for each choice one for all plans that make it: what is above a known plan is out.

Sequential reweighted message passing (Kolmogorov, "A new look at reweighted message passing", IEEE TPAMI 37(5), 2015)
on the tables. Variables whose surroundings are equal, those of equal layers, take their turns together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.search.exact import Listing
from autoshard.search.nearby import nearby
from autoshard.search.shared_messages import LARGE, SharedMessages
from autoshard.search.tables import Tables


@dataclass(eq=False)
class _Bunch:
    """All prices with one Shared: per position, the variables [values] and the potentials [values, choices]."""

    messages: SharedMessages
    variables: np.ndarray
    potentials: list[np.ndarray]

    def of(self, rows: np.ndarray) -> list[np.ndarray]:
        return [one[rows] for one in self.potentials]


@dataclass(eq=False)
class _Turn:
    """Variables that take their turn together.

    `slots` are the prices around each: (bunch, position, rows of the bunch); `forward` and `backward` hold the weights
    per direction and slot: [members] whether the price has earlier variables, and the share that it is given.
    """

    members: np.ndarray
    slots: list[tuple[_Bunch, int, np.ndarray]]
    forward: list[tuple[np.ndarray, np.ndarray]]
    backward: list[tuple[np.ndarray, np.ndarray]]


class Bounds:
    """Message passing on tables. `lower` is a valid bound at any moment, `marginals` per variable and choice."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.unary = [
            np.minimum(costs, LARGE) if len(costs) else np.zeros(size)
            for costs, size in zip(tables.unary, tables.sizes, strict=True)
        ]
        self.bunches = self._bunches()
        self.turns = self._turns()
        self.turn_of = {v: i for i, turn in enumerate(self.turns) for v in turn.members.tolist()}
        self.held: list[np.ndarray] = [np.stack([self.unary[v] for v in turn.members]) for turn in self.turns]

    # -- setting up

    def _bunches(self) -> list[_Bunch]:
        groups: dict[int, list] = {}
        for price in self.tables.prices:
            groups.setdefault(id(price.shared), []).append(price)
        found = []
        for prices in groups.values():
            variables = np.array([price.scope for price in prices])
            sizes = [self.tables.sizes[v] for v in prices[0].scope]
            empty = [np.zeros((len(prices), size)) for size in sizes]
            found.append(_Bunch(SharedMessages(prices[0].shared), variables, empty))
        return found

    def _turns(self) -> list[_Turn]:
        around: list[list[tuple[int, int, int]]] = [[] for _ in self.tables.variables]
        for number, bunch in enumerate(self.bunches):
            for row, scope in enumerate(bunch.variables.tolist()):
                for position, variable in enumerate(scope):
                    around[variable].append((number, position, row))
        groups: dict[tuple, list[int]] = {}
        for variable, slots in enumerate(around):
            taken: set[tuple[int, int]] = {(number, row) for number, _, row in slots}
            key = (id(self.tables.choices[variable]), id(self.tables.unary[variable]))
            shape = (*key, *((number, position) for number, position, _ in slots))
            turn = 0
            while any(not taken.isdisjoint(self._prices_of(around, v)) for v in groups.get((*shape, turn), ())):
                turn += 1
            groups.setdefault((*shape, turn), []).append(variable)
        ordered = sorted(groups.values(), key=self._place)
        when = {variable: i for i, members in enumerate(ordered) for variable in members}
        return [self._turn(members, around, when) for members in ordered]

    def _place(self, members: Sequence[int]) -> float:
        """Equal layers one behind the other: a turn comes where its first member is."""
        return float(members[0])

    @staticmethod
    def _prices_of(around: list, variable: int) -> set[tuple[int, int]]:
        return {(number, row) for number, _, row in around[variable]}

    def _turn(self, members: list[int], around: list, when: dict[int, int]) -> _Turn:
        slots = []
        earlier, later = [], []
        for j, (number, position, _) in enumerate(around[members[0]]):
            bunch = self.bunches[number]
            rows = np.array([around[v][j][2] for v in members])
            others = np.delete(bunch.variables[rows], position, axis=1)
            times = np.vectorize(when.__getitem__, otypes=[np.int64])(others) if others.size else others
            now = when[members[0]]
            slots.append((bunch, position, rows))
            earlier.append((times < now).any(axis=1) if others.size else np.zeros(len(rows), bool))
            later.append((times > now).any(axis=1) if others.size else np.zeros(len(rows), bool))
        return _Turn(np.array(members), slots, _weights(earlier, later), _weights(later, earlier))

    # -- passes

    def sweep(self) -> None:
        """Once forwards and once backwards."""
        for i, turn in enumerate(self.turns):
            self._visit(i, turn, turn.forward)
        for i in reversed(range(len(self.turns))):
            self._visit(i, self.turns[i], self.turns[i].backward)

    def _visit(self, i: int, turn: _Turn, weights: list[tuple[np.ndarray, np.ndarray]]) -> None:
        held = self.held[i]
        for (bunch, position, rows), (receives, _) in zip(turn.slots, weights, strict=True):
            if receives.any():
                of = bunch.of(rows)
                found = bunch.messages.marginal(position, of)
                if not receives.all():
                    found[~receives] = 0.0
                bunch.potentials[position][rows] = of[position] - found
                held = held + found
        given = 0.0
        for (bunch, position, rows), (_, share) in zip(turn.slots, weights, strict=True):
            if share.any():
                part = share[:, None] * held
                bunch.potentials[position][rows] += part
                given = given + part
        self.held[i] = held - given

    # -- branches

    def state(self) -> list[np.ndarray]:
        """All messages as they stand, for `go_back`."""
        return [one.copy() for one in (*self.held, *(one for bunch in self.bunches for one in bunch.potentials))]

    def go_back(self, state: list[np.ndarray]) -> None:
        copies = iter(state)
        self.held = [next(copies).copy() for _ in self.held]
        for bunch in self.bunches:
            bunch.potentials = [next(copies).copy() for _ in bunch.potentials]

    def forbid(self, variable: int, choices: np.ndarray) -> None:
        """From now on bound only what makes none of these choices."""
        turn = self.turn_of[variable]
        row = int(np.flatnonzero(self.turns[turn].members == variable)[0])
        self.held[turn][row, choices] += LARGE

    def slack(self, choice: Sequence[int]) -> np.ndarray:
        """Per variable, by how much the bound falls short of what this choice costs there and around."""
        found = np.zeros(len(self.tables.variables))
        for held, turn in zip(self.held, self.turns, strict=True):
            chosen = held[np.arange(len(held)), [choice[v] for v in turn.members]]
            found[turn.members] += chosen - held.min(axis=1)
        for bunch in self.bunches:
            least = bunch.messages.least(bunch.potentials)
            for row, scope in enumerate(bunch.variables.tolist()):
                paid = bunch.messages.shared.at([choice[v] for v in scope])
                paid += sum(float(one[row, choice[v]]) for one, v in zip(bunch.potentials, scope, strict=True))
                found[scope] += paid - least[row]
        return found

    # -- what comes out

    @property
    def lower(self) -> float:
        """No plan of these tables costs less."""
        total = sum(float(held.min(axis=1).sum()) for held in self.held)
        return total + sum(float(bunch.messages.least(bunch.potentials).sum()) for bunch in self.bunches)

    def reduced(self) -> list[np.ndarray]:
        """Per variable, [choices]: by how much the bound rises if that choice is made."""
        found: list[np.ndarray] = [np.zeros(0)] * len(self.tables.variables)
        for held, turn in zip(self.held, self.turns, strict=True):
            total = held - held.min(axis=1, keepdims=True)
            for bunch, position, rows in turn.slots:
                marginal = bunch.messages.marginal(position, bunch.of(rows))
                total = total + (marginal - marginal.min(axis=1, keepdims=True))
            for variable, row in zip(turn.members.tolist(), total, strict=True):
                found[variable] = row
        return found

    def listings(self, reduced: Sequence[np.ndarray], gap: float, most: int) -> tuple[list[np.ndarray], list[Listing]]:
        """What all plans within `gap` of the bound choose from: per variable the costs above the bound, inf for what is
        out, and per bunch the combinations of choices.

        Args:
            reduced: as by `reduced()`.
            most: combinations of a bunch.

        Raises:
            TooMany: a bunch has more.
        """
        out = [np.where(costs <= gap, 0.0, np.inf) for costs in reduced]
        unary = list(out)
        for held, turn in zip(self.held, self.turns, strict=True):
            for variable, row in zip(turn.members.tolist(), held - held.min(axis=1, keepdims=True), strict=True):
                unary[variable] = row + out[variable]
        found = []
        for bunch in self.bunches:
            masked = [
                one + np.stack([out[v] for v in column])
                for one, column in zip(bunch.potentials, bunch.variables.T.tolist(), strict=True)
            ]
            listed = nearby(bunch.messages, masked, bunch.messages.least(bunch.potentials), gap, most)
            found.append(Listing(bunch.variables, listed.value, listed.choices, listed.excess))
        return unary, found

    def tighten(self, sweeps: int, end: float, gain: float, enough: float = math.inf) -> float:
        """Sweep until the bound hardly grows or is `enough`; the bound.

        Args:
            end: by time.monotonic().
            gain: the least growth by a sweep, relatively, that is worth another.
        """
        best = self.lower
        for _ in range(sweeps):
            if best >= enough or time.monotonic() > end:
                break
            self.sweep()
            last, best = best, self.lower
            if best - last <= gain * abs(best):
                break
        return best


def _weights(before: list[np.ndarray], after: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Per slot: whether it hands over what it has, and its share of what the variable then gives on."""
    if not before:
        return []
    counts = np.maximum(np.sum(before, axis=0), np.sum(after, axis=0))
    return [(first, later / np.maximum(counts, 1)) for first, later in zip(before, after, strict=True)]
