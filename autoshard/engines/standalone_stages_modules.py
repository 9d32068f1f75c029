"""Exported stages as modules of torch that `torch.distributed.pipelining` runs by the schedule in a file.

The backward pass of a module is the plan's own: autograd runs what makes gradients of its input, and `dw_builder` what
makes those of its weights, so that schedules may put these later. This file needs numpy and torch, and files that need
no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from autoshard.engines.boxes import slices
from autoshard.engines.standalone import BoundaryValue, arguments_of, arrays_of
from autoshard.engines.standalone_stages import ONCE, ExportedStage, SentBox, StageCode, StageInput, StagesPlan, rows_of
from autoshard.engines.standalone_stages_run import from_data, run_whole
from autoshard.engines.standalone_stages_torch import StageGroup
from autoshard.engines.standalone_torch import start
from autoshard.engines.torch_collectives import TorchControl


class StageModule(torch.nn.Module):
    """A stage: its blocks of parameters, by the model's names, and its forward and backward pass."""

    def __init__(self, group: StageGroup, stage: ExportedStage, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.group, self.stage, self.plan = group, stage, group.plan
        self.tensors: dict[BoundaryValue, torch.Tensor] = {}
        self.sums: dict[str, tuple[torch.Tensor, StageCode, int]] = {}
        self.waiting: list[MicroBatchRun] = []
        self.once: tuple[tuple[int, ...], dict[int, torch.Tensor]] = ((), {})
        learned = {out.gradient_of for piece in stage.pieces.values() for out in piece.outputs}
        whole = {**arrays, **from_data(self.plan, arrays)}
        for one in self._held():
            block = group.place(stage, one, whole[one.name])
            if one.name in learned:
                block = torch.nn.Parameter(block)
            if one.name in arrays:
                _register(self, one.name.split("."), block)
            self.tensors[one] = block

    def take(self, whole: Mapping[str, np.ndarray]) -> None:
        """Hold what is given of another batch, of what the stage reads whole of data."""
        for one, known in self.tensors.items():
            if one.name in whole and not isinstance(known, torch.nn.Parameter):
                self.tensors[one] = self.group.place(self.stage, one, whole[one.name])
                self.once = (), {}

    def _held(self) -> list[BoundaryValue]:
        """What the stage's passes read that is there before the first step, but rows."""
        pieces = (piece for kind, piece in self.stage.pieces.items() if kind[0] != "U")
        ends = (one for piece in pieces for one in piece.inputs if one.route is None and one.rows is None)
        return list(dict.fromkeys(one.value for one in ends))

    def forward(self, *activations: torch.Tensor, **data: torch.Tensor) -> Any:
        """What the next stage reads, or of the last one a micro batch's part of the loss.

        Args:
            activations: what the stage before gave; of the first one anything.
            data: rows of a micro batch by name, as `StagePipeline.batch` makes them.
        """
        run = MicroBatchRun(self, activations if self.stage.number else (), data)
        token = torch.zeros((), requires_grad=True)  # so that the first stage has a backward pass, too
        made = _PassesOfStage.apply(run, token, *activations)
        return made[0] if len(made) == 1 else made

    def weight_gradients(self) -> Callable[[], None]:
        """What makes the gradients of the weights for the micro batch whose backward pass ran last."""
        return self.waiting.pop().weight_gradients

    def add(self, piece: StageCode, made: Sequence[torch.Tensor]) -> None:
        """Add up what a micro batch gives to gradients, narrow floats in f32."""
        for i, (out, block) in enumerate(zip(piece.outputs, made, strict=True)):
            if out.gradient_of:
                narrow = block.dtype.is_floating_point and block.dtype.itemsize < torch.float32.itemsize
                term = block.to(torch.float32) if narrow else block
                known = self.sums.get(out.gradient_of)
                self.sums[out.gradient_of] = (term if known is None else known[0] + term), piece, i

    def finish(self) -> None:
        """Put the gradients of a step where optimizers of torch look for them, the terms of all ranks added up."""
        for name, (total, piece, i) in self.sums.items():
            out = piece.outputs[i]
            if out.partial:
                total = self.group.collectives[self.stage.number].all_reduce(total, out.partial, out.terms)
            parameter = self.get_parameter(name)
            total = total.to(parameter.dtype)
            parameter.grad = total if parameter.grad is None else parameter.grad + total
        self.sums = {}

    def once_made(self) -> dict[int, torch.Tensor]:
        """By routes what follows from parameters, made again when these have changed."""
        piece = self.stage.pieces.get(ONCE)
        version = tuple(one._version for one in self.tensors.values())
        if piece is not None and self.once[0] != version:
            given = [self.tensors[one.value].detach() for one in piece.inputs]
            made = piece.run(TorchControl(), self.group.collectives[self.stage.number], *given)
            routes = self.plan.leaving[self.stage.number, ONCE]
            self.once = version, {number: made[self.plan.routes[number].output] for number in routes}
        return self.once[1]


def _register(module: torch.nn.Module, path: Sequence[str], block: torch.Tensor) -> None:
    """Give a module a parameter or a buffer by a name with dots."""
    for name in path[:-1]:
        if name not in module._modules:
            module.add_module(name, torch.nn.Module())
        module = module._modules[name]  # type: ignore[assignment]
    if isinstance(block, torch.nn.Parameter):
        module.register_parameter(path[-1], block)
    else:
        module.register_buffer(path[-1], block)


class MicroBatchRun:
    """A micro batch in a stage: what its forward pass has left for its backward pass."""

    def __init__(self, module: StageModule, activations: Sequence[torch.Tensor], data: Mapping[str, Any]) -> None:
        self.module, self.plan, self.data = module, module.plan, data
        self.number = module.stage.number
        self.held = dict(module.once_made())
        for number, block in zip(self.plan.sent_on(self.number - 1), activations, strict=True):
            self._arrive(number, block)

    def _arrive(self, number: int, block: torch.Tensor) -> None:
        route = self.plan.routes[number]
        assert route.wire is not None
        self.held[number] = self._exchanged(block, route.wire.after, route.local)

    def _leave(self, number: int, made: Sequence[torch.Tensor]) -> torch.Tensor:
        route = self.plan.routes[number]
        assert route.wire is not None
        return self._exchanged(made[route.output], route.wire.before, route.wire.local)

    def _exchanged(self, block: torch.Tensor, boxes: Sequence[SentBox] | None, shape: tuple[int, ...]) -> torch.Tensor:
        """A block made of boxes of those of the stage's ranks; all of them call it together."""
        if boxes is None:
            return block
        rank, block = self.module.group.rank, block.detach()
        made = block.new_zeros(shape)
        for one in boxes:
            if one.source == one.target == rank:
                made[slices(one.placed)] = block[slices(one.taken)]
        sends = [one for one in boxes if one.source == rank != one.target]
        comes = [(one, made[slices(one.placed)].contiguous()) for one in boxes if one.target == rank != one.source]
        asked = [dist.P2POp(dist.irecv, row, one.source) for one, row in comes]
        asked += [dist.P2POp(dist.isend, block[slices(one.taken)].contiguous(), one.target) for one in sends]
        for work in dist.batch_isend_irecv(asked) if asked else ():
            work.wait()
        for one, row in comes:
            made[slices(one.placed)] = row
        return made

    def forward(self) -> tuple[torch.Tensor, ...]:
        """What goes on."""
        made = self._run("F")
        if self.number + 1 == len(self.plan.stages):
            # A row, so that torch joins those of all micro batches.
            return (torch.stack([made[i].to(torch.float64) for i in self.plan.terms]).reshape(1, -1),)
        return tuple(self._leave(number, made) for number in self.plan.sent_on(self.number))

    def input_gradients(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """What goes back, each at the place of what came."""
        for number, one in zip(self.plan.sent_back(self.number), gradients, strict=False):
            if number is not None:
                self._arrive(number, one)
        made = self._run("I")
        self.module.waiting.append(self)
        came, back = self.plan.sent_on(self.number - 1), self.plan.sent_back(self.number - 1)
        return [self._returned(*pair, made) for pair in zip(came, back, strict=True)]

    def _returned(self, came: int, back: int | None, made: Sequence[torch.Tensor]) -> torch.Tensor | None:
        if back is not None:
            return self._leave(back, made)
        route = self.plan.routes[came]
        kind = getattr(torch, route.dtype)
        assert route.wire is not None
        return torch.zeros(route.wire.local, dtype=kind) if kind.is_floating_point else None

    def weight_gradients(self) -> None:
        """Make and add up what this micro batch gives to the gradients of the weights."""
        with torch.no_grad():
            self._run("W")
        self.held = {}

    def _run(self, kind: str) -> Sequence[torch.Tensor]:
        piece = self.module.stage.pieces.get(kind)
        if piece is None:
            return ()
        given = [self._input(one) for one in piece.inputs]
        made = piece.run(TorchControl(), self.module.group.collectives[self.number], *given)
        for number in self.plan.leaving[self.number, kind]:
            route = self.plan.routes[number]
            if route.stage == self.number and route.is_repeated:
                self.held[number] = made[route.output]
        self.module.add(piece, made)
        return made

    def _input(self, one: StageInput) -> torch.Tensor:
        if one.route is not None:
            return self.held[one.route].detach()
        if one.rows is not None:
            return self.data[one.value.name]
        return self.module.tensors[one.value].detach()


class _PassesOfStage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: MicroBatchRun, token: torch.Tensor, *activations: torch.Tensor) -> Any:  # noqa: ARG004
        ctx.run, ctx.count = run, len(activations)
        made = run.forward()
        ctx.mark_non_differentiable(*[one for one in made if not one.dtype.is_floating_point])
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = ctx.run.input_gradients(gradients)
        return (None, None, *(found or [None] * ctx.count))


class StagePipeline:
    """The stages of this rank as `PipelineStage`s, run by torch in the order that a file says.

    Args:
        arrays: whole parameters and states by name; for those that are not given seeded random numbers.
    """

    def __init__(self, plan: StagesPlan, schedule: Path, arrays: Mapping[str, np.ndarray]) -> None:
        start(plan.world, "cpu")
        self.plan, self.group = plan, StageGroup(plan)
        self.arrays = dict(zip([one.name for one in plan.inputs], arrays_of(plan.inputs, arrays), strict=True))
        rows = list(dict.fromkeys(stage.ranks for stage in plan.stages))
        lines: list[Any] = [dist.new_group(list(line)) for line in zip(*rows, strict=True)]
        place = next(row.index(self.group.rank) for row in rows if self.group.rank in row)
        own = lines[place]
        self.modules = {n: StageModule(self.group, stage, self.arrays) for n, stage in self.group.own.items()}
        count = len(plan.stages)
        stages = [
            PipelineStage(module, n, count, torch.device("cpu"), group=own, dw_builder=module.weight_gradients)
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
        """Rows of data by name, this rank's blocks, so that torch cuts them into the plan's micro batches."""
        whole = {**self.arrays, **data}
        made = from_data(self.plan, whole)
        whole |= made
        for module in self.modules.values():
            module.take({**data, **made})
        found: dict[str, torch.Tensor] = {}
        for stage in self.group.own.values():
            for piece in stage.pieces.values():
                for one in piece.inputs:
                    if one.rows is not None and one.value.name not in found:
                        found[one.value.name] = self._rows(stage, one, whole)
        return found

    def _rows(self, stage: ExportedStage, one: StageInput, whole: Mapping[str, np.ndarray]) -> torch.Tensor:
        assert one.rows is not None
        name, part = one.rows
        parts, shape = self.plan.micro_batches, one.value.shape
        cut = (rows_of(np.asarray(whole[name]), part, parts, micro, shape) for micro in range(parts))
        return torch.cat([self.group.place(stage, one.value, rows) for rows in cut])

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
                if out.partial:
                    own = self.group.collectives[last].all_reduce(own, out.partial, out.terms)
                terms[place] = own
        dist.broadcast(terms, stage.ranks[0])
        return self._loss(terms, {**self.arrays, **data})

    def _loss(self, terms: torch.Tensor, arrays: Mapping[str, np.ndarray]) -> float:
        """The loss of the sums of what it is made of."""
        piece = self.plan.loss
        if piece is None:
            return float(terms[0])
        last = self.plan.stages[-1].pieces["F"]
        names = [last.outputs[i].value.name for i in self.plan.terms]
        whole = {**arrays, **from_data(self.plan, arrays), **dict(zip(names, terms.numpy(), strict=True))}
        (made,) = run_whole(piece, whole).values()
        return float(made)

    def gradients(self) -> dict[str, np.ndarray]:
        """The whole gradients of all parameters by name, on every rank; all ranks call it together."""
        found = {}
        for stage in self.plan.stages:
            learned = {out.gradient_of for piece in stage.pieces.values() for out in piece.outputs} - {""}
            for one in stage.parameters.values():
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


def main_pipelining(plan: StagesPlan, schedule: Path, text: str) -> None:
    """Run from the command line: the loss, and the gradients of a step."""
    told = arguments_of(text)
    given = dict(np.load(told.inputs)) if told.inputs else {}
    pipeline = StagePipeline(plan, schedule, given)
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
