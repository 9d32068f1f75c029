"""Running what holds bodies: loops, branches and manual computations, on the hosted ranks in step.

All ranks take the same way: conditions are whole, so each rank computes the same one. Inside of a manual computation
each rank decides on its own block. Where bodies communicate, ranks that differ would wait for each other for ever: they
agree first, or all raise. Where bodies do not, every rank keeps what its own way gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoshard.layout.mesh import Mesh
from autoshard.partition.program import Nest
from autoshard.runtime.comm import Comm, show_ranks
from autoshard.util.errors import RuntimeSetupError, at

Parts = list[np.ndarray]
Run = Callable[[list, Sequence[Parts]], list[Parts]]
"""Runs a body on the slots of its program: from the parts of its arguments to those of what it yields."""


def run_nest(nest: Nest, bodies: Sequence[Run], slots: list, entering: Sequence[Parts], comm: Comm) -> list[Parts]:
    """The parts of the results of a nest.

    Args:
        bodies: its regions, in order.
        entering: the parts of its operands.

    Raises:
        RuntimeSetupError: ranks go different ways although they communicate there.
    """
    if nest.node.op.name == "While":
        return _loop(nest, bodies, slots, entering, comm)
    if nest.node.op.name == "Case":
        return _choice(nest, bodies, slots, entering[0], comm)
    return bodies[0](slots, entering)


def _loop(nest: Nest, bodies: Sequence[Run], slots: list, entering: Sequence[Parts], comm: Comm) -> list[Parts]:
    cond, body = bodies
    carried = list(entering)
    while True:
        holds = [bool(one) for one in _agreed(nest, cond(slots, carried)[0], comm)]
        if not any(holds):
            return carried
        new = body(slots, carried)
        if all(holds):
            carried = new
        else:
            carried = [_each(holds, after, before) for after, before in zip(new, carried, strict=True)]


def _each(holds: Sequence[bool], new: Parts, old: Parts) -> Parts:
    """The new part of the ranks that go on, the old one of the others."""
    return [one if goes else other for goes, one, other in zip(holds, new, old, strict=True)]


def _choice(nest: Nest, bodies: Sequence[Run], slots: list, index: Parts, comm: Comm) -> list[Parts]:
    last = len(bodies) - 1
    chosen = [int(one) if 0 <= int(one) <= last else last for one in _agreed(nest, index, comm)]
    made = {way: bodies[way](slots, ()) for way in dict.fromkeys(chosen)}
    if len(made) == 1:
        return made[chosen[0]]
    return [[made[way][i][k] for k, way in enumerate(chosen)] for i in range(len(nest.results))]


def _agreed(nest: Nest, parts: Parts, comm: Comm) -> Parts:
    """The hosted ranks' values of a condition, if ranks may differ in it.

    Raises:
        RuntimeSetupError: they may not.
    """
    if nest.divergent and not nest.communicates:
        return parts
    found = parts
    if nest.divergent and len(comm.ranks) < comm.world:
        mesh = Mesh.flat(comm.world)
        rows = comm.all_gather([np.asarray(part)[None] for part in parts], mesh.groups(mesh.all_axes), 0)
        found = list(rows[0])
    if all(one == found[0] for one in found):
        return parts
    ranks: dict[str, list[int]] = {}
    for rank, one in zip(comm.ranks if found is parts else range(comm.world), found, strict=True):
        ranks.setdefault(str(one), []).append(rank)
    told = "; ".join(f"{show_ranks(those)}: {value}" for value, those in ranks.items())
    raise RuntimeSetupError(
        f"{nest.node.label} ({nest.node.op.name}){at(nest.node.source)}: ranks go different ways ({told}) although "
        "they communicate there; all of them have to take part in each collective"
    )
