"""Keep: what is whole, or split along some pieces of the mesh, becomes terms of a sum along them. No bytes move.

Of each element's holders one keeps it in its term and the others hold zero. Where the pieces split the tensor before,
that one is given by who holds the element; where they did not, it is the rank at position 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from autoshard.layout.layout import Layout, Refs
from autoshard.redistribute.positions import Cuts, Digits, paired, uncovered


@dataclass(frozen=True)
class ReplicateToPartial:
    """How the ranks make their terms out of their blocks.

    Attributes:
        digits: the owners of the digits before and after.
        free: new terms' pieces that do not split the tensor before: position 0 along them keeps the value.
    """

    before: Layout
    digits: Digits
    free: Refs

    def partial_block(self, part: np.ndarray, rank: int) -> np.ndarray:
        """The rank's term, given its block."""
        index, shape = self.before.mesh.index, list(part.shape)
        keeps = index(rank, self.free) == 0 and all(
            index(rank, old) == index(rank, new) for old, new in self.digits.body
        )
        source, place = [slice(None)] * part.ndim, [slice(None)] * part.ndim
        for tail in self.digits.cuts:
            shape[tail.dim] //= tail.ratio
            major, piece = divmod(index(rank, tail.new), tail.ratio)
            keeps &= major == index(rank, tail.old)
            source[tail.dim] = slice(piece * shape[tail.dim], (piece + 1) * shape[tail.dim])
        for tail in self.digits.joins:
            size = shape[tail.dim]
            shape[tail.dim] *= tail.ratio
            major, piece = divmod(index(rank, tail.old), tail.ratio)
            keeps &= major == index(rank, tail.new)
            place[tail.dim] = slice(piece * size, (piece + 1) * size)
        term = np.zeros(shape, part.dtype)
        if keeps:
            term[tuple(place)] = part[tuple(source)]
        return term


@lru_cache(maxsize=1 << 12)
def replicate_to_partial(before: Layout, after: Layout) -> ReplicateToPartial | None:
    """How `after`, partial along further pieces, follows locally; None if it does not.

    It does if the only pieces that split the tensor before and no more at the same place are those of the new terms.
    """
    terms = uncovered(after.partial, before.partial)
    if not terms or uncovered(before.partial, after.partial) or after.reduction != "sum":
        return None
    cuts = Cuts(before, after)
    digits = paired(*cuts.dims)
    if digits is None or cuts.clashing or (before.partial and before.reduction != "sum"):
        return None
    begun = cuts.after(terms)
    left = [ref for old, new in digits.body if old != new for ref in old]
    left += [ref for tail in (*digits.cuts, *digits.joins) for ref in tail.old]
    if any(ref not in begun for ref in left):
        return None
    return ReplicateToPartial(before, digits, tuple(ref for ref in begun if ref not in left))
