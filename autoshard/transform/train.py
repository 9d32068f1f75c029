"""train_step: forward, gradient and update of a model as one graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard.ir.graph import Graph, Node, Value
from autoshard.trace.function import Traced, TraceRecorder, trace
from autoshard.trace.optim import Optimizer
from autoshard.trace.parameter import Parameter, activate
from autoshard.trace.tensor import TracedTensor
from autoshard.transform.grad import gradient, reaching
from autoshard.transform.micro.accumulate import Accumulated
from autoshard.transform.micro.statistics import BATCH
from autoshard.transform.recompute import backward_begins, cheap
from autoshard.transform.recompute import recompute as recomputed
from autoshard.transform.recompute import regather as regathered
from autoshard.util.errors import GraphError


@dataclass(frozen=True, eq=False)
class TrainStep:
    """One step of training: the graph's first outputs are what the model returned, the rest are new values.

    `gradients` maps the inputs of trained parameters to their gradients, which are values inside the graph;
    `untouched` are parameters of the optimizer that the model does not use, or that are left alone.
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


def train_step(
    network: Callable,
    optimizer: Optimizer,
    *example_inputs: Any,
    name: str | None = None,
    recompute: str | Callable[[Node], bool] | None = None,
    regather: bool = False,
    leave_unreached: bool = False,
    micro_batches: int = 1,
    statistics: str = BATCH,
    rewrite: Callable[[Graph, Collection[Node]], Graph] = lambda graph, annotated: graph,
    gradient_scale: float = 1.0,
) -> TrainStep:
    """Trace a model that returns its loss (first), differentiate it, and add the optimizer's updates.

    The sum of the loss is differentiated, should it be no scalar.

    Args:
        recompute: what is made again for the backward pass instead of being kept: "cheap" (all that takes no product of
            tensors), or a function that tells for a node of the forward pass.
        regather: copies of parameters in other layouts are made for forward and backward pass on their own, so that
            they are not kept in between.
        micro_batches: into how many parts the batch is cut, which are done one after the other; the gradients are
            added up before the update. Same numbers, less memory: see `transform.micro.accumulate`.
        statistics: whose a batch normalization takes in training then: "batch" refuses it, "micro_batch" takes those of
            each micro batch, as gradient accumulation does.
        rewrite: `function(graph, annotated nodes)`: what is made of the model's graph before it is differentiated.
        gradient_scale: what gradients are multiplied by before the optimizer has them.

    Raises:
        GraphError: the loss is no float, or depends on none of the optimizer's parameters; another `recompute`; micro
            batches that do not divide the batch, or an operator that needs all of it at once.
    """
    forward = trace(network, *example_inputs, name=name)
    graph = rewrite(forward.graph, forward.annotations)
    forward = replace(forward, graph=graph)
    loss = graph.outputs[0]
    inputs = {id(parameter): value for value, parameter in forward.parameters.items()}
    if leave_unreached:
        reached = reaching(graph, loss)
        inputs = {key: value for key, value in inputs.items() if value in reached}
    wanted = [inputs[id(one)] for one in optimizer.parameters if id(one) in inputs]
    untouched = tuple(one for one in optimizer.parameters if id(one) not in inputs)
    if not wanted:
        raise GraphError(
            f"training {graph.name!r}: it uses none of the parameters that the optimizer was given, or only where no "
            "gradient passes"
        )
    full, gradients = gradient(graph, loss, wanted)
    of_parameters = [gradients[inputs[id(one)]] if id(one) in inputs else None for one in optimizer.parameters]
    traced = _updated(forward, full, of_parameters, optimizer, gradient_scale)
    if recompute is not None:
        traced = replace(traced, graph=recomputed(traced.graph, _chosen(traced.graph, recompute)))
    if regather:
        traced = replace(traced, graph=regathered(traced.graph))
    if micro_batches != 1:
        traced = accumulated(traced, micro_batches, statistics)
    return TrainStep(traced, loss, gradients, untouched)


def _updated(
    forward: Traced, full: Graph, gradients: Sequence[Value | None], optimizer: Optimizer, gradient_scale: float
) -> Traced:
    """The trace of the forward pass with the graph `full` of both passes, and the optimizer's updates behind it."""
    graph = forward.graph
    recorder = TraceRecorder.resume(full, forward)
    with activate(recorder):
        scaled = [None if grad is None else TracedTensor(grad, recorder) for grad in gradients]
        if gradient_scale != 1:
            scaled = [None if grad is None else grad * gradient_scale for grad in scaled]
        optimizer(scaled)
    returned = graph.outputs[: len(graph.outputs) - len(graph.updates)]
    return replace(recorder.finish(returned, forward.arguments, forward.results), stages=forward.stages)


def accumulated(traced: Traced, micro_batches: int, statistics: str = BATCH) -> Traced:
    """A traced training step with its batch in parts; strategies that nodes have been given hold for each part.

    Raises:
        GraphError: see `transform.micro.accumulate`.
    """
    loop = Accumulated.of(traced.graph, micro_batches, statistics)
    given = traced.annotations
    kept = {node: given[of] for node, of in loop.stands_for.items() if of in given}
    return replace(traced, graph=loop.graph, annotations={**given, **kept})


def _chosen(graph: Graph, wanted: str | Callable[[Node], bool]) -> tuple[Node, ...]:
    """The nodes that are made again."""
    if callable(wanted):
        return tuple(node for node in graph.nodes[: backward_begins(graph)] if wanted(node))
    if wanted != "cheap":
        raise GraphError(f"train_step: recompute is {wanted!r}; it can be 'cheap', or a function that tells for a node")
    return cheap(graph)
