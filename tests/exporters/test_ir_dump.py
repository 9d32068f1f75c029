"""Dumps of plans and programs: golden texts, the tutorial's strategies, a rank's own part."""

from __future__ import annotations

import re
from pathlib import Path

import ffn_case
import golden
import numpy as np
import pytest

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.exporters.ir_dump import dump_begin, dump_program, save_graphs
from autoshard.exporters.ir_parse import DumpNode, DumpReturn, parse_dump, show_dump
from autoshard.ir.graph import PARAMETER, STATE, Builder, Graph
from autoshard.ir.text import show
from autoshard.ir.verify import verify
from autoshard.layout import Layout, Mesh
from autoshard.ops.attributes import Literal
from autoshard.partition.lower import lower
from autoshard.partition.program import Collective, Program, Register
from autoshard.partition.verify import verify_program
from autoshard.plan.plan import CONFIGURED, Cause, Decision, Option, Plan
from autoshard.redistribute.step import Step
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.util.errors import PlanError

EIGHT = Mesh.flat(8)
PLAN = ffn_case.plan_by_hand(ffn_case.ffn(), EIGHT, ffn_case.TUTORIAL, ["dense1.matmul"])
GRID = Mesh(a=2, b=3)


def chain(mesh: Mesh, of: TensorType, start: str, *steps: tuple) -> Program:
    """A program of steps alone, one after the other: (kind, layout after, axes, dim, to_dim)."""
    register = first = Register("x", of, Layout.parse(start, mesh))
    instructions = []
    for i, (kind, text, axes, *dims) in enumerate(steps):
        after = Layout.parse(text, mesh)
        refs = tuple(mesh.ref(name) for name in axes.split("."))
        result = Register(f"x.{i + 1}", of, after)
        instructions.append(Collective(Step(kind, register.layout, after, refs, *dims), register, result, None))
        register = result
    return Program("steps", mesh, (first,), tuple(instructions), (register,))


STEPS = chain(
    Mesh(a=2, b=3, c=2),
    TensorType.of((24, 12)),
    "-, -",
    ("slice", "a, -", "a", 0),
    ("keep", "a, - +b", "b"),
    ("reduce_scatter", "a, b", "b", 1),
    ("all_to_all", "a.b, -", "b", 0, 1),
    ("permute", "c.b, -", "a.c"),
    ("all_gather", "c, -", "b", 0),
    ("keep", "c, - +a.b", "a.b"),
    ("all_reduce", "c, -", "a.b"),
)


def training_graph() -> Graph:
    """A weight that is replaced, a counter, and an operator with two results."""
    builder = Builder("update")
    x = builder.input(TensorType.of((24, 10)), "x")
    w = builder.input(TensorType.of((10, 12)), "w", PARAMETER)
    step = builder.input(TensorType.of((), "i32"), "steps done", STATE)
    y = ffn_case.add(builder, "MatMul", [x, w], "matmul")
    ffn_case.add(builder, "Split", [y], "split", axis=1, output_num=2)
    low, high = builder.nodes[-1].results
    loss = ffn_case.add(builder, "Mul", [low, high], "mul")
    new = ffn_case.add(builder, "Add", [w, w], "add")
    return builder.build([loss, new, step], {1: 1, 2: 2})


UPDATE = {
    "matmul": ((3, 1), (1, 2)),
    "split": ((3, 1),),
    "mul": ((3, 1), (3, 1)),
    "add": ((1, 2), (1, 2)),
}


def test_golden_tutorial_network() -> None:
    program = lower(PLAN)
    verify(PLAN.graph)
    verify_program(program)
    golden.check("ffn_graph.txt", show(PLAN.graph))
    golden.check("ffn_step_parallel_begin.ir", dump_begin(PLAN))
    golden.check("ffn_validate_rank5.ir", dump_program(program, 5, PLAN))


def test_golden_of_every_step() -> None:
    verify_program(STEPS)
    golden.check("steps_rank4.ir", dump_program(STEPS, 4))
    kinds = {one.step.kind for one in STEPS.instructions}
    assert len(kinds) == 7, "the case is there to show all kinds of steps"
    x = np.arange(288, dtype=np.float32).reshape(24, 12)
    np.testing.assert_array_equal(Executor(STEPS, LocalComm(12))(x)[0], x)


