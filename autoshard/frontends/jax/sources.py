"""What a model is made of: a function of a pytree of parameters; plain functions, flax linen and flax nnx modules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from autoshard.frontends.jax.trees import is_array, named_leaves
from autoshard.util.errors import GraphError

_LINEN, _NNX = "flax.linen", "flax.nnx"


@dataclass(frozen=True, eq=False)
class JaxSource:
    """A model as JAX sees it.

    Attributes:
        function: `function(params, *args, **kwargs) -> (result, updates)`; updates is a tree of new values that has
            names of `params`, and may be empty.
        params: the tree of parameters.
        trained: the names of those that an optimizer may train.
        optimized: the tree that an optimizer of optax is given, a part of `params`.
        collection: what the names in it begin with among those of `params` ("params" of linen's variables), or ''.
        name: what the graph is called.
        top: the scope that a framework puts around the whole model.
        signature: of the arguments after the parameters.
        is_step: whether the function differentiates and updates parameters itself.
    """

    function: Callable
    params: Any
    trained: tuple[str, ...]
    optimized: Any
    collection: str
    name: str
    top: str
    signature: inspect.Signature
    is_step: bool = False


def source_of(model: Any, params: Any) -> JaxSource:
    """A module or function as a JaxSource.

    Args:
        model: a function whose first argument is `params`, a linen module, or an nnx module.
        params: the pytree of parameters; linen's variables; None for an nnx module, which holds its own.

    Raises:
        GraphError: parameters are missing, or given twice.
    """
    if _is_a(model, _LINEN):
        return _linen(model, params)
    if _is_a(model, _NNX):
        return _nnx(model, params)
    params = jax.tree.map(lambda one: one if is_array(one) else jnp.asarray(one), params)
    name = getattr(model, "__name__", type(model).__name__).replace("<lambda>", "main")
    floats = tuple(name for name, leaf in named_leaves(params) if _is_float(leaf))
    own = list(inspect.signature(model).parameters.values())[1:]

    def function(params: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return model(params, *args, **kwargs), {}

    return JaxSource(function, params, floats, params, "", name, "", inspect.Signature(own))


def is_module(model: Any) -> bool:
    """Whether it is a module of flax."""
    return _is_a(model, _LINEN) or _is_a(model, _NNX)


def _is_a(model: Any, package: str) -> bool:
    """Whether it is an instance of a flax module of that kind; flax is not imported to find out."""
    found = sys.modules.get(package)
    return found is not None and isinstance(model, found.Module)


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _own_arguments(model: Any) -> inspect.Signature:
    return inspect.Signature(list(inspect.signature(type(model).__call__).parameters.values())[1:])


# -- flax linen


def _linen(module: Any, variables: Any) -> JaxSource:
    if variables is None:
        raise GraphError(
            f"from_jax: {type(module).__name__} is a linen module, which holds no parameters; give "
            "params=module.init(key, ...)"
        )

    def function(variables: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        found = module.apply(variables, *args, **kwargs)
        return found if kwargs.get("mutable") else (found, {})

    trained = [name for name, leaf in named_leaves(variables) if name.startswith("params.") and _is_float(leaf)]
    name = type(module).__name__
    optimized = variables.get("params", {})
    return JaxSource(
        function, variables, tuple(trained), optimized, "params", name, module.name or name, _own_arguments(module)
    )


# -- flax nnx


def _nnx(module: Any, params: Any) -> JaxSource:
    from flax import nnx

    if params is not None:
        raise GraphError(
            f"from_jax: {type(module).__name__} is an nnx module, which has its parameters; leave out params"
        )
    structure, state = nnx.split(module)

    def function(state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        model = nnx.merge(structure, state)
        found = model(*args, **kwargs)
        changed = nnx.state(model, nnx.Not(nnx.Param))
        return found, changed

    optimized = nnx.state(module, nnx.Param)  # as nnx.Optimizer(wrt=nnx.Param): no statistics, no keys of dropout
    trained = tuple(name for name, leaf in named_leaves(optimized) if _is_float(leaf))
    return JaxSource(function, state, trained, optimized, "", type(module).__name__, "", _own_arguments(module))


# -- arguments


def argument_names(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """All arguments with their names: those by position, then the others in the order that JAX flattens a dict in."""
    names: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}{i}" for i in range(len(args) - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names += [f"arg{i}" for i in range(len(names), len(args))]
    return [*zip(names, args, strict=False), *sorted(kwargs.items())]
