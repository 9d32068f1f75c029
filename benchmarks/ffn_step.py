"""Training steps of a feed-forward network, planned by autoshard and written by hand with mpi4py.

All split it alike: the first matrix by columns, the second by rows, every bias and momentum like what it belongs to.
The second product is partial; a reduce-scatter leaves each rank its columns, an all-gather brings their gradient back.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoshard import Callback, Model, Parameter, nn, ops, set_auto_parallel_context
from autoshard.api import Planned, plan
from autoshard.runtime.array import cut
from autoshard.session import Session
from autoshard.tensortype import TensorType
from autoshard.transform.train import train_step

MOMENTUM = 0.9
COLLECTIVES = (("reduce_scatter", 1), ("all_gather", 1), ("all_reduce", None))
"""Kind and dim of what `ByHand` sends, in order: the plan has to send the same to be comparable."""


def initial(hidden: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Parameters by name, in float32."""
    random = np.random.default_rng(seed)
    weights = random.normal(0, hidden**-0.5, (2, hidden, hidden)).astype(np.float32)
    biases = random.normal(0, 0.1, (2, hidden)).astype(np.float32)
    return {
        "dense1.weight": weights[0],
        "dense1.bias": biases[0],
        "dense2.weight": weights[1],
        "dense2.bias": biases[1],
    }


def batch_of(batch: int, hidden: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Random points, and as labels what a network of the same form makes of them."""
    x = np.random.default_rng(seed).normal(size=(batch, hidden)).astype(np.float32)
    teacher = initial(hidden, seed + 1)
    inner = np.maximum(x @ teacher["dense1.weight"] + teacher["dense1.bias"], 0)
    return x, inner @ teacher["dense2.weight"] + teacher["dense2.bias"]


def rate(batch: int, hidden: int) -> float:
    """A learning rate under which the loss, a mean over batch * hidden elements, falls clearly in a few steps."""
    return 0.02 * batch * hidden / (batch + hidden)


class Contestant(ABC):
    """Something that trains; `losses` has the loss of every step so far."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    @abstractmethod
    def run(self, x: np.ndarray, y: np.ndarray, steps: int) -> float:
        """Train on the same batch several times; seconds per step on this rank."""


class Stepwise(Contestant):
    """A contestant that is told to do each step."""

    def run(self, x: np.ndarray, y: np.ndarray, steps: int) -> float:
        start = time.perf_counter()
        self.losses += [self.step(x, y) for _ in range(steps)]
        return (time.perf_counter() - start) / steps

    @abstractmethod
    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        """One step; the loss before its update."""


# -- by autoshard


class Dense(nn.Cell):
    """x @ weight + bias."""

    def __init__(self, weight: np.ndarray, bias: np.ndarray) -> None:
        super().__init__()
        self.weight = Parameter(weight, name="weight")
        self.bias = Parameter(bias, name="bias")
        self.matmul, self.add = ops.MatMul(), ops.Add()

    def construct(self, x):
        return self.add(self.matmul(x, self.weight), self.bias)


class FFN(nn.Cell):
    """Two dense layers with a ReLU between them; the first product is annotated to split its columns."""

    def __init__(self, values: Mapping[str, np.ndarray], parts: int) -> None:
        super().__init__()
        self.dense1 = Dense(values["dense1.weight"], values["dense1.bias"])
        self.relu = ops.ReLU()
        self.dense2 = Dense(values["dense2.weight"], values["dense2.bias"])
        self.dense1.matmul.shard(((1, 1), (1, parts)))

    def construct(self, x):
        return self.dense2(self.relu(self.dense1(x)))


class ByAutoshard(Stepwise):
    """The step as `autoshard.plan` splits it, run by its session."""

    def __init__(self, comm: Any, values: Mapping[str, np.ndarray], batch: int) -> None:
        super().__init__()
        hidden = len(values["dense1.bias"])
        self.net = FFN(values, comm.Get_size())
        loss = nn.WithLossCell(self.net, nn.MSELoss())
        optimizer = nn.Momentum(self.net.trainable_params(), rate(batch, hidden), MOMENTUM)
        data = TensorType.of((batch, hidden), "f32")
        self.planned: Planned = plan(train_step(loss, optimizer, data, data), devices=comm.Get_size(), search="bfs")
        self.session: Session = self.planned.session
        self.session.load()

    @property
    def collectives(self) -> tuple[tuple[str, int | None], ...]:
        """Kind and dim of what the plan sends."""
        return tuple((one.step.kind, one.step.dim) for one in self.planned.program.collectives)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        ranks = self.session.comm.ranks
        rows = zip((x, y), self.session.data, strict=True)
        return self.session.step([cut(array, register.layout, ranks) for array, register in rows])

    def parameters(self) -> dict[str, np.ndarray]:
        """Whole parameters by name; a collective."""
        self.session.store()
        return {name: one.asnumpy() for name, one in self.net.parameters_dict().items()}


class ByModel(Contestant):
    """The same step in the loop of `Model.train`, which also checks each row and compares it between ranks."""

    def __init__(self, comm: Any, values: Mapping[str, np.ndarray], batch: int) -> None:
        super().__init__()
        set_auto_parallel_context(
            parallel_mode="auto_parallel", search_mode="bfs", device_num=comm.Get_size(), full_batch=True
        )
        net = FFN(values, comm.Get_size())
        learning_rate = rate(batch, len(values["dense1.bias"]))
        self.model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), learning_rate, MOMENTUM))

    def run(self, x: np.ndarray, y: np.ndarray, steps: int) -> float:
        clock = _Clock()
        # The first step follows the loading of the parameters, so its time does not count.
        self.model.train(1, [(x, y)] * (steps + 1), callbacks=clock)
        self.losses += clock.losses
        return (clock.times[-1] - clock.times[0]) / steps


