"""torch.autograd.grad inside of a module: gradients by autoshard's own rules, which are differentiated once more.

torch's backward pass would be captured as it is made, without what a second gradient goes through. So the call is one
operator of torch's graph, and what it stands for is worked out when the graph is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autoshard import ops
from autoshard.frontends.torch.markers import marker
from autoshard.frontends.torch.table import Call, translates
from autoshard.trace.parameter import active
from autoshard.transform.inner_gradient import pulled_inside
from autoshard.util.errors import GraphError

_SCHEMA = "autograd_grad(Tensor[] outputs, Tensor[] inputs, Tensor[] cotangents) -> Tensor[]"
NAME = "autoshard.autograd_grad.default"


def autograd_functions() -> dict[Any, Callable]:
    """What stands for it."""
    import torch
    from torch._C._functorch import is_functorch_wrapped_tensor

    own = torch.autograd.grad

    def grad(
        outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: Any = None, create_graph: bool = False,
        only_inputs: bool = True, allow_unused: Any = None, is_grads_batched: bool = False,
        materialize_grads: bool = False,
    ) -> Any:  # fmt: skip
        of, wrt = _several(outputs), _several(inputs)
        if any(map(is_functorch_wrapped_tensor, (*of, *wrt))):  # torch.func computes its gradients by it
            return own(
                outputs, inputs, grad_outputs, retain_graph, create_graph, only_inputs, allow_unused, is_grads_batched,
                materialize_grads,
            )  # fmt: skip
        if is_grads_batched:
            raise GraphError("torch.autograd.grad with is_grads_batched is not captured; say it by torch.func.vjp")
        given = _several(grad_outputs) if grad_outputs is not None else (None,) * len(of)
        cotangents = [torch.ones_like(one) if by is None else by for one, by in zip(of, given, strict=True)]
        found = marker(_SCHEMA, _like_inputs)([*of], [*wrt], cotangents)
        return tuple(found if create_graph else (one.detach() for one in found))

    return {own: grad}


def _several(tensors: Any) -> Sequence[Any]:
    return tuple(tensors) if isinstance(tensors, tuple | list) else (tensors,)


def _like_inputs(outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    return [one.clone() for one in inputs]


def differentiated_for(graph: Any) -> set[Any]:
    """The nodes of a graph that gradients are taken for inside of it: each is a value of its own, though a copy."""
    found = (node for node in graph.nodes if str(node.target) == NAME)
    return {one for node in found for one in node.args[1] if one.op == "call_function"}


def takes_gradients(graph: Any) -> bool:
    """Whether a gradient is taken inside of a graph."""
    return any(str(node.target) == NAME for node in graph.nodes)


def own_value(made: Any) -> Any:
    """The same numbers as a value that nothing was computed of yet."""
    return ops.identity(made) if hasattr(made, "value") else made


@translates(NAME)
def _(call: Call, outputs: Sequence[Any], inputs: Sequence[Any], cotangents: Sequence[Any]) -> Any:
    recorder = active()
    if recorder is None:
        call.refuse("a gradient inside of a module, which has to be traced")
    return pulled_inside(recorder, outputs, inputs, cotangents)
