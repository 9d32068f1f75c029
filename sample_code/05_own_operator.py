"""An operator of one's own: rule, meaning and gradient are all that planning, splitting and training need.

    python 05_own_operator.py

Plans, runs on 6 ranks in this process, and trains.
"""

from __future__ import annotations

import numpy as np

import autoshard as ash
from autoshard import nn, ops
from autoshard.mindspore import Model

# -- ten lines -----------------------------------------------------------------------------------------------


@ash.operator("SquaredReLU", rule="... -> ...")
def squared_relu(x):
    """max(x, 0) squared: the activation of Primer (So et al. 2021)."""
    return np.square(np.maximum(x, 0))


@squared_relu.gradient
def _(g, y, x):
    return ops.mul(g, ops.mul(ops.relu(x), 2.0))


# -- and what they give --------------------------------------------------------------------------------------


class Primer(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense1 = nn.Dense(12, 24)
        self.act = ops.SquaredReLU()
        self.dense2 = nn.Dense(24, 6)
        self.act.shard(((2, 3),))

    def construct(self, x):
        return self.dense2(self.act(self.dense1(x)))


def forward() -> tuple[Primer, tuple]:
    """For `autoshard plan 05_own_operator.py:forward --mesh dp=2,tp=3`."""
    return Primer(), (np.random.default_rng(0).normal(size=(10, 12)).astype(np.float32),)


def main() -> None:
    net, (x,) = forward()
    planned = ash.plan(net, (x,), mesh="dp=2 tp=3")
    for node in planned.graph.nodes:
        print(f"{node.label:16} {node.op.name:12} {planned.plan.strategy(node)}")
    print("6 ranks against one:", np.abs(planned.run(x) - net(x)).max())

    ash.set_auto_parallel_context(parallel_mode="auto_parallel", mesh="dp=2 tp=3", full_batch=True)
    model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))
    rows = [(x, np.sin(x[:, :6]))]
    model.train(30, rows, callbacks=[ash.LossMonitor(10)])


if __name__ == "__main__":
    main()
