"""Weights that are a softmax, however it is written: what of, along which dim, and what is beside it.

    softmax(x)    exp(x - c) / sum(exp(x - c))    exp(x - logsumexp(x))    exp(log_softmax(x))

c is any number of a row, mostly its largest score: it changes no weights. Exponentials may be made 0 where a mask
hides, and their sum may have one more, of a score without a value (a sink; 1 is that of 0).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autoshard.ir.graph import Graph, Node, Value
from autoshard.transform.dim_atoms import sources_of
from autoshard.transform.elements import ConstantElements

CASTS = ("Cast", "Convert")
_SPREAD = ("BroadcastInDim", "BroadcastTo", "Reshape", "ExpandDims", "Transpose", "StopGradient", *CASTS)
DIVISIONS = ("Div", "RealDiv")
_DEEPEST = 16
"""Nodes one after another by which a largest score may be made of scores."""


class ZeroedWeights(NamedTuple):
    """Where weights are made zero: where `mask` is False ("seen") or True ("hidden"), or are no numbers ("nan")."""

    mask: Value
    kind: str


@dataclass(frozen=True)
class SoftmaxForm:
    """Weights that are a softmax of `scores` along dim `axis`; `readers` are the nodes of it that read the scores.

    `others` are values beside the scores that may be made of what scores are made of, as their largest. `sink` is the
    score of a key without a value, in the dims of scores; 0.0 stands for one that is 0.
    """

    scores: Value
    axis: int
    readers: frozenset[Node]
    others: tuple[Value, ...] = ()
    sink: Value | float | None = None
    zeroed: tuple[ZeroedWeights, ...] = ()


Places = tuple[int | None, ...]
"""For each dim of a value the dim of another one that it lies along; None: it has one value."""


class _Summed(NamedTuple):
    """What is summed along dim `axis`, by which node, where the sum is spread to, and what is added to it: another
    exponential; to its logarithm: what was taken from all that was summed."""

    x: Value
    axis: int
    node: Node
    places: Places
    more: Value | None


class _Shifted(NamedTuple):
    x: Value
    shift: Value


@dataclass
class SoftmaxForms:
    """Finds softmaxes in a graph; nodes that `elements` knows none of are part of none."""

    graph: Graph
    elements: ConstantElements
    uses: Counter = field(init=False)

    def __post_init__(self) -> None:
        self.uses = Counter(value for node in self.graph.nodes for value in node.uses)
        self.uses.update(self.graph.outputs)

    def made(self, value: Value, readers: Iterable[Node]) -> Node | None:
        """The node that makes a value which only these nodes read."""
        node = self.maker(value)
        if node is None or node.regions or node.given_rule is not None:
            return None
        if self.uses[value] != sum(reader.uses.count(value) for reader in {*readers}):
            return None
        return node

    def maker(self, value: Value) -> Node | None:
        """The node that makes a value, whoever reads it."""
        node, _ = self.elements.producers.get(value, (None, 0))
        return node

    def found(self, node: Node) -> SoftmaxForm | None:
        """The softmax whose weights a node makes."""
        if node.op.name == "Softmax":
            return _along(node, node)
        if node.op.name in DIVISIONS:
            return self._divided(node)
        return self._of_logarithms(node) if node.op.name == "Exp" else None

    def between(self, value: Value, source: Value) -> set[Node]:
        """The nodes by which a value is made of `source`; none if it is not, or by more than _DEEPEST of them."""
        found: set[Node] = set()
        known = {source: True}

        def is_made(one: Value, left: int) -> bool:
            node = self.maker(one)
            if one not in known and node is not None and left and not node.regions:
                known[one] = False
                if any([is_made(operand, left - 1) for operand in node.operands]):
                    known[one] = True
                    found.add(node)
            return known.get(one, False)

        is_made(value, _DEEPEST)
        return found

    # -- exponentials over their sum

    def _divided(self, node: Node) -> SoftmaxForm | None:
        powers, total = node.operands
        found = self.over_sum(powers, node, total)
        return found[0] if found is not None and _stands(found[1], found[0].axis, powers.type.shape) else None

    def over_sum(self, powers: Value, reader: Node, total: Value) -> tuple[SoftmaxForm, Places] | None:
        """What `powers`, which else only `reader` reads, over their sum is a softmax of; and along which of their dims
        each dim of the sum lies."""
        summed = self._sum(total)
        if summed is None:
            return None
        found = self._exponentials(powers, reader, summed)
        if found is not None and summed.more is not None:
            found = self._with_sink(found, summed.more)
        return None if found is None else (found, summed.places)

    def _exponentials(self, powers: Value, user: Node, summed: _Summed) -> SoftmaxForm | None:
        """What powers are exponentials of, that are summed, too."""
        zeroed, reader, x = [], summed.node, summed.x
        while x is not powers:  # what is summed may be made zero once more, or of a wider type
            made = self.made(x, (reader,))
            if made is None:
                return None
            hides = self.zeroing(made)
            if hides is None and made.op.name not in CASTS:
                return None
            zeroed += [] if hides is None else [hides[1]]
            reader, x = made, made.operands[0 if hides is None else hides[0]]
        node = self.made(x, (user, reader))
        while node is not None and (hides := self.zeroing(node)) is not None:
            zeroed.append(hides[1])
            node = self.made(node.operands[hides[0]], (node,))
        if node is None or node.op.name != "Exp":
            return None
        return SoftmaxForm(node.operands[0], summed.axis, frozenset((node,)), zeroed=tuple(zeroed))

    def _with_sink(self, found: SoftmaxForm, more: Value) -> SoftmaxForm | None:
        """The same where the sum has one more exponential, which is less the same largest score."""
        (powers,), exp = found.readers, self.maker(more)
        node = self.made(found.scores, (powers,))
        shifted = None if node is None else _shifted(node)
        if shifted is None or node is None or exp is None or exp.op.name != "Exp":
            return None
        made = self.maker(exp.operands[0])
        if made is None or exp.operands[0].type.rank != found.scores.type.rank:
            return None
        sink: Value | float | None = None
        if made.op.name == "Neg" and self._is_same(made.operands[0], shifted.shift):
            sink = 0.0
        elif made.op.name == "Sub" and self._is_same(made.operands[1], shifted.shift):
            sink = made.operands[0]
        if sink is None or exp.operands[0].type.shape[found.axis] != 1:
            return None
        return SoftmaxForm(shifted.x, found.axis, frozenset((node,)), (shifted.shift,), sink, found.zeroed)

    def _is_same(self, one: Value, other: Value) -> bool:
        """Whether both are one value, spread over more dims or not."""
        return self._unspread(one) is self._unspread(other)

    def _uncast(self, value: Value) -> Value:
        """A value of its own type."""
        while (node := self.maker(value)) is not None and node.op.name in CASTS:
            value = node.operands[0]
        return value

    def _unspread(self, value: Value) -> Value:
        node = self.maker(value)
        while node is not None and node.op.name in ("BroadcastInDim", "BroadcastTo", "StopGradient"):
            value = node.operands[0]
            node = self.maker(value)
        return value

    # -- exponentials of logarithms

    def _of_logarithms(self, exp: Node) -> SoftmaxForm | None:
        node = self.made(exp.operands[0], (exp,))
        if node is None:
            return None
        if node.op.name == "LogSoftmax":
            return _along(node, node)
        less = _shifted(node)
        summed = None if less is None else self._sum(less.shift, logarithm=True)
        powers = None if summed is None else self.maker(self._uncast(summed.x))
        if less is None or summed is None or powers is None or powers.op.name != "Exp":
            return None
        if not _stands(summed.places, summed.axis, summed.x.type.shape):
            return None
        if summed.more is None:
            same, readers = powers.operands[0] is less.x, frozenset((node, powers))
            return SoftmaxForm(less.x, summed.axis, readers) if same else None
        inner = self.maker(powers.operands[0])
        shifted = None if inner is None else _shifted(inner)
        if inner is None or shifted is None or shifted.x is not less.x or not self._is_same(shifted.shift, summed.more):
            return None
        return SoftmaxForm(less.x, summed.axis, frozenset((node, inner)), (shifted.shift,))

    # -- sums

    def _sum(self, value: Value, logarithm: bool = False) -> _Summed | None:
        """Of what and along which single dim a value, that is spread again, is the sum, or a logarithm of the sum; of
        exponentials, whose absolute value is the same."""
        places: Places = tuple(range(value.type.rank))
        more: Value | None = None
        while (node := self.maker(value)) is not None:
            if node.op.name == "Log" and logarithm:
                value, logarithm = node.operands[0], False
            elif node.op.name == "Abs":
                value = node.operands[0]
            elif node.op.name == "Add" and more is None:
                terms = [self._is_made_by(self._unspread(one), "Log" if logarithm else "Exp") for one in node.operands]
                if terms.count(True) != 1:
                    return None
                i = terms.index(logarithm)
                value, more = node.operands[i], node.operands[1 - i]
            elif node.op.name in _SPREAD:
                before = node.operands[0]
                back = sources_of(node.op.name, node.attrs, before.type.shape, value.type.shape)
                if back is None:
                    return None
                places, value = tuple(None if i is None else back[i] for i in places), before
            else:
                return None if logarithm else _summed(node, places, more)
        return None

    def _is_made_by(self, value: Value, op: str) -> bool:
        node = self.maker(value)
        return node is not None and node.op.name == op

    # -- weights that are made zero

    def zeroing(self, node: Node) -> tuple[int, ZeroedWeights] | None:
        """The operand that a node hands on except where a mask makes it zero, the mask, and what that says."""
        if node.op.name == "MaskedFill" and node.attrs["value"] == 0:
            return 0, self._zeroed(node.operands[0], node.operands[1], "hidden")
        if node.op.name != "Select":
            return None
        for i, kind in ((1, "seen"), (2, "hidden")):
            if self.elements.number(node.operands[3 - i]) == 0:
                return i, self._zeroed(node.operands[i], node.operands[0], kind)
        return None

    def _zeroed(self, weights: Value, mask: Value, kind: str) -> ZeroedWeights:
        """Where weights are made zero, "nan" if it is where they are no numbers."""
        test = self.maker(mask)
        name = "NotEqual" if kind == "hidden" else "Equal"
        is_nan = test is not None and test.op.name == name and all(one is weights for one in test.operands)
        return ZeroedWeights(mask, "nan" if is_nan else kind)

    def testing(self, node: Node) -> Node | None:
        """What tests weights for a node that replaces those which are no numbers, or without end, as no weight is."""
        found = self.zeroing(node)
        if found is not None:
            return self.maker(found[1].mask) if found[1].kind == "nan" else None
        test = self.maker(node.operands[0]) if node.op.name == "Select" else None
        if test is None or test.op.name != "Equal":
            return None
        end = self.elements.number(test.operands[1])
        return test if end is not None and math.isinf(end) else None


def _along(node: Node, reader: Node) -> SoftmaxForm:
    rank = node.operands[0].type.rank
    return SoftmaxForm(node.operands[0], node.attrs["axis"] % rank, frozenset((reader,)))


def _shifted(node: Node) -> _Shifted | None:
    return _Shifted(*node.operands) if node.op.name == "Sub" else None


def _summed_axes(node: Node) -> tuple[int, ...] | None:
    """The dims that a node sums."""
    name, rank = node.op.name, node.operands[0].type.rank if node.operands else 0
    if name == "ReduceSum":
        axis = node.attrs["axis"]
        axes = axis if isinstance(axis, tuple) else (axis,)
        return tuple(one % rank for one in axes)
    by = "add" if name == "ReduceAdd" else str(node.attrs["body"].name) if name == "Reduce" else ""
    return node.attrs["dimensions"] if by == "add" else None


def _summed(node: Node, places: Places, more: Value | None) -> _Summed | None:
    """What a node sums along one dim; `places` are those of its result."""
    axes = _summed_axes(node)
    if axes is None or len(axes) != 1:
        return None
    (axis,), (x, *_) = axes, node.operands
    kept = node.results[0].type.rank == x.type.rank
    whole = (None if i is None or (kept and i == axis) else i if kept or i < axis else i + 1 for i in places)
    return _Summed(x, axis, node, tuple(whole), more)


def _stands(places: Places, axis: int, shape: Sequence[int]) -> bool:
    """Whether each dim of a sum, that is spread again, stands where it did."""
    return len(places) == len(shape) and all(i == axis or shape[i] == 1 or places[i] == i for i in range(len(shape)))
