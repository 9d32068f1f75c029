"""FactorBuilder: a rule made factor by factor, where the order of factors or sizes that a text cannot give matter.

The order is the order of creation, as in Shardy, whose propagation breaks ties by it; dims that are left without a
factor belong to nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from autoshard.core.rule import PASS, REDUCTION, REPLICATE, Factor, Rule
from autoshard.ops.axes import letters
from autoshard.ops.windows import common_parts
from autoshard.util.errors import RuleError


class FactorBuilder:
    """Collects factors over the dims of operands and results; tensors are numbered operands first, then results."""

    def __init__(self, operand_ranks: Sequence[int], result_ranks: Sequence[int]) -> None:
        self.inputs = len(operand_ranks)
        self.ranks = (*operand_ranks, *result_ranks)
        self.dims: list[list[list[int]]] = [[[] for _ in range(rank)] for rank in self.ranks]
        self.factors: list[tuple[int, str, bool, bool, int]] = []
        self.leaders: dict[int, int] = {}
        self.joined: dict[int, int] = {}

    def factor(
        self,
        places: Mapping[int, int],
        size: int,
        kind: str = PASS,
        blocked: bool = False,
        whole: bool = False,
        exchange: int = 0,
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
            self.factors.append((size, kind, blocked, whole, exchange))
        return self

    def along(
        self, dim: int, size: int, kind: str = PASS, blocked: bool = False, whole: bool = False, exchange: int = 0
    ) -> FactorBuilder:
        """A new factor on dim `dim` of every tensor that is not a scalar."""
        places = {tensor: dim for tensor, rank in enumerate(self.ranks) if rank}
        return self.factor(places, size, kind, blocked, whole, exchange)

    def pointwise(self, shape: Iterable[int], kind: Callable[[int], str] = lambda dim: PASS) -> FactorBuilder:
        """A factor per dim of `shape`, over all tensors that are not scalars; `kind(dim)` tells its kind."""
        for dim, size in enumerate(shape):
            self.along(dim, size, kind(dim))
        return self

    def matched(
        self,
        source: Sequence[int],
        target: Sequence[int],
        kind: str,
        blocked: bool = False,
        whole: bool = False,
        exchanged: bool = False,
    ) -> FactorBuilder:
        """A factor per dim over all tensors; `kind` and the marks hold where source and target differ in size.

        The factors have the sizes of `source`. `exchanged` says that blocks of both can be made by an exchange.
        """
        for dim, (size, other) in enumerate(zip(source, target, strict=True)):
            if size == other:
                self.along(dim, size)
            else:
                self.along(dim, size, kind, blocked, whole, common_parts(size, other) if exchanged else 0)
        return self

    def follow_last(self) -> FactorBuilder:
        """Let the factor before the last have no split of its own, but that of the last one."""
        self.leaders[len(self.factors) - 2] = len(self.factors) - 1
        return self

    def join_last(self) -> FactorBuilder:
        """Let the last factor be one with the factor before it where shardings spread."""
        self.joined[len(self.factors) - 1] = len(self.factors) - 2
        return self

    def looked_up(self, source: Mapping[int, int], size: int, made: Mapping[int, int], count: int) -> FactorBuilder:
        """Two factors of a dim of which a part is taken at a place that is known only when it runs.

        Ranks with a block of the `size` elements find zeros for what others hold, so that their results are terms of a
        sum; of the `count` elements made a rank makes all. To propagation it is one factor, needed whole.
        """
        self.factor(source, size, REDUCTION, blocked=True)
        return self.factor(made, count, REPLICATE).join_last()

    def build(self) -> Rule:
        """The rule of all factors so far."""
        names = letters(len(self.factors))
        factors = tuple(
            Factor(
                name,
                *rest,
                names[self.leaders[i]] if i in self.leaders else "",
                names[self.joined[i]] if i in self.joined else "",
            )
            for i, (name, rest) in enumerate(zip(names, self.factors, strict=True))
        )
        dims = tuple(tuple(map(tuple, tensor)) for tensor in self.dims)
        return Rule(factors, dims[: self.inputs], dims[self.inputs :])
