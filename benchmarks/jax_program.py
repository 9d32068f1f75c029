"""What the annotated JAX programs are made of: a Program is a maker with a mesh, and becomes a StableHLO module.

All arguments and results have shardings, as in a training loop, where the results of one step are the arguments of the
next. No devices are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

LINE, GRID, CUBE = {"x": 8}, {"data": 2, "model": 4}, {"data": 2, "fsdp": 2, "model": 2}
WHOLE = P()
RATE = 1e-2


@dataclass(frozen=True)
class Made:
    """A function, and what it takes and gives: a pytree of (shape, element type, spec) and one of specs."""

    function: Callable
    arguments: tuple
    results: Any


@dataclass(frozen=True)
class Program:
    """One program: `make(mesh, sizes)` gives a Made, `large` and `small` are the sizes that it knows."""

    name: str
    axes: dict[str, int]
    make: Callable[..., Made]
    small: dict[str, int]

    def module(self, small: bool = False) -> str:
        """The program as the text of a StableHLO module."""
        mesh = AbstractMesh(tuple(self.axes.values()), tuple(self.axes), axis_types=(AxisType.Auto,) * len(self.axes))
        made = self.make(mesh, **(self.small if small else {}))
        arguments = jax.tree.map(lambda one: _argument(mesh, *one), made.arguments, is_leaf=_is_tensor)
        results = jax.tree.map(lambda one: NamedSharding(mesh, one), made.results, is_leaf=lambda one: type(one) is P)
        step = jax.jit(made.function, out_shardings=results)
        return step.trace(*arguments).lower(lowering_platforms=("cpu",)).as_text(debug_info=True)


PROGRAMS: dict[str, Program] = {}


def program(axes: dict[str, int], **small: int) -> Callable:
    """Register a maker, with the axes of its mesh and its small sizes."""

    def register(make: Callable[..., Made]) -> Callable[..., Made]:
        PROGRAMS[make.__name__] = Program(make.__name__, axes, make, small)
        return make

    return register


def _is_tensor(one: Any) -> bool:
    return isinstance(one, tuple) and len(one) == 3 and isinstance(one[2], P)


def _argument(mesh: AbstractMesh, shape: tuple[int, ...], dtype: Any, spec: P) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def floats(*shape: int, spec: P = WHOLE) -> tuple:
    return shape, jnp.float32, spec


def ints(*shape: int, spec: P = WHOLE) -> tuple:
    return shape, jnp.int32, spec


def specs(tree: Any) -> Any:
    return jax.tree.map(lambda one: one[2], tree, is_leaf=_is_tensor)


def training(loss: Callable) -> Callable:
    """One step of gradient descent: (parameters, *data) -> (loss, new parameters)."""

    def step(parameters: Any, *data: Any) -> tuple:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        return value, jax.tree.map(lambda one, gradient: one - RATE * gradient, parameters, gradients)

    return step


def trained(loss: Callable, parameters: Any, *data: Any) -> Made:
    return Made(training(loss), (parameters, *data), (WHOLE, specs(parameters)))


def norm(x: jax.Array) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt((centered * centered).mean(-1, keepdims=True) + 1e-5)


def entropy(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy, by a gather of the labels' scores."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], axis=-1)
    return -chosen.mean()


def convolve(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
