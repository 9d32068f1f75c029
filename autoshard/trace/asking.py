"""How model code asks for shardings of its tensors: constraints, groups, and barriers that hold propagation back.

On arrays, outside of a trace, they hand on what they get. `entries` and `constrained` serve whatever takes shardings
nested as its tensors are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autoshard.layout.spec import Spec
from autoshard.ops.registry import lookup
from autoshard.trace.arithmetic import Arithmetic, is_number
from autoshard.trace.parameter import Parameter, active
from autoshard.trace.structure import Leaf, flatten, unflatten
from autoshard.trace.tensor import Recorder, TracedTensor
from autoshard.util.errors import GraphError, ShapeError, ShardingError, at
from autoshard.util.source import caller

_DIRECTIONS = ("forward", "backward", "none")


def sharding_constraint(x: Any, sharding: Any) -> Any:
    """x, which has to lie as `sharding` says.

    Args:
        sharding: anything that `Spec.of` takes, such as '[{dp}, {tp, ?}]' or ("dp", None).

    Raises:
        ShardingError, ParseError: not of this form, or for another number of dims.
    """
    what = f"sharding_constraint{at(caller())}"
    spec = Spec.of(sharding, what)
    spec.check_rank(np.ndim(x) if is_number(x) else len(x.shape), what)
    return lookup("ShardingConstraint")(x, sharding=str(spec))


def shard_group(*xs: Any, name: str | None = None) -> None:
    """Let tensors lie alike, however that is.

    Args:
        xs: tensors of one shape.
        name: calls with one name add to one group; without it each call makes a group of its own.

    Raises:
        ShapeError: tensors of several shapes.
        GraphError: nothing to group.
    """
    if not xs:
        raise GraphError(f"shard_group{at(caller())}: give the tensors that should lie alike")
    for x in xs:
        if tuple(x.shape) != tuple(xs[0].shape):
            raise ShapeError(
                f"shard_group{at(caller())}: the shapes {tuple(xs[0].shape)} and {tuple(x.shape)} differ; what should "
                "lie alike needs one shape"
            )
    recorder = recorder_of(xs)
    if recorder is not None:
        group = recorder.group(name)
        for x in xs:
            recorder.add(lookup("ShardingGroup"), [x], {"group": group})


def optimization_barrier(*xs: Any) -> Any:
    """The same tensors (nested as given; a single one by itself), behind a line that no computation is moved across."""
    leaves, structure = flatten(xs, is_tensor)
    recorder = recorder_of([leaf for _, leaf in leaves])
    if recorder is not None and leaves:
        made = recorder.add(lookup("OptimizationBarrier"), [leaf for _, leaf in leaves], {})
    else:
        made = tuple(leaf for _, leaf in leaves)
    results = unflatten(structure, made)
    return results[0] if len(xs) == 1 else results


def propagation_barrier(x: Any, direction: str = "none") -> Any:
    """x; shardings spread through here only 'forward' (from x to the result), only 'backward', or not at all ('none').

    Raises:
        ShardingError: another direction.
    """
    if direction not in _DIRECTIONS:
        raise ShardingError(
            f"propagation_barrier{at(caller())}: direction is {direction!r}; it is one of {', '.join(_DIRECTIONS)}"
        )
    return lookup("PropagationBarrier")(x, direction=direction)


# -- for whatever takes nested tensors


def is_tensor(part: object) -> bool:
    """Whether it is a tensor or becomes one: numbers and arrays do."""
    return isinstance(part, Arithmetic | np.ndarray) or is_number(part)


def recorder_of(leaves: Any) -> Recorder | None:
    """The recorder that what is done with these tensors goes to; None where it is done at once."""
    return active() or next((leaf.recorder for leaf in leaves if isinstance(leaf, TracedTensor)), None)


def constrained(tree: Any, given: Any, what: str) -> Any:
    """The nested tensors, with a constraint on each that `given` has an entry for."""
    leaves, structure = flatten(tree, lambda part: isinstance(part, TracedTensor | Parameter))
    tensors = [leaf for _, leaf in leaves]
    for i, entry in entries(structure, given, what):
        tensors[i] = sharding_constraint(tensors[i], entry)
    return unflatten(structure, tensors)


def entries(structure: Any, given: Any, what: str) -> Iterator[tuple[int, Any]]:
    """(number of a tensor, what is asked of it) for a structure of Leafs and shardings nested like it.

    None in place of any part asks nothing of it.

    Raises:
        ShardingError: the two are not nested alike.
    """
    if given is None:
        return
    if isinstance(structure, Leaf):
        yield structure.index, given
        return
    parts = _parts(structure)
    if parts is None:
        raise ShardingError(f"{what}{at(caller())}: there is {given!r} for {structure!r}, which is no tensor")
    asked = _annotations(given, parts)
    if asked is None:
        raise ShardingError(
            f"{what}{at(caller())}: there is {given!r} for a {type(structure).__name__} of {len(parts)} "
            f"({', '.join(map(str, parts))}); give {'a dict' if isinstance(structure, dict) else 'a tuple'} with an "
            "entry for each, None where nothing is asked"
        )
    for key, entry in asked.items():
        yield from entries(parts[key], entry, f"{what}, {key}")


def _parts(structure: Any) -> dict[Any, Any] | None:
    if isinstance(structure, dict):
        return structure
    return dict(enumerate(structure)) if isinstance(structure, tuple | list) else None


def _annotations(given: Any, parts: dict[Any, Any]) -> dict[Any, Any] | None:
    """The entries by key; None if they are not those of the parts."""
    if isinstance(given, Mapping):
        return dict(given) if all(key in parts for key in given) else None
    if isinstance(given, tuple | list):
        return dict(zip(parts, given, strict=True)) if len(given) == len(parts) else None
    return None
