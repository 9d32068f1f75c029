"""Custom calls: operations known by the name of their target alone, with rules and meanings by that name.

    @custom_call_rule("my_target")              # how dims belong together, like the `rule` of an operator
    def _(call):
        return "b [n] -> b [n]"

    @custom_call_run("my_target")               # what it computes, on arrays
    def _(x, *, call):
        return np.sort(x, -1)

A rule that the module itself carries on the call goes before that of its target. Calls without any have an operator of
their own, at which shardings stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoshard.core.tensortype import TensorType
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.control import typed
from autoshard.ops.registry import Operator, operator
from autoshard.util.errors import ShapeError, UnknownNameError

Shapes = tuple[tuple[int, ...], ...]
Config = tuple[tuple[str, Any], ...]
Made = Callable[["CustomCall"], Any]
_RULES: dict[str, Made] = {}
_RUNS: dict[str, Callable] = {}


@dataclass(frozen=True)
class CustomCall:
    """One call, as rules and meanings see it.

    Attributes:
        target: the name of what is called.
        operands: the operands' shapes.
        results: the results' types.
        config: what the call says to its target, by name.
        fixed: it makes the state of a random generator, which has to stay whole.
    """

    target: str
    operands: Shapes
    results: tuple[TensorType, ...]
    config: Mapping[str, Any]
    fixed: bool = False

    @property
    def shapes(self) -> Shapes:
        """The results' shapes."""
        return tuple(of.shape for of in self.results)

    def get(self, name: str) -> Any:
        """An entry of the config.

        Raises:
            ShapeError: there is none of that name.
        """
        if name not in self.config:
            raise ShapeError(f"custom call {self.target!r} needs {name!r} in its config, which has {dict(self.config)}")
        return self.config[name]


def _registering(table: dict[str, Any], targets: tuple[str, ...], what: str) -> Callable:
    def register(function: Callable) -> Callable:
        for target in targets:
            if target in table:
                raise UnknownNameError(f"custom call {target!r} has a {what} already")
            table[target] = function
        return function

    return register


def custom_call_rule(*targets: str) -> Callable[[Made], Made]:
    """Register `function(call: CustomCall) -> rule`: a text, a (text, sizes) pair or a Rule.

    Raises:
        UnknownNameError: a target has one already.
    """
    return _registering(_RULES, targets, "rule")


def custom_call_run(*targets: str) -> Callable[[Callable], Callable]:
    """Register `function(*arrays, call: CustomCall) -> array or tuple of arrays`: what the target computes.

    Raises:
        UnknownNameError: a target has one already.
    """
    return _registering(_RUNS, targets, "meaning")


def has_custom_call_rule(target: str) -> bool:
    """Whether calls of that target have a rule."""
    return target in _RULES


def _made(shapes: Shapes, attrs: Mapping[str, Any]) -> CustomCall:
    return CustomCall(attrs["target"], shapes, attrs["types"], dict(attrs["config"]), attrs.get("fixed", False))


def _rule(*shapes: tuple[int, ...], rule: Any, **attrs: Any) -> Any:
    if rule is not None:
        return rule
    if attrs["target"] not in _RULES:
        raise ShapeError(f"custom call {attrs['target']!r} has no rule; give it one by custom_call_rule")
    return _RULES[attrs["target"]](_made(shapes, attrs))


def _run(xs: tuple[np.ndarray, ...], **attrs: Any) -> Any:
    run = _RUNS.get(attrs["target"])
    if run is None:
        raise ShapeError(
            f"cannot run custom call {attrs['target']!r}: autoshard does not know what it computes; "
            "give it a meaning by custom_call_run"
        )
    return run(*xs, call=_made(tuple(x.shape for x in xs), attrs))


def _local_types(attrs: Mapping[str, Any], placement: OperatorPlacement) -> dict[str, Any]:
    types = tuple(of.with_shape(placement.local_result(i)) for i, of in enumerate(attrs["types"]))
    return {"types": types}


@operator("CustomCall", **typed(_rule), spread="", effects=lambda attrs: attrs["effects"])
def custom_call(*xs, target, types, config=(), rule=None, fixed=False, effects=False):
    """A call of `target` that has a rule: `rule`, if given, else that of the target."""
    return _run(xs, target=target, types=types, config=config, fixed=fixed)


@operator("MoveCall", **typed(_rule), spread="move", effects=lambda attrs: attrs["effects"])
def move_call(x, *, target, types, config=(), rule=None, effects=False):
    """x, moved to the memory of the host or of the device, as `target` says: MoveToHost or MoveToDevice."""
    return _run((x,), target=target, types=types, config=config)


custom_call.localize(_local_types)
move_call.localize(_local_types)


@operator("UnruledCustomCall", **typed(), effects=lambda attrs: attrs["effects"])
def unruled_custom_call(*xs, target, types, config=(), effects=False):
    """A call of `target`, of which nobody knows how the dims belong together."""
    return _run(xs, target=target, types=types, config=config)


@operator("Composite", **typed(), effects=True)
def composite(*xs, name, callee, types, regions):
    """An operation `name` that computes what the function `callee` does; whoever evaluates supplies that function."""
    return tuple(regions[0](*xs))


def unknown_target(op: Operator, attrs: Mapping[str, Any]) -> str | None:
    """The target of a custom call, if nobody has told what it computes; None for all else."""
    calls = op in (custom_call, move_call, unruled_custom_call)
    return attrs["target"] if calls and attrs["target"] not in _RUNS else None
