"""Copies of a value that several operators use: bytes of a layout from the first to the last of those that want it so.

The users part into groups that share a copy, as they do for its price (`min_marginals.py`); a group's copy lies in
memory over the group's span of moments, whose price per byte the messages add.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.cost.blocks import local_nbytes
from autoshard.cost.memory import change_bytes
from autoshard.cost.schedule import GraphMoments, Use
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.search.exact.min_marginals import LARGE, MOST, MinMarginals
from autoshard.search.factor_graph import FactorGraph, ValueFactor
from autoshard.search.multi_layout import MultiLayoutCost


@dataclass(frozen=True)
class CopyUse:
    """User number `user` of a value wants its layout number `use` at the moments begin..end.

    `behind` is the user (and its use) that had it brought just before, if that is one of the others.
    """

    user: int
    use: int
    begin: int
    end: int
    behind: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class CopySizes:
    """[kinds of the maker, layouts] bytes of copies, and of buffers while one is made; what equal values share.

    Attributes:
        left: per kind of the maker, how it leaves the value.
        wanted: layouts by their number, as far as some user wants them.
        possible: [kinds, layouts], which redistributions there are.
    """

    of: TensorType
    strided: bool
    left: tuple[Layout, ...]
    wanted: dict[int, Layout]
    possible: np.ndarray

    @cached_property
    def nbytes(self) -> np.ndarray:
        found = np.zeros(self.possible.shape, np.int64)
        for column, layout in self.wanted.items():
            nbytes = local_nbytes(self.of, layout)
            found[:, column] = [0 if layout is own else nbytes for own in self.left]
        return found

    @cached_property
    def moving(self) -> np.ndarray:
        """Made only when asked for: of many values no buffer ever lies there at a moment that binds."""
        found = np.zeros(self.possible.shape, np.int64)
        for row, own in enumerate(self.left):
            for column, layout in self.wanted.items():
                if self.possible[row, column]:
                    found[row, column] = change_bytes(self.of, self.strided, own, layout)
        return found


@dataclass(frozen=True, eq=False)
class LiveCopies:
    """All copies of one value: [kinds of the maker, layouts] bytes, and who wants one when.

    `moving` are the buffers while one is made; a user behind one that wants the same needs none.
    """

    factor: ValueFactor
    sizes: CopySizes
    wants: tuple[CopyUse, ...]

    @property
    def nbytes(self) -> np.ndarray:
        return self.sizes.nbytes

    @property
    def moving(self) -> np.ndarray:
        return self.sizes.moving

    @property
    def scope(self) -> tuple[int, ...]:
        return self.factor.scope

    def at(self, moment: int) -> tuple[list[CopyUse], list[CopyUse], list[CopyUse]]:
        """Who wants a copy now, and who did before and does later (if both are, what they share stays)."""
        now = [want for want in self.wants if want.begin <= moment <= want.end]
        before = [want for want in self.wants if want.end < moment]
        after = [want for want in self.wants if want.begin > moment]
        return (now, before, after) if before and after else (now, [], [])

    def held(self, choice: Sequence[int], moment: int) -> int:
        """Bytes at a moment under a choice."""
        multi_layout = self.factor.multi_layout

        def layouts(wants: list[CopyUse]) -> set[int]:
            return {self._layout(choice, one.user, one.use) for one in wants}

        now, before, after = map(layouts, self.at(moment))
        row = multi_layout.maker[choice[self.scope[0]]]
        return int(sum(self.nbytes[row, layout] for layout in now | (before & after)))

    def moved(self, choice: Sequence[int], want: CopyUse) -> int:
        """Bytes of buffers under a choice when a user behind another has it brought."""
        assert want.behind is not None
        layout, before = self._layout(choice, want.user, want.use), self._layout(choice, *want.behind)
        row = self.factor.multi_layout.maker[choice[self.scope[0]]]
        return 0 if layout == before else int(self.moving[row, layout])

    def _layout(self, choice: Sequence[int], user: int, use: int) -> int:
        multi_layout = self.factor.multi_layout
        return int(multi_layout.users[user][multi_layout.kinds[user][choice[self.scope[user + 1]]], use])

    @cached_property
    def brought(self) -> list[tuple[int, ...]]:
        """Per set of users, the moments at which one of them surely has a copy made that it shares with the set."""
        multi_layout, found = self.factor.multi_layout, []
        single = [user for user, wants in enumerate(multi_layout.users[:MOST]) if wants.shape[1] == 1]
        for bits in range(1 << min(len(multi_layout.users), MOST)):
            mine = (want for want in self.wants if want.user in single and bits >> want.user & 1)
            alone = (want for want in mine if want.behind is not None and want.behind[0] in single)
            found.append(tuple(want.begin for want in alone if want.behind and not bits >> want.behind[0] & 1))
        return found

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Per set of users (of the first MOST, as bits), the moments that a copy which they share lies at least."""
        count = min(len(self.factor.multi_layout.users), MOST)
        own = [[want for want in self.wants if want.user == user] for user in range(count)]
        begins = [max(want.begin for want in wants) for wants in own]
        ends = [min(want.end for want in wants) for wants in own]
        sets = ([user for user in range(count) if bits >> user & 1] for bits in range(1, 1 << count))
        return [(0, -1)] + [(min(begins[u] for u in some), max(ends[u] for u in some)) for some in sets]

    def weights(self, total: np.ndarray) -> tuple[tuple[float, float], ...]:
        """Per set of users, the price of a byte of its copy and of a byte of its buffers; `total` [moments + 1] is what
        a byte costs in all moments before each one."""
        lying = (float(total[last + 1] - total[first]) if last >= first else 0.0 for first, last in self.spans)
        moving = (sum(float(total[moment + 1] - total[moment]) for moment in moments) for moments in self.brought)
        return tuple(zip(lying, moving, strict=True))

    def priced(self, multi_layout: MultiLayoutCost, weights: tuple[tuple[float, float], ...]) -> MultiLayoutCost:
        """The value's price with bytes added."""
        if not any(map(any, weights)):
            return multi_layout
        parts = (multi_layout.seconds, multi_layout.base, multi_layout.maker, multi_layout.users, multi_layout.kinds)
        moving = self.moving if any(moving for _, moving in weights) else np.zeros_like(self.nbytes)
        return SpanCost(*parts, self.nbytes, moving, weights)


