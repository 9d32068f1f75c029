"""Shardings by rule alone: ask for a few, in an order of urgency, and let them spread over the whole program.

    python mlp.py

Batch parallelism (p0), then Megatron's split of the weights (p1), then ZeRO's (p2), on a network of two layers.
"""

from __future__ import annotations

import numpy as np

import autoshard as ash
from autoshard import nn, ops

MESH = "batch=2 model=4"
STEPS = ("batch parallelism", "then Megatron", "then ZeRO")


class Mlp(nn.Cell):
    """Two layers, and what is asked of their input and weights.

    Args:
        last: nothing is asked that is less urgent than this.
        ordered: whether the urgency is told.
    """

    def __init__(self, last: int = 2, ordered: bool = True) -> None:
        super().__init__()
        rng = np.random.default_rng(0)

        def asked(*dims: tuple[str, int] | None) -> str:
            """`[{"batch", ?}p2, {?}]`: each dim may be split further, and starts with what is asked of it."""
            given = [dim if dim is not None and dim[1] <= last else None for dim in dims]
            words = ["{?}" if dim is None else f'{{"{dim[0]}", ?}}' + f"p{dim[1]}" * ordered for dim in given]
            return f"[{', '.join(words)}]"

        def weight(rows: int, columns: int, sharding: str) -> ash.Parameter:
            return ash.Parameter(rng.normal(size=(rows, columns)).astype(np.float32), sharding=sharding)

        self.in_shardings = (asked(("batch", 0), None),)
        self.w1 = weight(12, 64, asked(("batch", 2), ("model", 1)))
        self.w2 = weight(64, 48, asked(("model", 1), ("batch", 2)))

    def construct(self, x):
        hidden = ops.tanh(ops.matmul(x, self.w1))
        return ops.matmul(hidden, self.w2)


def forward() -> tuple[Mlp, tuple]:
    """For `autoshard propagate mlp.py:forward --mesh batch=2,model=4`."""
    return Mlp(), (np.random.default_rng(1).normal(size=(16, 12)).astype(np.float32),)


def show(title: str, spread: ash.Propagated) -> None:
    print(f"{title}:")
    for value, sharding in spread.shardings.items():
        print(f"    {value.name:8} {value.type!s:12} {sharding}")


def main() -> None:
    model, inputs = forward()
    for last, title in enumerate(STEPS):
        show(title, ash.propagate(Mlp(last), inputs, MESH))
    show("all at once", ash.propagate(Mlp(ordered=False), inputs, MESH))

    spread = ash.propagate(model, inputs, MESH)
    print(f"\n{spread.report()}")
    print(spread.explain(spread.graph.outputs[0].name))


if __name__ == "__main__":
    main()
