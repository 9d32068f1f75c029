"""Optimizers of optax in a step of training: their update is lowered by JAX and done again in the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.frontends.jax.capture import capture
from autoshard.frontends.jax.replay import Replay
from autoshard.frontends.jax.trees import array_of, named_leaves, type_of_leaf, values_of
from autoshard.trace.parameter import Parameter, active
from autoshard.trace.tensor import TracedTensor


def is_optax(optimizer: Any) -> bool:
    """Whether it is a gradient transformation as optax defines them."""
    return hasattr(optimizer, "init") and hasattr(optimizer, "update")


class OptaxOptimizer:
    """A gradient transformation of optax as an optimizer; its states are parameters named `optimizer.0.mu.<name>`.

    Args:
        transformation: the gradient transformation.
        tree: the pytree of parameters that it is given, of arrays or jax.ShapeDtypeStruct.
        parameters: the parameter of each leaf, by its place; leaves that are not trained have none.
    """

    scaling = None

    def __init__(self, transformation: Any, tree: Any, parameters: Sequence[Parameter | None]) -> None:
        self.transformation, self.tree = transformation, tree
        self._by_place = dict(enumerate(parameters))
        leaves, self._structure = jax.tree.flatten(tree)
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        known = not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
        self._is_float = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]
        floats = self._floats(leaves)
        self.initial = transformation.init(floats) if known else jax.eval_shape(transformation.init, floats)
        found, self._of_states = jax.tree.flatten(self.initial)
        named = [f"optimizer.{name}" for name, _ in named_leaves(self.initial)]
        self.states = {name: _state(leaf, name) for name, leaf in zip(named, found, strict=True)}
        states = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in found]
        captured = capture(self._update, [*shapes, *states, *shapes])
        owners = [one.name if one is not None else "" for one in parameters]
        self._replay = Replay(captured.imported, [*owners, *named, *owners], by_elements=True)

    def _floats(self, leaves: Sequence[Any]) -> Any:
        """The tree as the transformation is given it: counters and the like are no part of it, and have no states."""
        pairs = zip(leaves, self._is_float, strict=True)
        return jax.tree.unflatten(self._structure, [leaf if is_float else None for leaf, is_float in pairs])

    def _update(self, *leaves: Any) -> tuple[list[Any], list[Any]]:
        """New parameters and new states, from gradients, states and parameters."""
        count = len(self._by_place)
        grads, params = map(self._floats, (leaves[:count], leaves[-count:]))
        states = jax.tree.unflatten(self._of_states, leaves[count:-count])
        updates, after = self.transformation.update(grads, states, params)
        new = iter(jax.tree.leaves(jax.tree.map(lambda one, change: one + change.astype(one.dtype), params, updates)))
        pairs = zip(leaves[-count:], self._is_float, strict=True)
        return [next(new) if is_float else leaf for leaf, is_float in pairs], jax.tree.leaves(after)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The trained ones."""
        return tuple(one for one in self._by_place.values() if one is not None)

    def parameters_dict(self) -> dict[str, Parameter]:
        """The states by name: what a checkpoint needs beside the model's parameters."""
        return dict(self.states)

    def get_parameters(self) -> Iterator[Parameter]:
        yield from self.states.values()

    def __call__(self, grads: Sequence[Any]) -> None:
        """Give parameters and states their new values, by the gradients of the trained ones, in a trace."""
        recorder = active()
        given = iter(grads)
        of_leaves = [next(given) if one is not None else None for one in self._by_place.values()]
        leaves = jax.tree.leaves(self.tree)
        filled = [_zeros(leaf) if grad is None else grad for grad, leaf in zip(of_leaves, leaves, strict=True)]
        params = [
            array_of(leaf) if one is None else one for one, leaf in zip(self._by_place.values(), leaves, strict=True)
        ]
        made: list[TracedTensor] = self._replay(recorder, [*filled, *self.states.values(), *params])
        for one, new in zip(self._by_place.values(), made, strict=False):
            if one is not None:
                one.assign(new)
        for state, new in zip(self.states.values(), made[len(leaves) :], strict=True):
            state.assign(new)

    def reference(self, grads: Sequence[Any], params: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What optax itself makes of gradients and parameters (an array per leaf) in the first step."""
        return jax.jit(self._update)(*grads, *jax.tree.leaves(self.initial), *params)


def _state(leaf: Any, name: str) -> Parameter:
    return Parameter.of_values(values_of(leaf, name), name, False)


def _zeros(leaf: Any) -> np.ndarray:
    of = type_of_leaf(leaf)
    return np.zeros(of.shape, of.dtype.numpy)
