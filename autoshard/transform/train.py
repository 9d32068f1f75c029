"""train_step: forward, gradient and update of a model as one graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoshard.ir.graph import Graph, Node, Value
from autoshard.trace.function import Traced, TraceRecorder, trace
from autoshard.trace.loss_scale import LossScale
from autoshard.trace.optim import Optimizer
from autoshard.trace.parameter import Parameter, activate
from autoshard.trace.tensor import TracedTensor
from autoshard.transform.attention import joined_attention
from autoshard.transform.grad import gradient, reaching
from autoshard.transform.micro.accumulate import Accumulated
from autoshard.transform.micro.loss_pieces import loss_in_pieces
from autoshard.transform.micro.statistics import BATCH
from autoshard.transform.recompute import backward_begins, cheap, inside
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
    recompute: str | Collection[str] | Callable[[Node], bool] | None = None,
    regather: bool = False,
    leave_unreached: bool = False,
    micro_batches: int = 1,
    statistics: str = BATCH,
    loss_pieces: int = 1,
    rewrite: Callable[[Graph, Collection[Node]], Graph] | None = joined_attention,
    gradient_scale: float = 1.0,
    loss_scale: LossScale | None = None,
) -> TrainStep:
    """Trace a model that returns its loss (first), differentiate it, and add the optimizer's updates.

    The sum of the loss is differentiated, should it be no scalar.

    Args:
        recompute: what is made again for the backward pass instead of being kept: "cheap" (all that takes no product of
            tensors), a function that tells for a node of the forward pass, or paths of cells, each of which is made
            again from what enters it.
        regather: copies of parameters in other layouts are made for forward and backward pass on their own, so that
            they are not kept in between.
        micro_batches: into how many parts the batch is cut, which are done one after the other; the gradients are
            added up before the update. Same numbers, less memory: see `transform.micro.accumulate`.
        statistics: whose a batch normalization takes in training then: "batch" refuses it, "micro_batch" takes those of
            each micro batch, as gradient accumulation does.
        loss_pieces: into how many parts the rows of the logits are cut, of which loss and gradients are made one after
            the other, so that logits are never there as a whole: see `transform.micro.loss_pieces`.
        rewrite: `function(graph, annotated nodes)`: what is made of the model's graph before it is differentiated; by
            default attention becomes one operator. None: it stays as it is written.
        gradient_scale: what gradients are multiplied by before the optimizer has them.
        loss_scale: what the loss is multiplied by before it is differentiated, see `trace.loss_scale`; by default what
            the optimizer was given.

    Raises:
        GraphError: the loss is no float, or depends on none of the optimizer's parameters; another `recompute`; micro
            batches that do not divide the batch, or an operator that needs all of it at once.
    """
    forward = trace(network, *example_inputs, name=name)
    graph = forward.graph if rewrite is None else rewrite(forward.graph, forward.annotations)
    forward = replace(forward, graph=graph)
    loss, returned, scaling = graph.outputs[0], _returned(graph), loss_scale or optimizer.scaling
    differentiated = loss
    if scaling is not None:
        forward, differentiated = _scaled(forward, loss, scaling)
        graph = forward.graph
    inputs = {id(parameter): value for value, parameter in forward.parameters.items()}
    if leave_unreached:
        reached = reaching(graph, differentiated)
        inputs = {key: value for key, value in inputs.items() if value in reached}
    wanted = [inputs[id(one)] for one in optimizer.parameters if id(one) in inputs]
    untouched = tuple(one for one in optimizer.parameters if id(one) not in inputs)
    if not wanted:
        raise GraphError(
            f"training {graph.name!r}: it uses none of the parameters that the optimizer was given, or only where no "
            "gradient passes"
        )
    full, gradients = gradient(graph, differentiated, wanted)
    of_parameters = [gradients[inputs[id(one)]] if id(one) in inputs else None for one in optimizer.parameters]
    forward = replace(forward, graph=full)
    traced = _updated(forward, returned, of_parameters, optimizer, gradient_scale, scaling)
    if recompute is not None:
        traced = replace(traced, graph=recomputed(traced.graph, _chosen(traced.graph, recompute)))
    if regather:
        traced = replace(traced, graph=regathered(traced.graph))
    if micro_batches != 1:
        traced = accumulated(traced, micro_batches, statistics)
    if loss_pieces != 1:
        traced = with_loss_in_pieces(traced, loss_pieces)
    return TrainStep(traced, loss, gradients, untouched)


def _scaled(forward: Traced, loss: Value, scaling: LossScale) -> tuple[Traced, Value]:
    """The trace with the loss times the scale, which is differentiated, as the last result; and that value."""
    recorder = TraceRecorder.resume(forward.graph, forward)
    with activate(recorder):
        scaled = scaling.scaled(TracedTensor(loss, recorder)).value
    finished = recorder.finish([*_returned(forward.graph), scaled], forward.arguments, forward.results)
    return replace(finished, stages=forward.stages), scaled


def _returned(graph: Graph) -> tuple[Value, ...]:
    return graph.outputs[: len(graph.outputs) - len(graph.updates)]


def _updated(
    forward: Traced,
    returned: Sequence[Value],
    gradients: Sequence[Value | None],
    optimizer: Optimizer,
    gradient_scale: float,
    scaling: LossScale | None,
) -> Traced:
    """The trace of both passes with the optimizer's updates behind them."""
    recorder = TraceRecorder.resume(forward.graph, forward)
    with activate(recorder):
        given = [None if grad is None else TracedTensor(grad, recorder) for grad in gradients]
        if gradient_scale != 1:
            given = [None if grad is None else grad * gradient_scale for grad in given]
        if scaling is None:
            optimizer(given)
        else:
            scaling.step(optimizer, given, recorder.only_if)
    finished = recorder.finish(returned, forward.arguments, forward.results)
    return replace(finished, stages=forward.stages)


def accumulated(traced: Traced, micro_batches: int, statistics: str = BATCH) -> Traced:
    """A traced training step with its batch in parts; strategies that nodes have been given hold for each part.

    Raises:
        GraphError: see `transform.micro.accumulate`.
    """
    return _looped(traced, Accumulated.of(traced.graph, micro_batches, statistics))


def with_loss_in_pieces(traced: Traced, pieces: int) -> Traced:
    """A traced training step with its logits and loss in pieces; strategies that nodes have been given hold for each.

    Raises:
        GraphError: see `transform.micro.loss_pieces`.
    """
    return _looped(traced, loss_in_pieces(traced.graph, pieces))


def _looped(traced: Traced, loop: Accumulated) -> Traced:
    given = traced.annotations
    kept = {node: given[of] for node, of in loop.stands_for.items() if of in given}
    return replace(traced, graph=loop.graph, annotations={**given, **kept})


def _chosen(graph: Graph, wanted: str | Collection[str] | Callable[[Node], bool]) -> tuple[Node, ...]:
    """The nodes that are made again."""
    if isinstance(wanted, tuple | list | set | frozenset):
        return inside(graph, wanted)
    if callable(wanted):
        return tuple(node for node in graph.nodes[: backward_begins(graph)] if wanted(node))
    if wanted != "cheap":
        raise GraphError(
            f"train_step: recompute is {wanted!r}; it can be 'cheap', a function that tells for a node, or paths of "
            "cells"
        )
    return cheap(graph)
