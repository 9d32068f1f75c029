"""grad and value_and_grad: gradients of a function of arrays and cells, computed at once with numpy.

    grad_fn = value_and_grad(forward, None, optimizer.parameters)
    loss, grads = grad_fn(data, label)
    optimizer(grads)

The function is traced for each kind of arguments, and differentiated as a graph. Ranks do all of it each; a step that
is split over ranks is what `Model` and `nn.TrainOneStepCell` run. Inside of a cell that is traced, the gradient is part
of its graph: a loss may hold one, as gradient penalties do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autoshard.core.tensortype import type_of
from autoshard.mindspore.ops.primitive import as_tensors
from autoshard.trace.evaluate import evaluate
from autoshard.trace.function import Traced, TraceRecorder, trace
from autoshard.trace.parameter import Parameter, activate, active
from autoshard.trace.tensor import TracedTensor as Symbol
from autoshard.transform.grad import gradient
from autoshard.transform.inner_gradient import inner_gradient
from autoshard.transform.rewrites import rewritten_trace
from autoshard.util.errors import GraphError

Positions = int | Sequence[int] | None


def grad(
    fn: Callable,
    grad_position: Positions = 0,
    weights: Any = None,
    has_aux: bool = False,
    return_ids: bool = False,
    sens_param: bool = False,
) -> Callable:
    """A function that gives the gradients of what `fn` returns (of several results the first, with `has_aux`).

    Args:
        grad_position: of which arguments: a number, several, or None.
        weights: and of which parameters: one, several, or None.
        has_aux: whether fn returns more than what is differentiated; that comes behind the gradients.
        return_ids, sens_param: MindSpore's; False only.

    Returns:
        A function of fn's arguments. It gives the gradient of the only argument (several: a tuple), of the parameters
        (one, or a tuple), or, asked for both, a tuple of the two.

    Raises:
        GraphError: neither arguments nor parameters; when called: results of another kind, or within a loop or branch
            of a trace.

    Example:
        >>> import numpy as np
        >>> grad(lambda x: (x * x).sum())(np.array([1.0, 3.0])).asnumpy()
        array([2., 6.])
    """
    both = value_and_grad(fn, grad_position, weights, has_aux, return_ids, sens_param)

    def call(*args: Any) -> Any:
        value, found = both(*args)
        return (found, value[1:]) if has_aux else found

    return call


class GradOperation:
    """MindSpore's former way to `grad`: called on a function, and on parameters, it gives a function of gradients.

    Args:
        get_all: of all arguments, not of the first alone.
        get_by_list: of the parameters that are given, and with `get_all` of the arguments before.
        sens_param: the last argument of the function that it gives is what the gradient of the result is.

    Example:
        >>> import numpy as np
        >>> GradOperation()(lambda x: (x * x).sum())(np.array([1.0, 3.0])).asnumpy()
        array([2., 6.])
    """

    def __init__(self, get_all: bool = False, get_by_list: bool = False, sens_param: bool = False) -> None:
        self.get_all, self.get_by_list, self.sens_param = get_all, get_by_list, sens_param

    def __call__(self, fn: Callable, weights: Any = None) -> Callable:
        """The function of gradients. Raises GraphError: parameters are asked for, and none are given."""
        if self.get_by_list and weights is None:
            raise GraphError("GradOperation(get_by_list=True) takes the parameters as its second argument")
        held = weights if self.get_by_list else None

        def call(*args: Any) -> Any:
            given = args[:-1] if self.sens_param else args
            weighed = fn
            if self.sens_param:
                seed = args[-1]
                weighed = lambda *inputs: (fn(*inputs) * seed).sum()  # noqa: E731
            positions = tuple(range(len(given))) if self.get_all else None if self.get_by_list else 0
            return grad(weighed, positions, held)(*given)

        return call


def value_and_grad(
    fn: Callable,
    grad_position: Positions = 0,
    weights: Any = None,
    has_aux: bool = False,
    return_ids: bool = False,
    sens_param: bool = False,
) -> Callable:
    """A function that gives what `fn` returns, and then what `grad` gives.

    Raises:
        GraphError: as `grad`.

    Example:
        >>> import numpy as np
        >>> value, slope = value_and_grad(lambda x: (x * x).sum())(np.array([1.0, 3.0]))
        >>> float(value), slope.tolist()
        (10.0, [2.0, 6.0])
    """
    if return_ids or sens_param:
        raise GraphError("grad: return_ids and sens_param are not offered; leave them False")
    positions = () if grad_position is None else np.atleast_1d(np.asarray(grad_position, int)).tolist()
    trained = () if weights is None else (weights,) if isinstance(weights, Parameter) else tuple(weights)
    if not positions and not trained:
        raise GraphError("grad: grad_position and weights are both None; name arguments or parameters")
    several = isinstance(grad_position, Sequence), not isinstance(weights, Parameter)
    known: dict[tuple, _Differentiated] = {}

    def call(*args: Any) -> Any:
        if active() is not None:
            return _shaped(*_inside(fn, args, positions, trained, has_aux))
        key = tuple(str(type_of(np.asarray(one))) if hasattr(one, "dtype") else repr(one) for one in args)
        if key not in known or _modes(fn) != known[key].modes:
            known[key] = _Differentiated(fn, args, positions, trained, has_aux)
        return _shaped(*known[key](*args))

    def _shaped(value: Any, by_argument: tuple, by_weight: tuple) -> Any:
        first = (by_argument if several[0] else by_argument[0]) if positions else None
        second = (by_weight if several[1] else by_weight[0]) if trained else None
        return value, second if first is None else first if second is None else (first, second)

    return call


def _inside(
    fn: Callable, args: Sequence[Any], positions: Sequence[int], weights: Sequence[Parameter], has_aux: bool
) -> tuple[Any, tuple, tuple]:
    """What fn returns, and its gradients by argument and by weight, as tensors of the trace that is under way."""
    value, found = inner_gradient(active(), fn, args, positions, weights)
    if isinstance(value, tuple | list) and len(value) > 1 and not has_aux:
        raise GraphError(f"grad: it returns {len(value)} tensors; has_aux=True differentiates the first")
    return value, tuple(found[: len(positions)]), tuple(found[len(positions) :])


def _modes(fn: Any) -> bool:
    """Whether a cell is training, which its trace depends on."""
    return bool(getattr(fn, "training", False))


class _Differentiated:
    """The graph of a function with the gradients among its results, for arguments of one kind."""

    def __init__(
        self, fn: Callable, args: Sequence[Any], positions: Sequence[int], weights: Sequence[Parameter], has_aux: bool
    ) -> None:
        self.modes = _modes(fn)
        forward = rewritten_trace(trace(fn, *args))
        graph = forward.graph
        kept = len(graph.outputs) - len(graph.updates)
        if kept != 1 and not has_aux:
            raise GraphError(
                f"grad of {graph.name!r}: it returns {kept} tensors; has_aux=True differentiates the first"
            )
        data = [value for value in graph.inputs if value not in forward.parameters]
        if len(data) != len(args):
            raise GraphError(f"grad of {graph.name!r}: arguments are arrays, not nested or other values")
        inputs = {id(one): value for value, one in forward.parameters.items()}
        wanted = [data[at] for at in positions]
        used = [one for one in weights if id(one) in inputs]
        full, gradients = gradient(graph, graph.outputs[0], [*wanted, *(inputs[id(one)] for one in used)])
        recorder = TraceRecorder.resume(full, forward)
        with activate(recorder):
            results = [*wanted, *(inputs[id(one)] for one in used)]
            found = [recorder.lift(Symbol(gradients[value], recorder)) for value in results]
        self.traced: Traced = recorder.finish([*graph.outputs[:kept], *found], forward.arguments, forward.results)
        self.kept, self.positions, self.weights, self.used = kept, len(positions), weights, {id(one) for one in used}

    def __call__(self, *args: Any) -> tuple[Any, tuple, tuple]:
        outputs = evaluate(self.traced.graph, self.traced.inputs(*args))
        self.traced.store(outputs)
        value = as_tensors(self.traced.unpack(outputs[: self.kept]))
        made = iter(as_tensors(tuple(outputs[self.kept :])))
        by_argument = tuple(next(made) for _ in range(self.positions))
        by_weight = tuple(
            next(made) if id(one) in self.used else as_tensors(np.zeros(one.shape, one.dtype.numpy))
            for one in self.weights
        )
        return value, by_argument, by_weight
