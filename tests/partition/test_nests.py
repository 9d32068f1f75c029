"""Loops, branches and manual computations run split as they run whole: planned by every mode, on virtual ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoshard import Parameter, nn, ops
from autoshard.api import plan
from autoshard.exporters.ir_dump import dump_begin, dump_program
from autoshard.exporters.ir_parse import parse_dump, show_dump
from autoshard.ir.flow import borders, is_nest
from autoshard.ir.graph import walk
from autoshard.ir.trips import ASSUMED_TRIPS, trips
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import GroupList, Groups, Mesh
from autoshard.partition.manual import grouped
from autoshard.partition.program import Collective, ManualCollective, Nest, NestBody, Program, timed
from autoshard.partition.program import walk as instructions
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.search.flat import CARRIED, flat
from autoshard.trace.evaluate import evaluate
from autoshard.trace.function import trace
from autoshard.util.errors import GraphError, PlanError, RuntimeSetupError
from tests.search.plans import array, checked

MODES = ("factor", "bfs", "batch", "sharding_propagation")
MESHES = ("dp=2 tp=4", "8", "a=2 b=2 c=2", "a=3 b=2")
MESH = Mesh(dp=2, tp=4)
X, W = array(8, 12), array(12, 12) / 4


class Looping(nn.Cell):
    """A loop over a weight that it captures, around a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(W, name="w")
        self.matmul = ops.MatMul()

    def construct(self, x):
        def body(carried):
            count, x = carried
            y = ops.tanh(self.matmul(x, self.w))
            return count + 1, ops.cond(y.sum() > 0, lambda: y + x, lambda: y - x.sum(0, keepdims=True))

        return ops.while_loop(lambda carried: carried[0] < 5, body, (0, x))[1] * 2


class Deciding(nn.Cell):
    """A loop that ends when data say so, over values that swap places; an inner loop; a switch."""

    def construct(self, x, i):
        def body(pair):
            a, b = pair
            inner = ops.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, ops.tanh(s[1])), (0, b))[1]
            return inner, a * 0.5

        a, b = ops.while_loop(lambda pair: ops.reduce_sum(pair[0] * pair[0]) > 1.0, body, (x, x + 1.0))
        return ops.switch(i, [lambda: a + b, lambda: a * 2.0, lambda: b.sum(1, keepdims=True) + a])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mesh", MESHES)
def test_loops_and_branches(mesh, mode):
    checked(Looping(), [X], mesh, search=mode)
    for i in range(4):
        checked(Deciding(), [X, np.int32(i)], mesh, search=mode)


@pytest.mark.parametrize("mode", ("bfs", "batch", "sharding_propagation"))
def test_a_strategy_inside_of_a_loop_is_followed(mode):
    net = Looping()
    net.matmul.shard(((2, 1), (1, 4)))
    planned = checked(net, [X], "dp=2 tp=4", search=mode)
    (node,) = (node for node in walk(planned.graph.nodes) if node.op.name == "MatMul")
    assert str(planned.plan.strategy(node)) == "((2, 1), (1, 4))"
    assert planned.plan.runs[node] == 5


def asked(x, w):
    """The loop's weight lies over tp, its rows over dp: what a loop needs of it is gathered once."""
    x = ops.sharding_constraint(x, "[{dp}, {}]")
    w = ops.sharding_constraint(w, "[{}, {tp}]")
    step = lambda carried: (carried[0] + 1, ops.sharding_constraint(ops.tanh(carried[1] @ w), "[{dp}, {}]"))  # noqa: E731
    return ops.while_loop(lambda carried: carried[0] < 6, step, (0, x))[1]


