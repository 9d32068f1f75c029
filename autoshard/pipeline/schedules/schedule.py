"""A schedule of a pipeline as a value: which rank does which action of which stage, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from autoshard.pipeline.schedules.action import BACKWARD, FORWARD, INPUT_GRADIENT, Action

Orders = tuple[tuple[Action, ...], ...]


@dataclass(frozen=True)
class Schedule:
    """One training step of a pipeline.

    Attributes:
        ranks_of_stages: for each stage the rank that runs it.
        orders: for each rank its actions, first to last. Either none of them sends or receives, and transfers follow
            from the rest (`with_transfers`), or all transfers between ranks are there.
        micro_batches: into how many parts the batch is cut.
        overlapped: actions that share a time slot with the action after them on their rank (forward and backward of
            DualPipeV); a rank may run the two at once or in turn.
        name: what it is called, for reports; not compared.

    Whether it can be run says `check`, which every schedule that is read or run goes through.

    Example:
        >>> from autoshard.pipeline.schedules import make_schedule
        >>> print(make_schedule("1f1b", ranks=2, micro_batches=3))
        0F0 0F1 0B0 0F2 0B1 0B2
        1F0 1B0 1F1 1B1 1F2 1B2
    """

    ranks_of_stages: tuple[int, ...]
    orders: Orders
    micro_batches: int
    overlapped: frozenset[Action] = frozenset()
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return "\n".join(" ".join(self.cells(rank)) for rank in range(self.ranks))

    def __iter__(self) -> Iterator[Action]:
        return chain.from_iterable(self.orders)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.ranks_of_stages)

    @property
    def ranks(self) -> int:
        """Number of ranks of the pipeline; each may be a mesh of devices."""
        return len(self.orders)

    @cached_property
    def has_transfers(self) -> bool:
        """Whether sends and receives stand among the actions."""
        return any(not action.computes for action in self)

    @cached_property
    def actions(self) -> frozenset[Action]:
        """All actions."""
        return frozenset(self)

    def rank_of(self, action: Action) -> int:
        """The rank that runs an action."""
        return self.ranks_of_stages[action.stage]

    def backward(self, stage: int, micro: int) -> Action:
        """The action that makes the gradient of a stage's input: its input gradient, or its whole backward."""
        split = Action(INPUT_GRADIENT, stage, micro)
        return split if split in self.actions else Action(BACKWARD, stage, micro)

    def inputs_of(self, action: Action) -> tuple[Action, ...]:
        """The computing actions whose results a computing action reads.

        A forward reads the forward before; a backward, or input gradient, its own forward and the one of the stage
        after; a weight gradient its own input gradient.
        """
        kind, stage, micro = action
        if kind == FORWARD:
            return (Action(FORWARD, stage - 1, micro),) if stage else ()
        if kind in (BACKWARD, INPUT_GRADIENT):
            after = (self.backward(stage + 1, micro),) if stage + 1 < self.stages else ()
            return Action(FORWARD, stage, micro), *after
        return (Action(INPUT_GRADIENT, stage, micro),)

    def cells(self, rank: int) -> list[str]:
        """The cells of a rank's row: an action each, or two that share a slot."""
        found: list[str] = []
        first: Action | None = None
        for action in self.orders[rank]:
            if first is not None:
                found.append(f"({first};{action})OVERLAP_F_B")
                first = None
            elif action in self.overlapped:
                first = action
            else:
                found.append(str(action))
        return found

    def chunks(self, rank: int) -> tuple[int, ...]:
        """The stages of a rank, ascending."""
        return tuple(stage for stage, owner in enumerate(self.ranks_of_stages) if owner == rank)
