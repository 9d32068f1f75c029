"""The program of a graph on one device: what pieces compute of whole values."""

from __future__ import annotations

from dataclasses import replace

from autoshard.api import DEFAULT_SEARCH
from autoshard.ir.graph import DATA, Graph
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Program
from autoshard.search import find_mode
from autoshard.search.problem import Problem
from autoshard.search.program_price import program_of
from costmodel import preset


def one_device_program(graph: Graph) -> Program:
    """The program of a graph of planned operators (see `planned_graph`) on one device, on which nothing is split."""
    graph = replace(graph, roles=(DATA,) * len(graph.inputs), updates={}, cotangents={})
    hardware = preset("cpu").for_ranks(1)
    return program_of(find_mode(DEFAULT_SEARCH)(Problem(graph, Mesh.flat(1), hardware)), hardware, ())[0]