def test_what_moves_in_a_loop_and_what_before_it():
    planned = checked(asked, [X, W], "dp=2 tp=4", search="factor")
    (nest,) = (one for one in planned.program.instructions if isinstance(one, Nest))
    assert nest.trips == 6
    times = {one: count for one, count in timed(planned.program.instructions)}
    inside = [one for one in instructions(nest.bodies[1].instructions) if isinstance(one, Collective)]
    assert inside and all(times[one] == 6 for one in inside)
    captured = {register.name for register in nest.bodies[1].captured}
    assert all(one.operand.name not in captured for one in inside), "what is captured moves before the loop"
    moved = {one.value.name: one.times for one in planned.plan.redistributions}
    assert set(moved.values()) <= {1, 6} and 6 in moved.values()


def test_layouts_of_a_tie_are_equal():
    planned = plan(Looping(), (X,), "dp=2 tp=4", search="bfs")
    for node in walk(planned.graph.nodes):
        for i in range(len(node.regions)):
            border = borders(node, planned.plan.strategy(node), i)
            if node.op.name == "While":
                assert border.args == planned.plan.strategy(node).result_layouts
            if not (node.op.name == "While" and i == 0):
                assert border.yields == planned.plan.strategy(node).result_layouts


def test_uneven_loops():
    x, w = array(7, 10), array(10, 10) / 4

    def f(x, w):
        x = ops.sharding_constraint(x, "[{tp}, {dp}]")
        body = lambda carried: (carried[0] + 1, ops.softmax(carried[1] @ w) + carried[1].sum(0, keepdims=True))  # noqa: E731
        return ops.while_loop(lambda carried: carried[0] < 3, body, (0, x))[1]

    planned = checked(f, [x, w], "dp=2 tp=4", search="factor")
    (nest,) = (one for one in planned.program.instructions if isinstance(one, Nest))
    assert any(register.size is not None and register.size != register.whole.shape for register in nest.results)


# -- manual computations


def local(fn, out, *, free=False):
    """`fn` of the blocks of rows over dp and columns over tp; with `free`, along tp alone."""
    shardings = (("?", "tp"),) if free else (("dp", "tp"),)
    axes = ["tp"] if free else None
    given = "[{?}, {tp, ?}]" if free else shardings[0]
    return lambda x: ops.tanh(
        ops.manual_computation(fn, ops.sin(x), mesh=MESH, in_shardings=(given,), out_shardings=out, manual_axes=axes)
    )


def thrice(fn, a):
    return ops.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, fn(s[1])), (0, a))[1]


MANUAL = {
    "all_reduce": (lambda a: ops.all_reduce(a, "tp"), ("dp", None)),
    "max over both": (lambda a: ops.all_reduce(a, ("dp", "tp"), "max"), None),
    "sub-axis": (lambda a: ops.all_reduce(a, "tp:(1)2", "min"), ("dp", "tp:(2)2")),
    "prod": (lambda a: ops.all_reduce(a, "dp", "prod"), (None, "tp")),
    "all_gather": (lambda a: ops.all_gather(ops.all_gather(a, "dp"), "tp", -1), None),
    "reduce_scatter": (lambda a: ops.reduce_scatter(a, "tp", 0), (("dp", "tp"), None)),
    "all_to_all": (lambda a: ops.all_to_all(a, "tp", 0, 1), (("dp", "tp"), None)),
    "terms": (lambda a: a, "[{}, {}], unreduced={dp, tp}"),
    "loop": (lambda a: thrice(lambda a: a + ops.all_reduce(a, "tp"), a), ("dp", "tp")),
    "ranks decide": (lambda a: ops.while_loop(lambda s: s.sum() > -2.0, lambda s: s - 0.3, a), ("dp", "tp")),
    "ranks choose": (lambda a: ops.cond(a.sum() > 0, lambda: a * 2, lambda: a - 1), ("dp", "tp")),
}  # fmt: skip


@pytest.mark.parametrize("mode", ("factor", "bfs", "sharding_propagation"))
@pytest.mark.parametrize("name", MANUAL)
def test_manual_computations(name, mode):
    fn, out = MANUAL[name]
    checked(local(fn, out), [X], "dp=2 tp=4", search=mode)