def test_golden_of_an_update() -> None:
    graph = training_graph()
    verify(graph)
    plan = ffn_case.plan_by_hand(graph, Mesh(a=2, b=3), UPDATE)
    program = lower(plan)
    verify_program(program)
    golden.check("update_begin.ir", dump_begin(plan))
    golden.check("update_rank3.ir", dump_program(program, 3, plan))
    without_plan = parse_dump(dump_program(program, 3))
    assert [one.type.head[:3] for one in without_plan.parameters] == ["Ten", "Ref", "Ref"]


def test_begin_has_the_tutorials_strategies_and_form() -> None:
    mine = parse_dump(dump_begin(PLAN)).nodes
    theirs = parse_dump(golden.read("tutorial_step_parallel_begin.ir")).nodes
    for got, want in zip([n for n in mine if n.op != "Load"], [n for n in theirs if n.op != "Load"], strict=True):
        assert (got.op, got.in_strategy, got.operand_types, got.result_types) == (
            want.op, want.in_strategy, want.operand_types, want.result_types,
        )  # fmt: skip
        assert got.attr("in_strategy") == want.attr("in_strategy")


def test_validate_has_the_tutorials_local_shapes_and_scatters_where_it_reduces_and_slices() -> None:
    mine = parse_dump(dump_program(lower(PLAN), 0, PLAN)).nodes
    theirs = parse_dump(golden.read("tutorial_validate.ir")).nodes
    local = {"Load", "StridedSlice", "AllReduce", "ReduceScatter"}

    def shapes(nodes: tuple[DumpNode, ...]) -> list:
        return [(one.op, one.operand_types, one.result_types) for one in nodes if one.op not in local]

    assert shapes(mine) == shapes(theirs)
    (scatter,) = [one for one in mine if one.op == "ReduceScatter"]
    (reduce,) = [one for one in theirs if one.op == "AllReduce"]
    assert scatter.attr("group_ranks") == reduce.attr("group_ranks") == "0-1-2-3"
    assert scatter.attr("op") == "sum" and scatter.attr("dim") == 1
    assert re.fullmatch(r"4-\d+", str(scatter.attr("group")))
    assert re.fullmatch(r"forward_op_\d+", str(scatter.instance))


@pytest.mark.parametrize(("program", "plan"), [(lower(PLAN), PLAN), (STEPS, None)], ids=["ffn", "steps"])
def test_each_rank_reads_its_own_part(program: Program, plan: Plan | None) -> None:
    communicating = [one for one in program.instructions if isinstance(one, Collective)]
    sends: dict[str, set] = {}
    for rank in range(program.mesh.devices):
        text = dump_program(program, rank, plan)
        dump = parse_dump(text)
        assert show_dump(dump) == text
        nodes = [one for one in dump.nodes if one.attr("axes") is not None]
        for node, one in zip(nodes, communicating, strict=True):
            assert node.result_types[0].tensor == one.result.local
            if node.op == "StridedSlice":
                begin, end = node.operands[1:3]
                block = one.result.layout.block(rank, one.result.whole.shape)
                assert [(s.start, s.stop) for s in block] == list(zip(begin, end, strict=True))
                continue
            ranks = [int(word) for word in str(node.attr("group_ranks")).split("-")]
            assert ranks == one.step.groups.members(rank).tolist() and rank in ranks
            if node.op == "CollectivePermute":
                sends.setdefault("send", set()).add((rank, node.attr("dest_rank")))
                sends.setdefault("receive", set()).add((node.attr("src_rank"), rank))
    if program is STEPS:
        assert sends["send"] == sends["receive"] and len(sends["send"]) == 12


def test_numbers_of_instances_differ_and_groups_are_named_alike() -> None:
    nodes = [parse_dump(dump_program(STEPS, rank)).nodes for rank in (1, 4)]
    names = [node.instance for one in nodes for node in one if node.op != "StridedSlice"]
    assert len(set(names)) == len(names)
    by_ranks = {}
    for node in (node for one in nodes for node in one if node.attr("group")):
        by_ranks.setdefault(node.attr("group_ranks"), set()).add(node.attr("group"))
    assert all(len(groups) == 1 for groups in by_ranks.values())
    assert len(set.union(*by_ranks.values())) == len(by_ranks)