def live_copies_of(
    factor_graph: FactorGraph, factor: ValueFactor, schedule: GraphMoments, known: dict, listed
) -> LiveCopies | None:
    """The copies of a value with several users; `listed(place)` are the choices of a variable. None: one user only."""
    value, multi_layout = factor.value, factor.multi_layout
    if len(multi_layout.users) < 2 or not value.type.rank:
        return None
    wants = tuple(_wants(factor_graph, factor, schedule))
    key = (
        value.type,
        id(multi_layout),
        value in schedule.strided,
        *(id(factor_graph.choices[place]) for place in factor.scope),
    )
    if key not in known:
        known[key] = _sizes(factor_graph, factor, wants, listed, schedule)
    return LiveCopies(factor, known[key], wants)


def _wants(factor_graph: FactorGraph, factor: ValueFactor, schedule: GraphMoments):
    value, graph = factor.value, factor_graph.graph
    users: dict[int, list] = {}
    for node, place in graph.users[value]:
        users.setdefault(factor_graph.position[node], []).append((node, place))
    into = graph.tied.get(value)
    if into is not None and into is not value and value in graph.outputs:
        users.setdefault(factor_graph.position[into], []).append((None, None))
    uses = schedule.uses[value]
    names: dict[tuple[int, int], list[Use]] = {}
    of_use: dict[Use, tuple[int, int]] = {}
    for user, at in enumerate(factor.scope[1:]):
        for use, (node, place) in enumerate(users[at]):
            for one in uses:
                if one.node is node and place in (None, one.place):
                    names.setdefault((user, use), []).append(one)
                    of_use[one] = user, use
    for (user, use), mine in names.items():
        behind = [of_use.get(uses[i - 1]) for i, one in enumerate(uses) if i and one in mine]
        before = behind[0] if len(behind) == len(mine) == 1 else None
        yield CopyUse(user, use, max(one.begin for one in mine), min(one.end for one in mine), before)


