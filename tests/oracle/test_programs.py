"""Random programs on random meshes with random strategies: planned and run on virtual ranks they equal the whole run.

A program grows from a seed: operators of the registry are applied to values made before, some of them get one of
their strategies, a search plans the rest. Every other program also has the gradient of all its float inputs. Numbers
are f64, so that what differs is no rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from autoshard.core.enumerate import enumerate_strategies
from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import DATA, PARAMETER, Builder, Graph, Node, Value
from autoshard.ir.text import parse, show
from autoshard.ir.verify import verify
from autoshard.layout import Layout, Mesh
from autoshard.ops.registry import lookup
from autoshard.partition.lower import lower
from autoshard.partition.verify import verify_program
from autoshard.runtime.interpret import Executor
from autoshard.runtime.local import LocalComm
from autoshard.search import Problem, find_mode
from autoshard.trace.evaluate import evaluate
from autoshard.transform.grad import gradient
from costmodel import preset

MESHES = ("8", "2x4", "2x2x2", "6", "3x2", "a=2 b=1 c=3", "12", "1x4", "a=4 b=2 order=7.6.5.4.3.2.1.0")
SIZES = (4, 6, 10, 12, 24)
PROGRAMS = 24
UNARY = ("Tanh", "Sigmoid", "ReLU", "GeLU", "Neg", "Sin", "Square", "SiLU", "Abs", "Identity")
BINARY = ("Add", "Sub", "Mul", "Maximum", "Minimum", "Add")
NORMS = ("Softmax", "LogSoftmax")
SUMS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")


@dataclass
class Program:
    """A program under construction: the builder, and its choices."""

    rng: np.random.Generator
    builder: Builder = field(default_factory=lambda: Builder("random"))

    @property
    def sizes(self) -> tuple[int, ...]:
        return SIZES

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def values(self, rank: int = 1) -> list[Value]:
        """Float values with at least that many dims; later ones twice, so that programs grow deep."""
        made = [value for node in self.builder.nodes for value in node.results]
        known = [*self.builder.inputs, *made, *made[-4:]]
        return [one for one in known if one.type.rank >= rank and one.type.dtype.name == "f64"]

    def input(self, *shape: int, dtype: str = "f64") -> Value:
        role = DATA if self.rng.random() < 0.4 else PARAMETER
        return self.builder.input(TensorType.of(shape, dtype), f"x{len(self.builder.inputs)}", role)

    def add(self, name: str, *operands: Value, **attrs: Any) -> Node:
        op = lookup(name)
        return self.builder.add(op, operands, op.check_attributes(attrs), f"{name.lower()}{len(self.builder.nodes)}")


def _unary(program: Program) -> None:
    program.add(program.pick(UNARY), program.pick(program.values(0)))


def _binary(program: Program) -> None:
    """Of a value and one of the same shape, or one that is broadcast, in either order."""
    x = program.pick(program.values())
    same = [one for one in program.values() if one.type == x.type]
    if program.rng.random() < 0.5:
        shape = [size if program.rng.random() < 0.7 else 1 for size in x.type.shape]
        same = [program.input(*shape[int(program.rng.integers(len(shape))) :])]
    pair = [x, program.pick(same)]
    program.add(program.pick(BINARY), *(pair if program.rng.random() < 0.5 else pair[::-1]))


def _add_n(program: Program) -> None:
    x = program.pick(program.values())
    same = [one for one in program.values() if one.type == x.type]
    program.add("AddN", x, *(program.pick(same) for _ in range(2)))


def _product(program: Program) -> None:
    """MatMul with every choice of transposes; BatchMatMul where there is a batch."""
    x, other = program.pick(program.values(2)), program.pick(program.sizes)
    rows, k = x.type.shape[-2:]
    transpose_a, transpose_b = (bool(program.rng.integers(2)) for _ in range(2))
    k = rows if transpose_a else k
    shape = (other, k) if transpose_b else (k, other)
    if x.type.rank == 2:
        w = program.input(*shape)
        program.add("MatMul", x, w, transpose_a=transpose_a, transpose_b=transpose_b)
        return
    w = program.input(*(x.type.shape[:-2] if program.rng.random() < 0.5 else ()), *shape)
    program.add("BatchMatMul", x, w, transpose_a=transpose_a, transpose_b=transpose_b)


def _reduce(program: Program) -> None:
    x = program.pick(program.values(2))
    axis = int(program.rng.integers(x.type.rank))
    program.add(program.pick(SUMS), x, axis=axis, keep_dims=bool(program.rng.integers(2)))


def _norm(program: Program) -> None:
    x = program.pick(program.values())
    program.add(program.pick(NORMS), x, axis=int(program.rng.integers(x.type.rank)))


def _layer_norm(program: Program) -> None:
    x = program.pick(program.values(2))
    last = x.type.shape[-1]
    program.add("LayerNorm", x, program.input(last), program.input(last))


def _transpose(program: Program) -> None:
    x = program.pick(program.values(2))
    program.add("Transpose", x, perm=tuple(int(i) for i in program.rng.permutation(x.type.rank)))


def _reshape(program: Program) -> None:
    """Join two neighbouring dims, or cut one in two."""
    x = program.pick(program.values(2))
    shape = list(x.type.shape)
    i = int(program.rng.integers(len(shape) - 1))
    if program.rng.random() < 0.5:
        shape[i : i + 2] = [shape[i] * shape[i + 1]]
    else:
        major = program.pick([d for d in range(1, shape[i] + 1) if shape[i] % d == 0])
        shape[i : i + 1] = [major, shape[i] // major]
    program.add("Reshape", x, shape=tuple(shape))


def _concat(program: Program) -> None:
    x = program.pick(program.values(2))
    same = [one for one in program.values(2) if one.type == x.type]
    program.add("Concat", x, program.pick(same), axis=int(program.rng.integers(x.type.rank)))


def _split(program: Program) -> None:
    x = program.pick([one for one in program.values(2) if one.type.shape[-1] % 2 == 0] or program.values(2))
    program.add("Split", x, axis=-1, output_num=2 if x.type.shape[-1] % 2 == 0 else 1)


def _slice(program: Program) -> None:
    x = program.pick(program.values(2))
    size = x.type.shape[0]
    program.add("StridedSlice", x, begin=(size // 3,), end=(size,), strides=(1,))


def _cum_sum(program: Program) -> None:
    x = program.pick(program.values())
    program.add("CumSum", x, axis=int(program.rng.integers(x.type.rank)))


def _gather(program: Program) -> None:
    table = program.pick(program.values(2))
    ids = program.input(program.pick((4, 6, 12)), dtype="i32")
    program.add("Gather", table, ids, axis=0)


def _expand(program: Program) -> None:
    x = program.pick(program.values())
    if x.type.rank < 4:
        program.add("ExpandDims", x, axis=int(program.rng.integers(x.type.rank + 1)))


GROW: tuple[Callable[[Program], None], ...] = (
    _unary, _unary, _binary, _binary, _binary, _add_n, _product, _product, _product, _reduce, _norm, _layer_norm,
    _transpose, _reshape, _reshape, _concat, _split, _slice, _cum_sum, _gather, _expand,
)  # fmt: skip
MOST_ELEMENTS = 60_000


def random_graph(rng: np.random.Generator) -> Graph:
    """A program of 5 to 15 operators; its outputs are what nothing else uses."""
    program = Program(rng)
    for _ in range(int(rng.integers(1, 3))):
        program.input(*(program.pick(program.sizes) for _ in range(int(rng.integers(2, 4)))))
    count = int(rng.integers(5, 16))
    while len(program.builder.nodes) < count:
        program.pick(GROW)(program)
        last = program.builder.nodes[-1:]
        if last and np.prod(last[0].result_types[0].shape) > MOST_ELEMENTS:
            break
    used = {value for node in program.builder.nodes for value in node.operands}
    made = [value for node in program.builder.nodes for value in node.results]
    return program.builder.build([value for value in made if value not in used])


def feeds_for(graph: Graph, rng: np.random.Generator) -> list[np.ndarray]:
    """Distinct small numbers for floats (so that maxima have no ties), indices that lie in the smallest table."""
    return [
        rng.normal(size=of.shape) / 2 if of.dtype.is_float else rng.integers(0, 4, of.shape, dtype=np.int32)
        for of in (value.type for value in graph.inputs)
    ]


def fixed_strategies(graph: Graph, mesh: Mesh, rng: np.random.Generator) -> dict[Node, Strategy]:
    """A random strategy for up to three operators; a shared input is asked for by one of them only."""
    fixed, taken = {}, set()
    for i in rng.permutation(len(graph.nodes))[: int(rng.integers(0, 4))]:
        node = graph.nodes[int(i)]
        inputs = [value for value in node.operands if value in graph.role_of]
        known = enumerate_strategies(node.rule, mesh)
        if len(set(inputs)) == len(inputs) and taken.isdisjoint(inputs) and known:
            fixed[node] = known[int(rng.integers(len(known)))]
            taken.update(inputs)
    return fixed


def given_layouts(graph: Graph, mesh: Mesh, rng: np.random.Generator) -> dict[Value, Layout]:
    """Some data inputs come split along their first dim by the mesh's first axis."""
    first = mesh.all_axes[:1]
    layouts = {}
    for value, role in zip(graph.inputs, graph.roles, strict=True):
        if role == DATA and rng.random() < 0.3:
            layout = Layout(mesh, [first, *[()] * (value.type.rank - 1)])
            if layout.divides(value.type.shape):
                layouts[value] = layout
    return layouts


