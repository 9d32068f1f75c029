"""train_step: forward, gradient and update of a model as one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.errors import GraphError
from autoshard.ir.graph import Graph, Value
from autoshard.trace.function import Traced, TraceRecorder, trace
from autoshard.trace.optim import Optimizer
from autoshard.trace.parameter import Parameter, activate
from autoshard.trace.tensor import Tensor
from autoshard.transform.grad import gradient


@dataclass(frozen=True, eq=False)
class TrainStep:
    """One step of training: the graph's first outputs are what the model returned, the rest are new values.

    `gradients` maps the inputs of trained parameters to their gradients, which are values inside the graph;
    `untouched` are parameters of the optimizer that the model does not use.
    """

    traced: Traced
    loss: Value
    gradients: Mapping[Value, Value]
    untouched: tuple[Parameter, ...]

    @property
    def graph(self) -> Graph:
        return self.traced.graph

    def __call__(self, *args: Any) -> Any:
        """Do one step with numpy: what the model returned; parameters and states have their new values."""
        return self.traced(*args)


def train_step(network: Callable, optimizer: Optimizer, *example_inputs: Any, name: str | None = None) -> TrainStep:
    """Trace a model that returns its loss (first), differentiate it, and add the optimizer's updates.

    The sum of the loss is differentiated, should it be no scalar.

    Raises:
        GraphError: the loss is no float, or depends on none of the optimizer's parameters.
    """
    forward = trace(network, *example_inputs, name=name)
    graph = forward.graph
    loss = graph.outputs[0]
    inputs = {id(parameter): value for value, parameter in forward.parameters.items()}
    wanted = [inputs[id(one)] for one in optimizer.parameters if id(one) in inputs]
    untouched = tuple(one for one in optimizer.parameters if id(one) not in inputs)
    if not wanted:
        raise GraphError(f"training {graph.name!r}: it uses none of the parameters that the optimizer was given")
    full, gradients = gradient(graph, loss, wanted)
    recorder = TraceRecorder.resume(full, forward)
    with activate(recorder):
        grads = [gradients[inputs[id(one)]] if id(one) in inputs else None for one in optimizer.parameters]
        optimizer([None if grad is None else Tensor(grad, recorder) for grad in grads])
    returned = graph.outputs[: len(graph.outputs) - len(graph.updates)]
    return TrainStep(recorder.finish(returned, forward.arguments, forward.results), loss, gradients, untouched)
