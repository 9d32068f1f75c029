"""The text of one exported module: programs as functions of torch, and what a plan says of them at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoshard.engines.check import check_runs
from autoshard.engines.code import CARRIED, CodeWriter, taken_by
from autoshard.engines.grid import Axes
from autoshard.engines.groups import AxisPieces
from autoshard.engines.kernels import kernels_of
from autoshard.ir.graph import DATA, Graph, Node, Value
from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Program
from autoshard.search import find_mode
from autoshard.search.problem import Problem
from autoshard.search.program_price import program_of
from autoshard.transform.planned_graph import planned_graph
from costmodel import Hardware

RUNTIME = (*CARRIED["torch"], "standalone_stages", "standalone_stages_torch", "standalone_stages_run")
"""The files that `stages_runtime.py` carries, each before those that need it."""
_OF_RUNTIME = (
    "BoundaryValue", "ExportedRoute", "ExportedStage", "Grid", "RowsPart", "SentBox", "StageCode", "StageInput",
    "StageOutput", "StagesPlan", "StepOutput", "aten", "constant",
)  # fmt: skip


@dataclass(frozen=True)
class WholePart:
    """What every rank computes by itself, of whole values."""

    graph: Graph
    says: str = "what every rank makes of the whole data before the micro batches"

    @classmethod
    def of(cls, name: str, nodes: Sequence[Node], outputs: Sequence[Value] | None = None) -> WholePart | None:
        """The part of these nodes, with all that they make or these outputs; None of no nodes."""
        made = tuple(value for node in nodes for value in node.results)
        inside = set(made)
        read = tuple(dict.fromkeys(value for node in nodes for value in node.uses if value not in inside))
        return cls(Graph(name, read, tuple(nodes), tuple(outputs or made), (DATA,) * len(read))) if nodes else None

    def program(self, hardware: Hardware) -> Program:
        """It on one device."""
        graph = planned_graph(self.graph, {})[0]
        plan = find_mode("sharding_propagation")(Problem(graph, Mesh.flat(1), hardware))
        return program_of(plan, hardware, ())[0]


class ModuleText:
    """Programs as functions of one module."""

    def __init__(self, programs: Mapping[str, Program], cuts: AxisPieces) -> None:
        self.writers: list[CodeWriter] = []
        self.bodies: list[list[str]] = []
        taken = {*taken_by(RUNTIME), *programs, "STAGE", "FROM_DATA", "LOSS"}
        for entry, program in programs.items():
            check_runs(program, kernels_of("torch"))
            before = self.writers[-1] if self.writers else None
            self.writers.append(CodeWriter(program, "torch", taken, cuts, entry, before))
            self.bodies.append(self.writers[-1].body())

    @property
    def over(self) -> dict[Axes, None]:
        """The axes over which ranks talk to each other."""
        return self.writers[-1].over

    def text(self, head: str, plan: Sequence[str]) -> str:
        """The module, with what a plan says of it at the end."""
        last = self.writers[-1]
        tables = [f"{name} = {value!r}" for value, name in last.tables.items()]
        functions = [text for _, text in last.functions.values()]
        lines = [head, "", "from __future__ import annotations", "", "import torch", ""]
        lines += [f"from stages_runtime import {', '.join(_OF_RUNTIME)}", *([""] if tables else []), *tables]
        for body in self.bodies:
            lines += ["", "", *body]
        lines += ["", "", "# -- operators", *(f"\n\n{text}" for text in functions), "", "", *plan, ""]
        return "\n".join(lines)
