"""Calls, after propagation: bodies written out in place become functions again, and equal functions one.

Where the shardings of a call and of the function that it calls now differ, the results are moved.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from autoshard.layout.sharding import Sharding, is_equivalent
from autoshard.ops.control import data_flow_edge
from autoshard.ops.registry import lookup
from autoshard.propagate.mutable_ir import MutableModule, MutableValue, Operation, fill_open
from autoshard.propagate.passes.calls_in import (
    argument_shardings,
    completed,
    first_on_mesh,
    result_shardings,
    set_results,
)
from autoshard.propagate.passes.edit import insert_after, move_block, named, replace_op, wrapped
from autoshard.propagate.passes.functions import Symbols, new_function, original_name
from autoshard.propagate.values import get_sharding


def export_named_computations(module: MutableModule) -> None:
    """Turn each named computation into a call of a new private function (sdy-export-named-computations).

    Its data-flow edges go, and the function's arguments and the call's results get their shardings.
    """
    symbols = Symbols(module)
    results: list[MutableValue] = []
    for op in named(module.op, "NamedComputation"):
        results += _export(op, symbols)
    _drop_edges(results)


def _export(op: Operation, symbols: Symbols) -> list[MutableValue]:
    body = op.blocks[0]
    # What has no edge (a token, a tensor of dynamic size) is asked nothing.
    entering = completed(
        [get_sharding(arg) if arg.is_tensor else None for arg in body.args], [arg.type.rank for arg in body.args]
    )
    leaving = [get_sharding(value) for value in op.results]
    function = new_function(op.attrs["name"], [None] * len(op.results), op.attrs["name"])
    if op.origin is not None and op.origin.op is op.operator:
        function.origin = op.origin  # It was a named computation in the module too, not a call.
    move_block(body, function, "Return")
    for arg, sharding in zip(body.args, entering, strict=bool(entering)):
        arg.sharding = sharding
    _drop_edges(body.args)
    symbols.add(function)
    types = tuple(value.type for value in op.results)
    call = Operation(lookup("Call"), op.operands, types, {"callee": function.attrs["name"], "types": types})
    call.origin, call.devices = op.origin, op.devices
    assert op.parent is not None
    op.parent.insert(call, op)
    for old, new, sharding in zip(op.results, call.results, leaving, strict=True):
        new.sharding, new.origin = sharding, old.origin
    fill_open(call.results)
    replace_op(op, call.results)
    return call.results


def _drop_edges(values: Iterable[MutableValue]) -> None:
    """Let the users of the edges on these values use the values themselves."""
    for value in values:
        users = [user for user, _ in value.uses if user.operator is data_flow_edge]
        if users:
            replace_op(users[0], [value])


def shardings_to_results(module: MutableModule) -> None:
    """Ask of the results of functions but main what they return has (sdy-propagate-to-func-results)."""
    main = module.main
    for function in module.op.blocks[0]:
        if function is not main:
            returned = function.blocks[0].terminator.operands
            function.attrs["outputs"] = [get_sharding(value) for value in returned]


def unflatten_calls(module: MutableModule) -> None:
    """Let calls share one of the copies of a function whose shardings are equal (sdy-unflatten-call-graph)."""
    symbols = Symbols(module)
    kept: dict[Hashable, str] = {}
    for call in named(module.op, "Call"):
        callee = symbols.callee(call)
        key = original_name(callee), argument_shardings(callee), result_shardings(callee)
        call.attrs["callee"] = kept.setdefault(key, callee.attrs["name"])


def reshard_call_results(module: MutableModule) -> None:
    """Move the results of a call from what its function gives to what the call asks (sdy-insert-func-call-reshards)."""
    symbols = Symbols(module)
    for call in named(module.op, "Call"):
        _reshard_results(call, symbols.callee(call))


def _reshard_results(call: Operation, function: Operation) -> None:
    asked = [value.sharding for value in call.results]
    given: Sequence[Sharding] = result_shardings(function)
    known = first_on_mesh([*given, *asked])
    if known is None:
        return
    meshes = [sharding or known for sharding in asked]
    whole = [
        Sharding.closed(like.mesh, 0 if like.mesh.is_maximal else value.type.rank, like.mesh_name)
        for value, like in zip(call.results, meshes, strict=True)
    ]
    set_results(call, given or whole)
    for value, before, default in zip(call.results, asked, whole, strict=True):
        target = before or default
        # A difference in unreduced axes is settled later, by the sums that it asks for.
        if not is_equivalent(value.sharding, target, ignore_unreduced=True):
            reshard = insert_after(value, wrapped("Reshard", value, target))
            value.replace_by(reshard.results[0], keep=[reshard])