@pytest.mark.parametrize("looped", (False, True))
def test_a_manual_computation_beside_uneven_blocks(looped):
    """What it cuts is cut evenly, though the same rows lie unevenly before and behind it."""

    def turn(x):
        x = ops.sharding_constraint(ops.sin(x), "[{tp}, {}]")
        half = ops.manual_computation(
            lambda a: ops.cum_sum(a, axis=0), x, mesh=Mesh.parse("dp=2 tp=3"), in_shardings=("[{dp}, {}]",),
            out_shardings="[{dp}, {}]", manual_axes=("dp",),
        )  # fmt: skip
        return ops.sharding_constraint(ops.cos(half), "[{tp}, {dp}]")

    def f(x):
        return thrice(turn, x) if looped else turn(x)

    for mode in ("bfs", "sharding_propagation"):
        checked(f, [array(8, 6)], "dp=2 tp=3", search=mode)


def test_free_axes_split_a_manual_computation():
    planned = checked(local(lambda a: ops.all_reduce(ops.tanh(a), "tp"), "[{dp}, {?}]", free=True), [X],
                      "dp=2 tp=4", search="factor")  # fmt: skip
    (nest,) = (one for one in planned.program.instructions if isinstance(one, Nest))
    (reduced,) = (one for one in nest.bodies[0].instructions if isinstance(one, ManualCollective))
    assert [str(one.layout) for one in reduced.operands] == ["dp, -"]
    assert reduced.operands[0].local.shape == (4, 3) and str(reduced.groups) == "tp"


def test_ranks_that_part_in_a_collective_are_told():
    def part(a):
        return ops.cond(a.sum() > 0, lambda: ops.all_reduce(a, "tp"), lambda: a)

    planned = plan(local(part, ("dp", "tp")), (X,), "dp=2 tp=4", search="factor")
    with pytest.raises(
        RuntimeSetupError, match=r"Case\) at .*: ranks go different ways \(rank.* although they communi"
    ):
        Executor(planned.program, LocalComm(8))(X)


def test_groups_of_devices_become_axes():
    mesh = Mesh(x=2, y=4)
    assert grouped(((0, 4), (1, 5), (2, 6), (3, 7)), mesh) == Groups(mesh, (mesh.axis("x"),))
    assert str(grouped(((0, 4, 1, 5, 2, 6, 3, 7),), mesh)) == "y.x"
    assert str(grouped(((0, 1), (2, 3), (4, 5), (6, 7)), mesh)) == "y:(2)2"
    assert str(grouped(((0, 2), (1, 3), (4, 6), (5, 7)), mesh)) == "y:(1)2"
    assert grouped(tuple((i,) for i in range(8)), mesh).size == 1
    assert isinstance(grouped(((1, 0), (2, 3), (4, 5), (6, 7)), mesh), GroupList)
    listed = grouped(((0, 3), (1, 2), (4, 7), (5, 6)), mesh)
    assert isinstance(listed, GroupList)
    assert (listed.position(3), list(listed.members(6)), listed.world) == (1, [5, 6], 8)


# -- the flat form


def test_the_flat_form():
    graph = trace(Looping(), X).graph
    form = flat(graph)
    assert flat(form.graph).graph is form.graph
    assert [node for node in form.graph.nodes if node not in form.gates] == [
        node for node in walk(graph.nodes) if not is_nest(node)
    ]
    keepers = [value for value, role in zip(form.graph.inputs, form.graph.roles, strict=True) if role == CARRIED]
    assert set(keepers) == set(form.groups) and len(keepers) == 3
    tied = form.graph.tied
    for keeper, values in form.groups.items():
        assert all(tied[value] is keeper for value in values[1:])
    assert {form.runs[node] for node in form.gates} == {0}
    seen = set(form.graph.inputs)
    for node in form.graph.nodes:
        assert seen.issuperset(node.operands), node
        seen.update(node.results)


