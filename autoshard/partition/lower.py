"""Lowering: a graph and its plan become the program that every rank runs.

Each operator runs on local blocks with local attributes; wherever a value is wanted in another layout than it has, the
redistribution's steps are inserted once per wanted layout, from the nearest copy that already exists.
"""

from __future__ import annotations

from autoshard.errors import RedistributeError
from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Layout
from autoshard.ops.registry import Place
from autoshard.partition.program import Collective, Compute, Instruction, Program, Register
from autoshard.plan import Plan
from autoshard.redistribute.planner import plan_steps
from autoshard.redistribute.step import Step


def lower(plan: Plan) -> Program:
    """The per-rank program of a plan.

    Raises:
        RedistributeError: a value cannot be brought into a layout that the plan wants.
    """
    return _Lowering(plan).run()


class _Lowering:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.instructions: list[Instruction] = []
        self.copies: dict[Value, dict[Layout, Register]] = {}
        self.names: dict[str, int] = {}

    def run(self) -> Program:
        graph = self.plan.graph
        inputs = tuple(self.define(value, self.plan.layouts[value]) for value in graph.inputs)
        for node in graph.nodes:
            self.compute(node)
        outputs = tuple(
            self.bring(value, layout, None) for value, layout in zip(graph.outputs, self.plan.outputs, strict=True)
        )
        return Program(graph.name, self.plan.mesh, inputs, tuple(self.instructions), outputs, graph.updates)

    def define(self, value: Value, layout: Layout) -> Register:
        register = Register(self.unique(value.name), value.type, layout)
        self.copies.setdefault(value, {})[layout] = register
        return register

    def unique(self, name: str) -> str:
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        return name if count == 0 else f"{name}.{count}"

    def compute(self, node: Node) -> None:
        strategy = self.plan.strategy(node)
        operands = tuple(
            self.bring(value, layout, node)
            for value, layout in zip(node.operands, strategy.operand_layouts, strict=True)
        )
        place = Place(node.operand_types, node.result_types, strategy.operand_layouts, strategy.result_layouts)
        attrs = node.op.local_attributes(node.attrs, place)
        results = tuple(
            self.define(value, layout) for value, layout in zip(node.results, strategy.result_layouts, strict=True)
        )
        self.instructions.append(Compute(node.op, operands, results, attrs, node))
        for value in node.results:
            self.settle(value, node)

    def settle(self, value: Value, node: Node) -> None:
        """Bring a result into the layout the plan pins it to (an out_strategy), and start from there ever after."""
        pinned = self.bring(value, self.plan.layouts[value], node)
        self.copies[value] = {pinned.layout: pinned}

    def bring(self, value: Value, layout: Layout, serves: Node | None) -> Register:
        """The register that holds the value in this layout, made from the nearest copy if there is none yet."""
        copies = self.copies[value]
        if layout in copies:
            return copies[layout]
        try:
            start, steps = self.nearest(value, layout)
        except RedistributeError as error:
            user = "a graph output" if serves is None else f"{serves.label} ({serves.op.name})"
            raise RedistributeError(f"{error}; {value.name} for {user}") from None
        register = copies[start]
        for step in steps:
            if step.after not in copies:
                result = self.define(value, step.after)
                self.instructions.append(Collective(step, register, result, serves))
            register = copies[step.after]
        return register

    def nearest(self, value: Value, layout: Layout) -> tuple[Layout, tuple[Step, ...]]:
        """The copy from which the layout is reached with the fewest bytes, and the steps."""
        shape = value.type.shape
        ways = [(start, plan_steps(start, layout, shape)) for start in self.copies[value]]
        return min(ways, key=lambda way: (sum(step.elements_moved(shape) for step in way[1]), len(way[1])))