def with_gradient(graph: Graph) -> Graph:
    """All outputs, and the gradients of the float inputs for the sum of all float outputs' squares."""
    builder = Builder.after(graph, "gradient")
    terms = []
    for value in graph.outputs:
        if value.type.dtype.is_float:
            square = builder.add(lookup("Square"), [value], {}).results[0]
            total = lookup("ReduceMean")
            terms.append(builder.add(total, [square], total.check_attributes({})).results[0])
    while len(terms) > 1:
        terms[:2] = builder.add(lookup("Add"), terms[:2], {}).results
    floats = [value for value in graph.inputs if value.type.dtype.is_float]
    full, grads = gradient(builder.build([*graph.outputs, *terms]), terms[0], floats)
    assert set(grads) == set(floats)
    return full


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_planned_equals_whole(seed):
    rng = np.random.default_rng([seed, 2024])
    mesh = Mesh.parse(MESHES[seed % len(MESHES)])
    graph = random_graph(rng)
    feeds = feeds_for(graph, rng)
    if seed % 2:
        graph = with_gradient(graph)
    fixed, given = fixed_strategies(graph, mesh, rng), given_layouts(graph, mesh, rng)
    search = "batch" if seed % 8 == 6 else "sharding_propagation"
    told = "; ".join(f"{node.label} as {strategy}" for node, strategy in fixed.items())
    what = f"\n{show(graph)}\non mesh {mesh} by {search} with {told or 'nothing fixed'}, given {given}"
    try:
        _check(graph, feeds, Problem(graph, mesh, preset("cpu"), given=given, fixed=fixed), search)
    except Exception as error:
        pytest.fail(f"{type(error).__name__}: {error}{what}")


