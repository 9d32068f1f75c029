"""What is true only where data enters and leaves: shardings there divide, and main's open dims have whole axes."""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.layout.sharding import Sharding, divisible, without_sub_axes
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation, find
from autoshard.propagate.values import outer_shardings
from autoshard.propagate.views import inside
from autoshard.util.errors import GraphError

_BOUNDARIES = ("Function", "Call", "ManualComputation")


def even_boundaries(module: MutableModule) -> None:
    """Cut shardings that do not divide, at functions, calls and manual computations.

    Inside, uneven shardings stay (sdy-update-non-divisible-input-output-shardings).
    """
    for op in find(module.op, lambda operator: operator.name in _BOUNDARIES):
        name = op.operator.name
        if name == "Function":
            body = op.blocks[0]
            _even_values(body.args)
            op.attrs["outputs"] = [
                sharding and _even(value, sharding)
                for value, sharding in zip(body.terminator.operands, op.attrs["outputs"], strict=True)
            ]
        elif name == "Call":
            _even_values(op.results)
        elif name == "ManualComputation":
            _even_manual(op)


def _even(value: MutableValue, sharding: Sharding) -> Sharding:
    return divisible(sharding, value.type.shape) if value.is_tensor else sharding


def _even_values(values: Iterable[MutableValue]) -> None:
    for value in values:
        if value.sharding is not None:
            value.sharding = _even(value, value.sharding)


def _even_manual(op: Operation) -> None:
    _even_values(op.results)
    entering, leaving = outer_shardings(op)
    even = [sharding and _even(value, sharding) for value, sharding in zip(op.operands, entering, strict=True)]
    op.attrs["in_shardings"], op.attrs["out_shardings"] = tuple(even), leaving
    for arg, sharding in zip(op.blocks[0].args, even, strict=True):
        arg.sharding = sharding and inside(sharding, op.attrs["manual_axes"])


def full_axes_at_main(module: MutableModule) -> None:
    """Cut open dims of main's inputs and outputs at the first sub-axis.

    This is sdy-remove-sub-axes-in-input-output-shardings.

    Raises:
        GraphError: several functions and none is called main.
    """
    main = module.main
    if main is None:
        names = ", ".join(function.attrs["name"] for function in module.functions)
        raise GraphError(f"cannot tell the entry of a module with the functions {names}: one has to be called main")
    for value in main.blocks[0].args:
        value.sharding = value.sharding and without_sub_axes(value.sharding)
    main.attrs["outputs"] = [sharding and without_sub_axes(sharding) for sharding in main.attrs["outputs"]]
