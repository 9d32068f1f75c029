"""Nested tuples, lists and dicts of tensors, taken apart into leaves and put together again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_LONG = 200


@dataclass(frozen=True)
class Leaf:
    """The place of leaf number `index` in a nested structure."""

    index: int


def flatten(tree: Any, is_leaf: Callable[[Any], bool], name: str = "") -> tuple[list[tuple[str, Any]], Any]:
    """The leaves in order, each with its path (`batch.label`, `x.0`), and the structure with a `Leaf` for
    each.

    Things that are neither leaves nor tuples, lists or dicts stay in the structure as they are.
    """
    leaves: list[tuple[str, Any]] = []

    def walk(part: Any, path: str) -> Any:
        if is_leaf(part):
            leaves.append((path, part))
            return Leaf(len(leaves) - 1)
        return _rebuild(part, lambda key, item: walk(item, f"{path}.{key}" if path else str(key)))

    return leaves, walk(tree, name)


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    """The structure with leaf i in the place of `Leaf(i)`."""
    if isinstance(structure, Leaf):
        return leaves[structure.index]
    return _rebuild(structure, lambda _, item: unflatten(item, leaves))


def shown(structure: Any, leaves: Sequence[Any]) -> str:
    """The structure as Python writes it, with what stands for its leaves; long ones are cut."""
    text = repr(unflatten(structure, [Unquoted(leaf) for leaf in leaves]))
    return text if len(text) <= _LONG else f"{text[:_LONG]}..."


class Unquoted(str):
    """Text that is written without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _rebuild(part: Any, change: Callable[[Any, Any], Any]) -> Any:
    if isinstance(part, dict):
        return {key: change(key, item) for key, item in part.items()}
    fields = getattr(part, "_fields", None)
    if isinstance(part, tuple) and fields is not None:
        return type(part)(*(change(key, item) for key, item in zip(fields, part, strict=True)))
    if isinstance(part, tuple | list):
        return type(part)(change(i, item) for i, item in enumerate(part))
    return part
