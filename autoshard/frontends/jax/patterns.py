"""PartitionSpecs in a pytree of the structure of the parameters, as what `annotate` takes: a dict by names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax

from autoshard.frontends.jax.trees import named_leaves
from autoshard.util.errors import UnknownNameError
from autoshard.util.near import nearest

_NEAR = 3


def patterns_of(given: Any, names: Collection[str], model: str) -> Mapping[str, Any]:
    """The patterns themselves, or out of a pytree of PartitionSpecs or shardings the dict by the names of its leaves.

    Args:
        given: patterns, or a pytree with the structure of the parameters, or of a part of them; None asks nothing.
        names: the names of the parameters.
        model: what the model is called, for errors.

    Raises:
        UnknownNameError: a leaf that stands for no parameter; the message has the nearest names.
    """
    if not _is_tree(given):
        return given
    found: dict[str, Any] = {}
    for name, one in named_leaves(given, is_leaf=_is_spec):
        spec = getattr(one, "spec", one)
        if name not in names:
            near = nearest(name, names, _NEAR)
            raise UnknownNameError(f"{model} has no parameter {name!r} for {spec}; the nearest are {near}")
        found[name] = spec
    return found


def _is_spec(one: Any) -> bool:
    return isinstance(one, jax.sharding.PartitionSpec | jax.sharding.Sharding)


def _is_tree(given: Any) -> bool:
    """Whether PartitionSpecs stand deeper than as the values of a dict."""
    found, _ = jax.tree_util.tree_flatten_with_path(given, is_leaf=_is_spec)
    shallow = 1 if isinstance(given, Mapping) else 0
    return any(_is_spec(one) and len(path) > shallow for path, one in found)
