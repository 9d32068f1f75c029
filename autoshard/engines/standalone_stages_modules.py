"""Exported stages as modules of torch, as `torch.distributed.pipelining` runs them.

The backward pass of a module is the plan's own: autograd runs what makes gradients of its input, and `dw_builder` what
makes those of its weights, so that schedules may put these later. This file needs numpy and torch, and files that need
no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autoshard.engines.boxes import slices
from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.standalone_stages import ONCE, PieceSpec, SentBox, StageSpec, StandaloneStages, ValueSource
from autoshard.engines.standalone_stages_group import StageGroup, run_whole, widened


class StageModule(torch.nn.Module):
    """A stage: its blocks of parameters, by the model's names, and its forward and backward pass."""

    def __init__(self, group: StageGroup, stage: StageSpec, arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.group, self.stage, self.plan = group, stage, group.plan
        self.tensors: dict[BoundaryValue, torch.Tensor] = {}
        self.sums: dict[str, tuple[torch.Tensor, BoundaryValue]] = {}
        self.waiting: list[MicroBatchRun] = []
        self.once: tuple[tuple[int, ...] | None, dict[int, torch.Tensor]] = (None, {})
        learned = gradients_of(stage)
        whole = {**arrays, **run_whole(self.plan.prologue, arrays)}
        for one in stage.held("PFIW"):
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
                self.once = None, {}

    def forward(self, *activations: torch.Tensor, **data: torch.Tensor) -> Any:
        """What the next stage reads, or of the last one a micro batch's part of the loss.

        Args:
            activations: what the stage before gave; of the first one anything.
            data: rows of a micro batch by name, as `StagePipeline.batch` makes them.
        """
        run = MicroBatchRun(self, activations if self.stage.number else (), data)
        # So that the first stage has a backward pass, too.
        token = torch.zeros((), requires_grad=True, device=self.group.device)
        made = _PassesOfStage.apply(run, token, *activations)
        return made[0] if len(made) == 1 else made

    def weight_gradients(self) -> Callable[[], None]:
        """What makes the gradients of the weights for the micro batch whose backward pass ran last."""
        return self.waiting.pop().weight_gradients

    def add(self, piece: PieceSpec, made: Sequence[torch.Tensor]) -> None:
        """Add up what a micro batch gives to gradients."""
        for i, name in piece.gradients.items():
            term, known = widened(made[i]), self.sums.get(name)
            self.sums[name] = (term if known is None else known[0] + term), piece.outputs[i]

    def finish(self) -> None:
        """Put the gradients of a step where optimizers of torch look for them, the terms of all ranks added up."""
        for name, (total, of) in self.sums.items():
            parameter = self.get_parameter(name)
            total = self.total(total, of).to(parameter.dtype)
            parameter.grad = total if parameter.grad is None else parameter.grad + total
        self.sums = {}

    def total(self, term: torch.Tensor, of: BoundaryValue) -> torch.Tensor:
        """The terms of all ranks of the stage, added up; all of them call it together."""
        if not of.partial:
            return term
        return self.group.collectives[self.stage.number].all_reduce(term, of.partial, of.reduction)

    def once_made(self) -> dict[int, torch.Tensor]:
        """By routes what follows from parameters, made again when these have changed."""
        piece = self.stage.pieces.get(ONCE)
        version = tuple(one._version for one in self.tensors.values())
        if piece is not None and self.once[0] != version:
            made = self.group.run(piece, [self.tensors[one].detach() for one in piece.inputs])
            routes = self.plan.leaving[self.stage.number, ONCE]
            self.once = version, {number: made[self.plan.routes[number].output] for number in routes}
        return self.once[1]


def gradients_of(stage: StageSpec) -> set[str]:
    """The parameters whose gradients a stage makes."""
    return {name for piece in stage.pieces.values() for name in piece.gradients.values()}


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
        self.passing: dict[int, torch.Tensor] = {}
        """What goes through the stage, on its way to a later one."""
        self.terms: list[tuple[PieceSpec, Sequence[torch.Tensor]]] = []
        """What has made terms of gradients: they count when those of weights are made, as torch goes forward, and back
        to inputs, once more to find out shapes."""
        for number, block in zip(sent_on(self.plan, self.number - 1), activations, strict=True):
            if self.plan.routes[number].stage == self.number:
                self._arrive(number, block)
            else:
                self.passing[number] = block.detach()

    def _arrive(self, number: int, block: torch.Tensor) -> None:
        route = self.plan.routes[number]
        assert route.wire is not None
        grid = self.module.stage.grid
        self.held[number] = self._exchanged(block, route.wire.after, route.value.local(grid))

    def _leave(self, number: int, made: Sequence[torch.Tensor]) -> torch.Tensor:
        route = self.plan.routes[number]
        assert route.wire is not None
        return self._exchanged(made[route.output], route.wire.before, route.wire.local).contiguous()

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
        ways = sent_on(self.plan, self.number)
        return tuple(self.passing.pop(one) if one in self.passing else self._leave(one, made) for one in ways)

    def input_gradients(self, gradients: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """What goes back, each at the place of what came."""
        places = {one.wire.place: number for number, one in enumerate(self.plan.routes) if one.wire is not None}
        coming = dict(zip(sent_on(self.plan, self.number), gradients, strict=False))
        for number, one in coming.items():
            back = places.get(number)
            if back is not None and self.plan.routes[back].stage == self.number:
                self._arrive(back, one)
        made = self._run("I")
        self.module.waiting.append(self)
        came = sent_on(self.plan, self.number - 1)
        return [self._returned(one, places.get(one), coming, made) for one in came]

    def _returned(
        self, came: int, back: int | None, coming: Mapping[int, torch.Tensor], made: Sequence[torch.Tensor]
    ) -> torch.Tensor | None:
        """What goes back at a place: a gradient of this stage, one of a later stage for an earlier one, or zeros."""
        if back is not None and self.plan.routes[back].stage < self.number:
            return coming[came] if came in coming else self._leave(back, made)
        route = self.plan.routes[came]
        kind, wire = getattr(torch, route.value.dtype), route.wire
        assert wire is not None
        return torch.zeros(wire.local, dtype=kind, device=self.module.group.device) if kind.is_floating_point else None

    def weight_gradients(self) -> None:
        """Make and add up what this micro batch gives to the gradients of the weights."""
        with torch.no_grad():
            self._run("W")
            for piece, made in self.terms:
                self.module.add(piece, made)
        self.held, self.terms = {}, []

    def _run(self, kind: str) -> Sequence[torch.Tensor]:
        piece = self.module.stage.pieces.get(kind)
        if piece is None:
            return ()
        made = self.module.group.run(piece, [self._input(*end) for end in piece.ends])
        for number in self.plan.leaving[self.number, kind]:
            route = self.plan.routes[number]
            if route.stage == self.number and route.repeated:
                self.held[number] = made[route.output]
        if piece.gradients:
            self.terms.append((piece, made))
        return made

    def _input(self, of: BoundaryValue, source: ValueSource) -> torch.Tensor:
        if source.kind == "route":
            return self.held[source.of].detach()
        return self.data[of.rows_name] if source.kind == "rows" else self.module.tensors[of].detach()


def sent_on(plan: StandaloneStages, stage: int) -> list[int]:
    """The routes by which forward passes give from a stage to the next, in order: what it makes, and what goes to a
    later stage on its way."""
    pairs = enumerate(plan.routes)
    return [number for number, one in pairs if one.source[1] == "F" and one.source[0] <= stage < one.stage]


class _PassesOfStage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: MicroBatchRun, token: torch.Tensor, *activations: torch.Tensor) -> Any:  # noqa: ARG004
        ctx.run, ctx.count = run, len(activations)
        made = tuple(one.detach() for one in run.forward())  # one that goes two ways has two gradients
        ctx.mark_non_differentiable(*[one for one in made if not one.dtype.is_floating_point])
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        found = ctx.run.input_gradients(gradients)
        return (None, None, *(found or [None] * ctx.count))
