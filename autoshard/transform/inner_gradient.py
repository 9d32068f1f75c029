"""Gradients taken inside of a model that is being traced: a gradient penalty, a step that treats gradients itself.

Their nodes go into the trace behind those of the forward pass, so that the whole can be differentiated once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoshard.ir.graph import Node, walk
from autoshard.ops.registry import lookup
from autoshard.trace.tensor import Recorder, TracedTensor
from autoshard.transform.custom_gradient import is_custom
from autoshard.transform.grad import Reverse, check_floats
from autoshard.util.errors import GraphError


def inner_gradient(
    recorder: Recorder, fn: Callable[..., Any], args: Sequence[Any], positions: Sequence[int], more: Sequence[Any] = ()
) -> tuple[Any, list[TracedTensor]]:
    """What `fn` returns for `args`, and gradients of it, of several results of the first, in the trace of `recorder`.

    Args:
        positions: of which arguments a gradient is asked.
        more: tensors that `fn` uses of its own (parameters) of which one is asked, too.

    Raises:
        GraphError: inside of a loop, branch or manual computation; a result or an argument that is no tensor of floats;
            an operator without a gradient.
    """
    _check_place(recorder)
    identity = lookup("Identity")
    # An argument is another value than what the function captures, though it be the same tensor.
    given = [identity(_tensor(recorder, one)) if i in positions else one for i, one in enumerate(args)]
    wanted = [given[i].value for i in positions] + [recorder.lift(one) for one in more]
    begin = len(recorder.builder.nodes)
    result = fn(*given)
    of = recorder.lift(result[0] if isinstance(result, tuple | list) else result)
    nodes = tuple(recorder.builder.nodes[begin:])
    check_floats(recorder.builder.name, of, wanted)
    _check_own(nodes)
    found = Reverse(recorder.builder, {}).gradients(nodes, of, wanted)
    recorder.know_names(recorder.builder.nodes[begin + len(nodes) :])
    return result, [recorder.tensor(value) for value in found]


def pulled_inside(
    recorder: Recorder, outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Any]
) -> list[TracedTensor]:
    """What cotangents of tensors in the trace of `recorder` are for others that they were computed of; zeros where they
    were not.

    Raises:
        GraphError: as of `inner_gradient`.
    """
    _check_place(recorder)
    of, wanted, given = ([recorder.lift(one) for one in tensors] for tensors in (outputs, inputs, cotangents))
    for one in of:
        check_floats(recorder.builder.name, one, wanted)
    nodes = tuple(recorder.builder.nodes)
    reverse = Reverse(recorder.builder, {})
    dependent = reverse.dependent(nodes, wanted)
    _check_own([node for node in nodes if not dependent.isdisjoint(node.uses)])
    found = reverse.pulled(nodes, of, given, wanted)
    recorder.know_names(recorder.builder.nodes[len(nodes) :])
    return [recorder.tensor(value) for value in found]


def _check_place(recorder: Recorder) -> None:
    if recorder.in_region or recorder.enclosures:
        raise GraphError("grad inside of a loop, a branch or a manual computation of a traced model is not offered")


def _check_own(nodes: Sequence[Node]) -> None:
    if any(is_custom(node) for node in walk(nodes)):
        raise GraphError("grad inside of a traced model: a function with a gradient of its own is not offered there")


def _tensor(recorder: Recorder, argument: Any) -> TracedTensor:
    return argument if isinstance(argument, TracedTensor) else recorder.tensor(recorder.lift(argument))
