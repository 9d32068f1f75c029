"""Dims of a tensor as lists of atoms, through transposes and reshapes: which dims of one tensor another one has.

An atom is a run of places that no reshape so far has cut; where one does, it has two parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoshard.ir.graph import Node

RESHAPES = ("Reshape", "ExpandDims", "Squeeze")


class DimAtom:
    """A dim, or a part of one; compared by identity."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: tuple[DimAtom, ...] = ()

    def leaves(self) -> tuple[DimAtom, ...]:
        """The atoms that it is made of by now, itself if it was not cut."""
        return tuple(leaf for part in self.parts for leaf in part.leaves()) if self.parts else (self,)

    def cut(self, first: int) -> tuple[DimAtom, DimAtom]:
        """Its two parts, of which the major one has `first` places."""
        made = DimAtom(first), DimAtom(self.size // first)
        self.parts = made
        return made


Dim = tuple[DimAtom, ...]
Dims = tuple[Dim, ...]


def leaves_of(dim: Iterable[DimAtom]) -> Dim:
    return tuple(leaf for atom in dim for leaf in atom.leaves())


def size_of(dim: Iterable[DimAtom]) -> int:
    return math.prod(atom.size for atom in dim)


def reshaped(dims: Dims, shape: Sequence[int]) -> Dims | None:
    """The dims of a tensor of another shape with the same elements; None if an atom is cut unevenly."""
    left = [leaf for dim in dims for leaf in leaves_of(dim) if leaf.size > 1]
    made: list[Dim] = []
    for size in shape:
        taken: list[DimAtom] = []
        while size_of(taken) < size:
            more, uneven = divmod(size, size_of(taken))
            if not left or uneven:
                return None
            atom = left.pop(0)
            if atom.size > more:
                if atom.size % more:
                    return None
                atom, rest = atom.cut(more)
                left.insert(0, rest)
            taken.append(atom)
        if size_of(taken) != size:
            return None
        made.append(tuple(taken))
    return None if left else tuple(made)


def moved(dims: Dims, node: Node) -> Dims | None:
    """The dims of what a node makes of a tensor with these dims, if it only moves them."""
    if node.op.name == "Transpose":
        return tuple(dims[i] for i in node.attrs["perm"])
    if node.op.name in RESHAPES:
        return reshaped(dims, node.results[0].type.shape)
    return dims if node.op.name in ("Cast", "Convert", "Identity") else None


def sources_of(
    name: str, attrs: Mapping[str, Any], before: Sequence[int], after: Sequence[int]
) -> list[int | None] | None:
    """For each dim of a result the dim of the operand that it shows, None where that has one value."""
    if name in ("Cast", "Convert", "StopGradient", "Identity"):
        return list(range(len(after)))
    if name == "Transpose":
        return list(attrs["perm"])
    if name in RESHAPES:
        kept = [[i for i, size in enumerate(shape) if size > 1] for shape in (after, before)]
        if [after[i] for i in kept[0]] != [before[i] for i in kept[1]]:
            return None
        known: dict[int, int] = dict(zip(*kept, strict=True))
        return [known.get(i) for i in range(len(after))]
    first = len(after) - len(before)
    dims = attrs["dims"] if name == "BroadcastInDim" else range(first, len(after))
    found: list[int | None] = [None] * len(after)
    for i, dim in enumerate(dims):
        found[dim] = i if before[i] > 1 else None
    return found


Letters = tuple[int, ...]


def product_letters(node: Node) -> tuple[Letters, Letters, Letters] | None:
    """The dims of a product of two tensors by numbers, as in an einsum: those of both operands, and of the result."""
    if len(node.operands) != 2 or node.given_rule is not None:
        return None
    ranks = [value.type.rank for value in node.operands]
    if node.op.name == "DotGeneral":
        return _dot_letters(node, *ranks)
    if node.op.name == "Einsum":
        return _einsum_letters(node.attrs["equation"])
    if node.op.name in ("MatMul", "BatchMatMul"):
        return _matrix_letters(node, *ranks)
    return None


def _dot_letters(node: Node, left: int, right: int) -> tuple[Letters, Letters, Letters]:
    attrs, first = node.attrs, tuple(range(left))
    paired = dict(zip(attrs["rhs_batch"], attrs["lhs_batch"], strict=True))
    paired |= dict(zip(attrs["rhs_contract"], attrs["lhs_contract"], strict=True))
    second = tuple(paired.get(i, left + i) for i in range(right))
    free = [one for one in first if one not in attrs["lhs_batch"] and one not in attrs["lhs_contract"]]
    return first, second, (*attrs["lhs_batch"], *free, *(one for one in second if one >= left))


def _matrix_letters(node: Node, left: int, right: int) -> tuple[Letters, Letters, Letters] | None:
    leads = [value.type.shape[:-2] for value in node.operands]
    if leads[0] != leads[1]:
        return None
    batch, m, k, n = tuple(range(left - 2)), left, left + 1, left + 2
    first = (k, m) if node.attrs["transpose_a"] else (m, k)
    second = (n, k) if node.attrs["transpose_b"] else (k, n)
    return (*batch, *first), (*batch, *second), (*batch, m, n)


def _einsum_letters(equation: str) -> tuple[Letters, Letters, Letters] | None:
    left, arrow, result = equation.replace(" ", "").partition("->")
    words = (*left.split(","), result)
    if not arrow or "." in equation or any(len(set(word)) < len(word) for word in words):
        return None
    first, second, last = (tuple(map(ord, word)) for word in words)
    return first, second, last
