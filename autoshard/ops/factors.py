"""FactorBuilder: a rule made factor by factor, where the order of factors or sizes that a text cannot give matter.

The order is the order of creation, as in Shardy, whose propagation breaks ties by it; dims that are left without a
factor belong to nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from autoshard.errors import RuleError
from autoshard.ops.axes import letters
from autoshard.rule import PASS, Factor, Rule


class FactorBuilder:
    """Collects factors over the dims of operands and results; tensors are numbered operands first, then results."""

    def __init__(self, operand_ranks: Sequence[int], result_ranks: Sequence[int]) -> None:
        self.inputs = len(operand_ranks)
        self.ranks = (*operand_ranks, *result_ranks)
        self.dims: list[list[list[int]]] = [[[] for _ in range(rank)] for rank in self.ranks]
        self.factors: list[tuple[int, str, bool, bool]] = []

    def factor(
        self, places: Mapping[int, int], size: int, kind: str = PASS, blocked: bool = False, whole: bool = False
    ) -> FactorBuilder:
        """A new factor, the most minor so far in dim `places[tensor]` of each tensor named.

        A factor of size 1 says nothing in a dim that has a factor already, and is left out there.

        Raises:
            RuleError: a tensor or dim that does not exist.
        """
        for tensor, dim in places.items():
            if not 0 <= tensor < len(self.ranks) or not 0 <= dim < self.ranks[tensor]:
                raise RuleError(f"a factor cannot lie on dim {dim} of tensor {tensor}; the ranks are {self.ranks}")
        taken = [self.dims[tensor][dim] for tensor, dim in places.items() if size != 1 or not self.dims[tensor][dim]]
        for dim in taken:
            dim.append(len(self.factors))
        if taken:
            self.factors.append((size, kind, blocked, whole))
        return self

    def along(self, dim: int, size: int, kind: str = PASS, blocked: bool = False, whole: bool = False) -> FactorBuilder:
        """A new factor on dim `dim` of every tensor that is not a scalar."""
        places = {tensor: dim for tensor, rank in enumerate(self.ranks) if rank}
        return self.factor(places, size, kind, blocked, whole)

    def pointwise(self, shape: Iterable[int], kind: Callable[[int], str] = lambda dim: PASS) -> FactorBuilder:
        """A factor per dim of `shape`, over all tensors that are not scalars; `kind(dim)` tells its kind."""
        for dim, size in enumerate(shape):
            self.along(dim, size, kind(dim))
        return self

    def matched(
        self, source: Sequence[int], target: Sequence[int], kind: str, blocked: bool = False, whole: bool = False
    ) -> FactorBuilder:
        """A factor per dim over all tensors; `kind` and the marks hold where source and target differ in size.

        The factors have the sizes of `source`.
        """
        for dim, (size, other) in enumerate(zip(source, target, strict=True)):
            if size == other:
                self.along(dim, size)
            else:
                self.along(dim, size, kind, blocked, whole)
        return self

    def build(self) -> Rule:
        """The rule of all factors so far."""
        names = letters(len(self.factors))
        factors = tuple(Factor(name, *rest) for name, rest in zip(names, self.factors, strict=True))
        dims = tuple(tuple(map(tuple, tensor)) for tensor in self.dims)
        return Rule(factors, dims[: self.inputs], dims[self.inputs :])