def _sizes(
    factor_graph: FactorGraph, factor: ValueFactor, wants: Sequence[CopyUse], listed, schedule: GraphMoments
) -> CopySizes:
    value, multi_layout = factor.value, factor.multi_layout
    kinds, first = np.unique(multi_layout.maker, return_index=True)
    made = listed(factor.scope[0])
    left = {int(kind): _left(factor_graph, value, made[choice]) for kind, choice in zip(kinds, first, strict=True)}
    own = tuple(left[row] for row in range(len(multi_layout.seconds)))
    places, wanted = _places(factor_graph, factor), {}
    for want in wants:
        at = factor.scope[want.user + 1]
        choices = listed(at)
        for kind, choice in zip(*np.unique(multi_layout.kinds[want.user], return_index=True), strict=True):
            one = choices[choice]
            layout = one if isinstance(one, Layout) else one.operand_layouts[places[at][want.use]]
            wanted[int(multi_layout.users[want.user][kind, want.use])] = layout
    return CopySizes(value.type, value in schedule.strided, own, wanted, np.isfinite(multi_layout.seconds))


def _places(factor_graph: FactorGraph, factor: ValueFactor) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for node, place in factor_graph.graph.users[factor.value]:
        found.setdefault(factor_graph.position[node], []).append(place)
    return found


def _left(factor_graph: FactorGraph, value: Value, choice) -> Layout:
    made = factor_graph.graph.producers.get(value)
    if made is None:
        return choice
    node: Node = made[0]
    return factor_graph.problem.left(node, choice)[made[1]]


# Prices of copies that also cost for the bytes they take: how many depends on which users share the copy.
#
# A set of users has a price per byte of its own. Messages part the users into such sets in the best way, which bounds
# what any choice pays from below.


@dataclass(frozen=True, eq=False)
class SpanCost(MultiLayoutCost):
    """A price where a copy shared by a set of users also costs `weights` of the set for its bytes and its buffers'.

    Sets are bits for the first MOST users; [kinds of the maker, layouts] `nbytes` and `moving`.
    """

    nbytes: np.ndarray
    moving: np.ndarray
    weights: tuple[tuple[float, float], ...]

    def restricted(self, keep: Sequence[np.ndarray]) -> SpanCost:
        """The same with only some choices of the maker and of each user."""
        plain = super().restricted(keep)
        rows = np.unique(self.maker[keep[0]])
        users = zip(self.users, self.kinds, keep[1:], strict=True)
        wanted = [wants[np.unique(kinds[kept])].reshape(-1) for wants, kinds, kept in users]
        cells = np.ix_(rows, np.unique(np.concatenate(wanted)) if wanted else np.arange(1))
        parts = (plain.seconds, plain.base, plain.maker, plain.users, plain.kinds)
        return SpanCost(*parts, self.nbytes[cells], self.moving[cells], self.weights)

    def at(self, choice: Sequence[int]) -> float:
        """Seconds, and prices of bytes, at the choices of the maker and the users."""
        return float(self.many(np.asarray(choice)[None])[0])

    def many(self, choices: np.ndarray) -> np.ndarray:
        """The same for many combinations [n, positions] of choices."""
        row, every = self.maker[choices[:, 0]], np.arange(len(choices))
        sets = np.zeros((len(row), self.seconds.shape[1]), np.int64)
        paid = np.zeros(sets.shape, bool)
        for user, (rows, kinds, column) in enumerate(zip(self.users, self.kinds, choices.T[1:], strict=True)):
            for wanted in rows[kinds[column]].T:
                paid[every, wanted] = True
                if user < MOST:
                    sets[every, wanted] |= 1 << user
        lying, moving = np.moveaxis(np.asarray(self.weights)[sets], -1, 0)
        costs = self.seconds[row] + lying * self.nbytes[row] + moving * self.moving[row]
        return self.base[row] + np.where(paid, costs, 0.0).sum(axis=1)

    def along(self, position: int, choice: Sequence[int]) -> np.ndarray:
        """[choices of the position], the same with everything else as in `choice`."""
        kinds, first, which = np.unique(
            self.kinds[position - 1] if position else self.maker, return_index=True, return_inverse=True
        )
        choices = np.tile(np.asarray(choice), (len(kinds), 1))
        choices[:, position] = first
        return self.many(choices)[which.reshape(-1)]

    @cached_property
    def by_kinds(self) -> np.ndarray:
        """[maker's kinds, first user's kinds, ...] the same."""
        counts = len(self.base), *map(len, self.users)
        if any(wants.shape[1] != 1 for wants in self.users) or len(self.users) > MOST:
            each = replace(self, maker=np.arange(counts[0]), kinds=tuple(np.arange(count) for count in counts[1:]))
            return each.many(np.indices(counts).reshape(len(counts), -1).T).reshape(counts)
        total = np.zeros(counts) + self.base.reshape(-1, *[1] * len(self.users))
        wants = [rows[:, 0] for rows in self.users]
        more = self._more()
        for bits in range(1, len(more)):
            members = [user for user in range(len(wants)) if bits >> user & 1]
            if more[bits].any():
                shape = [counts[0]] + [count if user in members else 1 for user, count in enumerate(counts[1:])]
                total += _where_equal(more[bits], [wants[user] for user in members]).reshape(shape)
        for user, wanted in enumerate(wants):
            shape = [counts[0]] + [count if other == user else 1 for other, count in enumerate(counts[1:])]
            total += np.where(np.isinf(self.seconds[:, wanted]), np.inf, 0.0).reshape(shape)
        return total

    def _more(self) -> np.ndarray:
        """[sets of users, kinds of the maker, layouts]: a set pays for a layout the sum of this over its subsets
        (Moebius inversion)."""
        possible = np.where(np.isinf(self.seconds), 0.0, self.seconds)
        lying, moving = np.asarray(self.weights).T[:, :, None, None]
        found = possible + lying * self.nbytes + moving * self.moving
        found[0] = 0.0
        for user in range(len(self.users)):
            with_user = np.arange(len(found)) >> user & 1 == 1
            found[with_user] -= found[~with_user]
        return found


