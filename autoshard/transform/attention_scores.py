"""What stands between the two products of attention that people write by hand: scales, a cap, masks, softmax, a sink.

A chain is found from its end backwards, and read from its beginning: which dims of the scores are those of queries and
keys, what hides scores, and what is added to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from autoshard.ir.graph import Node, Value
from autoshard.transform.attention_softmax import SoftmaxForm, SoftmaxForms
from autoshard.transform.dim_atoms import RESHAPES, DimAtom, Dims, leaves_of, moved, product_letters, size_of
from autoshard.transform.elements import ConstantElements

HIDDEN = -1e4
"""Scores that are this or less count as hidden: exp of it is 0 beside any score that can be seen."""
MOST_GATED = 1 << 26
"""Elements of a gate up to which it is looked whether all that it makes zero is hidden."""
PRODUCTS = ("MatMul", "BatchMatMul", "DotGeneral", "Einsum")
_PASSED = ("Cast", "Convert", "Identity", "Transpose", *RESHAPES)
_SLICES = ("StridedSlice", "Slice")
ADDED = ("add", "less")
_JOINS = ("Concat", "Concatenate")
Steps = tuple[tuple[Node, int], ...]
"""Nodes in order, each with the number of the operand that the one before makes."""


@dataclass(frozen=True)
class ScoreMask:
    """What is done to scores: `value` with dims `dims`, times `factor`, is added to them ("add") or taken from them
    ("less"), or hides them where it is False ("seen") or True ("hidden"); they are multiplied by it ("times") or
    divided ("over"); or it is a sink's score. `is_own` says that it is made of the scores themselves, as their largest
    is; `endless`, that what is hidden becomes minus infinity, all of which have weights that are no numbers. Of weights
    that are made zero there ("nan") `value` is not read."""

    value: Value
    dims: Dims
    kind: str
    factor: float = 1.0
    is_own: bool = False
    endless: bool = False


@dataclass(frozen=True)
class ScoreProduct:
    """Another product of queries and keys, times `scale`, that is added; `dims` are those of its result."""

    node: Node
    dims: Dims
    scale: float = 1.0


@dataclass(frozen=True)
class DroppedWeights:
    """The node that drops weights, whose dims are `dims`."""

    node: Node
    dims: Dims


@dataclass(frozen=True)
class ScoreSteps:
    """Scores as they are built up: their dims, and what was done with products of queries and keys.

    `gate` is a constant of ones and zeros that they were multiplied by, which what is added next has to hide. `sunk` is
    how many of the masks were there before the sink, which stands `sink_first` before all keys or behind them.
    """

    dims: Dims
    scale: float = 1.0
    softcap: float = 0.0
    stage: str = "scale"
    products: tuple[ScoreProduct, ...] = ()
    times: tuple[ScoreMask, ...] = ()
    masks: tuple[ScoreMask, ...] = ()
    zeroed: tuple[ScoreMask, ...] = ()
    dropped: DroppedWeights | None = None
    sink: ScoreMask | float | None = None
    sink_first: bool = False
    sunk: int = 0
    key: DimAtom | None = None
    gate: Value | None = None


@dataclass(frozen=True)
class ScoreChain:
    """From a product of queries and keys to the weights of a product with values."""

    product: Node
    before: Steps
    softmax: SoftmaxForm
    after: Steps


@dataclass
class ScoreChains:
    """Finds and reads chains in a graph."""

    forms: SoftmaxForms
    elements: ConstantElements

    # -- backwards

    def of(self, weights: Value, reader: Node) -> Iterator[ScoreChain]:
        """The chains that end with `weights`, which only `reader` reads."""
        after: list[tuple[Node, int]] = []
        tests: dict[Node, Value] = {}  # which read what weights are made of, too
        value = weights
        while (node := self.forms.made(value, (reader, *tests))) is not None:
            found = self.forms.found(node)
            tests = {test: of for test, of in tests.items() if of is not value}
            if found is not None:
                if not tests:
                    yield from self.behind(found, tuple(reversed(after)))
                return
            i, test = self.passed(node), self.forms.testing(node)
            if i is None:
                return
            if test is not None:
                tests[test] = test.operands[0]
            after.append((node, i))
            value, reader = node.operands[i], node

    def behind(self, softmax: SoftmaxForm, after: Steps = ()) -> Iterator[ScoreChain]:
        """The chains that go on to a softmax, and behind it."""
        for product, steps in self.back(softmax.scores, softmax.readers, softmax.others):
            yield ScoreChain(product, steps, softmax, after)

    def passed(self, node: Node) -> int | None:
        """The operand by which weights come to a node behind the softmax."""
        if node.op.name in (*_PASSED, *_SLICES, "Dropout"):
            return 0
        zeroing = self.forms.zeroing(node)
        if zeroing is None:
            return None if self.forms.testing(node) is None else 2
        return zeroing[0]

    def back(
        self, value: Value, readers: frozenset[Node], others: tuple[Value, ...] = ()
    ) -> Iterator[tuple[Node, Steps]]:
        """The products that scores may come from, and the steps to this value, which `readers` read, and what `others`
        are made by, as its largest."""
        beside = (node for other in others for node in self.forms.between(other, value))
        node = self.forms.made(value, readers.union(beside))
        if node is None:
            return
        if node.op.name in PRODUCTS:
            if product_letters(node) is not None:
                yield node, ()
            return
        for i in _ways(node):
            more = (node.operands[1 - i],) if node.op.name in ("Add", "Sub") else ()
            for product, steps in self.back(node.operands[i], frozenset((node,)), (*others, *more)):
                yield product, (*steps, (node, i))

    # -- forwards

    def read(self, chain: ScoreChain, dims: Dims, whole: bool) -> tuple[ScoreSteps, Dims] | None:
        """The scores before the softmax, and the dims of the weights; `dims` are those of the product.

        Args:
            whole: products that are added are more of the same one; else they are masks.
        """
        scores = ScoreSteps(dims)
        for node, i in chain.before:
            before, scores = scores, self.step(scores, node, i, whole)
            if scores is None:
                return None
            if len(scores.masks) > len(before.masks):
                scores = self.told(scores, chain.product)
        key = leaves_of(scores.dims[chain.softmax.axis])
        if len(key) != 1 or scores.gate is not None or (scores.sink is not None and scores.key is not key[0]):
            return None
        if scores.stage == "cap":
            scores = replace(scores, softcap=1.0)
        scores = self.beside(replace(scores, key=key[0]), chain.softmax)
        return None if scores is None else self.weights(scores, chain)

    def told(self, scores: ScoreSteps, product: Node) -> ScoreSteps:
        """Scores whose last mask tells whether it is made of them."""
        *masks, last = scores.masks
        if last.kind not in ADDED or not self.forms.between(last.value, product.results[0]):
            return scores
        return replace(scores, masks=(*masks, replace(last, is_own=True)))

    def beside(self, scores: ScoreSteps, softmax: SoftmaxForm) -> ScoreSteps | None:
        """Scores with what their softmax has besides: a sink, and masks of weights."""
        zeroed = tuple(ScoreMask(one.mask, scores.dims, one.kind) for one in softmax.zeroed)
        scores = replace(scores, zeroed=zeroed)
        if softmax.sink is None:
            return scores
        if scores.sink is not None:
            return None
        sink = ScoreMask(softmax.sink, scores.dims, "sink") if isinstance(softmax.sink, Value) else softmax.sink
        return replace(scores, sink=sink, sunk=len(scores.masks))

    def weights(self, scores: ScoreSteps, chain: ScoreChain) -> tuple[ScoreSteps, Dims] | None:
        """The scores, and the dims of the weights that are made of them, which have no place for a sink."""
        dims, whole = scores.dims, scores.sink is None or chain.softmax.sink is not None
        for node, i in chain.after:
            zeroing, made = self.forms.zeroing(node), moved(dims, node)
            if node.op.name in _SLICES:
                if whole or not self.without_sink(node, dims, scores):
                    return None
                whole = True
            elif zeroing is not None and whole and zeroing[0] == i:
                _, (mask, kind) = zeroing
                scores = replace(scores, zeroed=(*scores.zeroed, ScoreMask(mask, dims, kind)))
            elif node.op.name == "Dropout" and whole and scores.dropped is None and not node.attrs["whole"]:
                scores = replace(scores, dropped=DroppedWeights(node, dims))
            elif made is not None:
                dims = made
            elif not whole or self.forms.testing(node) is None:
                return None
        return (scores, dims) if whole else None

    def step(self, scores: ScoreSteps, node: Node, i: int, whole: bool) -> ScoreSteps | None:
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
        if self.is_floor(node, i) or _adds_nothing(node):
            return scores
        if node.op.name == "Mul" and self.is_gate(node.operands[1 - i]):
            return replace(scores, gate=node.operands[1 - i])
        if node.op.name in ("Mul", "Div", "RealDiv"):
            return _multiplied(scores, node, i)
        if node.op.name in _JOINS:
            return self.with_sink(scores, node, i)
        more = self.product(scores, node, i) if whole and node.op.name == "Add" else None
        return self.masked(scores, node, i) if more is None else replace(scores, products=(*scores.products, more))

    def masked(self, scores: ScoreSteps, node: Node, i: int) -> ScoreSteps | None:
        """Scores with what a node adds to them, or hides."""
        mask = self.mask(node, i, scores.dims)
        if mask is None:
            return None
        if scores.stage == "cap":
            scores = replace(scores, softcap=1.0)
        return replace(scores, stage="mask", masks=(*scores.masks, mask))

    def product(self, scores: ScoreSteps, node: Node, i: int) -> ScoreProduct | None:
        """The product of queries and keys that a node adds to scores which nothing but a scale has changed."""
        if scores.stage != "scale" or scores.times or node.operands[0].type.rank != node.operands[1].type.rank:
            return None
        value, dims, scale, reader = node.operands[1 - i], scores.dims, 1.0, node
        while (made := self.forms.made(value, (reader,))) is not None and made.op.name not in PRODUCTS:
            if made.op.name == "Transpose":
                dims = tuple(dims[made.attrs["perm"].index(k)] for k in range(len(dims)))
            k, factor = self.scaled(made)
            if factor is None:
                return None
            scale, value, reader = scale * factor, made.operands[k], made
        if made is None or product_letters(made) is None or value.type.rank != len(dims):
            return None
        return ScoreProduct(made, dims, scale)

    def scaled(self, node: Node) -> tuple[int, float | None]:
        """The operand that a node hands on, with its dims in some order, times a number; None: it does other things."""
        if node.op.name in ("Transpose", "Cast", "Convert", "Identity"):
            return 0, 1.0
        factors = [(k, self.factor(node, k)) for k in range(len(node.operands))]
        return next((one for one in factors if one[1] is not None), (0, None))

    def is_floor(self, node: Node, i: int) -> bool:
        """Whether a node only lifts hidden scores to the least that can be."""
        least = self.elements.number(node.operands[1 - i]) if node.op.name == "Maximum" else None
        return least is not None and least <= HIDDEN

    def is_gate(self, value: Value) -> bool:
        """Whether a value is a constant of ones and zeros."""
        if not self.elements.is_constant(value) or value.type.elements > MOST_GATED:
            return False
        return bool(np.isin(self.elements.whole(value, value.type.rank), (0, 1)).all())

    def hidden(self, scores: ScoreSteps, gate: Value, node: Node, i: int) -> ScoreSteps | None:
        """Scores after what is added behind a gate, if it hides all that the gate has made zero."""
        added = node.operands[1 - i] if node.op.name in ("Add", "Sub") and (i == 0 or node.op.name == "Add") else None
        if added is None or not self.elements.is_constant(added):
            return None
        held, more = (self.elements.whole(one, node.results[0].type.rank) for one in (gate, added))
        more = -more if node.op.name == "Sub" else more
        if not ((held == 1) | ((held == 0) & (more <= HIDDEN))).all():
            return None
        return self.masked(replace(scores, gate=None), node, i)

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
        if node.op.name in ("Add", "Sub"):
            other, kind = node.operands[1 - i], "add" if node.op.name == "Add" else "less"
            return ScoreMask(other, dims, kind)
        if node.op.name == "MaskedFill":
            fill = node.attrs["value"]
            return ScoreMask(node.operands[1], dims, "hidden", endless=fill == -math.inf) if fill <= HIDDEN else None
        if node.op.name == "Select" and i:
            fill = self.elements.number(node.operands[3 - i])
            if fill is None or fill > HIDDEN:
                return None
            return ScoreMask(node.operands[0], dims, "seen" if i == 1 else "hidden", endless=fill == -math.inf)
        return None

    def with_sink(self, scores: ScoreSteps, node: Node, i: int) -> ScoreSteps | None:
        """Scores with one more, that has no value, behind the keys or before them."""
        axis = node.attrs["axis" if node.op.name == "Concat" else "dim"] % len(scores.dims)
        if len(node.operands) != 2 or node.operands[1 - i].type.shape[axis] != 1 or scores.sink is not None:
            return None
        key = leaves_of(scores.dims[axis])
        if len(key) != 1:
            return None
        number, sunk = self.elements.number(node.operands[1 - i]), len(scores.masks)
        sink = ScoreMask(node.operands[1 - i], scores.dims, "sink") if number is None else number
        return replace(scores, sink=sink, sink_first=i == 1, sunk=sunk, key=key[0], stage="mask")

    def without_sink(self, node: Node, dims: Dims, scores: ScoreSteps) -> bool:
        """Whether a slice leaves out just the weight of the sink."""
        assert scores.key is not None
        starts = [at or 0 for at in node.attrs.get("begin", node.attrs.get("start", ()))]
        sizes = tuple(size_of(dim) for dim in dims)
        wanted = [int(scores.sink_first and leaves_of(dim) == (scores.key,)) for dim in dims]
        steps = [step or 1 for step in node.attrs["strides"]]
        same = [*starts, *(0 for _ in wanted[len(starts) :])] == wanted and set(steps) <= {1}
        return same and tuple(node.results[0].type.shape) == sizes


def _adds_nothing(node: Node) -> bool:
    return node.op.name == "ScalarAdd" and node.attrs["addend"] == 0


def _scaled(scores: ScoreSteps, factor: float) -> ScoreSteps | None:
    products = tuple(replace(one, scale=one.scale * factor) for one in scores.products)
    more = replace(scores, scale=scores.scale * factor, products=products)
    if scores.stage == "cap":
        return replace(more, softcap=factor, stage="capped") if factor > 0 else None
    if scores.stage == "scale":
        return more
    if scores.sink is not None or scores.softcap or factor <= 0:
        return scores if factor == 1.0 else None
    return replace(more, masks=tuple(replace(one, factor=one.factor * factor) for one in scores.masks))


def _multiplied(scores: ScoreSteps, node: Node, i: int) -> ScoreSteps | None:
    """Scores times a value, or over it."""
    if scores.stage != "scale" or scores.products or (node.op.name != "Mul" and i):
        return None
    kind = "times" if node.op.name == "Mul" else "over"
    return replace(scores, times=(*scores.times, ScoreMask(node.operands[1 - i], scores.dims, kind)))


def _ways(node: Node) -> Iterator[int]:
    """The operands by which scores may have come to a node."""
    name = node.op.name
    if name in (*_PASSED, "ScalarMul", "ScalarAdd", "Tanh", "MaskedFill", "Div", "RealDiv", "Sub"):
        yield 0
    elif name in ("Add", "Mul", "Maximum", *_JOINS):
        yield from range(min(2, len(node.operands)))
    elif name == "Select":
        yield from (1, 2)
