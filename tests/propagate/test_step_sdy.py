"""One step against Shardy's own passes, on modules of one operator: with any rule, as custom calls have it, and real.

The passes come with jaxlib. Shardings are compared as text, so that mesh, priorities and every `?` count.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax._src.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from autoshard.core.rule import PERMUTATION, REDUCTION, REPLICATE, Factor, Rule
from autoshard.core.rule_sdy import show_sdy
from autoshard.layout.mesh import AxisRef, Mesh, merge_refs
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.propagate.step import BACKWARD, FORWARD, Direction, step

pytestmark = pytest.mark.jax

MESHES = (Mesh(a=2, b=4, c=3), Mesh(a=12, u=1, b=2), Mesh(b=6, a=8), Mesh(u=1, c=4, d=2, a=2, b=3), Mesh(a=24))
SIZES = (1, 2, 3, 4, 6, 7, 8, 12, 24)


@dataclass(frozen=True)
class Case:
    """One operator: its rule, its MLIR text with operands, attributes and types open, and its tensors' shardings."""

    rule: Rule
    shapes: tuple[tuple[int, ...], ...]
    text: str
    shardings: tuple[Sharding | None, ...]
    pointwise: bool = False
    attrs: tuple[str, ...] = ()
    # The operands that are integers.
    indices: tuple[int, ...] = ()

    @property
    def operands(self) -> int:
        return len(self.rule.operands)

    @property
    def module(self) -> str:
        types = [
            f"tensor<{''.join(f'{size}x' for size in shape)}{'i32' if i in self.indices else 'f32'}>"
            for i, shape in enumerate(self.shapes)
        ]
        arguments = [f"%arg{i}: {types[i]}{self._argument(i)}" for i in range(self.operands)]
        results = types[self.operands :]
        values = [f"%0#{i}" if len(results) > 1 else "%0" for i in range(len(results))]
        operator = self.text.format(
            *(f"%arg{i}" for i in range(self.operands)),
            operands=", ".join(f"%arg{i}" for i in range(self.operands)),
            attrs=f"{{{', '.join((*self.attrs, *self._results_attr()))}}}",
            types=", ".join(types[: self.operands]),
            results=", ".join(results),
        )
        mesh = ", ".join(f'"{name}"={size}' for name, size in self._mesh.axes)
        return (
            f"sdy.mesh @mesh = <[{mesh}]>\n"
            f"func.func @main({', '.join(arguments)}) -> ({', '.join(results)}) {{\n"
            f"  %0{f':{len(results)}' if len(results) > 1 else ''} = {operator}\n"
            f"  return {', '.join(values)} : {', '.join(results)}\n}}"
        )

    @property
    def _mesh(self) -> Mesh:
        return next((sharding.mesh for sharding in self.shardings if sharding is not None), MESHES[0])

    def _argument(self, i: int) -> str:
        sharding = self.shardings[i]
        return f" {{sdy.sharding = #sdy.sharding<{show(sharding)}>}}" if sharding is not None else ""

    def _results_attr(self) -> tuple[str, ...]:
        shardings = [show(of) for of in self.shardings[self.operands :] if of is not None]
        text = ", ".join(f"<{sharding}>" for sharding in shardings)
        return (f"sdy.sharding = #sdy.sharding_per_value<[{text}]>",) if shardings else ()


def show(sharding: Sharding) -> str:
    """sdy's text of a sharding, as its printer writes it."""
    mesh = sharding.mesh

    def refs(axes: tuple[AxisRef, ...]) -> list[str]:
        return [
            f'"{ref.name}"' if ref.size == mesh.sizes[ref.name] else f'"{ref.name}":({ref.pre}){ref.size}'
            for ref in axes
        ]

    def dim(spec: DimSharding) -> str:
        inside = ", ".join(refs(spec.axes) + ["?"] * (not spec.closed))
        return f"{{{inside}}}" + (f"p{spec.priority}" if spec.priority is not None else "")

    text = f"@{sharding.mesh_name}, [{', '.join(map(dim, sharding.dims))}]"
    for word, axes in (("replicated", sharding.replicated), ("unreduced", sharding.unreduced)):
        text += f", {word}={{{', '.join(refs(axes))}}}" if axes else ""
    return text


@functools.cache
def context() -> ir.Context:
    return make_ir_context()