def _check(graph: Graph, feeds: list[np.ndarray], problem: Problem, search: str) -> None:
    verify(graph)
    plan = find_mode(search)(problem)
    for node, strategy in problem.fixed.items():
        assert plan.strategy(node) == strategy
    for value, layout in problem.given.items():
        assert plan.layouts[value] is layout
    program = lower(plan)
    verify_program(program)
    whole = evaluate(graph, feeds)
    got = Executor(program, LocalComm(problem.mesh.devices))(*feeds)
    for value, ours, theirs in zip(graph.outputs, got, whole, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), value.name
        # Absolute, because some gradients are zero but for rounding.
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11, err_msg=value.name)


def test_programs_differ_and_cover_the_families():
    """Whether the generator does what these tests live from."""
    graphs = [random_graph(np.random.default_rng([seed, 2024])) for seed in range(3 * PROGRAMS)]
    used = {node.op.name for graph in graphs for node in graph.nodes}
    assert {"MatMul", "BatchMatMul", "Reshape", "Transpose", "Concat", "Split", "Gather", "LayerNorm"} <= used
    assert used.issuperset(SUMS) and used.issuperset(BINARY) and len(used) > 28
    assert len({show(graph) for graph in graphs}) == 3 * PROGRAMS
    assert all(5 <= len(graph.nodes) <= 16 or max(_sizes(graph)) > MOST_ELEMENTS for graph in graphs)
    assert show(parse(show(graphs[0]))) == show(graphs[0])


def _sizes(graph: Graph) -> list[int]:
    return [int(np.prod(of.shape)) for node in graph.nodes for of in node.result_types]
