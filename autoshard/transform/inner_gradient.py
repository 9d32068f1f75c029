"""Gradients taken inside of a model that is being traced: a gradient penalty, a step that treats gradients itself.

Their nodes go into the trace behind those of the forward pass, so that the whole can be differentiated once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoshard.ir.graph import walk
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
    if recorder.in_region or recorder.enclosures:
        raise GraphError("grad inside of a loop, a branch or a manual computation of a traced model is not offered")
    identity = lookup("Identity")
    # An argument is another value than what the function captures, though it be the same tensor.
    given = [identity(_tensor(recorder, one)) if i in positions else one for i, one in enumerate(args)]
    wanted = [given[i].value for i in positions] + [recorder.lift(one) for one in more]
    begin = len(recorder.builder.nodes)
    result = fn(*given)
    of = recorder.lift(result[0] if isinstance(result, tuple | list) else result)
    nodes = tuple(recorder.builder.nodes[begin:])
    check_floats(recorder.builder.name, of, wanted)
    if any(is_custom(node) for node in walk(nodes)):
        raise GraphError("grad inside of a traced model: a function with a gradient of its own is not offered there")
    found = Reverse(recorder.builder, {}).gradients(nodes, of, wanted)
    recorder.know_names(recorder.builder.nodes[begin + len(nodes) :])
    return result, [recorder.tensor(value) for value in found]


def _tensor(recorder: Recorder, argument: Any) -> TracedTensor:
    return argument if isinstance(argument, TracedTensor) else recorder.tensor(recorder.lift(argument))
