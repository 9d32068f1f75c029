"""sdy's operations that begin or end a partial sum. Seen globally they change nothing: only how a tensor is held.

A tensor that is unreduced along axes is the sum of what the devices along them hold.
"""

from __future__ import annotations

from typing import Any

from autoshard.ops.registry import operator


def _same(*given: Any, **_: Any) -> tuple:
    return given


# As in Shardy, such an operation stays even where nobody uses its result.
_SAME: dict[str, Any] = {"rule": None, "shape": _same, "dtype": _same, "effects": True}


@operator("SdyAllReduce", **_SAME)
def sdy_all_reduce(x, *, axes, sharding):
    """x, summed up along `axes`; `sharding` is how it lies then."""
    return x


@operator("ReplicatedToUnreduced", **_SAME)
def replicated_to_unreduced(x, *, axes, sharding):
    """x, which was whole along `axes` and is now held by one device along them; the others hold zeros."""
    return x


@operator("ShardedToUnreduced", **_SAME)
def sharded_to_unreduced(x, *, axes, sharding):
    """x, whose dims were split by `axes` (a tuple per dim); now each device holds its part, and zeros elsewhere."""
    return x


@operator("SdyAllGather", **_SAME)
def sdy_all_gather(x, *, axes, sharding):
    """x, whose dims are no longer split by `axes` (a tuple per dim)."""
    return x