def run_pass(module: str, name: str, operands: int) -> list[str | None]:
    """The shardings that a pass leaves: of the arguments, then of the results of the one operator."""
    with context():
        parsed = ir.Module.parse(module)
        PassManager.parse(f"builtin.module({name})").run(parsed.operation)
        main = next(op for op in parsed.body.operations if op.operation.name == "func.func")
        shardings: list[str | None] = [None] * operands
        if "arg_attrs" in main.attributes:
            attrs = [ir.DictAttr(of) for of in ir.ArrayAttr(main.attributes["arg_attrs"])]
            shardings = [_bare(str(of["sdy.sharding"])) if "sdy.sharding" in of else None for of in attrs]
        block = main.regions[0].blocks[0]
        op = next(op for op in block.operations if "return" not in op.operation.name and len(op.operands) == operands)
        if "sdy.sharding" in op.attributes:
            text = str(op.attributes["sdy.sharding"])
            if text.startswith("#sdy.sharding_per_value<["):
                inner = text.removeprefix("#sdy.sharding_per_value<[<").removesuffix(">]>")
                return shardings + list(inner.split(">, <"))
            return [*shardings, _bare(text)]
        return shardings + [None] * len(op.results)


def _bare(text: str) -> str:
    return text.removeprefix("#sdy.sharding<").removesuffix(">")


def after(case: Case, *calls: dict) -> list[str | None]:
    """The shardings after steps with the given options, as text."""
    shardings = list(case.shardings)
    for options in calls:
        for tensor, sharding in step(case.rule, tuple(shardings), pointwise=case.pointwise, **options).changes:
            shardings[tensor] = sharding
    results = shardings[case.operands :]
    known = next((result for result in results if result is not None), None)
    # One attribute holds the shardings of all results: if one has any, the others are open.
    if known is not None:
        opened = [Sharding.open(known.mesh, len(shape), known.mesh_name) for shape in case.shapes[case.operands :]]
        shardings[case.operands :] = [of or whole for of, whole in zip(results, opened, strict=True)]
    return [None if sharding is None else show(sharding) for sharding in shardings]


@st.composite
def meshed_shardings(draw: st.DrawFn, mesh: Mesh, rank: int) -> Sharding:
    """Any valid sharding of a tensor: axes cut into pieces, some of them used, in any order."""
    pieces = [piece for name, size in mesh.axes for piece in draw(_pieces(name, size))]
    places = ["", "", *range(rank), *range(rank), *range(rank), "replicated", "unreduced"]
    placed: dict[str | int, list[AxisRef]] = {place: [] for place in places}
    for piece in draw(st.permutations(pieces)):
        placed[draw(st.sampled_from(places))].append(piece)
    dims = []
    for i in range(rank):
        axes, closed = _merged(placed[i]), draw(st.booleans())
        priority = draw(st.sampled_from((None, None, None, 0, 2))) if axes or not closed else None
        dims.append(DimSharding(axes, closed, priority))
    replicated, unreduced = (_merged(sorted(placed[word], key=mesh.sort_key)) for word in ("replicated", "unreduced"))
    return Sharding(mesh, dims, replicated, unreduced)


@st.composite
def _pieces(draw: st.DrawFn, name: str, size: int) -> list[AxisRef]:
    """An axis cut into consecutive pieces."""
    left, pieces, pre = size, [], 1
    while left > 1 and draw(st.booleans()):
        part = draw(st.sampled_from([n for n in range(2, left + 1) if left % n == 0]))
        pieces.append(AxisRef(name, pre, part))
        pre, left = pre * part, left // part
    return [*pieces, AxisRef(name, pre, left)] if left > 1 or not pieces else pieces


def _merged(refs: list[AxisRef]) -> tuple[AxisRef, ...]:
    """Neighbours that are one piece joined; unlike in a layout, axes of size 1 stay."""
    groups = itertools.groupby(refs, key=lambda ref: ref.size == 1)
    return tuple(ref for ones, group in groups for ref in (group if ones else merge_refs(group)))