def test_rank_dependent_attributes_are_numbers() -> None:
    builder = Builder("table")
    ffn_case.add(builder, "Constant", [], "table", value=Literal(np.arange(60).reshape(6, 10)))
    graph = builder.build(builder.nodes[0].results)
    node = graph.nodes[0]
    strategy = Strategy(node.rule, GRID, ((GRID.axis("b"),), (GRID.axis("a"),)))
    decision = Decision(Option(strategy, 0.0, 0.0, 0.0), Cause(CONFIGURED))
    layout = strategy.result_layouts[0]
    plan = Plan(graph, GRID, {node: decision}, {node.results[0]: layout}, (layout,))
    program = lower(plan)
    verify_program(program)
    for rank in range(6):
        (made,) = parse_dump(dump_program(program, rank, plan)).nodes
        assert made.attr("start") == (rank % 3 * 2, rank // 3 * 5) and made.attr("shape") == (2, 5)
        assert made.attr("value") == "Tensor[6, 10]"


def test_names_and_sources_cannot_break_the_form() -> None:
    builder = Builder("odd (net)")
    x = builder.input(TensorType.of((4, 6)), "x, {y}")
    source = ffn_case.Source("a b.py", 3, 'y = relu(x)  # {"in_strategy": (1)} /')
    y = ffn_case.add(builder, "ReLU", [x], "re(lu) {0}", source)
    graph = builder.build([y])
    plan = ffn_case.plan_by_hand(graph, GRID, {"re(lu) {0}": ((2, 3),)})
    for text in (dump_begin(plan), dump_program(lower(plan), 5, plan)):
        dump = parse_dump(text)
        assert show_dump(dump) == text
        assert dump.nodes[-1].source.text.strip() == source.text
        assert isinstance(dump.body[-1], DumpReturn)


def test_files_of_all_ranks(tmp_path: Path) -> None:
    program = lower(PLAN)
    paths = save_graphs(PLAN, program, tmp_path / "graphs")
    names = ["02_validate_0002.ir", "step_parallel_begin_0000.ir", "step_parallel_end_0001.ir"]
    for rank in range(8):
        folder = tmp_path / "graphs" / f"rank_{rank}"
        assert sorted(path.name for path in folder.iterdir()) == names, "no temporary file may stay"
        assert (folder / names[0]).read_text() == dump_program(program, rank, PLAN)
        assert (folder / names[1]).read_text() == dump_begin(PLAN)
    assert len(paths) == 24 and all(path.exists() for path in paths)


def test_files_of_chosen_ranks_and_next_serial(tmp_path: Path) -> None:
    paths = save_graphs(PLAN, lower(PLAN), tmp_path, ranks=[3], serial=7)
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "rank_3/step_parallel_begin_0007.ir",
        "rank_3/step_parallel_end_0008.ir",
        "rank_3/09_validate_0009.ir",
    ]


def test_there_is_no_dump_of_a_rank_that_does_not_exist() -> None:
    with pytest.raises(PlanError, match="program 'ffn' has no rank 8 to dump; its ranks are 0..7"):
        dump_program(lower(PLAN), 8, PLAN)


def test_old_values_are_loaded_before_they_are_replaced() -> None:
    builder = Builder("swap")
    a = builder.input(TensorType.of((4, 6)), "a", PARAMETER)
    b = builder.input(TensorType.of((4, 6)), "b", PARAMETER)
    graph = builder.build([b, a, a], {0: 0, 1: 1})
    plan = ffn_case.plan_by_hand(graph, GRID, {})
    nodes = parse_dump(dump_begin(plan)).nodes
    assert [one.op for one in nodes] == ["Load", "Load", "Assign", "Assign"]
    assert [one.operands for one in nodes[2:]] == [("%para1_a", "%0", "U"), ("%para2_b", "%1", "U")]
