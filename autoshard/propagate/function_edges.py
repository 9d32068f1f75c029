"""Data-flow edges between functions: from operands of calls to arguments, from what is returned to results of calls.

A module may hold FuncDataFlowEdge ops for these (Shardy adds them where calls are not written out in place). The op
alone keeps the sharding of the edge; the argument or result that it stands on has it for its only user.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

from autoshard.ops.control import call, func_data_flow_edge
from autoshard.propagate.mutable_ir import MutableValue, Operation, Use
from autoshard.util.errors import GraphError


def function_sources(edge: Operation) -> list[MutableValue]:
    """The values that flow into the edge of a FuncDataFlowEdge op.

    Raises:
        GraphError: the op stands neither on an argument of a function nor on a result of a call.
    """
    value = edge.operands[0]
    maker = value.defining
    if maker is None:
        return [one.operands[value.index] for one in _calls(_function_of(edge))]
    if maker.operator is not call:
        raise GraphError(
            f"{edge} stands on a result of {maker}, but belongs on a function's argument or a call's result"
        )
    return [_callee(maker).blocks[0].terminator.operands[value.index]]


def users_across(use: Use) -> Iterator[Operation]:
    """The ops in other functions that use the value: an operand of a call, or one that a function returns."""
    user, index = use
    if user.operator is call:
        targets = [_callee(user).blocks[0].args[index]]
    else:
        targets = [one.results[index] for one in _calls(_function_of(user))]
    return (op for target in targets for op, _ in target.users if op.operator is func_data_flow_edge)


def _function_of(op: Operation) -> Operation:
    parent = op.parent_op
    while parent is not None and parent.operator.name != "Function":
        parent = parent.parent_op
    assert parent is not None, f"{op} is in no function"
    return parent


def _module_of(op: Operation) -> Operation:
    module = _function_of(op).parent_op
    assert module is not None
    return module


def _calls(function: Operation) -> list[Operation]:
    """The calls of a function, in the order in which MLIR lists the uses of a symbol.

    Caller by caller, the calls in a block come before those inside its operations, the last of which comes first.
    """
    module = function.parent_op
    assert module is not None
    found: list[Operation] = []
    for caller in module.blocks[0]:
        blocks = list(caller.blocks)
        while blocks:
            block = blocks.pop()
            for op in sorted(chain.from_iterable(block.rare.values()), key=attrgetter("order")):
                if op.operator is call and op.attrs["callee"] == function.attrs["name"]:
                    found.append(op)
                blocks.extend(op.blocks)
    return found


def _callee(of: Operation) -> Operation:
    name = of.attrs["callee"]
    return next(function for function in _module_of(of).blocks[0] if function.attrs["name"] == name)
