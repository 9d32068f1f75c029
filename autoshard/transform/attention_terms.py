"""Weights that are sums of softmaxes, as in differential attention, whose products with values are taken apart.

    (softmax(a) - t softmax(b)) v    ->    softmax(a) v - t (softmax(b) v)

So each is an attention that holds no weights (Ye et al. 2024, "Differential Transformer").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from autoshard.ir.graph import Node, Value
from autoshard.transform.attention_masks import parts_of
from autoshard.transform.attention_scores import ScoreMask
from autoshard.transform.attention_softmax import DIVISIONS, SoftmaxForms
from autoshard.transform.attention_writer import AttentionWriter
from autoshard.transform.dim_atoms import Letters, product_letters

Joined = Callable[[Node, Node], Iterable[Node] | None]
"""The attention whose last product a node is, of weights that another one reads."""


class TermsApart:
    """Takes a product with weights, operand `side` of it, apart."""

    def __init__(self, forms: SoftmaxForms, joined: Joined, made: AttentionWriter, product: Node, side: int) -> None:
        letters = product_letters(product)
        assert letters is not None
        self.forms, self.joined, self.made = forms, joined, made
        self.product, self.side = product, side
        self.weights: Letters = letters[side]
        self.result: Letters = letters[2]

    def run(self) -> Iterable[Node] | None:
        """The nodes that stand for the product; None if its weights are no sum of softmaxes."""
        found = self.term(self.product.operands[self.side], self.product)
        return None if found is None else self.made.ending(found)

    def term(self, weights: Value, reader: Node) -> Value | None:
        """The product with weights that `reader` reads."""
        node = self.forms.made(weights, (reader,))
        if node is None:
            return None
        if node.op.name in ("Add", "Sub") and node.operands[0].type.shape == node.operands[1].type.shape:
            found = [self.term(one, node) for one in node.operands]
            return None if None in found else self.made.add(node.op.name, [one for one in found if one], node.attrs)
        if node.op.name in ("ScalarMul", "Neg"):
            one = self.term(node.operands[0], node)
            return None if one is None else self.made.add(node.op.name, (one,), node.attrs)
        if node.op.name == "Mul" or node.op.name in DIVISIONS:
            found = self.scaled(node)
            if found is not None or node.op.name == "Mul":
                return found
        return self.attention(weights, reader)

    def scaled(self, node: Node) -> Value | None:
        """The product with weights that are multiplied, or divided, by what is the same for all keys."""
        for i in (0, 1) if node.op.name == "Mul" else (0,):
            factor = self.turned(node.operands[1 - i])
            one = None if factor is None else self.term(node.operands[i], node)
            if one is not None and factor is not None:
                return self.made.add(node.op.name, (one, factor), node.attrs)
        return None

    def turned(self, factor: Value) -> Value | None:
        """A factor of weights as one of the product's result; None if it differs along keys."""
        mask = ScoreMask(factor, tuple(() for _ in self.weights), "times")
        ((_, spread),) = parts_of(mask, self.made.joining.elements)
        own = {letter: i for letter, i in zip(self.weights, spread.dims, strict=True) if i is not None}
        if not own.keys() <= {*self.result}:
            return None
        shape = spread.value.type.shape
        lying, kept = sorted(own, key=own.__getitem__), [letter for letter in self.result if letter in own]
        value = self.made.reshape(spread.value, [shape[own[letter]] for letter in lying])
        value = self.made.transpose(value, [lying.index(letter) for letter in kept])
        return self.made.reshape(value, [shape[own[letter]] if letter in own else 1 for letter in self.result])

    def attention(self, weights: Value, reader: Node) -> Value | None:
        """The attention of one softmax."""
        operands = tuple(weights if i == self.side else one for i, one in enumerate(self.product.operands))
        (of,) = self.product.results
        result = Value(of.type, self.made.joining.name(f"{of.name}.term"))
        found = self.joined(replace(self.product, operands=operands, results=(result,), name=""), reader)
        return None if found is None else self.made.taken(found, result)
