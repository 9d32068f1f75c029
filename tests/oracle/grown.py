"""Random programs of all operator families: what `test_programs` grows, and windows, look-ups, orders, nests, samples.

`grown(seed, gradient)` is a program with arrays to feed it. Half of the sizes have no common divisors with the numbers
of ranks. Numbers are f64, so that what differs is no rounding, but for operators that are taken as their sample has
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from autoshard.core.tensortype import TensorType, type_of
from autoshard.ir.graph import DATA, Graph, Node, Region, Value
from autoshard.ops.body import Body
from autoshard.ops.hlo_collective import COLLECTIVES
from autoshard.ops.registry import lookup
from tests.oracle import test_programs as programs
from tests.oracle.samples import SAMPLES
from tests.oracle.test_programs import BINARY, MOST_ELEMENTS, UNARY, Program, with_gradient

EVEN, UNEVEN = (4, 6, 8, 12, 24), (3, 5, 6, 7, 9, 10, 13)
TAKEN = tuple(one for one in SAMPLES if one.op.has_rule and one.op not in COLLECTIVES)


@dataclass
class Grown(Program):
    """A program under construction, with the arrays for inputs that take no random floats, and regions around."""

    sizes: tuple[int, ...] = EVEN
    feeds: dict[Value, np.ndarray] = field(default_factory=dict)
    around: list[Value] = field(default_factory=list)
    count: int = 0

    def values(self, rank: int = 1) -> list[Value]:
        """As in `Program`, or a new input if there is none; inside of a region also what is known outside."""
        known = [*self.around, *super().values(0)]
        fitting = [one for one in known if one.type.rank >= rank and one.type.dtype.name == "f64"]
        return fitting or [self.input(*(self.size() for _ in range(rank)))]

    def size(self) -> int:
        return int(self.pick(self.sizes))

    def fed(self, array: np.ndarray) -> Value:
        """An input that gets this array."""
        value = self.builder.input(type_of(array), f"x{len(self.builder.inputs)}", DATA)
        self.feeds[value] = array
        return value

    def whole_numbers(self, below: int, *shape: int) -> Value:
        return self.fed(self.rng.integers(0, below, shape, dtype=np.int32))

    def scalar(self, value: float, dtype: str = "i32") -> Value:
        return self.add("Fill", shape=(), value=value, dtype=dtype).results[0]

    @contextmanager
    def region(self, args: Sequence[Value], around: Sequence[Value]) -> Iterator[list[Node]]:
        """Nodes that are added go into the list; values known are the arguments and those around."""
        nodes, known = self.builder.nodes, self.around
        self.builder.nodes, self.around = [], [*around, *args, *args]
        try:
            yield self.builder.nodes
        finally:
            self.builder.nodes, self.around = nodes, known

    def add(self, name: str, *operands: Value, **attrs: Any) -> Node:
        """As in `Program`, under a name that is new in regions, too."""
        op = lookup(name)
        self.count += 1
        return self.builder.add(op, operands, op.check_attributes(attrs), f"{name.lower()}{self.count}")

    def nest(self, name: str, operands: Sequence[Value], attrs: dict[str, Any], regions: tuple[Region, ...]) -> Node:
        op = lookup(name)
        self.count += 1
        attrs = op.check_attributes(attrs)
        return self.builder.add(op, operands, attrs, f"{name.lower()}{self.count}", regions=regions)

    def axis(self, x: Value) -> int:
        return int(self.rng.integers(x.type.rank))

    def below(self, most: int) -> int:
        """A whole number from 0 to `most`; 0 if that is negative."""
        return int(self.rng.integers(max(0, most) + 1))


# -- elements that move


def _roll(program: Grown) -> None:
    x = program.pick(program.values())
    axes = tuple(int(i) for i in program.rng.permutation(x.type.rank)[: 1 + program.below(1)])
    program.add("Roll", x, shift=tuple(int(program.rng.integers(-4, 5)) for _ in axes), axis=axes)


def _flip(program: Grown) -> None:
    x = program.pick(program.values())
    program.add("ReverseV2", x, axis=(program.axis(x),))


def _pad(program: Grown) -> None:
    x = program.pick(program.values())
    paddings = tuple((program.below(3), program.below(3)) for _ in x.type.shape)
    program.add("Pad", x, paddings=paddings, value=program.pick((0, 1.5)))


def _cut(program: Grown) -> None:
    """A slice, with steps, of any dims."""
    x = program.pick(program.values())
    begin = tuple(program.below(size - 1) for size in x.type.shape)
    end = tuple(first + 1 + program.below(size - first - 1) for first, size in zip(begin, x.type.shape, strict=True))
    program.add("StridedSlice", x, begin=begin, end=end, strides=tuple(1 + program.below(2) for _ in begin))


def _hlo_pad(program: Grown) -> None:
    """Before, between and after, elements taken away too."""
    x = program.pick(program.values())
    low, high = (tuple(int(program.rng.integers(-1, 4)) for _ in x.type.shape) for _ in range(2))
    if all(size + a + b > 0 for size, a, b in zip(x.type.shape, low, high, strict=True)):
        inner = tuple(program.below(1) for _ in low)
        program.add("HloPad", x, program.scalar(program.pick((0, 2)), "f64"), low=low, high=high, interior=inner)


def _tile(program: Grown) -> None:
    x = program.pick(program.values())
    program.add("Tile", x, multiples=tuple(1 + program.below(2) for _ in x.type.shape))


def _several(program: Grown) -> None:
    """Tensors stacked, or of unequal sizes joined and cut again."""
    x = program.pick(program.values())
    axis = program.axis(x)
    if program.below(1):
        program.add("Stack", x, x, program.pick([one for one in program.values() if one.type == x.type]), axis=axis)
        return
    shape = list(x.type.shape)
    shape[axis] = program.size()
    joined = program.add("Concat", x, program.input(*shape), axis=axis).results[0]
    cut = 1 + program.below(joined.type.shape[axis] - 2)
    program.add("Split", joined, axis=axis, sizes=(cut, joined.type.shape[axis] - cut))


def _triangle(program: Grown) -> None:
    x = program.pick(program.values(2))
    program.add(program.pick(("Tril", "Triu")), x, diagonal=int(program.rng.integers(-2, 3)))


# -- windows


def _reduced_windows(program: Grown) -> None:
    x = program.pick(program.values())
    sizes = tuple(1 + program.below(min(3, size - 1)) for size in x.type.shape)
    strides = tuple(1 + program.below(1) for _ in sizes)
    padding = tuple((program.below(size - 1), program.below(size - 1)) for size in sizes)
    kind, start = program.pick((("add", 0.0), ("max", -math.inf), ("min", math.inf)))
    first = program.scalar(start, "f64")
    program.add("ReduceWindow", x, first, dimensions=sizes, strides=strides, padding=padding, body=Body(kind))


def _convolution(program: Grown) -> None:
    """Of images with rows, columns and channels, all of any size."""
    x = program.pick(program.values(3))
    if x.type.rank == 3:
        x = program.add("ExpandDims", x, axis=0).results[0]
    elif x.type.rank > 4:
        return
    rows, columns, channels = x.type.shape[1:]
    kernel = 1 + program.below(min(2, rows - 1)), 1 + program.below(min(2, columns - 1))
    padding = tuple((program.below(size - 1), program.below(size - 1)) for size in kernel)
    program.add(
        "Convolution", x, program.input(*kernel, channels, 1 + program.below(4)), lhs_dims=(0, 3, 1, 2),
        rhs_dims=(2, 3, 0, 1), out_dims=(0, 3, 1, 2), strides=(1 + program.below(1), 1), padding=padding,
    )  # fmt: skip


# -- look-ups and order


def _look_up(program: Grown) -> None:
    x = program.pick(program.values())
    axis = program.axis(x)
    ids = program.whole_numbers(x.type.shape[axis], program.size())
    program.add("Gather", x, ids, axis=axis)


def _pick(program: Grown) -> None:
    x = program.pick(program.values(2))
    dim = program.axis(x)
    shape = [program.size() if i == dim else size for i, size in enumerate(x.type.shape)]
    program.add("GatherD", x, program.whole_numbers(x.type.shape[dim], *shape), dim=dim)


def _classes(program: Grown) -> None:
    x = program.pick(program.values(2))
    ids = program.whole_numbers(x.type.shape[-2], program.size())
    hot = program.add("OneHot", ids, depth=x.type.shape[-2], dtype="f64").results[0]
    name = "MatMul" if x.type.rank == 2 else "BatchMatMul"
    program.add(name, hot, x)


def _moving_slice(program: Grown) -> None:
    """A slice whose place is known only when it runs, or written there."""
    x = program.pick(program.values())
    sizes = tuple(1 + program.below(size - 1) for size in x.type.shape)
    starts = [program.whole_numbers(size - taken + 1) for size, taken in zip(x.type.shape, sizes, strict=True)]
    if program.below(1):
        program.add("DynamicSlice", x, *starts, sizes=sizes)
    else:
        program.add("DynamicUpdateSlice", x, program.input(*sizes), *starts)


def _largest(program: Grown) -> None:
    x = program.pick(program.values())
    program.add("TopK", x, k=1 + program.below(min(3, x.type.shape[-1] - 1)))


def _numbers(program: Grown) -> None:
    """Whole numbers, that nothing is made of."""
    x = program.pick(program.values())
    axis = program.axis(x)
    kind = program.pick(("ArgMax", "ArgMin", "ArgSort"))
    program.add(kind, x, axis=axis)


def _sums_on_the_way(program: Grown) -> None:
    x = program.pick(program.values())
    flags = bool(program.below(1)), bool(program.below(1))
    program.add("CumSum", x, axis=program.axis(x), exclusive=flags[0], reverse=flags[1])


def _chosen(program: Grown) -> None:
    x = program.pick(program.values())
    other = program.pick([one for one in program.values() if one.type == x.type])
    less = program.add("Less", x, program.input(*x.type.shape)).results[0]
    if program.below(1):
        program.add("Select", less, x, other)
    else:
        program.add("MaskedFill", x, less, value=0.5)


# -- composites


def _attention(program: Grown) -> None:
    q = program.pick(program.values(2))
    *batch, queries, width = q.type.shape
    if not batch:
        batch, q = [1], program.add("ExpandDims", q, axis=0).results[0]
    keys = queries if program.below(1) else program.size()
    k, v = program.input(*batch, keys, width), program.input(*batch, keys, program.size())
    ring = program.pick(("auto", "gather", "ring"))
    program.add("Attention", q, k, v, causal=keys == queries and bool(program.below(1)), sequence=ring)


def _root_mean_square(program: Grown) -> None:
    x = program.pick(program.values(2))
    program.add("RmsNorm", x, program.input(x.type.shape[-1]))


def _entropy(program: Grown) -> None:
    x = program.pick([one for one in program.values(2) if one.type.rank == 2] or [program.input(7, 6)])
    labels = program.whole_numbers(x.type.shape[-1], x.type.shape[0])
    program.add("SparseSoftmaxCrossEntropyWithLogits", x, labels)


def _einsum(program: Grown) -> None:
    x = program.pick(program.values(2))
    names = "abcdefgh"[: x.type.rank]
    gone = program.pick(names)
    w = program.input(program.size(), x.type.shape[names.index(gone)])
    program.add("Einsum", x, w, equation=f"{names},z{gone}->{''.join(reversed(names.replace(gone, 'z')))}")


# -- any operator, as its sample has it


def _sample(program: Grown) -> None:
    one = TAKEN[int(program.rng.integers(len(TAKEN)))]
    node = program.add(one.op.name, *map(program.fed, one.arrays(program.rng)), **one.attrs)
    for value in node.results:
        if value.type.dtype.name == "f32" and value.type.rank and not one.op.has_effects(node.attrs):
            wide = program.add("Cast", value, dtype="f64").results[0]
            program.add("Tanh", wide)


# -- loops and branches


def _steps(program: Grown, x: Value, same: Sequence[Value], count: int) -> Value:
    """A few operators from x to a value of its type; `same` are others of that type."""
    for _ in range(count):
        kind = program.pick(("unary", "binary", "product", "norm", "less mean", "roll", "sums", "flip"))
        axis = program.axis(x)
        if kind == "unary":
            x = program.add(program.pick(UNARY), x).results[0]
        elif kind == "binary":
            x = program.add(program.pick(BINARY), x, program.pick(same)).results[0]
        elif kind == "product" and x.type.rank == 2:
            x = program.add("MatMul", x, x, transpose_b=True).results[0]
            x = program.add("MatMul", x, program.pick(same)).results[0]
        elif kind == "norm":
            x = program.add("Softmax", x, axis=axis).results[0]
        elif kind == "less mean":
            x = program.add("Sub", x, program.add("ReduceMean", x, axis=axis, keep_dims=True).results[0]).results[0]
        elif kind == "roll":
            x = program.add("Roll", x, shift=1, axis=axis).results[0]
        elif kind == "sums":
            x = program.add("Tanh", program.add("CumSum", x, axis=axis).results[0]).results[0]
        else:
            x = program.add("ReverseV2", x, axis=axis).results[0]
    return program.add("Tanh", x).results[0]


def _loop(program: Grown) -> None:
    """A loop that carries a number and two tensors, which may change places, and captures a third."""
    x = program.pick(program.values(2))
    same = [one for one in program.values(2) if one.type == x.type]
    y, trips = program.pick(same), 1 + program.below(2)
    start = program.scalar(0)
    args = [[Value(value.type, program.builder.unique("arg")) for value in (start, x, y)] for _ in range(2)]
    with program.region(args[0], []) as condition:
        holds = program.add("Less", args[0][0], program.scalar(trips)).results[0]
    with program.region(args[1], same) as body:
        number = program.add("Add", args[1][0], program.scalar(1)).results[0]
        new = _steps(program, args[1][1], [*same, args[1][2]], 1 + program.below(2))
        carried = (number, args[1][2], new) if program.below(1) else (number, new, args[1][1])
    regions = Region(tuple(args[0]), tuple(condition), (holds,)), Region(tuple(args[1]), tuple(body), carried)
    program.nest("While", (start, x, y), {}, regions)


def _branch(program: Grown) -> None:
    """One of three, by a number that is fed."""
    x = program.pick(program.values(2))
    same = [one for one in program.values(2) if one.type == x.type]
    chosen = program.whole_numbers(3)
    regions = []
    for count in (0, 1, 2):
        with program.region([], same) as nodes:
            made = _steps(program, program.pick(same), same, count)
        regions.append(Region((), tuple(nodes), (made,)))
    program.nest("Case", (chosen,), {"types": (x.type,)}, tuple(regions))


MOVES = _roll, _flip, _pad, _cut, _hlo_pad, _tile, _several, _triangle
WINDOWS = _reduced_windows, _convolution
LOOK_UPS = _look_up, _pick, _classes, _moving_slice, _largest, _sums_on_the_way, _chosen
COMPOSITES = _attention, _root_mean_square, _entropy, _einsum
FORWARD = _numbers, _sample, _sample, _loop, _loop, _branch, _branch
PLAIN = tuple(one for one in programs.GROW if one is not programs._gather)  # which looks up what tables may lack
SMOOTH: tuple[Callable[[Any], None], ...] = (*PLAIN, *MOVES, *WINDOWS, *LOOK_UPS, *COMPOSITES)


class Made(NamedTuple):
    """A graph and what to feed it."""

    graph: Graph
    feeds: list[np.ndarray]


def grown(rng: np.random.Generator, uneven: bool, gradient: bool) -> Made:
    """A program of 4 to 12 operators whose outputs are what nothing else uses.

    If asked, also the gradients of all float inputs for the sum of all float outputs' squares.
    """
    program = Grown(rng, sizes=UNEVEN if uneven else EVEN)
    families = SMOOTH if gradient else (*SMOOTH, *FORWARD, *FORWARD)
    for _ in range(1 + program.below(1)):
        program.input(*(program.size() for _ in range(2 + program.below(1))))
    count = 4 + program.below(8)
    while len(program.builder.nodes) < count:
        program.pick(families)(program)
        made = program.builder.nodes[-1:]
        if made and any(value.type.elements > MOST_ELEMENTS // 8 for value in made[0].results):
            break
    used = {value for node in program.builder.nodes for value in node.uses}
    made = [value for node in program.builder.nodes for value in node.results]
    graph = program.builder.build([value for value in made if value not in used])
    feeds = [
        program.feeds[value] if value in program.feeds else rng.normal(size=value.type.shape) / 2
        for value in graph.inputs
    ]
    return Made(with_gradient(graph) if gradient else graph, feeds)


def shapes_of(graph: Graph) -> list[TensorType]:
    return [of for node in graph.nodes for of in node.result_types]


def operator_names(nodes: Sequence[Node]) -> set[str]:
    """Names of the operators, those in regions too."""
    names = {node.op.name for node in nodes}
    return names.union(*(operator_names(region.nodes) for node in nodes for region in node.regions))
