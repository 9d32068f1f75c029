"""What trains in the comparison of step times: by autoshard, in the loop of `Model`, and what steps by hand share.

All split a network alike whose last product contracts the split dim: its partial result is reduced and scattered over
columns, the loss is made of these, and an all-gather brings their gradient back.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard import Callback, Model, Parameter, nn, ops, set_auto_parallel_context
from autoshard.api import Planned, plan
from autoshard.core.tensortype import TensorType
from autoshard.engines.session import Session
from autoshard.transform.train import train_step

MOMENTUM = 0.9
COLLECTIVES = (("reduce_scatter", 1), ("all_gather", 1), ("all_reduce", None))
"""Kind and dim of what `ByHand` sends, in order: the plan has to send the same to be comparable."""


@dataclass(frozen=True)
class Task:
    """What is trained: parameters by name, points and labels [batch, hidden], and what makes the contestants."""

    name: str
    values: Mapping[str, np.ndarray]
    x: np.ndarray
    y: np.ndarray
    net: Callable[[], nn.Cell]
    by_hand: Callable[[Any, Task], Stepwise]
    search: str = "bfs"
    """How the plan is found."""

    @property
    def rate(self) -> float:
        """A learning rate under which the loss, a mean over batch * hidden elements, falls clearly in a few steps."""
        batch, hidden = self.x.shape
        return 0.02 * batch * hidden / (batch + hidden)

    def own_name(self, name: str) -> str | None:
        """The name among `values` of a parameter of a network that holds these in cells of its own; None: no such."""
        return next((own for own in self.values if f".{name}".endswith(f".{own}")), None)


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


class ByAutoshard(Stepwise):
    """The step as `autoshard.plan` splits it, run by its session."""

    def __init__(self, comm: Any, task: Task) -> None:
        super().__init__()
        self.net = task.net()
        loss = nn.WithLossCell(self.net, nn.MSELoss())
        optimizer = nn.Momentum(self.net.trainable_params(), task.rate, MOMENTUM)
        data = TensorType.of(task.x.shape, "f32")
        self.planned: Planned = plan(
            train_step(loss, optimizer, data, data), devices=comm.Get_size(), search=task.search
        )
        self.session: Session = self.planned.session
        self.session.load()

    @property
    def collectives(self) -> tuple[tuple[str, int | None], ...]:
        """Kind and dim of what the plan sends."""
        return tuple((one.step.kind, getattr(one.step, "dim", None)) for one in self.planned.program.collectives)

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        return self.session.step(self.session.cut((x, y)))

    def parameters(self) -> dict[str, np.ndarray]:
        """Whole parameters by name; a collective."""
        self.session.store()
        return {name: one.asnumpy() for name, one in self.net.parameters_dict().items()}


class ByModel(Contestant):
    """The same step in the loop of `Model.train`, which also checks each row and compares it between ranks."""

    def __init__(self, comm: Any, task: Task) -> None:
        super().__init__()
        set_auto_parallel_context(
            parallel_mode="auto_parallel", search_mode=task.search, device_num=comm.Get_size(), full_batch=True
        )
        net = task.net()
        self.model = Model(net, nn.MSELoss(), nn.Momentum(net.trainable_params(), task.rate, MOMENTUM))

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
    """A step in numpy and mpi4py: every array is allocated once, every operation writes in place.

    A network says by `_forward` how the partial result of its last product comes into `whole`, by `_backward` what
    follows from the gradient that is there then, and by `_block` which part of a parameter a rank holds. The last
    product's bias is `last_bias`.
    """

    last_bias: str

    def __init__(self, comm: Any, task: Task) -> None:
        super().__init__()
        (batch, hidden), self.comm, self.ranks = task.x.shape, comm, comm.Get_size()
        self.rate, self.count = task.rate, batch * hidden
        self.width = hidden // self.ranks
        self.mine = slice(comm.Get_rank() * self.width, (comm.Get_rank() + 1) * self.width)
        self.held = {name: value[self._block(name)].copy() for name, value in task.values.items()}
        self.moments = {name: np.zeros_like(value) for name, value in self.held.items()}
        self.grads = {name: np.empty_like(value) for name, value in self.held.items()}
        self.out = np.empty((batch, self.width), np.float32)
        self.whole = np.empty((batch, hidden), np.float32)
        self.pieces = np.empty((self.ranks, batch, self.width), np.float32)
        self.loss = np.empty((), np.float32)

    @abstractmethod
    def _block(self, name: str) -> tuple:
        """What of a whole parameter a rank holds: an index."""

    @abstractmethod
    def _forward(self, x: np.ndarray) -> None:
        """The rank's term of the last product, in `whole`."""

    @abstractmethod
    def _backward(self, x: np.ndarray) -> None:
        """All gradients but that of the last bias, from the gradient in `whole`."""

    def step(self, x: np.ndarray, y: np.ndarray) -> float:
        self._forward(x)
        np.copyto(self.pieces, self._columns())
        self.comm.Reduce_scatter_block(self.pieces, self.out)
        self.out += self.held[self.last_bias]
        self._loss(y)
        self.out.sum(0, out=self.grads[self.last_bias])
        self.comm.Allgather(self.out, self.pieces)
        np.copyto(self._columns(), self.pieces)
        self._backward(x)
        for name, value in self.held.items():
            self._update(value, self.moments[name], self.grads[name])
        return float(self.loss)

    def _loss(self, y: np.ndarray) -> None:
        """The loss, and in `out` its gradient."""
        self.out -= y[:, self.mine]
        local = np.array(np.vdot(self.out, self.out) / self.count, np.float32)
        self.comm.Allreduce(local, self.loss)
        self.out *= 2 / self.count

    def _columns(self) -> np.ndarray:
        """`whole` seen as the columns of each rank in turn."""
        batch, width = self.out.shape
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
        split = [dim for dim, index in enumerate(self._block(name)) if index == self.mine]
        return np.concatenate(pieces, axis=split[0])
