"""Random programs of nested loops and branches with random shardings, even and uneven, run split as they run whole."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from autoshard import ops
from autoshard.ir.graph import walk
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import DimSharding, Sharding
from tests.search.plans import array, checked

MESHES = ("dp=2 tp=4", "8", "a=2 b=2 c=2", "a=3 b=2", "dp=6")
SIZES = ((8, 12), (6, 10), (7, 9), (12, 16), (5, 24))
PROGRAMS = 24


class Drawn:
    """A function of x [n, m] and w [m, m] that computes n x m tensors, in loops and branches up to a depth."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.seed = seed
        self.mesh = Mesh.parse(random.choice(MESHES))
        self.shape = random.choice(SIZES)

    def __call__(self, x, w):
        draws = Random(self.seed)
        return self.several(draws, [self.constrained(draws, x)], self.constrained(draws, w), 2)

    def several(self, draws: Random, held: list, w: Any, depth: int) -> Any:
        for _ in range(draws.randint(2, 4)):
            held = [*held, self.step(draws, held, w, depth)]
        return held[-1] * 0.5 + draws.choice(held)

    def step(self, draws: Random, held: list, w: Any, depth: int) -> Any:
        x, y = draws.choice(held), draws.choice(held)
        plain: list[Callable[[], Any]] = [
            lambda: ops.tanh(x @ w),
            lambda: ops.softmax(x) - y,
            lambda: x - ops.reduce_max(y, axis=0, keep_dims=True),
            lambda: x + ops.reduce_mean(y, axis=1, keep_dims=True),
            lambda: ops.tanh(x * y),
            lambda: self.constrained(draws, x),
        ]
        nested: list[Callable[[], Any]] = [
            lambda: self.loop(draws, x, y, w, depth - 1),
            lambda: self.branch(draws, x, y, w, depth - 1),
        ]
        return draws.choice(plain + 3 * nested if depth else plain)()

    def loop(self, draws: Random, x: Any, y: Any, w: Any, depth: int) -> Any:
        count, swaps = draws.randint(1, 3), draws.random() < 0.5
        seed = draws.random()

        def body(carried):
            number, a, b = carried
            new = self.several(Random(seed), [a, b, y], w, depth)
            return (number + 1, b, new) if swaps else (number + 1, new, ops.tanh(a))

        if draws.random() < 0.5:
            return ops.while_loop(lambda carried: carried[0] < count, body, (0, x, y))[1]
        return ops.while_loop(
            lambda carried: ops.logical_and(carried[0] < 3, ops.reduce_sum(carried[1] * carried[1]) > 0.5),
            body,
            (0, x, x),
        )[2]

    def branch(self, draws: Random, x: Any, y: Any, w: Any, depth: int) -> Any:
        first, second = draws.random(), draws.random()
        return ops.cond(
            ops.reduce_sum(x) > ops.reduce_sum(y) * 0.5 + 0.123,  # no tie that rounding decides
            lambda: self.several(Random(first), [x, y], w, depth),
            lambda: draws.choice([y, ops.tanh(x)]) if depth else self.several(Random(second), [y], w, 0),
        )

    def constrained(self, draws: Random, x: Any) -> Any:
        """x with each dim over some axes, open or closed."""
        axes = list(self.mesh.all_axes)
        draws.shuffle(axes)
        dims = []
        for _ in range(2):
            refs = tuple(axes.pop() for _ in range(draws.randint(0, 1)) if axes)
            dims.append(DimSharding(refs, draws.random() < 0.5))
        return ops.sharding_constraint(x, Sharding(self.mesh, dims))


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_nests(seed):
    drawn = Drawn(seed)
    n, m = drawn.shape
    inputs = [array(n, m, seed=seed), array(m, m, seed=seed) / m**0.5]
    mode = ("factor", "bfs", "sharding_propagation", "batch")[seed % 4]
    planned = checked(drawn, inputs, str(drawn.mesh), search=mode)
    print(f"seed {seed}: {sum(bool(node.regions) for node in walk(planned.graph.nodes))} nests, {mode}")
