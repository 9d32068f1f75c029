"""Exported stages run by `torch.distributed.pipelining`, in the order that a file says.

This file needs numpy and torch, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from autoshard.engines.standalone import BoundaryValue, arguments_of, arrays_of
from autoshard.engines.standalone_stages import StageSpec, StandaloneStages, ValueSource
from autoshard.engines.standalone_stages_group import StageGroup, run_whole
from autoshard.engines.standalone_stages_modules import StageModule, gradients_of
from autoshard.engines.standalone_torch import start


class StagePipeline:
    """The stages of this rank as `PipelineStage`s, run by torch in the order that a file says.

    Args:
        arrays: whole parameters and states by name; for those that are not given seeded random numbers.
        device: "cuda", "cpu", or "auto": CUDA devices where each rank has one of its own.
    """

    def __init__(
        self, plan: StandaloneStages, schedule: Path, arrays: Mapping[str, np.ndarray], device: str = "auto"
    ) -> None:
        self.plan, self.group = plan, StageGroup(plan, *_own_device(plan.world, device))
        self.arrays = dict(zip([one.name for one in plan.inputs], arrays_of(plan.inputs, arrays), strict=True))
        rows = list(dict.fromkeys(stage.ranks for stage in plan.stages))
        lines: list[Any] = [dist.new_group(list(line)) for line in zip(*rows, strict=True)]
        place = next(row.index(self.group.rank) for row in rows if self.group.rank in row)
        own = lines[place]
        self.modules = {n: StageModule(self.group, stage, self.arrays) for n, stage in self.group.own.items()}
        count = len(plan.stages)
        stages = [
            PipelineStage(module, n, count, self.group.device, group=own, dw_builder=module.weight_gradients)
            for n, module in self.modules.items()
        ]
        self.schedule = _PipelineScheduleRuntime(
            stages, plan.micro_batches, loss_fn=lambda made, _: made.sum(), scale_grads=False
        )
        places = {stage.number: rows.index(stage.ranks) for stage in plan.stages}
        self.schedule.stage_index_to_group_rank = places
        for one in stages:
            one.stage_index_to_group_rank = places
        self.schedule._load_csv(str(schedule), format="compute_only")

    def parameters(self) -> list[torch.nn.Parameter]:
        """Those of this rank, for an optimizer."""
        return [one for module in self.modules.values() for one in module.parameters()]

    def batch(self, data: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
        """Rows of data by name and layout, this rank's blocks, for torch to cut into the plan's micro batches."""
        whole = {**self.arrays, **data}
        made = run_whole(self.plan.prologue, whole)
        whole |= made
        for module in self.modules.values():
            module.take({**data, **made})
        found: dict[str, torch.Tensor] = {}
        for stage in self.group.own.values():
            for piece in stage.pieces.values():
                for of, source in piece.ends:
                    if source.kind == "rows" and of.rows_name not in found:
                        found[of.rows_name] = self._rows(stage, of, source, whole[source.of])
        return found

    def _rows(self, stage: StageSpec, of: BoundaryValue, source: ValueSource, whole: np.ndarray) -> torch.Tensor:
        parts = range(self.plan.micro_batches)
        return torch.cat([self.group.rows(stage, of, whole, source, micro) for micro in parts])

    def step(self, data: Mapping[str, np.ndarray]) -> float:
        """Do the forward and backward passes of a step: gradients are at the parameters; the loss, on every rank.

        Args:
            data: whole arrays by name.
        """
        numbers = torch.arange(self.plan.micro_batches)
        rows: dict[str, Any] = {**self.batch(data)}
        last = len(self.plan.stages) - 1
        first = [numbers] if 0 in self.modules else []
        target = numbers if last in self.modules else None
        made: Any = self.schedule.step(*first, target=target, **rows)
        for module in self.modules.values():
            module.finish()
        stage = self.plan.stages[last]
        terms = torch.zeros(len(self.plan.terms), dtype=torch.float64)
        if last in self.modules:
            for place, i in enumerate(self.plan.terms):
                out, own = stage.pieces["F"].outputs[i], made[:, place].detach().sum()
                terms[place] = self.modules[last].total(own, out)
        dist.broadcast(terms, stage.ranks[0])
        return self._loss(terms, {**self.arrays, **data})

    def _loss(self, terms: torch.Tensor, arrays: Mapping[str, np.ndarray]) -> float:
        """The loss of the sums of what it is made of."""
        piece = self.plan.loss
        if piece is None:
            return float(terms[0])
        whole = {**arrays, **run_whole(self.plan.prologue, arrays)}
        sums = iter(terms.numpy())
        given = {source.of: whole[source.of] if source.of in whole else next(sums) for _, source in piece.ends}
        (made,) = run_whole(piece, given).values()
        return float(made)

    def gradients(self) -> dict[str, np.ndarray]:
        """The whole gradients of all parameters by name, on every rank; all ranks call it together."""
        found = {}
        for stage in self.plan.stages:
            learned = gradients_of(stage)
            for one in {one.name: one for one in stage.held("PFIWU")}.values():
                if one.name in learned:
                    array = np.empty(one.shape, one.host_dtype)
                    if stage.number in self.modules:
                        gradient = self.modules[stage.number].get_parameter(one.name).grad
                        assert gradient is not None
                        array = self.group.whole(stage, one, gradient)
                    sent = torch.tensor(array)
                    dist.broadcast(sent, stage.ranks[0])
                    found[one.name] = sent.numpy()
        return found


def _own_device(ranks: int, asked: str) -> tuple[str, str]:
    """Join the other ranks; where this one computes and sends: torch hands activations on where they lie."""
    device, wire = start(ranks, asked)
    if device != wire and asked != "auto":
        raise SystemExit(f"device {asked} was asked for, but ranks share one or NCCL is not there: take cpu, or auto")
    return wire, wire


def main_pipelining(plan: StandaloneStages, schedule: Path, text: str) -> None:
    """Run from the command line: the loss, and the gradients of a step."""
    told = arguments_of(text, ("auto", "cpu", "cuda"))
    given = dict(np.load(told.inputs)) if told.inputs else {}
    pipeline = StagePipeline(plan, schedule, given, told.device)
    loss = 0.0
    for _ in range(told.steps):
        for one in pipeline.parameters():
            one.grad = None
        loss = pipeline.step({})
    found = pipeline.gradients()
    if dist.get_rank() == 0:
        print(f"loss {loss:.8g}")
        if told.outputs:
            arrays: dict[str, Any] = {**found, "loss": np.asarray(loss)}
            np.savez(told.outputs, **arrays)
    dist.destroy_process_group()
