"""Calls, before propagation: each gets a function of its own, which is then written out in place.

So every call can be split in its own way. After propagation the bodies become functions again, and equal ones are
shared (see calls_out).
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.layout.sharding import Sharding
from autoshard.ops.registry import lookup
from autoshard.propagate.edges import add_edges
from autoshard.propagate.mutable_ir import Block, MutableModule, MutableValue, Operation, fill_open
from autoshard.propagate.passes.edit import clone_block, move_block, named, replace_op
from autoshard.propagate.passes.functions import Symbols, callees_first, calls, clone_function, original_name


def results_to_calls(module: MutableModule) -> None:
    """Give calls without result shardings those of their function (sdy-propagate-sharding-from-func-to-call)."""
    symbols = Symbols(module)
    for call in named(module.op, "Call"):
        if all(value.sharding is None for value in call.results):
            set_results(call, result_shardings(symbols.callee(call)))


def flatten_calls(module: MutableModule) -> None:
    """Let each call but the first of a function call a copy of it (sdy-flatten-call-graph)."""
    symbols = Symbols(module)
    called: set[str] = set()
    for function in callees_first(module):
        for call in calls(function):
            callee = symbols.callee(call)
            if callee.attrs["name"] in called:
                call.attrs["callee"] = clone_function(callee, symbols)
            else:
                called.add(callee.attrs["name"])


def import_calls(module: MutableModule) -> None:
    """Turn each call into a named computation that holds the function's body, with edges (sdy-import-func-calls)."""
    _drop_edges(module)
    symbols = Symbols(module)
    moved: dict[Operation, Block] = {}
    for function in callees_first(module):
        for call in calls(function):
            _import_call(call, symbols.callee(call), moved)
    for function in moved:
        function.erase()
    add_edges(module)


def _drop_edges(module: MutableModule) -> None:
    """Erase the edges between calls and functions, whose shardings what they stand on gets: the bodies get own ones.

    Edges on functions that nobody calls stay; nothing passes them.
    """
    called = {call.attrs["callee"] for call in named(module.op, "Call")}
    for function in module.functions:
        for op in named(function, "FuncDataFlowEdge"):
            (value,), (result,) = op.operands, op.results
            if value.defining is None and function.attrs["name"] not in called:
                continue
            value.sharding = result.sharding or value.sharding
            if value.defining is not None:
                fill_open(value.defining.results)
            replace_op(op, [value])


def _import_call(call: Operation, function: Operation, moved: dict[Operation, Block]) -> None:
    entering = argument_shardings(function, moved.get(function))
    leaving = tuple(value.sharding for value in call.results if value.sharding is not None)
    attrs = {
        "name": original_name(function),
        "in_shardings": entering,
        "out_shardings": leaving,
        "types": call.attrs["types"],
    }
    inlined = Operation(lookup("NamedComputation"), call.operands, (value.type for value in call.results), attrs)
    inlined.origin, inlined.devices = call.origin, call.devices
    assert call.parent is not None
    call.parent.insert(inlined, call)
    if function in moved:
        clone_block(moved[function], inlined, {})
    else:
        moved[function] = function.blocks[0]
        move_block(function.blocks[0], inlined, "Yield")
    _annotate(inlined.blocks[0].args, entering)
    for old, new in zip(call.results, inlined.results, strict=True):
        new.sharding, new.origin = old.sharding, old.origin
    replace_op(call, inlined.results)


def _annotate(values: Sequence[MutableValue], shardings: Sequence[Sharding]) -> None:
    """Arguments of a body have shardings all or none."""
    for i, value in enumerate(values):
        value.sharding = shardings[i] if shardings else None


def argument_shardings(function: Operation, body: Block | None = None) -> tuple[Sharding, ...]:
    """What is asked of the arguments of a function, nothing where there is nothing; () if nothing is asked of any.

    Args:
        body: its body, if it has been moved away.
    """
    args = (body or function.blocks[0]).args
    return completed([value.sharding for value in args], [value.type.rank for value in args])


def result_shardings(function: Operation) -> tuple[Sharding, ...]:
    """What is asked of the results of a function, an open sharding where there is nothing; () if nothing is asked."""
    types = [value.type for value in function.blocks[0].terminator.operands]
    return completed(function.attrs["outputs"], [of.rank for of in types])


def completed(shardings: Sequence[Sharding | None], ranks: Sequence[int], closed: bool = False) -> tuple[Sharding, ...]:
    """The shardings with one that asks for nothing where there is none, on the first mesh that is not maximal.

    Without such a mesh there are none at all.

    Args:
        closed: let the added ones be closed.
    """
    known = first_on_mesh(shardings)
    if known is None:
        return ()
    make = Sharding.closed if closed else Sharding.open
    return tuple(
        make(known.mesh, rank, known.mesh_name) if sharding is None else sharding
        for sharding, rank in zip(shardings, ranks, strict=True)
    )


def first_on_mesh(shardings: Sequence[Sharding | None]) -> Sharding | None:
    """The first sharding on a mesh that is not a single device's."""
    return next((one for one in shardings if one is not None and not one.mesh.is_maximal), None)


def set_results(op: Operation, shardings: Sequence[Sharding]) -> None:
    for value, sharding in zip(op.results, shardings, strict=bool(shardings)):
        value.sharding = sharding
    fill_open(op.results)
