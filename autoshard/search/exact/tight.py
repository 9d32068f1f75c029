"""A choice read off converged messages, consistent among ties.

At a good bound, what remains of the tables says which choices and entries are tight, that is cost nothing above the
bound; where mesh axes are alike, many are. One variable after another takes a tight choice, and what is not supported
by a tight entry is dropped around it before the next (arc consistency on the tight entries: Cooper et al., "Soft arc
consistency revisited", AIJ 2010). Where nothing tight is left, the cheapest stays.
"""

from __future__ import annotations

import numpy as np

from autoshard.search.exact.messages import MessagePassing


def read_tight(messages: MessagePassing, slack: float) -> dict[int, int] | None:
    """A position for every variable; entries up to `slack` above the bound count as tight. None: all choices struck."""
    state = _State(messages, slack)
    for v in messages.order:
        if not len(state.left[v]):
            return None
        if len(state.left[v]) > 1:
            state.left[v] = state.left[v][:1]
            state.spread(v)
    return {v: int(left[0]) for v, left in state.left.items()}


class _State:
    """The positions left per variable."""

    def __init__(self, messages: MessagePassing, slack: float):
        self.messages = messages
        self.slack = slack
        self.left: dict[int, np.ndarray] = {}
        for v in messages.order:
            prices = messages.collected(v)
            self.left[v] = (
                np.flatnonzero(prices <= prices.min() + slack) if np.isfinite(prices.min()) else np.zeros(0, int)
            )
        for v in messages.order:
            if len(self.left[v]) == 1:
                self.spread(v)

    def spread(self, v: int) -> None:
        """Drop what the choices left of v, and of those that this changes, do not support."""
        waiting = [v]
        while waiting:
            for f, dim in self.messages.at[waiting.pop()]:
                scope = self.messages.tables[f][0]
                for other, u in enumerate(scope):
                    if other != dim and len(self.left[u]) > 1 and self._cut(f, other, u):
                        waiting.append(u)

    def _cut(self, f: int, dim: int, u: int) -> bool:
        """Whether table f takes choices away from its variable u, at place `dim`."""
        scope, table = self.messages.tables[f]
        total = table.data[np.ix_(*(self.left[w] for w in scope))]
        for d, w in enumerate(scope):
            total = total - self.messages.lent(f, d)[self.left[w]].reshape(
                [-1 if k == d else 1 for k in range(len(scope))]
            )
        support = total.min(axis=tuple(d for d in range(len(scope)) if d != dim))
        keep = support <= max(float(support.min()), 0.0) + self.slack
        if keep.all() or not np.isfinite(support.min()):
            return False
        self.left[u] = self.left[u][keep]
        return True
