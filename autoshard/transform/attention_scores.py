"""What stands between the two products of attention that people write by hand: scales, a cap, masks, softmax, a sink.

A chain is found from its end backwards, and read from its beginning: which dims of the scores are those of queries and
keys, what hides scores, and what is added to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoshard.ir.graph import Graph, Node, Value
from autoshard.transform.dim_atoms import Dim, DimAtom, Dims, leaves_of, moved, product_letters, sources_of
from autoshard.transform.elements import ConstantElements

HIDDEN = -1e4
"""Scores that are this or less count as hidden: exp of it is 0 beside any score that can be seen."""
MOST_GATED = 1 << 26
"""Elements of a gate up to which it is looked whether all that it makes zero is hidden."""
_PASSED = ("Cast", "Convert", "Identity", "Transpose", "Reshape", "ExpandDims", "Squeeze")
_PRODUCTS = ("MatMul", "BatchMatMul", "DotGeneral", "Einsum")
_SPREAD = ("BroadcastInDim", "BroadcastTo", "Reshape", "ExpandDims", "Transpose", "StopGradient", "Cast", "Convert")
Steps = tuple[tuple[Node, int], ...]
"""Nodes in order, each with the number of the operand that the one before makes."""


@dataclass(frozen=True)
class ScoreMask:
    """What is done to scores: `value` with dims `dims`, times `factor`, is added to them ("add") or taken from them
    ("less"), or hides them where it is False ("seen") or True ("hidden")."""

    value: Value
    dims: Dims
    kind: str
    factor: float = 1.0


@dataclass(frozen=True)
class ScoreSteps:
    """Scores as they are built up: their dims, and what was done with products of queries and keys.

    `gate` is a constant of ones and zeros that they were multiplied by, which what is added next has to hide.
    """

    dims: Dims
    scale: float = 1.0
    softcap: float = 0.0
    stage: str = "scale"
    masks: tuple[ScoreMask, ...] = ()
    sink: ScoreMask | None = None
    key: DimAtom | None = None
    gate: Value | None = None


@dataclass(frozen=True)
class ScoreChain:
    """From a product of queries and keys to the weights of a product with values."""

    product: Node
    before: Steps
    softmax_axis: int
    after: Steps


class ReducedAlong(NamedTuple):
    """What is reduced along dim `axis`, how many read `x` for that, and how it was turned first."""

    x: Value
    axis: int
    readers: int = 1
    steps: Steps = ()


@dataclass
class ScoreChains:
    """Finds and reads chains in a graph; nodes in `keep` are part of none."""

    graph: Graph
    keep: Collection[Node]
    elements: ConstantElements
    uses: Counter = field(init=False)

    def __post_init__(self) -> None:
        self.uses = Counter(value for node in self.graph.nodes for value in node.uses)
        self.uses.update(self.graph.outputs)

    # -- backwards

    def of(self, weights: Value) -> ScoreChain | None:
        """The chain that ends with `weights`."""
        after: list[tuple[Node, int]] = []
        value = weights
        while (node := self.made(value)) is not None:
            found = self.softmax(node)
            if found is not None:
                before = self.back(found.x, found.readers)
                steps = () if before is None else (*before[1], *found.steps)
                return None if before is None else ScoreChain(before[0], steps, found.axis, tuple(reversed(after)))
            if node.op.name not in (*_PASSED, "StridedSlice", "Slice"):
                return None
            after.append((node, 0))
            value = node.operands[0]
        return None

    def made(self, value: Value, readers: int = 1) -> Node | None:
        """The node that makes a value which only so many read."""
        if self.uses[value] != readers or value not in self.graph.producers:
            return None
        node, _ = self.graph.producers[value]
        return None if node in self.keep or node.regions or node.given_rule is not None else node

    def softmax(self, node: Node) -> ReducedAlong | None:
        """Of what and along which dim weights are a softmax: as one operator, or as JAX writes it."""
        if node.op.name == "Softmax":
            rank = node.operands[0].type.rank
            return ReducedAlong(node.operands[0], node.attrs["axis"] % rank)
        if node.op.name not in ("Div", "RealDiv"):
            return None
        powers, total = node.operands
        exp, summed = self.made(powers, 2), self.reduction(total, "sum")
        if exp is None or exp.op.name != "Exp" or summed is None or summed.x is not powers:
            return None
        shift = self.made(exp.operands[0])
        found = None if shift is None else self.shifted(shift)
        return found if found is not None and found.axis == summed.axis else None

    def shifted(self, node: Node) -> ReducedAlong | None:
        """x of a node that makes x - max(x), or turned x less its turned maxima."""
        most = self.reduction(node.operands[1], "max") if node.op.name == "Sub" else None
        if most is None:
            return None
        value, steps, axis = node.operands[0], [], most.axis
        while value is not most.x:
            made = self.made(value)
            if made is None or made.op.name != "Transpose":
                return None
            steps.insert(0, (made, 0))
            value = made.operands[0]
        for made, _ in steps:
            axis = made.attrs["perm"].index(axis)
        return ReducedAlong(value, axis, 1 + most.readers, tuple(steps))

    def reduction(self, value: Value, kind: str) -> ReducedAlong | None:
        """Of what and along which single dim a value, that is spread again, is the sum or the largest.

        A sum is spread over the very dims that it was summed in; from what is taken a largest score may stand as it
        likes, since that changes no weights.
        """
        dims: list[int | None] | None = list(range(value.type.rank))
        while value in self.graph.producers:
            node, _ = self.graph.producers[value]
            if node.op.name == "Maximum":
                constant = [self.elements.number(one) is not None for one in node.operands]
                if kind != "max" or constant.count(True) != 1:
                    return None
                value = node.operands[constant.index(False)]
            elif node.op.name in _SPREAD:
                before, back = node.operands[0], None
                if dims is not None:
                    back = sources_of(node.op.name, node.attrs, before.type.shape, value.type.shape)
                dims = None if dims is None or back is None else [None if i is None else back[i] for i in dims]
                value = before
            elif node.op.name == "GatherD" and kind == "max":
                return self.picked(node)
            else:
                axes = _reduced(node, kind)
                if axes is None or len(axes) != 1 or (kind == "sum" and not _stands(dims, node, axes[0])):
                    return None
                return ReducedAlong(node.operands[0], axes[0])
        return None

    def picked(self, node: Node) -> ReducedAlong | None:
        """Of what and along which dim a gather picks the largest, by its place."""
        place, _ = self.graph.producers.get(node.operands[1], (None, 0))
        if place is None or place.op.name != "ArgMax" or place.operands[0] is not node.operands[0]:
            return None
        rank = node.operands[0].type.rank
        same = place.attrs["keep_dims"] and place.attrs["axis"] % rank == node.attrs["dim"] % rank
        return ReducedAlong(node.operands[0], node.attrs["dim"] % rank, 2) if same else None

    def back(self, value: Value, readers: int = 1) -> tuple[Node, Steps] | None:
        """The product that scores come from, and the steps to this value."""
        node = self.made(value, readers)
        if node is None:
            return None
        if node.op.name in _PRODUCTS:
            return (node, ()) if product_letters(node) is not None else None
        shift = self.shifted(node)
        if shift is not None:
            found = self.back(shift.x, shift.readers)
            return None if found is None else (found[0], (*found[1], *shift.steps, (node, 0)))
        for i in _ways(node):
            found = self.back(node.operands[i])
            if found is not None:
                return found[0], (*found[1], (node, i))
        return None

    # -- forwards

    def read(self, chain: ScoreChain, dims: Dims) -> tuple[ScoreSteps, Dims] | None:
        """The scores before the softmax, and the dims of the weights; `dims` are those of the product."""
        scores: ScoreSteps | None = ScoreSteps(dims)
        for node, i in chain.before:
            scores = self.step(scores, node, i)
            if scores is None:
                return None
        key = leaves_of(scores.dims[chain.softmax_axis])
        if len(key) != 1 or scores.gate is not None or (scores.sink is not None and scores.key is not key[0]):
            return None
        weights, whole = replace(scores, key=key[0]), scores.sink is None
        for node, _ in chain.after:
            if node.op.name in ("StridedSlice", "Slice"):
                if whole or not self.without_sink(node, weights.dims):
                    return None
                whole = True
                continue
            made = moved(weights.dims, node)
            if made is None:
                return None
            weights = replace(weights, dims=made)
        if not whole:
            return None
        if scores.stage == "cap":
            scores = replace(scores, softcap=1.0)
        return replace(scores, key=key[0]), weights.dims

    def step(self, scores: ScoreSteps, node: Node, i: int) -> ScoreSteps | None:
        """What a node makes of scores that are its operand i."""
        if scores.gate is not None:
            return self.hidden(scores, scores.gate, node, i)
        made = moved(scores.dims, node) if node.op.name in _PASSED else None
        if made is not None:
            return replace(scores, dims=made)
        factor = self.factor(node, i)
        if factor is not None:
            return _scaled(scores, factor)
        if node.op.name == "Tanh":
            return replace(scores, stage="cap") if scores.stage == "scale" else None
        if self.shifted(node) is not None or self.is_floor(node, i) or _adds_nothing(node):
            return scores
        if node.op.name == "Mul" and self.elements.is_constant(node.operands[1 - i]):
            return replace(scores, gate=node.operands[1 - i])
        if node.op.name in ("Concat", "Concatenate"):
            return self.with_sink(scores, node, i)
        mask = self.mask(node, i, scores.dims)
        if mask is None:
            return None
        if scores.stage == "cap":
            scores = replace(scores, softcap=1.0)
        return replace(scores, stage="mask", masks=(*scores.masks, mask))

    def is_floor(self, node: Node, i: int) -> bool:
        """Whether a node only lifts hidden scores to the least that can be."""
        least = self.elements.number(node.operands[1 - i]) if node.op.name == "Maximum" else None
        return least is not None and least <= HIDDEN

    def hidden(self, scores: ScoreSteps, gate: Value, node: Node, i: int) -> ScoreSteps | None:
        """Scores after what is added behind a gate, if it hides all that the gate has made zero."""
        added = node.operands[1 - i] if node.op.name in ("Add", "Sub") and (i == 0 or node.op.name == "Add") else None
        if added is None or not self.elements.is_constant(added) or gate.type.elements > MOST_GATED:
            return None
        held, more = (self.elements.whole(one, node.results[0].type.rank) for one in (gate, added))
        more = -more if node.op.name == "Sub" else more
        if not ((held == 1) | ((held == 0) & (more <= HIDDEN))).all():
            return None
        return self.step(replace(scores, gate=None), node, i)

    def factor(self, node: Node, i: int) -> float | None:
        """The number that a node multiplies its operand i by."""
        if node.op.name == "ScalarMul":
            return float(node.attrs["factor"])
        if node.op.name not in ("Mul", "Div", "RealDiv") or (node.op.name != "Mul" and i):
            return None
        number = self.elements.number(node.operands[1 - i])
        if not number:
            return None
        return number if node.op.name == "Mul" else 1 / number

    def mask(self, node: Node, i: int, dims: Dims) -> ScoreMask | None:
        """What a node hides of its operand i, or adds to it."""
        if node.results[0].type.rank != len(dims):
            return None
        if node.op.name == "Add":
            return ScoreMask(node.operands[1 - i], dims, "add")
        if node.op.name == "Sub":
            return ScoreMask(node.operands[1], dims, "less")
        if node.op.name == "MaskedFill":
            return ScoreMask(node.operands[1], dims, "hidden") if node.attrs["value"] <= HIDDEN else None
        if node.op.name == "Select" and i:
            fill = self.elements.number(node.operands[3 - i])
            kind = "seen" if i == 1 else "hidden"
            return ScoreMask(node.operands[0], dims, kind) if fill is not None and fill <= HIDDEN else None
        return None

    def with_sink(self, scores: ScoreSteps, node: Node, i: int) -> ScoreSteps | None:
        """Scores with one more behind the keys, that has no value."""
        axis = node.attrs["axis" if node.op.name == "Concat" else "dim"] % len(scores.dims)
        if len(node.operands) != 2 or i or node.operands[1].type.shape[axis] != 1 or scores.sink is not None:
            return None
        key = leaves_of(scores.dims[axis])
        if len(key) != 1:
            return None
        sink = ScoreMask(node.operands[1], scores.dims, "sink")
        return replace(scores, sink=sink, key=key[0], stage="mask")

    def without_sink(self, node: Node, dims: Dims) -> bool:
        """Whether a slice leaves out just the last weight."""
        shape = node.results[0].type.shape
        starts = node.attrs.get("begin", node.attrs.get("start", ()))
        sizes = tuple(_size(dim) for dim in dims)
        return tuple(shape) == sizes and not any(starts)


def _adds_nothing(node: Node) -> bool:
    return node.op.name == "ScalarAdd" and node.attrs["addend"] == 0


def _scaled(scores: ScoreSteps, factor: float) -> ScoreSteps | None:
    if scores.stage == "cap":
        return replace(scores, scale=scores.scale * factor, softcap=factor, stage="capped") if factor > 0 else None
    if scores.stage == "scale":
        return replace(scores, scale=scores.scale * factor)
    if scores.sink is not None or scores.softcap or factor <= 0:
        return scores if factor == 1.0 else None
    masks = tuple(replace(one, factor=one.factor * factor) for one in scores.masks)
    return replace(scores, scale=scores.scale * factor, masks=masks)


def _size(dim: Dim) -> int:
    found = 1
    for atom in dim:
        found *= atom.size
    return found


def _reduced(node: Node, kind: str) -> tuple[int, ...] | None:
    """The dims that a node sums, or takes the largest of."""
    name, rank = node.op.name, node.operands[0].type.rank if node.operands else 0
    if name == ("ReduceSum" if kind == "sum" else "ReduceMax"):
        axis = node.attrs["axis"]
        axes = axis if isinstance(axis, tuple) else (axis,)
        return tuple(one % rank for one in axes)
    by = {"ReduceAdd": "sum"}.get(name) or (name == "Reduce" and node.attrs["body"].name)
    return node.attrs["dimensions"] if {"add": "sum"}.get(str(by), by) == kind else None


def _stands(dims: Sequence[int | None] | None, node: Node, axis: int) -> bool:
    """Whether each dim of a sum, that is spread again, stands where it did; `dims` are its own for each dim."""
    shape, whole = node.results[0].type.shape, node.operands[0].type.shape
    kept = len(shape) == len(whole)
    wanted = [i if kept or i < axis else i - 1 for i in range(len(whole))]
    return dims is not None and all(i == axis or whole[i] == 1 or dims[i] == wanted[i] for i in range(len(whole)))


def _ways(node: Node) -> Iterator[int]:
    """The operands by which scores may have come to a node."""
    name = node.op.name
    if name in (
        *_PASSED,
        "ScalarMul",
        "ScalarAdd",
        "Tanh",
        "MaskedFill",
        "Div",
        "RealDiv",
        "Sub",
        "Concat",
        "Concatenate",
    ):
        yield 0
    elif name in ("Add", "Mul", "Maximum"):
        yield from (0, 1)
    elif name == "Select":
        yield from (1, 2)
