"""The program of a graph on one device, where no search splits anything."""

from __future__ import annotations

from dataclasses import replace

from autoshard.ir.graph import DATA, Graph
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Program
from autoshard.search import find_mode
from autoshard.search.problem import Problem
from autoshard.search.program_price import program_of
from costmodel import preset


def one_device_program(graph: Graph) -> Program:
    """The program of a graph of planned operators (see `transform.planned_graph`), whose values are whole there."""
    graph = replace(graph, roles=(DATA,) * len(graph.inputs), updates={}, cotangents={})
    hardware = preset("cpu").for_ranks(1)
    return program_of(find_mode("bfs")(Problem(graph, Mesh.flat(1), hardware)), hardware, ())[0]
