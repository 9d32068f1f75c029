"""The stages of this rank on torch: its blocks, and what runs pieces and gathers blocks inside of a stage.

This file needs numpy and torch, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.distributed as dist

from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.standalone_stages import ALONE, PieceSpec, StageSpec, StandaloneStages, ValueSource, rows_of
from autoshard.engines.standalone_torch import on_host
from autoshard.engines.torch_collectives import TorchCollectives, TorchControl


class StageGroup:
    """The stages of this rank, and its blocks of parameters and states.

    Args:
        device: where the rank computes, by torch's name.
        wire: where lies what collectives inside of a stage send; what goes to other stages lies on the host.
    """

    def __init__(self, plan: StandaloneStages, device: str = "cpu", wire: str = "cpu") -> None:
        self.plan, self.rank, self.device = plan, dist.get_rank(), torch.device(device)
        self.own = {stage.number: stage for stage in plan.stages if self.rank in stage.ranks}
        self.groups = {ranks: dist.new_group(list(ranks)) for ranks in dict.fromkeys(s.ranks for s in plan.stages)}
        self.collectives: dict[int, TorchCollectives] = {}
        for stage in plan.stages:  # all ranks make all groups, in one order
            place = stage.ranks.index(self.rank) if stage.number in self.own else 0
            made = TorchCollectives(stage.grid, place, device, wire, stage.ranks)
            made.prepare(stage.axes)
            self.collectives[stage.number] = made
        self.blocks: dict[tuple[int, BoundaryValue], torch.Tensor] = {}
        """By stage and form."""

    def run(self, piece: PieceSpec, given: Sequence[torch.Tensor]) -> tuple:
        """What a piece makes of this rank's blocks."""
        with self.device:
            return piece(TorchControl(), self.collectives[piece.stage], *given)

    def place(self, stage: StageSpec, of: BoundaryValue, whole: np.ndarray) -> torch.Tensor:
        """This rank's block of a whole value."""
        block = of.pad(whole)[of.block(stage.grid, stage.ranks.index(self.rank))]
        return torch.tensor(block).to(self.device, getattr(torch, of.dtype))

    def rows(
        self, stage: StageSpec, of: BoundaryValue, whole: np.ndarray, source: ValueSource, micro: int
    ) -> torch.Tensor:
        """This rank's block of a micro batch's rows of a whole value."""
        return self.place(stage, of, rows_of(np.asarray(whole), source, micro, self.plan.micro_batches))

    def whole(self, stage: StageSpec, of: BoundaryValue, block: torch.Tensor) -> np.ndarray:
        """The whole value; all ranks of the stage call it together."""
        own = torch.tensor(on_host(block, of)).contiguous()
        parts = [torch.empty_like(own) for _ in stage.ranks]
        dist.all_gather(parts, own, group=self.groups[stage.ranks])
        members = sorted(stage.ranks)
        return of.join(stage.grid, [parts[members.index(rank)].numpy() for rank in stage.ranks])


def run_whole(piece: PieceSpec | None, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a piece outside of stages makes of whole arrays, by name; nothing, if there is none."""
    if piece is None:
        return {}
    ends = [(one, np.asarray(arrays[source.of])) for one, source in piece.ends]
    given = [torch.tensor(one.pad(array)).to(getattr(torch, one.dtype)) for one, array in ends]
    made = piece(TorchControl(), TorchCollectives(ALONE, 0), *given)
    return {piece.made[i]: on_host(x, of) for i, (of, x) in enumerate(zip(piece.outputs, made, strict=True))}


def widened(block: torch.Tensor) -> torch.Tensor:
    """Terms as they are added up: narrow floats in f32."""
    narrow = block.dtype.is_floating_point and block.dtype.itemsize < torch.float32.itemsize
    return block.to(torch.float32) if narrow else block