@st.composite
def with_shardings(draw: st.DrawFn, case: Case) -> Case:
    """The case with random shardings on its tensors: each on its own, or most of them parts of one idea."""
    mesh = draw(st.sampled_from(MESHES))
    related = draw(st.booleans())
    idea = draw(_ideas(mesh, len(case.rule.factors)))
    shardings: list[Sharding | None] = []
    for dims, shape in zip((*case.rule.operands, *case.rule.results), case.shapes, strict=True):
        if not draw(st.integers(0, 4)):
            shardings.append(None)
        elif related and draw(st.integers(0, 5)):
            shardings.append(draw(_parts_of(idea, mesh, dims)))
        else:
            shardings.append(draw(meshed_shardings(mesh, len(shape))))
    if None in shardings[case.operands :]:
        shardings[case.operands :] = [None] * (len(case.shapes) - case.operands)
    return replace(case, shardings=tuple(shardings))


@st.composite
def _ideas(draw: st.DrawFn, mesh: Mesh, factors: int) -> list[list[AxisRef]]:
    """Axes for each factor; two factors may want the same ones."""
    pieces = [piece for name, size in mesh.axes for piece in draw(_pieces(name, size))]
    return [draw(st.lists(st.sampled_from(pieces), max_size=3, unique=True)) for _ in range(factors)]


@st.composite
def _parts_of(draw: st.DrawFn, idea: list[list[AxisRef]], mesh: Mesh, dims: tuple[tuple[int, ...], ...]) -> Sharding:
    """A sharding that has, in each dim, the first axes that its factors are to have; the last may be cut."""
    used: list[AxisRef] = []
    specs = []
    for dim in dims:
        axes: list[AxisRef] = []
        wanted = [axis for factor in dim for axis in idea[factor]]
        for axis in wanted[: draw(st.integers(0, len(wanted)))]:
            if not any(axis == other or axis.overlaps(other) for other in used):
                axes.append(axis)
                used.append(axis)
        parts = [n for n in range(2, axes[-1].size) if axes[-1].size % n == 0] if axes else []
        if parts and draw(st.booleans()):
            axes[-1] = axes[-1].split(draw(st.sampled_from(parts)))[0]
        specs.append(DimSharding(_merged(axes), draw(st.integers(0, 3)) == 0))
    return Sharding(mesh, specs)


@st.composite
def custom_cases(draw: st.DrawFn) -> Case:
    """A custom call with any rule: factors of any kind, in any tensors, several in a dim."""
    kinds = ("pass", "pass", REDUCTION, REPLICATE, PERMUTATION)
    count = draw(st.integers(1, 5))
    factors = [
        Factor(f"f{i}", draw(st.sampled_from(SIZES)), draw(st.sampled_from(kinds)), draw(st.integers(0, 9)) == 0)
        for i in range(count)
    ]
    operands, results = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    tensors = []
    for tensor in range(operands + results):
        have = [i for i in range(count) if factors[i].kind != REDUCTION or tensor < operands]
        have = draw(st.permutations([i for i in have if draw(st.integers(0, 3))]))
        tensors.append(draw(_grouped(have, factors)))
    # Some operands are alike: the more tensors have a factor, the more can disagree on it.
    tensors[:operands] = [tensors[draw(st.integers(0, i))] for i in range(operands)]
    missing = [i for i in range(count) if not any(i in dim for dims in tensors for dim in dims)]
    tensors[0] = (*tensors[0], *((i,) for i in missing))
    rule = Rule(tuple(factors), tuple(tensors[:operands]), tuple(tensors[operands:]))
    return draw(with_shardings(custom(rule)))


def custom(rule: Rule) -> Case:
    """A custom call that brings its rule."""
    attr = f"sdy.sharding_rule = #sdy.op_sharding_rule<{show_sdy(rule, custom=True)}>"
    text = "stablehlo.custom_call @foo({operands}) {attrs} : ({types}) -> ({results})"
    shapes = shapes_of(rule)
    return Case(rule, shapes, text, (None,) * len(shapes), attrs=(attr,))


def shapes_of(rule: Rule) -> tuple[tuple[int, ...], ...]:
    sizes = [factor.size for factor in rule.factors]
    return tuple(tuple(math.prod(sizes[i] for i in dim) for dim in dims) for dims in (*rule.operands, *rule.results))


@st.composite
def _grouped(draw: st.DrawFn, have: list[int], factors: list[Factor]) -> tuple[tuple[int, ...], ...]:
    """Factors dealt to dims, in order; one of size 1 is alone in its dim."""
    dims: list[tuple[int, ...]] = []
    for i in have:
        joins = dims and factors[i].size > 1 and factors[dims[-1][-1]].size > 1 and draw(st.booleans())
        dims[-1:] = [(*dims[-1], i)] if joins else [*dims[-1:], (i,)]
    return tuple(dims)


