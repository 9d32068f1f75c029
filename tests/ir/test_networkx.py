"""Graphs as networkx has them: every use is an edge, and what networkx computes and writes is what the graph says."""

from __future__ import annotations

import io

import networkx as nx
import numpy as np

from autoshard import ops
from autoshard.ir.graph import Graph
from autoshard.trace.function import trace
from tests.ir.test_verify import good


def looped() -> Graph:
    """A loop whose body captures `w`, an input that nothing reads, and an operator with two uses of one value."""

    def run(x, w, unread):
        y = ops.while_loop(lambda v: ops.reduce_sum(v) < 100.0, lambda v: ops.add(ops.matmul(v, w), 1.0), x)
        return ops.mul(y, y), x

    return trace(run, np.ones((2, 3), np.float32), np.ones((3, 3), np.float32), np.ones(5, np.float32)).graph


def test_nodes_and_edges_are_those_of_the_graph():
    for graph in (good(), looped()):
        view = graph.to_networkx()
        kinds = [data["kind"] for _, data in view.nodes(data=True)]
        assert kinds.count("input") == len(graph.inputs)
        assert kinds.count("operator") == len(graph.nodes)
        assert kinds.count("output") == len(graph.outputs)
        assert view.number_of_edges() == sum(len(node.uses) for node in graph.nodes) + len(graph.outputs)
        by_name = {value.name: value for value in graph.values}
        for user in graph.nodes:
            edges = view.in_edges(user.results[0].name, data=True)
            found = {data["operand"]: by_name[data["value"]] for _, _, data in edges}
            assert tuple(found[i] for i in range(len(found))) == user.uses
        assert all(data["bytes"] == by_name[data["value"]].type.nbytes for _, _, data in view.edges(data=True))


def test_networkx_agrees_with_the_graph():
    graph = looped()
    view = graph.to_networkx()
    assert nx.is_directed_acyclic_graph(view)
    loop = next(node for node in graph.nodes if node.regions)
    assert view.has_edge("w", loop.results[0].name), "what a region captures is used by its operator"
    assert list(nx.isolates(view)) == ["unread"]
    position = {key: i for i, key in enumerate(view)}
    assert all(position[one] < position[other] for one, other in view.edges()), "nodes stand in order of execution"


def test_graphml_keeps_everything():
    view = looped().to_networkx()
    file = io.BytesIO()
    nx.write_graphml(view, file)
    file.seek(0)
    back = nx.read_graphml(file, force_multigraph=True)
    assert dict(back.nodes(data=True)) == dict(view.nodes(data=True))
    assert sorted(map(repr, back.edges(data=True))) == sorted(map(repr, view.edges(data=True)))