def _where_equal(costs: np.ndarray, wants: list[np.ndarray]) -> np.ndarray:
    """[rows, kinds of each user] the cost of the layout that all of them want; 0 where they do not want the same."""
    same = np.ones([1] * len(wants), bool)
    for user, wanted in enumerate(wants):
        shape = [-1 if other == user else 1 for other in range(len(wants))]
        first = wants[0].reshape([-1] + [1] * (len(wants) - 1))
        same = same & (wanted.reshape(shape) == first)
    return costs[:, wants[0]].reshape(len(costs), -1, *[1] * (len(wants) - 1)) * same


class SpanMinMarginals(MinMarginals, of=SpanCost):
    """Messages where what a copy costs depends on who shares it."""

    def __init__(self, multi_layout: SpanCost) -> None:
        super().__init__(multi_layout)
        self._priced = {
            (lying, moving): np.minimum(
                multi_layout.seconds + lying * multi_layout.nbytes + moving * multi_layout.moving, LARGE
            )
            for lying, moving in set(multi_layout.weights)
        }
        self.weights = multi_layout.weights
        self.whole = False

    def served(self, users: list[np.ndarray], which: Sequence[int] | None = None) -> np.ndarray:
        """As in the plain messages; `which` tells the numbers of the users if these are not all."""
        sums, sets = self._summed(users, range(len(users)) if which is None else which, 0)
        alone = np.stack(
            [self._least(one, self._priced[self.weights[bits]]) for one, bits in zip(sums, sets, strict=True)]
        )
        alone[0] = 0.0
        served = alone.copy()
        for subset in range(1, len(sums)):
            low = subset & -subset
            part = (subset - 1) & subset
            while part:
                if part & low:
                    np.minimum(served[subset], alone[part] + served[subset ^ part], out=served[subset])
                part = (part - 1) & subset
        return served

    def _wanting(self, user: int, maker: np.ndarray, users: list[np.ndarray]) -> np.ndarray:
        which = [i for i in range(len(users)) if i != user]
        others = [users[i] for i in which]
        sums, sets = self._summed(others, which, 1 << user)
        rest = self.served(others, which)[::-1] if others else np.zeros((1, *maker.shape))
        found = [
            self._least(maker + left, self._priced[self.weights[bits]].T) + one
            for one, bits, left in zip(sums, sets, rest, strict=True)
        ]
        return np.minimum.reduce(found)

    def _summed(self, users: list[np.ndarray], which: Sequence[int], bits: int) -> tuple[list[np.ndarray], list[int]]:
        """Per subset of the users, [values, layouts] what they pay to want a layout, and all their numbers as bits."""
        values = len(users[0]) if users else 1
        sums, sets = [np.zeros((values, self.seconds.shape[1]))], [bits]
        for one, number in zip(users, which, strict=True):
            sums += [before + one for before in sums]
            sets += [before | 1 << number for before in sets]
        return sums, sets

    @staticmethod
    def _least(prices: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        return (prices[:, None, :] + seconds).min(axis=2)


def scaled(multi_layout: MultiLayoutCost, work: float) -> MultiLayoutCost:
    """The same where a second counts as `work`."""
    return replace(multi_layout, seconds=work * multi_layout.seconds, base=work * multi_layout.base)
