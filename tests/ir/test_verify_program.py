"""The laws of programs: what lowering makes passes, each broken law is found and named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.place import parse_strategy
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import PARAMETER, Builder, Source
from autoshard.layout import Layout, Mesh
from autoshard.ops.attributes import Literal
from autoshard.ops.registry import lookup
from autoshard.partition.lower import lower
from autoshard.partition.program import Collective, Compute, Program, Register
from autoshard.partition.verify import verify_program
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.redistribute.planner import plan_steps
from autoshard.redistribute.step import Step
from autoshard.util.errors import GraphError, RedistributeError

MESH = Mesh(a=2, b=3)
HERE = Source("train.py", 33, "y = matmul(x, w)")
X = TensorType.of((24, 12))


def program() -> Program:
    """A product whose inner dim is split, so that its result is summed, and a weight that is replaced."""
    builder = Builder("net")
    x = builder.input(X, "x")
    w = builder.input(TensorType.of((12, 10)), "w", PARAMETER)
    op = lookup("MatMul")
    y = builder.add(op, [x, w], op.check_attributes({}), "matmul", HERE).results[0]
    new = builder.add(lookup("Neg"), [w], {}, "neg").results[0]
    graph = builder.build([y, new], {1: 1})
    matmul, neg = graph.nodes
    by_node = {
        matmul: parse_strategy(matmul.rule, ((2, 3), (3, 1)), MESH, [(24, 12), (12, 10)], "matmul"),
        neg: parse_strategy(neg.rule, ((3, 2),), MESH, [(12, 10)], "neg"),
    }
    layouts = {x: Layout.replicated(MESH, 2), w: by_node[matmul].operand_layouts[1]}
    layouts.update({y: by_node[matmul].result_layouts[0], new: by_node[neg].result_layouts[0]})
    decisions = {node: Decision(Option(one, 0.0, 0.0, 0.0), Cause(CONFIGURED)) for node, one in by_node.items()}
    return lower(Plan(graph, MESH, decisions, layouts, (layouts[y].final(), layouts[w])))


GOOD = program()


def layout(text: str, mesh: Mesh = MESH) -> Layout:
    return Layout.parse(text, mesh)


def swap(place: int, **fields: object) -> Program:
    """The program with one instruction changed."""
    made = replace(GOOD.instructions[place], **fields)  # type: ignore[type-var]
    return replace(GOOD, instructions=(*GOOD.instructions[:place], made, *GOOD.instructions[place + 1 :]))


def renamed(old: Register, new: Register) -> Program:
    """The program with a register replaced wherever it stands."""

    def move(registers: tuple[Register, ...]) -> tuple[Register, ...]:
        return tuple(new if one is old else one for one in registers)

    def change(one: Compute | Collective) -> Compute | Collective:
        if isinstance(one, Compute):
            return replace(one, operands=move(one.operands), results=move(one.results))
        return replace(one, operand=move(one.operands)[0], result=move(one.results)[0])

    return replace(GOOD, instructions=tuple(map(change, GOOD.instructions)), outputs=move(GOOD.outputs))


def place_of(kind: type, step: str = "") -> int:
    return next(
        i
        for i, one in enumerate(GOOD.instructions)
        if isinstance(one, kind) and (not step or isinstance(one, Collective) and one.step.kind == step)
    )


MATMUL, SLICE, REDUCE = place_of(Compute), place_of(Collective, "slice"), place_of(Collective, "all_reduce")
STRAY = Register("stray", X, layout("a, b"))
OTHER_MESH = Register("x", X, layout("c, -", Mesh(c=6)))
PRODUCT = GOOD.instructions[MATMUL]
SUM = GOOD.instructions[REDUCE]
assert isinstance(PRODUCT, Compute) and isinstance(SUM, Collective)
HELD = PRODUCT.results[0]


def test_a_lowered_program_passes() -> None:
    verify_program(GOOD)


BROKEN = {
    "use before definition": (
        swap(MATMUL, operands=(STRAY, PRODUCT.operands[1])),
        r"matmul \(MatMul\) at train.py:33: register 'stray' is not defined before it",
    ),
    "defined twice": (swap(MATMUL, results=(GOOD.inputs[0],)), "register 'x' is defined twice"),
    "name twice": (
        swap(MATMUL, results=(Register("w", HELD.whole, HELD.layout),)),
        "at train.py:33: register 'w' is defined twice",
    ),
    "other mesh": (
        replace(GOOD, inputs=(OTHER_MESH, GOOD.inputs[1])),
        "'x' lies on mesh 'c=6', the program on 'a=2 b=3'",
    ),
    "layout of other rank": (
        replace(GOOD, inputs=(Register("x", X, layout("a")), GOOD.inputs[1])),
        r"layout \[a\] of 'x' does not fit f32\[24, 12\]",
    ),
    "local type": (
        renamed(HELD, Register("y", HELD.whole, layout("-, - +b"))),
        r"on rank 0: from the blocks .*makes \(f32\[12, 10\]\), but its result registers hold \(f32\[24,",
    ),
    "local operands": (
        swap(MATMUL, operands=(GOOD.inputs[0], PRODUCT.operands[1])),
        r"matmul \(MatMul\) at train.py:33 on rank 0: MatMul",
    ),
    "step of other layouts": (
        swap(REDUCE, step=replace(SUM.step, after=layout("a.b, -"))),
        r"the step goes from \[a, - \+b\] to \[a.b, -\], its registers from \[a, - \+b\] to \[a, -\]",
    ),
    "another type": (
        renamed(SUM.result, Register("r", TensorType.of((24, 5)), SUM.step.after)),
        r"makes f32\[24, 5\] out of f32\[24, 10\]",
    ),
    "unknown kind": (swap(REDUCE, step=replace(SUM.step, kind="broadcast")), "unknown kind 'broadcast'"),
    "wrong kind": (swap(REDUCE, step=replace(SUM.step, kind="keep")), r"such a step cannot make \[a, -\]"),
    "wrong axes": (
        swap(REDUCE, step=replace(SUM.step, axes=MESH.all_axes)),
        "all_reduce over=a.b .*cannot make",
    ),
    "wrong dim": (
        swap(SLICE, step=replace(GOOD.instructions[SLICE].step, dim=0)),  # type: ignore[union-attr]
        r"slice over=b dim=0 of x for matmul \(MatMul\) at train.py:33: such a step cannot make",
    ),
    "stray output": (replace(GOOD, outputs=(STRAY, GOOD.outputs[1])), "output 0, 'stray', is never defined"),
    "update of nothing": (replace(GOOD, updates={1: 2}), "it has 2 inputs and 2 outputs"),
    "update of another type": (replace(GOOD, updates={0: 1}), "type and layout must be equal"),
    "update in another layout": (
        replace(GOOD, outputs=(GOOD.outputs[0], GOOD.instructions[-2].results[0])),
        "type and layout must be equal",
    ),
}  # fmt: skip


@pytest.mark.parametrize("law", BROKEN)
def test_a_broken_law_is_named(law: str) -> None:
    made, message = BROKEN[law]
    with pytest.raises(GraphError, match=message):
        verify_program(made)


LAYOUTS = [
    layout(text, mesh)
    for mesh in (Mesh(a=2, b=3, c=2), Mesh.flat(12))
    for text in (
        ("-, -", "a, -", "-, a", "a.b, -", "a, b", "b, a +c", "c.b, -", "- , c.a", "-, - +a.b", "b, - max c")
        if mesh.axes[0][0] == "a"
        else ("-, -", "d, -", "d:(1)2, d:(2)6", "d:(2)6, -", "-, d:(6)2 +d:(1)6", "d:(4)3, d:(1)4")
    )
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS))
def test_every_step_that_the_planner_makes_is_legal(before: Layout, after: Layout) -> None:
    if before.mesh is not after.mesh:
        return
    try:
        steps = plan_steps(before, after, X.shape)
    except RedistributeError:
        return
    first = register = Register("x", X, before)
    instructions = []
    for i, step in enumerate(steps):
        result = Register(f"x.{i}", X, step.after)
        instructions.append(Collective(step, register, result, None))
        register = result
    verify_program(Program("steps", before.mesh, (first,), tuple(instructions), (register,)))


@pytest.mark.parametrize(
    "kind", ["slice", "keep", "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "permute"]
)
def test_a_step_that_does_nothing_is_illegal(kind: str) -> None:
    same = layout("a, -")
    before, after = Register("x", X, same), Register("y", X, same)
    step = Step(kind, same, same, (MESH.axis("b"),), 0, 1)
    made = Program("steps", MESH, (before,), (Collective(step, before, after, None),), (after,))
    if kind == "permute":
        verify_program(made)  # a relabeling that moves no block
        return
    with pytest.raises(GraphError, match="such a step cannot make"):
        verify_program(made)


CASES = {
    "Constant": ([], {"value": Literal(np.full((12, 10), 1.5, np.float32))}),
    "OneHot": ([TensorType.of((24,), "i32")], {"depth": 12}),
    "Softmax": ([X], {}),
    "MatMul": ([X, TensorType.of((10, 12))], {"transpose_b": True}),
}


@pytest.mark.parametrize("mesh", [MESH, Mesh.flat(6)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_strategy_of_an_operator_lowers_to_a_legal_program(name: str, mesh: Mesh) -> None:
    types, attrs = CASES[name]
    op = lookup(name)
    builder = Builder(name)
    inputs = [builder.input(of, f"x{i}") for i, of in enumerate(types)]
    node = builder.add(op, inputs, op.check_attributes(attrs))
    graph = builder.build(node.results)
    for strategy in enumerate_strategies(node.rule, mesh):
        layouts = {value: Layout.replicated(mesh, value.type.rank) for value in inputs}
        layouts.update(zip(node.results, strategy.result_layouts, strict=True))
        decision = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))
        outputs = tuple(one.final() for one in strategy.result_layouts)
        verify_program(lower(Plan(graph, mesh, {node: decision}, layouts, outputs)))