@pytest.mark.parametrize(
    "start, limit, step, wanted",
    [(0, 5, 1, 5), (2, 9, 3, 3), (5, 5, 1, 0), (0, 5, -1, ASSUMED_TRIPS), (0.0, 5.0, 1.0, ASSUMED_TRIPS)],
)
def test_trips(start, limit, step, wanted):
    loop = lambda x: ops.while_loop(lambda s: s[0] < limit, lambda s: (s[0] + step, s[1] * 2), (start, x))  # noqa: E731
    graph = trace(loop, X).graph
    makers = {value: node for node in walk(graph.nodes) for value in node.results}
    (node,) = (node for node in graph.nodes if is_nest(node))
    assert trips(node, makers) == wanted


# -- dumps, reports, laws


def test_dumps_and_reports_show_what_is_inside():
    planned = plan(Looping(), (X,), "dp=2 tp=4", search="factor")
    for text in (dump_begin(planned.plan), dump_program(planned.program, 5, planned.plan)):
        dump = parse_dump(text)
        assert show_dump(dump) == text
        assert len(dump.subgraphs) == 4
        (loop,) = (node for node in dump.nodes if node.op == "While")
        assert [one.title for one in dump.subgraphs[:2]] == list(loop.attr("bodies").items)
    assert sum(line.startswith("  ") for line in planned.report().splitlines()) >= len(dump.subgraphs)
    names = [one["name"] for one in planned.to_json()["operators"]]
    assert len(names) == len(list(walk(planned.graph.nodes)))


def broken(program: Program, change) -> Program:
    """The program with the last body of its nest changed."""
    nest = next(one for one in program.instructions if isinstance(one, Nest))
    new = replace(nest, bodies=(*nest.bodies[:-1], change(nest.bodies[-1])))
    return replace(program, instructions=tuple(new if one is nest else one for one in program.instructions))


def test_broken_nests_are_told():
    program = plan(asked, (X, W), "dp=2 tp=4", search="factor").program
    with pytest.raises(GraphError, match="what leaves .* a border changes neither blocks nor layouts"):
        verify_program(broken(program, lambda body: replace(body, outputs=body.outputs[::-1])))
    with pytest.raises(GraphError, match="what enters are 2 registers outside and 1 inside|is not defined before it"):
        verify_program(broken(program, lambda body: replace(body, args=body.args[:1])))
    with pytest.raises(GraphError, match="is not defined before it|never defined"):
        verify_program(broken(program, lambda body: NestBody(body.args, body.instructions[:-1], body.outputs)))
    nest = next(one for one in program.instructions if isinstance(one, Nest))
    inner = nest.bodies[1].outputs[1]
    with pytest.raises(GraphError, match="is never defined"):
        verify_program(replace(program, outputs=(inner,)))  # what a body makes is not seen outside
    pred = nest.bodies[0].outputs[0]
    split = replace(pred, layout=Layout(pred.layout.mesh, [], pred.layout.mesh.all_axes[:1]))
    with pytest.raises(GraphError, match="whole on every rank"):
        cond = replace(nest.bodies[0], outputs=(split,), args=nest.bodies[0].args)
        made = [
            replace(one, results=tuple(split if r is pred else r for r in one.results)) for one in cond.instructions
        ]
        new = replace(nest, bodies=(replace(cond, instructions=tuple(made)), nest.bodies[1]))
        verify_program(
            replace(program, instructions=tuple(new if one is nest else one for one in program.instructions))
        )


def test_what_cannot_be_planned():
    from autoshard.search import Problem, find_mode
    from costmodel import preset

    graph = trace(local(*MANUAL["all_reduce"]), X).graph
    with pytest.raises(PlanError, match="needs the shardings that are asked for"):
        find_mode("bfs")(Problem(graph, MESH, preset("cpu")))


def test_equal_results_as_evaluated():
    """Updates of parameters after a loop: the session keeps them."""
    net = Looping()
    planned = plan(net, (X,), "dp=2 tp=4")
    (wanted,) = evaluate(planned.graph, planned.traced.inputs(X))
    np.testing.assert_allclose(np.asarray(planned.run(X)), wanted, 1e-5, 1e-5)
