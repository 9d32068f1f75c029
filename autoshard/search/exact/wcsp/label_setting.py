"""All choices within a gap of the bound, extended variable by variable, with their bytes counted in whole numbers.

The variables come back in the reverse of the order they were eliminated in. The tables of an elimination give every
partial choice the exact least cost of completing it (its excess over the minimum), so what cannot end within the gap
is never extended. Of partial choices that agree where later tables look, only those stay that no other beats in cost
and in every row (labels of a resource-constrained shortest path: Desrochers and Soumis, 1988).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autoshard.search.exact.wcsp.memory_rows import BindingRows
from autoshard.search.exact.wcsp.network import Eliminated, Network

# Labels compared with one another at once.
PACK = 256


@dataclass
class LabelSolution:
    """The best choice within the limits; `least` is the smallest excess among labels given up for want of room."""

    choice: tuple[int, ...] | None
    worth: float
    least: float


@dataclass
class _Labels:
    """One row per partial choice: choices of the variables in sight, excess, bytes per row, and where it came from."""

    seen: np.ndarray
    excess: np.ndarray
    nbytes: np.ndarray


class LabelSearch:
    """Extends labels over a network whose variables are all eliminated.

    `limits` (int64 bytes above the constants) per row of `moments`; `prices` per byte in the network's units. Labels
    are ranked by worth(excess, nbytes), which must fall with neither.
    """

    def __init__(self, network: Network, binding: BindingRows, limits: np.ndarray, prices: np.ndarray, width: int):
        self.network = network
        self.binding = binding
        self.limits = limits
        self.prices = prices
        self.width = width
        self.sequence: list[Eliminated] = list(reversed(network.eliminated))
        self.step_of = {eliminated.variable: step for step, eliminated in enumerate(self.sequence)}
        self._plan_terms()
        self._plan_sight()

    def _plan_terms(self) -> None:
        """At which step each term is known, and the bytes that the terms of later steps hold at least and at most."""
        self.terms_at: list[list[int]] = [[] for _ in self.sequence]
        least, most = np.zeros((2, len(self.binding.terms)), np.int64)
        kept = {eliminated.variable: eliminated.kept[0] for eliminated in self.sequence}
        for t, (scope, array) in enumerate(self.binding.terms):
            self.terms_at[max(self.step_of[v] for v in scope)].append(t)
            left = array[np.ix_(*(kept[v] for v in scope))]
            least[t], most[t] = left.min(), left.max()
        share = self.binding.share.tocsc()
        self.columns = [share[:, [t]].toarray()[:, 0] for t in range(len(least))]
        self.rest = self._still(share @ least, least)
        self.worst = self._still(share @ most, most)

    def _still(self, total: np.ndarray, each: np.ndarray) -> list[np.ndarray]:
        """Per step and row, what the terms of later steps sum to."""
        found = []
        for terms in self.terms_at:
            for t in terms:
                total = total - self.columns[t] * each[t]
            found.append(total)
        return found

    def _plan_sight(self) -> None:
        """After each step, the variables that a later table or term names."""
        last = {v: step for v, step in self.step_of.items()}
        for step, eliminated in enumerate(self.sequence):
            for v in eliminated.around:
                last[v] = max(last[v], step)
        for step, terms in enumerate(self.terms_at):
            for t in terms:
                for v in self.binding.terms[t][0]:
                    last[v] = max(last[v], step)
        self.sight: list[list[int]] = []
        seen: list[int] = []
        for step, eliminated in enumerate(self.sequence):
            seen = [v for v in (*seen, eliminated.variable) if last[v] > step]
            self.sight.append(seen)

    def run(self, gap: float, stop: Callable[[], bool], minimax: bool = False) -> LabelSolution:
        """The best choice of excess <= gap within the limits.

        With `minimax` the largest row is what is minimized (moments' constants included), else cost.
        """
        rows = len(self.limits)
        labels = _Labels(np.zeros((1, 0), int), np.zeros(1), np.zeros((1, rows), np.int64))
        trail: list[tuple[np.ndarray, np.ndarray]] = []
        given_up, before = math.inf, []
        for step, eliminated in enumerate(self.sequence):
            labels, parent, chosen = self._extend(labels, before, step, eliminated, gap)
            keep = self._unbeaten(labels, step, minimax)
            if len(keep) > self.width or stop():
                width = 1 if stop() else self.width
                order = np.argsort(labels.excess[keep], kind="stable")
                given_up = min(given_up, float(labels.excess[keep[order[width:]]].min(initial=np.inf)))
                keep = np.sort(keep[order[:width]])
            labels = _Labels(labels.seen[keep], labels.excess[keep], labels.nbytes[keep])
            trail.append((parent[keep], chosen[keep]))
            before = self.sight[step]
            if not len(keep):
                return LabelSolution(None, math.inf, given_up)
        worth = self._worth(labels, minimax)
        best = int(np.lexsort((labels.excess, worth))[0])
        return LabelSolution(self._trace(trail, best), float(worth[best]), given_up)

    def _worth(self, labels: _Labels, minimax: bool) -> np.ndarray:
        if minimax:
            return (labels.nbytes + self.binding.constants).max(axis=1).astype(float)
        return labels.excess - labels.nbytes @ self.prices

    def _extend(self, labels: _Labels, seen: list[int], step: int, eliminated: Eliminated, gap: float):
        """Every label with every choice of this step's variable, as far as gap and limits allow."""
        column = {v: k for k, v in enumerate(seen)}
        prices = self._prices(labels, column, eliminated)
        excess = labels.excess[:, None] + prices
        parent, place = np.nonzero((excess <= gap) & np.isfinite(excess))
        chosen = eliminated.kept[0][place]
        nbytes = labels.nbytes[parent]
        full = np.column_stack([labels.seen[parent], chosen])
        column[eliminated.variable] = len(seen)
        for t in self.terms_at[step]:
            scope, array = self.binding.terms[t]
            values = array[tuple(full[:, column[v]] for v in scope)]
            nbytes = nbytes + values[:, None] * self.columns[t]
        fits = (nbytes + self.rest[step] <= self.limits).all(axis=1)
        names = [*seen, eliminated.variable]
        sight = full[:, [k for k, v in enumerate(names) if v in set(self.sight[step])]]
        return _Labels(sight[fits], excess[parent, place][fits], nbytes[fits]), parent[fits], chosen[fits]

    def _prices(self, labels: _Labels, column: dict[int, int], eliminated: Eliminated) -> np.ndarray:
        """What each choice costs above the best one, given the neighbours' choices."""
        size = len(eliminated.kept[0])
        where = {}
        for u, kept in zip(eliminated.around, eliminated.kept[1:], strict=True):
            chosen = labels.seen[:, column[u]]
            where[u] = chosen if len(kept) == len(self.network.full[u]) else np.searchsorted(kept, chosen)
        total = np.zeros((len(labels.excess), size))
        for scope, table in eliminated.tables:
            dim = scope.index(eliminated.variable)
            moved = np.moveaxis(table.data, dim, -1)
            total = total + moved[tuple(where[u] for u in scope if u != eliminated.variable)]
        return total - total.min(axis=1, keepdims=True)

    def _unbeaten(self, labels: _Labels, step: int, minimax: bool) -> np.ndarray:
        """The labels that no other with the same sight beats; ascending numbers."""
        count = len(labels.excess)
        if count < 2:
            return np.arange(count)
        cost = np.zeros(count) if minimax else labels.excess - labels.nbytes @ self.prices
        keys = labels.seen
        group = np.unique(keys, axis=0, return_inverse=True)[1].ravel() if keys.shape[1] else np.zeros(count, int)
        # Below this a row cannot reach its limit any more, and how far below does not matter.
        nbytes = labels.nbytes if minimax else np.maximum(labels.nbytes, self.limits - self.worst[step])
        # A label can only be beaten by one of no greater cost and sum of bytes: those come first.
        total = nbytes.sum(axis=1)
        order = np.lexsort((total, cost, group))
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        kept: list[np.ndarray] = []
        for start, end in zip(starts, [*starts[1:], count], strict=True):
            members = order[start:end]
            kept.append(members if len(members) == 1 else members[_front(nbytes[members])])
        return np.sort(np.concatenate(kept))

    def _trace(self, trail: Sequence[tuple[np.ndarray, np.ndarray]], label: int) -> tuple[int, ...]:
        choice = [0] * len(self.network.full)
        for (parent, chosen), eliminated in zip(reversed(trail), reversed(self.sequence), strict=True):
            choice[eliminated.variable] = int(chosen[label])
            label = int(parent[label])
        return tuple(choice)


def _front(nbytes: np.ndarray) -> np.ndarray:
    """Of labels in the order of cost, those that no earlier one matches or undercuts in every row."""
    if nbytes.shape[1] == 1:
        column = nbytes[:, 0]
        return np.flatnonzero(column < np.minimum.accumulate(np.concatenate([[np.iinfo(np.int64).max], column[:-1]])))
    kept = np.zeros(len(nbytes), bool)
    front = nbytes[:0]
    for start in range(0, len(nbytes), PACK):
        pack = nbytes[start : start + PACK]
        beaten = (pack[:, None, :] >= pack[None, :, :]).all(axis=2)
        beaten = np.asarray(np.tril(beaten, -1).any(axis=1))
        for k in range(0, len(front), PACK):
            beaten |= np.any((pack[:, None, :] >= front[None, k : k + PACK]).all(axis=2), axis=1)
        kept[start : start + len(pack)] = ~beaten
        front = np.concatenate([front, pack[~beaten]])
    return np.flatnonzero(kept)