class _Clock(Callback):
    """Notes time and loss at the end of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.losses: list[float] = []

    def on_step_end(self, progress: Any) -> None:
        self.times.append(time.perf_counter())
        self.losses.append(progress.loss)


# -- by hand


class ByHand(Stepwise):
    """The same step in numpy and mpi4py: every array is allocated once, every operation writes in place."""

    def __init__(self, comm: Any, values: Mapping[str, np.ndarray], batch: int) -> None:
        super().__init__()
        self.comm, self.ranks = comm, comm.Get_size()
        hidden = len(values["dense1.bias"])
        self.rate, self.count = rate(batch, hidden), batch * hidden
        width = hidden // self.ranks
        self.mine = slice(comm.Get_rank() * width, (comm.Get_rank() + 1) * width)
        self.held = {name: value[self._block(name)].copy() for name, value in values.items()}
        self.moments = {name: np.zeros_like(value) for name, value in self.held.items()}
        self.grads = {name: np.empty_like(value) for name, value in self.held.items()}
        self.inner, self.d_inner, self.out = (np.empty((batch, width), np.float32) for _ in range(3))
        self.whole = np.empty((batch, hidden), np.float32)
        self.pieces = np.empty((self.ranks, batch, width), np.float32)
        self.positive = np.empty(self.inner.shape, bool)
        self.loss = np.empty((), np.float32)

    def _block(self, name: str) -> tuple:
        return (slice(None), self.mine) if name == "dense1.weight" else (self.mine,)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        self._forward(x)
        self._loss(y)
        self._backward(x)
        for name, value in self.held.items():
            self._update(value, self.moments[name], self.grads[name])
        return float(self.loss)

    def _forward(self, x: np.ndarray) -> None:
        np.matmul(x, self.held["dense1.weight"], out=self.inner)
        self.inner += self.held["dense1.bias"]
        np.maximum(self.inner, 0, out=self.inner)
        np.matmul(self.inner, self.held["dense2.weight"], out=self.whole)
        np.copyto(self.pieces, self._columns())
        self.comm.Reduce_scatter_block(self.pieces, self.out)
        self.out += self.held["dense2.bias"]

    def _loss(self, y: np.ndarray) -> None:
        """The loss, and in `out` its gradient."""
        self.out -= y[:, self.mine]
        local = np.array(np.vdot(self.out, self.out) / self.count, np.float32)
        self.comm.Allreduce(local, self.loss)
        self.out *= 2 / self.count

    def _backward(self, x: np.ndarray) -> None:
        grads = self.grads
        self.out.sum(0, out=grads["dense2.bias"])
        self.comm.Allgather(self.out, self.pieces)
        np.copyto(self._columns(), self.pieces)
        np.matmul(self.whole, self.held["dense2.weight"].T, out=self.d_inner)
        np.matmul(self.inner.T, self.whole, out=grads["dense2.weight"])
        np.greater(self.inner, 0, out=self.positive)
        self.d_inner *= self.positive
        self.d_inner.sum(0, out=grads["dense1.bias"])
        np.matmul(x.T, self.d_inner, out=grads["dense1.weight"])

    def _columns(self) -> np.ndarray:
        """`whole` seen as the columns of each rank in turn."""
        batch, width = self.inner.shape
        return self.whole.reshape(batch, self.ranks, width).transpose(1, 0, 2)

    def _update(self, value: np.ndarray, moment: np.ndarray, grad: np.ndarray) -> None:
        moment *= MOMENTUM
        moment += grad
        np.multiply(moment, self.rate, out=grad)
        value -= grad

    def parameters(self) -> dict[str, np.ndarray]:
        """Whole parameters by name; a collective."""
        return {name: self._gathered(name, value) for name, value in self.held.items()}

    def _gathered(self, name: str, value: np.ndarray) -> np.ndarray:
        pieces = np.empty((self.ranks, *value.shape), np.float32)
        self.comm.Allgather(value, pieces)
        return np.concatenate(pieces, axis=1 if name == "dense1.weight" else 0)
