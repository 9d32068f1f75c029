"""Lowering: a graph and its plan become the program that every rank runs.

Each operator runs on local blocks with local attributes; wherever a value is wanted in another layout than it has, the
redistribution's steps are inserted once per wanted layout, from the nearest copy that already exists. Dims that a
layout does not divide are held padded (`padding.py`); where an operator would see the padding it is overwritten first.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from autoshard.core.rule import Rule
from autoshard.ir.flow import borders, is_nest
from autoshard.ir.graph import Node, Value, walk
from autoshard.ir.trips import trips
from autoshard.layout.layout import Layout
from autoshard.ops.attributes import OperatorPlacement
from autoshard.ops.padding import mask_padding
from autoshard.ops.registry import Operator
from autoshard.partition.composites import decomposition_plan
from autoshard.partition.forms import Form, FormPath, padded_steps
from autoshard.partition.manual import is_manual_collective, manual_collective
from autoshard.partition.masks import masks
from autoshard.partition.padding import padding_of
from autoshard.partition.program import Collective, Compute, Instruction, Nest, NestBody, Program, Register
from autoshard.partition.regions import LOOPS, wanted_outside
from autoshard.partition.windows import Gathered, Rounds, exchange_of
from autoshard.plan.plan import Plan
from autoshard.redistribute.window import WindowStep
from autoshard.util.errors import RedistributeError
from autoshard.util.gc_paused import gc_paused


@gc_paused()
def lower(plan: Plan) -> Program:
    """The per-rank program of a plan.

    Raises:
        RedistributeError: a value cannot be brought into a layout that the plan wants.
    """
    return _Lowering(plan).run()


class _Lowering:
    def __init__(self, plan: Plan) -> None:
        self.decomposition = decomposition_plan(plan)
        self.plan = plan = self.decomposition.plan
        self.instructions: list[Instruction] = []
        self.padding = padding_of(plan)
        self.copies: dict[Value, dict[Form, Register]] = {}
        self.at = 0
        self.names: dict[str, int] = {}
        self.windows: dict[tuple[Register, WindowStep], tuple[list[Instruction], Register]] = {}
        self.manual = 0  # how many manual computations are around
        self.makers = {value: node for node in walk(plan.graph.nodes) for value in node.results}

    def run(self) -> Program:
        graph = self.plan.graph
        inputs = tuple(self.define(value, self.plan.layouts[value]) for value in graph.inputs)
        for self.at, node in enumerate(graph.nodes):
            self.compute(node)
        self.at = len(graph.nodes)
        outputs = tuple(
            self.bring(value, layout, None) for value, layout in zip(graph.outputs, self.plan.outputs, strict=True)
        )
        code = tuple(self.instructions)
        return Program(graph.name, self.plan.mesh, inputs, code, outputs, graph.updates, graph.roles)

    def define(self, value: Value, layout: Layout, shape: tuple[int, ...] | None = None) -> Register:
        """A new register that holds the value, as part of a tensor of `shape` (None: as the program mostly does)."""
        return self.enter(value, Form(layout, shape or self.padding.shape(value, layout)))

    def enter(self, value: Value, form: Form) -> Register:
        register = form.register(self.unique(value.name), value.type)
        self.copies.setdefault(value, {})[form] = register
        return register

    def unique(self, name: str) -> str:
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        return name if count == 0 else f"{name}.{count}"

    def compute(self, node: Node) -> None:
        """Add the instructions of a node: its nest, those of the parts that it runs as, or its own."""
        if is_nest(node):
            self.nest(node)
        elif node in self.decomposition.parts:
            for part in self.decomposition.parts[node]:
                self.compute(part)
        else:
            self.operator(node)

    def operator(self, node: Node) -> None:
        """Bring the operands into the layouts that the node's strategy wants, and run the operator on the blocks."""
        strategy, composite = self.plan.strategy(node), self.decomposition.composites.get(node)
        serves = composite or node
        padded = self.padding.of_node(node, strategy)
        operands = tuple(
            self.bring(value, layout, serves, shape)
            for value, layout, shape in zip(node.operands, strategy.operand_layouts, padded[0], strict=True)
        )
        placement = OperatorPlacement(
            node.operand_types, node.result_types, strategy.operand_layouts, strategy.result_layouts, *padded
        )
        operands = self.mask(node, strategy.rule, operands)
        if strategy.exchanges:
            operands, op, attrs = self.fetched(node, operands, placement)
        else:
            op, attrs = node.op, node.op.local_attributes(node.attrs, placement)
        results = tuple(
            self.define(value, layout, shape)
            for value, layout, shape in zip(node.results, strategy.result_layouts, padded[1], strict=True)
        )
        if is_manual_collective(node):
            self.instructions.append(manual_collective(node, operands, results, self.plan.mesh))
        else:
            self.instructions.append(Compute(op, operands, results, attrs, node, composite))
        for value in node.results:
            self.settle(value, serves)

    def fetched(
        self, node: Node, operands: tuple[Register, ...], placement: OperatorPlacement
    ) -> tuple[tuple[Register, ...], Operator, Mapping[str, Any]]:
        """The operands with what the operator's blocks need of other ranks, and the operator and attributes to run."""
        needs = exchange_of(node.op, node.attrs, placement)
        held = list(operands)
        for operand, step, of in needs.fetches:
            before = held[operand]
            block, known = self.windows.get((before, step), (None, before))
            if block is not self.instructions:  # of another body, or of none
                made = of.with_shape(step.made_shape(of.shape))
                size = step.made_shape(before.true.shape) if before.size else None
                known = Register(self.unique(f"{node.operands[operand].name}.window"), made, step.after, size)
                self.windows[before, step] = self.instructions, known
                self.instructions.append(Collective(step, before, known, node))
            held[operand] = known
        if needs.rounds is not None:
            held += self.rounds(node, held, needs.rounds)
        if needs.gathered is not None:
            held += self.gathered(node, held, needs.gathered)
        return tuple(held), needs.op, needs.attrs

    def rounds(self, node: Node, held: list[Register], rounds: Rounds) -> list[Register]:
        """The state after all turns; before each but the first the moving operands go on by one rank."""
        state: tuple[Register, ...] = ()
        blocks = list(held)
        for number, attrs in enumerate(rounds.ring.turns):
            for operand, step, of in rounds.steps if number else ():
                moved = Register(self.unique(f"{node.operands[operand].name}.ring"), of, step.after)
                self.instructions.append(Collective(step, blocks[operand], moved, node))
                blocks[operand] = moved
            op = rounds.ring.turn if number else rounds.ring.begin
            made = tuple(Register(self.unique(f"{node.label}.state"), of, lies) for of, lies in rounds.state)
            self.instructions.append(Compute(op, (*blocks, *state), made, attrs, node))
            state = made
        return list(state)

    def gathered(self, node: Node, held: list[Register], wanted: Gathered) -> list[Register]:
        """What the blocks of operands come to, of all ranks along the split dim."""
        totals, step = wanted.totals, wanted.step
        name = f"{node.operands[totals.operands[0]].name}.totals"
        pairs = [[Register(self.unique(name), of, layout) for layout in (step.before, step.after)] for of in wanted.of]
        operands, own = tuple(held[i] for i in totals.operands), tuple(one for one, _ in pairs)
        self.instructions.append(Compute(totals.total, operands, own, totals.attrs, node))
        self.instructions += (Collective(step, one, all_of_them, node) for one, all_of_them in pairs)
        return [all_of_them for _, all_of_them in pairs]

    def mask(self, node: Node, rule: Rule, operands: tuple[Register, ...]) -> tuple[Register, ...]:
        """The operands, their padding overwritten where the operator would see it."""
        held = list(operands)
        for i, attrs in masks(node, rule, operands):
            value, register = node.operands[i], operands[i]
            form = Form(register.layout, register.whole.shape, attrs["fill"])
            if form not in self.copies[value]:
                masked = self.enter(value, form)
                self.instructions.append(Compute(mask_padding, (register,), (masked,), attrs, node))
            held[i] = self.copies[value][form]
        return tuple(held)

    def settle(self, value: Value, node: Node) -> None:
        """Bring a result into the layout the plan pins it to (an out_strategy), and start from there ever after."""
        pinned = self.bring(value, self.plan.layouts[value], node)
        self.copies[value] = {Form(pinned.layout, pinned.whole.shape): pinned}

    # -- nodes with regions

    def nest(self, node: Node) -> None:
        """Append the instruction of a node with regions, and what brings its operands there."""
        strategy = self.plan.strategy(node)
        if node.op.name in LOOPS:
            for region in node.regions:
                for value, layout, user in wanted_outside(self.plan, node, region):
                    self.bring(value, layout, user)
        held, pairs = self.padding.of_manual, zip(node.operands, strategy.operand_layouts, strict=True)
        entering = tuple(self.bring(value, layout, node, held(node, value, layout)) for value, layout in pairs)
        self.manual += node.op.name == "ManualComputation"
        bodies = tuple(self.body(node, i) for i in range(len(node.regions)))
        self.manual -= node.op.name == "ManualComputation"
        pairs = zip(node.results, strategy.result_layouts, strict=True)
        results = tuple(self.define(value, layout, held(node, value, layout)) for value, layout in pairs)
        count = max(1, trips(node, self.makers)) if node.op.name in LOOPS else 1
        self.instructions.append(Nest(node, entering, results, bodies, self.manual > 0, count))
        for value in node.results:
            self.settle(value, node)

    def body(self, node: Node, placement: int) -> NestBody:
        """One region, in a list of instructions and with copies of values of its own."""
        region, border = node.regions[placement], borders(node, self.plan.strategy(node), placement)
        outside, copies = self.instructions, self.copies
        self.instructions, self.copies = [], {value: dict(held) for value, held in copies.items()}
        args = tuple(self.define(value, layout) for value, layout in zip(region.args, border.args, strict=True))
        for value in region.args:
            self.settle(value, node)
        for one in region.nodes:
            self.compute(one)
        ends = zip(region.outputs, border.yields, strict=True)
        outputs = tuple(self.bring(value, layout, node) for value, layout in ends)
        body = NestBody(args, tuple(self.instructions), outputs)
        self.instructions, self.copies = outside, copies
        return body

    # -- values in layouts

    def bring(
        self, value: Value, layout: Layout, serves: Node | None, shape: tuple[int, ...] | None = None
    ) -> Register:
        """The register that holds the value in this layout, made from the nearest copy if there is none yet.

        Args:
            serves: who wants it (None: a graph output).
            shape: as part of which padded tensor it is wanted; None as the program mostly holds it.
        """
        copies = self.copies[value]
        wanted = Form(layout, shape or self.padding.shape(value, layout))
        if wanted in copies:
            return copies[wanted]
        try:
            way = self.nearest(value, wanted)
        except RedistributeError as error:
            user = "a graph output" if serves is None else f"{serves.label} ({serves.op.name})"
            raise RedistributeError(f"{error}; {value.name} for {user}") from None
        register = copies[way.start]
        for step, form in way.steps:
            if not self.is_kept(value, form):
                result = self.enter(value, form)
                self.instructions.append(Collective(step, register, result, serves))
            register = copies[form]
        return register

    def nearest(self, value: Value, wanted: Form) -> FormPath:
        """The copy from which the form is reached with the fewest bytes, and the steps."""
        starts = [start for start in self.copies[value] if self.is_kept(value, start)] or self.copies[value]
        ways = [padded_steps(start, wanted, value.type.shape) for start in starts]
        return min(ways, key=lambda way: (way.moved, len(way.steps)))

    def is_kept(self, value: Value, form: Form) -> bool:
        """Whether there is such a copy that a later operator of the plan wants: others are let go, so that memory is
        what the plan says, and are not begun from."""
        if form not in self.copies[value]:
            return False
        return form.layout is self.plan.layouts[value] or self.last_wants.get((value, form.layout), -1) >= self.at

    @cached_property
    def last_wants(self) -> dict[tuple[Value, Layout], int]:
        """Where in the graph a value is wanted in a layout for the last time, by the place of the (outermost) node."""
        graph, found = self.plan.graph, {}
        for i, outermost in enumerate(graph.nodes):
            for node in walk((outermost,)):
                wanted = zip(node.operands, self.plan.strategy(node).operand_layouts, strict=True)
                found.update(dict.fromkeys(wanted, i))
        wanted = zip(graph.outputs, self.plan.outputs, strict=True)
        return {**found, **dict.fromkeys(wanted, len(graph.nodes))}
