"""A sharding seen from inside a body that is local along manual axes, and from outside.

Outside, manual axes come first in each dim; inside they do not exist. A change of the inside view is a change of the
free axes behind the manual ones (Shardy's ManualComputationOp::transformTargetSharding).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Collection

from autoshard.layout.layout import Refs
from autoshard.layout.sharding import DimSharding, Sharding


def inside(sharding: Sharding, manual: Collection[str]) -> Sharding:
    """The outside view without the manual axes."""
    if not manual:
        return sharding
    return sharding.replace(
        dims=tuple(dim._replace(axes=dim.axes[_manual_count(dim.axes, manual) :]) for dim in sharding.dims),
        replicated=_free(sharding.replicated, manual),
        unreduced=_free(sharding.unreduced, manual),
    )


def outside(view: Sharding, before: Sharding | None, manual: Collection[str]) -> Sharding:
    """The outside view whose free axes are those of `view`, all else being as in the outside view `before`."""
    if before is None:
        return view
    dims = [
        DimSharding(old.axes[: _manual_count(old.axes, manual)] + new.axes, new.closed, new.priority)
        for old, new in zip(before.dims, view.dims, strict=True)
    ]
    return before.replace(mesh=view.mesh, mesh_name=view.mesh_name, dims=tuple(dims))


def _manual_count(axes: Refs, manual: Collection[str]) -> int:
    """How many of the axes are manual, which come first.

    A value from outside that nothing has asked to be so may have a manual axis behind a free one. What the search
    then finds is what Shardy's finds, which is a bisection too.
    """
    return bisect(axes, False, key=lambda axis: axis.name not in manual)


def _free(axes: Refs, manual: Collection[str]) -> Refs:
    return tuple(axis for axis in axes if axis.name not in manual)
