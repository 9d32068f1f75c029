"""What people hand over to be planned: traced, imported, a cell or function, or a PyTorch model as it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from autoshard.frontends.retraced import annotated_like
from autoshard.ir.graph import DATA, Graph
from autoshard.trace.evaluate import evaluate as evaluate_graph
from autoshard.trace.function import Traced, known_trace, trace
from autoshard.trace.structure import flatten, unflatten
from autoshard.transform.rewrites import rewritten_trace
from autoshard.transform.unroll import unrolled
from autoshard.util.errors import PlanError


def is_torch_model(target: Any) -> bool:
    """Whether this is a torch.nn.Module or an exported program; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module | torch.export.ExportedProgram)


def traced_target(target: Any, inputs: Any = (), what: str = "plan") -> Traced:
    """The graph of a target, with one operator for each attention that it writes by hand, but of annotated operators.

    Args:
        target: a Cell or a function of tensors; what is traced or imported already; a torch.nn.Module or an exported
            program.
        inputs: the example arguments: one, or a tuple or list of them; of a torch module also a dict by name. What is
            traced already needs none; those that come with it have to be of the types that it was traced for.
        what: is done with it, in an error's words.

    Raises:
        PlanError: none of these, or inputs of other types.
        AutoshardError: what tracing finds wrong.
    """
    known = known_trace(target)
    if known is not None:
        _check_known(known, inputs, what)
        return known
    arguments = inputs if isinstance(inputs, tuple | list) else (inputs,)
    if is_torch_model(target):
        from autoshard.frontends.torch.load import from_torch

        by_name = isinstance(inputs, Mapping)
        tensors = _mapped(inputs if by_name else tuple(arguments), _as_tensor)
        return from_torch(target, () if by_name else tensors, tensors if by_name else None).traced
    if not callable(target):
        raise PlanError(f"{what}: {target!r} ({type(target).__name__}) is neither a model, a function, nor traced")
    return rewritten_trace(trace(target, *arguments))


def cuttable_target(target: Any, inputs: Any = ()) -> Traced:
    """`traced_target` in a form whose batch can be cut into micro batches, if the target has one of its own for that;
    loops over layers are written out.

    Raises:
        AutoshardError: as `traced_target`.
    """
    traced = traced_target(target, inputs)
    found = getattr(target, "cuttable", None) if known_trace(target) is not None else None
    traced = found if isinstance(found, Traced) else traced
    graph = unrolled(traced.graph)
    return traced if graph is traced.graph else annotated_like(replace(traced, graph=graph), traced)


def evaluate(target: Any, inputs: Any = ()) -> Any:
    """What a target returns for inputs, unsplit and in this process; parameters stay as they are.

        evaluate(lambda x: ops.relu(x), x)
        evaluate(net, (x, labels))

    Args:
        target: as `traced_target` takes it; or a Graph, of which the outputs are returned.
        inputs: the arguments: one array, or a tuple or list; of a Graph an array per input, in order or by value.

    Raises:
        RuntimeSetupError: inputs that do not fit.
        ShapeError: operations that autoshard has no operator for.
        AutoshardError: what tracing finds wrong.

    >>> import numpy as np
    >>> from autoshard import evaluate, ops
    >>> evaluate(lambda x: ops.relu(x), np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    if isinstance(target, Graph):
        return evaluate_graph(target, inputs)
    traced = traced_target(target, inputs, "evaluate")
    arguments = _mapped(tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), _as_array)
    return traced.unpack(evaluate_graph(traced.graph, traced.inputs(*arguments)))


def _mapped(inputs: Any, change: Callable[[Any], Any]) -> Any:
    leaves, structure = flatten(inputs, lambda part: hasattr(part, "shape"))
    return unflatten(structure, [change(one) for _, one in leaves])


def _as_tensor(one: Any) -> Any:
    return sys.modules["torch"].as_tensor(one) if isinstance(one, np.ndarray) else one


def _as_array(one: Any) -> Any:
    return one.detach().numpy() if hasattr(one, "detach") else one


def _check_known(traced: Traced, inputs: Any, what: str) -> None:
    leaves, _ = flatten(inputs, lambda part: hasattr(part, "shape"))
    given = [tuple(one.shape) for _, one in leaves]
    data = [value for value, role in zip(traced.graph.inputs, traced.graph.roles, strict=True) if role == DATA]
    if not _is_empty(inputs) and given != [value.type.shape for value in data]:
        known = ", ".join(f"{value.name}: {value.type}" for value in data)
        raise PlanError(
            f"{what}: {traced.graph.name!r} is traced already, for ({known}), and the inputs are of shapes "
            f"{', '.join(map(str, given)) or 'unknown'}; leave them out"
        )


def _is_empty(inputs: Any) -> bool:
    return isinstance(inputs, tuple | list | Mapping) and not inputs
