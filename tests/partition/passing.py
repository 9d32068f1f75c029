"""What the tests of passes share: small programs by the layouts that their operators run in, programs as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoshard.core.strategy import Strategy, project
from autoshard.core.tensortype import TensorType
from autoshard.cost.instructions import Costs, Setting
from autoshard.ir.graph import Builder, Node
from autoshard.layout import Layout, Mesh
from autoshard.ops.registry import lookup
from autoshard.optimize.pipeline import Run, measure
from autoshard.partition.lower import lower
from autoshard.partition.program import Bundle, Collective, Compute, Instruction, Nest, NestBody, Program, Start, Wait
from autoshard.partition.verify import verify_program
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from costmodel import preset

Step = tuple[str, str, Sequence[str], Mapping[str, Any], Sequence[str]]
"""The result's name, an operator, operands, attributes, and the layout of each operand."""


def program_of(
    mesh: str, inputs: Mapping[str, tuple[Sequence[int], str, str]], steps: Sequence[Step], outputs: Mapping[str, str]
) -> Program:
    """Lowered: inputs are (shape, type, layout), outputs have layouts; operators leave what they leave."""
    over, builder = Mesh.parse(mesh), Builder("small")
    values, layouts, decisions = {}, {}, {}
    for name, (shape, of, layout) in inputs.items():
        values[name] = builder.input(TensorType.of(tuple(shape), of), name)
        layouts[values[name]] = Layout.parse(layout, over)
    for name, op, operands, attrs, wanted in steps:
        found = lookup(op)
        node = builder.add(found, [values[one] for one in operands], found.check_attributes(attrs), name)
        strategy = strategy_of(node, [Layout.parse(text, over) for text in wanted], over)
        decisions[node] = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))
        values[name] = node.results[0]
        values[name].name = name
        layouts[values[name]] = strategy.result_layouts[0]
    graph = builder.build([values[name] for name in outputs])
    ends = tuple(Layout.parse(text, over) for text in outputs.values())
    program = lower(Plan(graph, over, decisions, layouts, ends))
    verify_program(program)
    return program


def strategy_of(node: Node, wanted: Sequence[Layout], mesh: Mesh) -> Strategy:
    """The strategy in which the operands have these layouts."""
    axes: list = [()] * len(node.rule.factors)
    for dims, layout in zip(node.rule.operands, wanted, strict=True):
        axes = [one or other for one, other in zip(axes, project(node.rule, dims, layout), strict=True)]
    carriers = tuple(i for i, layout in enumerate(wanted) if layout.partial)
    carried = wanted[carriers[0]].partial if carriers else ()
    strategy = Strategy(node.rule, mesh, tuple(axes), carried, carriers)
    assert strategy.operand_layouts == tuple(wanted), f"{node} cannot run so: {strategy.operand_layouts}"
    return strategy


def passed(run: Run, program: Program, hardware: str = "cpu") -> Program:
    """The program after a pass: legal, with the same results, and never with more bytes."""
    costs = Costs(preset(hardware).for_ranks(program.mesh.devices))
    made = run(program, Setting(costs))
    verify_program(made)
    assert measure(made, costs).nbytes <= measure(program, costs).nbytes + 1e-6
    comm, rng = LocalComm(program.mesh.devices), np.random.default_rng(7)
    feeds = [drawn(one.true, rng) for one in program.inputs]
    for new, old in zip(Executor(made, comm)(*feeds), Executor(program, comm)(*feeds), strict=True):
        assert new.dtype == old.dtype
        np.testing.assert_allclose(new.astype(np.float64), old.astype(np.float64), rtol=1e-5, atol=1e-5)
    return made


def drawn(of: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers, the sums of which are exact in every type."""
    return rng.integers(-3, 4, of.shape).astype(of.dtype.numpy)


def text(program: Program) -> str:
    """A line for each instruction: results with the shapes of their blocks and layouts, what is done, operands."""
    return "\n".join(_lines(program.instructions, "")) + f"\nreturn {', '.join(one.name for one in program.outputs)}"


def _lines(instructions: Sequence[Instruction], indent: str) -> list[str]:
    found = []
    for one in instructions:
        results = ", ".join(f"{r.name} {r.local.dtype}{list(r.local.shape)} [{r.layout}]" for r in one.results)
        operands = ", ".join(r.name for r in one.operands)
        found.append(
            f"{indent}{results} = {_what(one)} {operands}" if one.results else f"{indent}{_what(one)} {operands}"
        )
        for body in one.bodies if isinstance(one, Nest) else ():
            found += _body(body, indent + "  ")
    return found


def _body(body: NestBody, indent: str) -> list[str]:
    return [*_lines(body.instructions, indent), f"{indent}yield {', '.join(one.name for one in body.outputs)}"]


def _what(one: Instruction) -> str:
    if isinstance(one, Collective):
        return str(one.step)
    if isinstance(one, Bundle):
        return str(one)
    if isinstance(one, Start | Wait):
        begun = one.of if isinstance(one, Start) else one.start.of
        return f"{type(one).__name__.lower()} {_what(begun)}"
    return one.op.name if isinstance(one, Compute) else one.node.op.name