_SAME = "stablehlo.{name} {{operands}} {{attrs}} : {{results}}"
_TYPED = "stablehlo.{name} {{operands}}{more} {{attrs}} : ({{types}}) -> {{results}}"
_RESHAPE = _TYPED.format(name="reshape", more="")
_ALL = [{}] * 5
# A reduction of a dot, say, has to wait until all other factors have spread.
_LATE = [{"pass_only": True}, {}]
_FORWARD = [{"direction": FORWARD}, {"direction": FORWARD}, {"pass_only": True}, {}]
_BROADCAST = [{"direction": BACKWARD, "pass_only": True}, {"direction": BACKWARD}, {}]


def _dot(left: int, right: int) -> str:
    dims = f", batching_dims = [0] x [0], contracting_dims = [{left}] x [{right}]"
    return _TYPED.format(name="dot_general", more=dims)


def real(rule: str, text: str, pointwise: bool = False, indices: tuple[int, ...] = ()) -> Case:
    bound = Rule.parse(rule)
    shapes = shapes_of(bound)
    return Case(bound, shapes, text, (None,) * len(shapes), pointwise, indices=indices)


# Real operators with the steps that their kind is given one after the other when operators have priorities.
REAL = {
    "add": (real("i j, i j -> i j {i=6, j=8}", _SAME.format(name="add"), True), _ALL),
    "clamp": (real("i j k, i j k, i j k -> i j k {i=4, j=7, k=12}", _SAME.format(name="clamp"), True), _ALL),
    "negate": (real("i -> i {i=24}", _SAME.format(name="negate"), True), _ALL),
    "split": (real("(i j) -> i j {i=2, j=3}", _RESHAPE), _ALL),
    "join": (real("i j k -> (i j) k {i=2, j=4, k=6}", _RESHAPE), _ALL),
    "regroup": (real("(i j) k -> i (j k) {i=2, j=4, k=12}", _RESHAPE), _ALL),
    "insert": (real("i k -> i j k {i=8, j=1, k=6}", _RESHAPE), _ALL),
    "transpose": (
        real("j k i -> i j k {i=12, j=3, k=8}", _TYPED.format(name="transpose", more=", dims = [2, 0, 1]")),
        _ALL,
    ),
    "dot": (real("b i k, b k j -> b i j {b=4, i=6, j=12, k=8}", _dot(2, 1)), _LATE),
    "dot_transposed": (real("b k i, b j k -> b i j {b=2, i=8, j=6, k=24}", _dot(1, 2)), _LATE),
    "reduce": (
        real(
            "i j, () -> i {i=8, j=6}",
            "stablehlo.reduce({0} init: {1}) applies stablehlo.add across dimensions = [1] {attrs}"
            " : ({types}) -> {results}",
        ),
        _LATE,
    ),
    "broadcast": (
        real("j -> i j k {i=4, j=8, k=6}", _TYPED.format(name="broadcast_in_dim", more=", dims = [1]")),
        _BROADCAST,
    ),
    "update": (
        real(
            "i j, i [k], (), () -> i j {i=8, j=6, k=3}",
            _TYPED.format(name="dynamic_update_slice", more=""),
            False,
            (2, 3),
        ),
        _FORWARD,
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_rules_of_this_file(name: str) -> None:
    """The rules written above are those that the real operators have."""
    case, _ = REAL[name]
    with context():
        parsed = ir.Module.parse(case.module)
        PassManager.parse("builtin.module(func.func(sdy-populate-op-sharding-rules))").run(parsed.operation)
        assert f"#sdy.op_sharding_rule<{show_sdy(case.rule)}>" in str(parsed)


STRATEGIES = [
    ("sdy-basic-propagate", {"aggressive": False}),
    ("sdy-aggressive-propagate", {}),
    ("sdy-basic-propagate{conservative-propagation=true}", {"aggressive": False, "conservative": True}),
    ("sdy-aggressive-propagate{conservative-propagation=true}", {"conservative": True}),
]


def check(case: Case, name: str, *calls: dict) -> None:
    assert after(case, *calls) == run_pass(case.module, name, case.operands), case.module


def asked(mesh: Mesh, text: str) -> Sharding | None:
    """Read `a b:(1)2 ?, -`: the axes of each dim, `?` for an open one; nothing at all is no sharding."""
    words = [dim.replace("-", "").split() for dim in text.split(",")] if text else []
    dims = [DimSharding(tuple(mesh.ref(word) for word in dim if word != "?"), "?" not in dim) for dim in words]
    return Sharding(mesh, dims) if text else None


_ADD3 = "i j, i j, i j -> i j {i=12, j=24}"
# What random cases seldom meet: rule, and per operand and result its sharding on a mesh a=12 b=2 c=4.
CORNERS = {
    "a piece gives way to one that it does not divide": (_ADD3, ("a:(1)2 ?, ?", "a:(1)3 ?, ?", "?, ?", "")),
    "pieces that no splitting has together": (_ADD3, ("a:(1)2 ?, ?", "?, a:(3)2 ?", "?, ?", "")),
    "the factor split more goes first in elementwise ones": (_ADD3, ("a ?, ?", "?, a b ?", "?, ?", "")),
    "of two equal sources the first counts": (_ADD3, ("b ?, ?", "?, b ?", "b ?, ?", "")),
    "closed, but with the first piece": (_ADD3, ("a:(1)2, ?", "a ?, ?", "?, ?", "")),
    "a piece that goes on differently": (_ADD3, ("a ?, ?", "a:(1)2 b ?, ?", "a b ?, ?", "")),
    "a longer piece after a list that goes on": (_ADD3, ("a:(1)2 b ?, ?", "a ?, ?", "a c ?, ?", "")),
    "a closed axis holds the common piece": (_ADD3, ("a, -", "a:(1)2 b ?, ?", "?, ?", "")),
    "an overflow is in the way": ("(i j) k, k -> k {i=3, j=4, k=8}", ("b ?, ?", "b ?", "")),
    "an overflow hides the factor behind it": ("(i j) k, j -> k j {i=3, j=4, k=8}", ("b ?, ?", "c ?", "")),
    "pieces of two factors join": ("(i j) -> i j {i=2, j=6}", ("", "c:(1)2 ?, c:(2)2 ?")),
    "an axis is shared out to two factors": ("(i j) -> i j {i=2, j=3}", ("c", "")),
    "a part would be strided": ("(i j) -> i j {i=4, j=6}", ("", "b ?, c ?")),
    "what does not divide the major factor": ("(i j) -> i j {i=6, j=4}", ("", "c b ?, ?")),
    "lhs first": ("i k, k j -> i j {i=8, j=8, k=16}", ("b ?, ?", "?, b ?", "")),
    "the larger operand first": ("i k, k j -> i j {i=8, j=32, k=16}", ("b ?, ?", "?, b ?", "")),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners(name: str) -> None:
    text, shardings = CORNERS[name]
    mesh = Mesh(a=12, b=2, c=4)
    cases = [custom(Rule.parse(text))]
    if text is _ADD3:
        cases.append(real(text, _SAME.format(name="clamp"), True))
    for case in cases:
        case = replace(case, shardings=tuple(asked(mesh, of) for of in shardings))
        for strategy, options in STRATEGIES:
            check(case, strategy, options)


@given(custom_cases())
@settings(max_examples=150)
def test_any_rule(case: Case) -> None:
    for name, options in STRATEGIES:
        check(case, name, options)
    check(case, "sdy-op-priority-propagate", *_LATE)


@pytest.mark.parametrize("name", REAL)
@given(st.data())
@settings(max_examples=15)
def test_real_operators(name: str, data: st.DataObject) -> None:
    case, levels = REAL[name]
    case = data.draw(with_shardings(case))
    for strategy, options in STRATEGIES[:2]:
        check(case, strategy, options)
    check(case, "sdy-op-priority-propagate", *levels)


@pytest.mark.parametrize("direction", list(Direction))
@given(st.data())
@settings(max_examples=15)
def test_directions(direction: Direction, data: st.DataObject) -> None:
    text = f"sdy.propagation_barrier {{operands}} allowed_direction={direction.name} {{attrs}} : {{types}}"
    case = real("i j -> i j {i=8, j=6}", text, True)
    mesh = Mesh(a=4, b=2)
    longer = replace(case, shardings=(asked(mesh, "a:(1)2 ?, b ?"), asked(mesh, "a b ?, ?")))
    for drawn in (longer, data.draw(with_shardings(case))):
        for strategy, options in STRATEGIES[:2]:
            check(drawn, strategy, {"direction": direction, **options})
