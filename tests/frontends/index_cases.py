"""Shapes and dimension numbers of contractions, gathers and scatters drawn at random, as text for Shardy and XLA."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.frontends.rules import one_op

Dims = tuple[int, ...]
FULL, CUT, ONE, DROPPED, BATCHING = "full", "cut", "one", "dropped", "batching"
SIZES = st.sampled_from((1, 2, 3, 4, 6, 10))
SHAPES = st.lists(SIZES, max_size=4).map(tuple)
# The sizes of a tensor, each with one that a slice of it has.
PAIRS = st.lists(SIZES.flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size))), min_size=1, max_size=4)


@dataclass(frozen=True)
class IndexCase:
    """Shapes and dimension numbers; `slices` is a gather's result or a scatter's updates."""

    operand: Dims
    indices: Dims
    slices: Dims
    slice_sizes: Dims
    window: Dims
    dropped: Dims
    batching: Dims
    indices_batching: Dims
    index_map: Dims
    vector: int

    def numbers(self, of_scatter: bool) -> str:
        """The dimension numbers as StableHLO writes them."""
        names = _SCATTER if of_scatter else _GATHER
        lists = (self.window, self.dropped, self.batching, self.indices_batching, self.index_map)
        pairs = [f"{name} = {list(dims)}" for name, dims in zip(names, lists, strict=True)]
        return f"<{', '.join(pairs)}, index_vector_dim = {self.vector}>"


_GATHER = (
    "offset_dims",
    "collapsed_slice_dims",
    "operand_batching_dims",
    "start_indices_batching_dims",
    "start_index_map",
)
_SCATTER = (
    "update_window_dims",
    "inserted_window_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
    "scatter_dims_to_operand_dims",
)


@st.composite
def index_cases(draw: st.DrawFn) -> IndexCase:
    """Any roles of the operand's dims, any order of the indices' and the slices' dims."""
    roles = draw(st.lists(st.sampled_from((FULL, CUT, ONE, DROPPED, BATCHING)), min_size=1, max_size=4))
    operand = tuple(draw(SIZES) for _ in roles)
    slice_sizes = tuple(_slice_size(draw, role, size) for role, size in zip(roles, operand, strict=True))
    batching = tuple(i for i, role in enumerate(roles) if role == BATCHING)
    dropped = tuple(i for i, role in enumerate(roles) if role == DROPPED)
    kept = [i for i in range(len(roles)) if i not in batching + dropped]
    free = draw(st.permutations([i for i in range(len(roles)) if i not in batching]))
    index_map = tuple(free[: draw(st.integers(min(1, len(free)), len(free)))])
    # The indices: explicit and implicit batch dims in any order, then perhaps the vector among them.
    order = draw(st.permutations([*batching, *(-1 for _ in range(draw(st.integers(0, 2))))]))
    batch = [operand[one] if one >= 0 else draw(SIZES) for one in order]
    scalars = len(index_map) == 1 and draw(st.booleans())
    vector = len(batch) if scalars else draw(st.integers(0, len(batch)))
    indices = tuple(batch) if scalars else (*batch[:vector], len(index_map), *batch[vector:])
    places = [order.index(one) for one in batching]
    indices_batching = tuple(place + (not scalars and place >= vector) for place in places)
    # The slices: window dims and batch dims in any order.
    mixed = draw(st.permutations(["window"] * len(kept) + ["batch"] * len(batch)))
    window = tuple(i for i, word in enumerate(mixed) if word == "window")
    sizes = {"window": iter([slice_sizes[i] for i in kept]), "batch": iter(batch)}
    slices = tuple(next(sizes[word]) for word in mixed)
    return IndexCase(
        operand, indices, slices, slice_sizes, window, dropped, batching, indices_batching, index_map, vector
    )


def _slice_size(draw: st.DrawFn, role: str, size: int) -> int:
    if role == CUT:
        return draw(st.integers(1, size))
    return size if role == FULL else 1


def tensor(shape: tuple[int, ...], element: str = "f32") -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def mixed(data: st.DataObject, batch: tuple, contract: tuple, free: tuple) -> tuple[tuple, list[int], list[int]]:
    """A shape of these dims in any order, and where the batch and contracting ones are."""
    sizes = (*batch, *contract, *free)
    order = data.draw(st.permutations(range(len(sizes))))
    where = [order.index(i) for i in range(len(sizes))]
    split = len(batch) + len(contract)
    return tuple(sizes[i] for i in order), where[: len(batch)], where[len(batch) : split]


def free_sizes(shape: tuple, taken: list[int]) -> tuple:
    return tuple(size for i, size in enumerate(shape) if i not in taken)


# -- scatters

# Element type, lines of the region with T for its scalar type, and what it returns.
BODIES = (
    ("f32", "%v = stablehlo.add %a, %b : T", "%v"),
    ("i32", "%v = stablehlo.add %b, %a : T", "%v"),
    ("f32", "%v = stablehlo.multiply %a, %b : T", "%v"),
    ("bf16", "%v = stablehlo.maximum %a, %b : T", "%v"),
    ("f32", "%v = stablehlo.minimum %a, %b : T", "%v"),
    ("i32", "%v = stablehlo.and %a, %b : T", "%v"),
    ("i32", "%v = stablehlo.or %a, %b : T", "%v"),
    ("i1", "%v = stablehlo.and %a, %b : T", "%v"),
    ("i1", "%v = stablehlo.or %a, %b : T", "%v"),
    ("i1", "%v = stablehlo.add %a, %b : T", "%v"),
    ("i1", "%v = stablehlo.multiply %a, %b : T", "%v"),
    ("i1", "%v = stablehlo.xor %a, %b : T", "%v"),
    ("f32", "%v = stablehlo.subtract %a, %b : T", "%v"),
    ("f32", "%v = stablehlo.add %a, %a : T", "%v"),
    ("f32", "%w = stablehlo.multiply %a, %b : T\n %v = stablehlo.add %a, %b : T", "%v"),
    ("f32", "%w = stablehlo.multiply %a, %b : T\n %v = stablehlo.add %w, %b : T", "%v"),
    ("f32", "", "%b"),
    ("f32", "", "%a"),
)


def scatter(case: IndexCase, elements: tuple[str, ...], lines: str, returned: tuple[str, ...]) -> str:
    """A scatter with as many inputs as elements, whose region holds these lines; %a, %b, ... are its arguments."""
    types = [f"tensor<{element}>" for element in elements]
    arguments = ", ".join(f"%{name}: {one}" for name, one in zip("abcd", types * 2, strict=False))
    region = f"^bb0({arguments}):\n {lines}\n stablehlo.return {', '.join(returned)} : {', '.join(types)}\n"
    numbers = f"scatter_dimension_numbers = #stablehlo.scatter{case.numbers(True)}"
    operands = ", ".join(f"%{i}" for i in range(2 * len(elements) + 1))
    op = f'"stablehlo.scatter"({operands}) <{{{numbers}}}> ({{\n{region}}})'
    inputs = [tensor(case.operand, element) for element in elements]
    updates = [tensor(case.slices, element) for element in elements]
    return one_op(op, ", ".join([*inputs, tensor(case.indices, "i32"), *updates]), ", ".join(inputs))
