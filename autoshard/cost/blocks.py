"""Sizes of the blocks that a rank holds of an operator's operands and results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import compress
from typing import TypeVar

from autoshard.core.strategy import Strategy
from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Node
from autoshard.layout.layout import Layout

T = TypeVar("T")


@lru_cache(maxsize=1 << 12)
def local_nbytes(of: TensorType, layout: Layout) -> int:
    """Bytes of a rank's block of a tensor."""
    return math.prod(layout.local_shape(of.shape)) * of.dtype.itemsize


def local_bytes(node: Node, strategy: Strategy) -> int:
    """Bytes of all local operands and results: what the operator touches, and the memory it needs."""
    return sum(local_nbytes(of, layout) for of, layout in _tensors(node, strategy))


def local_operands(node: Node, strategy: Strategy) -> tuple[TensorType, ...]:
    """The types of a rank's blocks of an operator's operands."""
    pairs = zip(node.operand_types, strategy.operand_layouts, strict=True)
    return tuple(of.with_shape(layout.local_shape(of.shape)) for of, layout in pairs)


def moved_bytes(node: Node, strategy: Strategy) -> int:
    """Bytes of the local operands and results that go through memory."""
    return sum(local_nbytes(of, layout) for of, layout in moved(node, _tensors(node, strategy)))


def moved(node: Node, each: Iterable[T]) -> Iterator[T]:
    """Of something for each operand, then each result, that of those that go through memory."""
    traffic = node.traffic
    return iter(each) if traffic is None else compress(each, (*traffic.operands, *traffic.results))


def divides(node: Node, strategy: Strategy) -> bool:
    """Whether all ranks work on blocks of one size, without padding."""
    return all(layout.divides(of.shape) for of, layout in _tensors(node, strategy))


def _tensors(node: Node, strategy: Strategy) -> Iterator[tuple[TensorType, Layout]]:
    yield from zip(node.operand_types, strategy.operand_layouts, strict=True)
    yield from zip(node.result_types, strategy.result_layouts, strict=True)
