"""What JAX itself makes of a model's example: outputs, and parameters and states after one run or one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from autoshard.frontends.jax.optimizers import OptaxOptimizer
from autoshard.frontends.jax.trees import bare

# Without this, XLA keeps more digits of half precision in some places than the program says.
_EXACT = {"xla_allow_excess_precision": False}


class RunsInJax(Protocol):
    """A JAX model with its example, as `JaxModel` is one: what running it takes."""

    training: bool
    optimizer: Any

    @property
    def leaf_names(self) -> list[str]: ...

    @property
    def optimized(self) -> list[str]: ...

    @property
    def example_leaves(self) -> list[np.ndarray]: ...

    def outcome(self, leaves: Sequence[Any], by_jax: bool) -> tuple[Any, dict[str, Any], dict[str, Any]]: ...


@dataclass(frozen=True)
class InJax:
    """All tensors that the model returns, in order (or the loss), and what becomes of parameters and states by name."""

    outputs: list[np.ndarray]
    state: dict[str, np.ndarray]


def run_in_jax(model: RunsInJax) -> InJax:
    """Run the model once in JAX on its first values and its example, with gradients by JAX if it is trained.

    Raises:
        RuntimeSetupError: there are shapes only, no numbers.
    """
    run = jax.jit(lambda *leaves: model.outcome(leaves, model.training), compiler_options=_EXACT)
    leaves = model.example_leaves
    found, updates, grads = run(*leaves)
    names = set(model.leaf_names)
    state = {name: one for name, one in updates.items() if name in names}
    if isinstance(model.optimizer, OptaxOptimizer):
        values = dict(zip(model.leaf_names, leaves, strict=True))
        state.update(_stepped(model.optimizer, [values[name] for name in model.optimized], model.optimized, grads))
    outputs = [np.asarray(one) for one in jax.tree.leaves(found)]
    return InJax(outputs, {name: np.asarray(bare(one)) for name, one in state.items()})


def _stepped(
    optimizer: OptaxOptimizer, params: list[np.ndarray], names: list[str], grads: Mapping[str, Any]
) -> dict[str, Any]:
    """Trained parameters and states after the update of optax."""
    filled = [grads.get(name, jnp.zeros(one.shape, one.dtype)) for name, one in zip(names, params, strict=True)]
    new, states = optimizer.reference(filled, params)
    trained = {name: one for name, one in zip(names, new, strict=True) if name in grads}
    return {**trained, **dict(zip(optimizer.states, states, strict=True))}
