"""Graphs of training steps print and parse back, with what each gradient is the gradient of."""

from __future__ import annotations

import pytest

from autoshard.ir.graph import Graph
from autoshard.ir.text import parse, show
from autoshard.ir.verify import verify
from autoshard.transform.train import train_step
from autoshard.util.errors import GraphError, ParseError
from tests.transformer import batches, build


@pytest.fixture(scope="module")
def graph():
    return train_step(*build(1, 1), *batches(1)[0]).graph


def test_training_graph_round_trip(graph):
    again = parse(show(graph))
    assert show(again) == show(graph)
    named = {(grad.name, of.name) for grad, of in graph.cotangents.items()}
    assert named and {(grad.name, of.name) for grad, of in again.cotangents.items()} == named


def test_a_gradient_has_the_type_of_its_value(graph):
    grad = next(iter(graph.cotangents))
    other = next(value for value in graph.values if value.type != grad.type)
    broken = Graph("g", graph.inputs, graph.nodes, graph.outputs, graph.roles, graph.updates, {grad: other})
    with pytest.raises(GraphError, match="the types must be equal"):
        verify(broken)


def test_a_gradient_of_something_unknown_is_refused():
    with pytest.raises(ParseError, match="'z' is not defined"):
        parse("graph g(x: f32[4] data)\n  y: f32[4] of z = ReLU(x)\n  return y\n")
