"""Into how many heads the columns of a product are taken apart behind it.

A tensor axis splits columns only between heads: ranks would else hold parts of one, and every operator on heads would
have to move them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from autoshard.ir.graph import Node, Value
from autoshard.layout.layout import Refs
from autoshard.layout.mesh import size_of
from autoshard.search.named.structure import Structure

_MOST_NODES = 32
"""So far behind a product its columns are followed: a bias, casts, a norm lie between it and the heads."""


def heads_of(structure: Structure, node: Node, factor: int) -> int | None:
    """The number of heads into which the forward pass takes a factor of a node's result apart; None if it does not.

    Where several operators behind it take it apart (keys and values of one product), the largest number.
    """
    dims = zip(node.results, node.rule.results, strict=True)
    ahead = [(value, i) for value, of in dims for i, factors in enumerate(of) if factors == (factor,)]
    seen, found = set(ahead), []
    for value, dim in ahead:
        if len(seen) > _MOST_NODES:
            break
        for user, operand in structure.graph.users[value]:
            if user not in structure.forward_nodes:
                continue
            heads = _heads(user, operand, dim)
            if heads is not None:
                found.append(heads)
                continue
            more = [one for one in _same_dim(user, operand, dim) if one not in seen]
            seen.update(more)
            ahead += more
    return max(found, default=None)


def _heads(node: Node, operand: int, dim: int) -> int | None:
    """How many blocks a reshape makes of a dim of its operand."""
    if node.op.name != "Reshape":
        return None
    taken, made = node.operands[operand].type.shape, node.results[0].type.shape
    if made == (*taken[:dim], 1, *taken[dim:]):
        return 1
    factors = [node.rule.factors[i].size for i in node.rule.operands[operand][dim]]
    return next((size for size in factors if size > 1), None) if len(factors) > 1 else None


def _same_dim(node: Node, operand: int, dim: int) -> Iterator[tuple[Value, int]]:
    """The dims of a node's results that are a dim of its operand."""
    factors = node.rule.operands[operand][dim]
    for value, dims in zip(node.results, node.rule.results, strict=True):
        yield from ((value, i) for i, of in enumerate(dims) if of == factors and len(factors) == 1)


def whole_heads(structure: Structure, node: Node, factor: int, axes: Refs) -> Refs:
    """The major part of the axes over which whole heads of a product's columns (`factor`) can lie.

    Keys and values of grouped queries may have fewer heads than there are tensor ranks: each is then on several.
    Columns of which no heads can be made are split as they are, and redistributed behind.
    """
    heads = heads_of(structure, node, factor)
    over: Refs = ()
    if heads is None or heads > 1 and math.gcd(heads, size_of(axes)) == 1:
        return axes
    for ref in axes:
        common = math.gcd(heads // size_of(over), ref.size)
        over += (ref,) if common == ref.size else ref.split(common)[:1] if common > 1 else ()
        if common < ref.size:
            break
    return over
