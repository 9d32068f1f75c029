"""In which order variables leave: the one whose elimination costs the fewest cells first, ties by number.

Equal layers look equal to this rule, so their variables leave in one pattern and the tables that arise are shared.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from autoshard.search.exact.network import Network, product


class Order:
    """Neighbours and costs of the remaining variables, kept current while they leave one by one."""

    def __init__(self, network: Network):
        self.sizes = {v: network.size(v) for v in network.choices}
        self.around = {v: set(network.neighbours(v)) for v in network.choices}
        self._heap: list[tuple[int, int, int]] = []
        self._cost: dict[int, int] = {}
        for v in self.around:
            self._push(v)

    def _push(self, v: int) -> None:
        cells = product(self.sizes[u] for u in self.around[v]) * self.sizes[v]
        self._cost[v] = cells
        heapq.heappush(self._heap, (cells, v, self.sizes[v]))

    def pop(self, limit: float) -> tuple[int, int] | None:
        """The next variable and the cells to be summed for it; None where that is beyond the limit."""
        while self._heap:
            cells, v, _ = self._heap[0]
            if v not in self.around or self._cost[v] != cells:
                heapq.heappop(self._heap)
                continue
            if cells > limit:
                return None
            heapq.heappop(self._heap)
            self._leave(v)
            return v, cells
        return None

    def _leave(self, v: int) -> None:
        around = self.around.pop(v)
        for u in around:
            mine = self.around[u]
            mine |= around
            mine.discard(u)
            mine.discard(v)
            self._push(u)


def eliminate_up_to(network: Network, limit: float, stop: Callable[[], bool] = lambda: False) -> None:
    """Eliminate variables, cheapest first, as long as one step sums at most `limit` cells."""
    order = Order(network)
    while not stop() and (step := order.pop(limit)) is not None:
        network.eliminate(step[0])


def forecast(network: Network) -> tuple[float, float]:
    """The largest table that eliminating everything would make, and the cells it would sum; nothing is computed."""
    largest, work = 0.0, 0.0
    for cells, size in _steps(network):
        largest = max(largest, cells / size)
        work += cells
    return largest, work


def _steps(network: Network) -> Iterator[tuple[int, int]]:
    order = Order(network)
    while (step := order.pop(float("inf"))) is not None:
        yield step[1], max(1, order.sizes[step[0]])
