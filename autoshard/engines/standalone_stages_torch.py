"""Exported stages on torch: this process is a rank of one group of a pipeline, which does its actions in order.

What a piece makes for others sets out at once and is received where it is read: a message bears the number of its route
and its micro batch, so that both ends may have orders of their own. This file needs numpy and torch, and files that
need no more: exported code carries it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from autoshard.engines.boxes import slices
from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.standalone_stages import (
    ONCE,
    ExportedStage,
    Place,
    SentBox,
    StageInput,
    StagesPlan,
    StepOutput,
    rows_of,
)
from autoshard.engines.standalone_torch import on_host
from autoshard.engines.torch_collectives import TorchCollectives, TorchControl

Key = tuple[int, int | None]
_COMBINE: dict[str, Callable] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul}


class StageGroup:
    """The stages of this rank, and its blocks of parameters and states."""

    def __init__(self, plan: StagesPlan) -> None:
        self.plan, self.rank = plan, dist.get_rank()
        self.own = {stage.number: stage for stage in plan.stages if self.rank in stage.ranks}
        self.groups = {ranks: dist.new_group(list(ranks)) for ranks in dict.fromkeys(s.ranks for s in plan.stages)}
        self.collectives: dict[int, TorchCollectives] = {}
        for stage in plan.stages:  # all ranks make all groups, in one order
            place = stage.ranks.index(self.rank) if stage.number in self.own else 0
            made = TorchCollectives(stage.grid, place, members=stage.ranks)
            made.prepare(stage.axes)
            self.collectives[stage.number] = made
        self.blocks: dict[tuple[int, BoundaryValue], torch.Tensor] = {}
        """By stage and form."""

    def place(self, stage: ExportedStage, of: BoundaryValue, whole: np.ndarray) -> torch.Tensor:
        """This rank's block of a whole value."""
        block = of.pad(whole)[of.block(stage.grid, stage.ranks.index(self.rank))]
        return torch.tensor(block).to(getattr(torch, of.dtype))

    def whole(self, stage: ExportedStage, of: BoundaryValue, block: torch.Tensor) -> np.ndarray:
        """The whole value; all ranks of the stage call it together."""
        own = torch.tensor(on_host(block, of)).contiguous()
        parts = [torch.empty_like(own) for _ in stage.ranks]
        dist.all_gather(parts, own, group=self.groups[stage.ranks])
        members = sorted(stage.ranks)
        return of.join(stage.grid, [parts[members.index(rank)].numpy() for rank in stage.ranks])


class StageStep:
    """One step of this rank.

    Args:
        arrays: whole inputs of the step, and what follows from data alone.
    """

    def __init__(self, group: StageGroup, arrays: Mapping[str, np.ndarray]) -> None:
        self.group, self.plan, self.arrays = group, group.plan, dict(arrays)
        self.fresh: set[str] = set()
        """Whole values that were made in this step."""
        self.held: dict[Key, torch.Tensor] = {}
        self.readers: Counter[Key] = Counter()
        self.sums: dict[tuple[Place, int], torch.Tensor] = {}
        self.rows: dict[tuple[Place, int], dict[int, torch.Tensor]] = {}
        self.made: dict[tuple[Place, int], torch.Tensor] = {}
        self.sent: list[tuple[Any, torch.Tensor]] = []

    def run(self, actions: Sequence[tuple[int, str, int]]) -> None:
        """Do all actions, then the update."""
        own = self.group.own.values()
        for stage in own:
            self._do((stage.number, ONCE), None)
        for stage, kind, micro in actions:
            self._do((stage, kind), micro)
        for number, route in enumerate(self.plan.routes):
            if route.summed and route.source[0] in self.group.own:
                self._set_out(number, self.total(route.source, route.output), None)
        rounds = ((kind, stage.number) for stage in own for kind in stage.pieces if kind[0] == "U")
        for kind, stage in sorted(rounds, key=lambda one: (int(one[0][1:]), one[1])):
            self._do((stage, kind), None)
        for work, _ in self.sent:
            work.wait()

    def _do(self, place: Place, micro: int | None) -> None:
        """Run a piece on what has arrived."""
        stage = self.group.own[place[0]]
        piece = stage.pieces.get(place[1])
        if piece is None:
            return
        given = [self._input(stage, one, micro) for one in piece.inputs]
        made = piece.run(TorchControl(), self.group.collectives[place[0]], *given)
        for i, (of, block) in enumerate(zip(piece.outputs, made, strict=True)):
            self._keep((place, i), of.reduction, of.is_rows, block, micro)
        for number in self.plan.leaving[place]:
            route = self.plan.routes[number]
            if not route.summed:
                self._set_out(number, made[route.output], micro)
        for number in self.plan.arriving[place]:
            self._let_go((number, micro if self.plan.routes[number].is_repeated else None))

    def _keep(self, at: tuple[Place, int], reduction: str, is_rows: bool, block: Any, micro: int | None) -> None:
        if micro is None:
            self.made[at] = block
        elif reduction:
            self._add(at, reduction, block)
        elif is_rows:
            self.rows.setdefault(at, {})[micro] = block

    def _add(self, at: tuple[Place, int], reduction: str, block: Any) -> None:
        """Add a micro batch's terms, narrow floats in f32."""
        narrow = block.dtype.is_floating_point and block.dtype.itemsize < torch.float32.itemsize
        term = block.to(torch.float32) if narrow else block
        self.sums[at] = _COMBINE[reduction](self.sums[at], term) if at in self.sums else term

    def total(self, place: Place, output: int) -> torch.Tensor:
        """What all micro batches gave to an output, in its own type."""
        of = self.group.own[place[0]].pieces[place[1]].outputs[output].value
        return self.sums[place, output].to(getattr(torch, of.dtype))

    # -- what goes in

    def _input(self, stage: ExportedStage, of: StageInput, micro: int | None) -> torch.Tensor:
        if of.route is not None:
            key = of.route, micro if self.plan.routes[of.route].is_repeated else None
            if key not in self.held:
                self._hold(key, self._received(key))
            return self.held[key]
        if of.rows is not None:
            name, part = of.rows
            assert micro is not None
            whole = self._array(stage, name)
            return self.group.place(
                stage, of.value, rows_of(whole, part, self.plan.micro_batches, micro, of.value.shape)
            )
        return self._block(stage, of.value)

    def _block(self, stage: ExportedStage, of: BoundaryValue) -> torch.Tensor:
        key = stage.number, of
        if of.name not in self.arrays or of.name in self.fresh:  # of this step alone
            return self.group.place(stage, of, self._array(stage, of.name))
        if key not in self.group.blocks:
            self.group.blocks[key] = self.group.place(stage, of, self.arrays[of.name])
        return self.group.blocks[key]

    def _array(self, stage: ExportedStage, name: str) -> np.ndarray:
        """A whole value that was there before, that this stage made before, or whose rows micro batches made."""
        if name in self.arrays:
            return self.arrays[name]
        if name in self.plan.late:
            return self.joined(self.plan.late[name])
        pairs = enumerate(stage.pieces[ONCE].outputs)
        i, of = next((i, of.value) for i, of in pairs if of.value.name == name)
        self.fresh.add(name)
        self.arrays[name] = self.group.whole(stage, of, self.made[(stage.number, ONCE), i])
        return self.arrays[name]

    # -- routes

    def _hold(self, key: Key, block: torch.Tensor) -> None:
        self.held[key] = block
        self.readers[key] = self.plan.reads(self.plan.routes[key[0]])

    def _let_go(self, key: Key) -> None:
        self.readers[key] -= 1
        if not self.readers[key]:
            del self.held[key]

    def _set_out(self, number: int, block: torch.Tensor, micro: int | None) -> None:
        """Send the boxes of a value to those that lack them."""
        route = self.plan.routes[number]
        if route.sent is None:
            self._hold((number, micro if route.is_repeated else None), block)
            return
        for target, boxes in _by(route.sent, source=self.group.rank).items():
            if target == self.group.rank:
                continue
            self._send(target, torch.cat([block[slices(one.taken)].reshape(-1) for one in boxes]), number, 0, micro)
        if any(one.source == one.target == self.group.rank for one in route.sent):
            self.made_here(number, micro, block)

    def made_here(self, number: int, micro: int | None, block: torch.Tensor) -> None:
        """Keep what this rank sends to itself until it is received."""
        self.held[-1 - number, micro] = block

    def _send(self, target: int, row: torch.Tensor, number: int, part: int, micro: int | None) -> None:
        self.sent.append((dist.isend(row, target, tag=self._tag(number, part, micro)), row))

    def _tag(self, number: int, part: int, micro: int | None) -> int:
        return (2 * number + part) * self.plan.micro_batches + (micro or 0)

    def _received(self, key: Key) -> torch.Tensor:
        """A rank's block of a route's value: what others send, then what those of the group pass on."""
        number, micro = key
        route = self.plan.routes[number]
        block = torch.zeros(route.local, dtype=getattr(torch, route.dtype))
        for part, boxes in enumerate((route.sent or (), route.passed_on)):
            if part == 1:
                for target, own in _by(boxes, source=self.group.rank).items():
                    row = torch.cat([block[slices(one.taken)].reshape(-1) for one in own])
                    self._send(target, row, number, part, micro)
            for source, wanted in _by(boxes, target=self.group.rank).items():
                self._place(block, source, wanted, (number, part, micro))
        return block

    def _place(self, block: torch.Tensor, source: int, boxes: list[SentBox], message: tuple) -> None:
        if source == self.group.rank:
            own = self.held.pop((-1 - message[0], message[2]))
            for one in boxes:
                block[slices(one.placed)] = own[slices(one.taken)]
            return
        row = block.new_empty(sum(_size(one) for one in boxes))
        dist.recv(row, source, tag=self._tag(*message))
        start = 0
        for one in boxes:
            here = block[slices(one.placed)]
            here.copy_(row[start : start + _size(one)].reshape(here.shape))
            start += _size(one)

    # -- what comes out

    def joined(self, of: StepOutput) -> np.ndarray:
        """A value of the step as its stage has it, whole; all ranks of the stage call it together."""
        assert of.source is not None
        stage, at = self.group.own[of.source[0]], (of.source, of.output)
        out = stage.pieces[of.source[1]].outputs[of.output]
        value = out.value
        if of.rows is None:
            block = self.made[at] if at in self.made else self.total(*at)
            if out.partial:
                block = self.group.collectives[stage.number].all_reduce(block, out.partial, out.terms)
            return self.group.whole(stage, value, block)
        shape = of.rows.apart(of.value.shape, self.plan.micro_batches)
        whole = np.empty(shape, value.host_dtype)
        for micro, block in sorted(self.rows[at].items()):
            here = of.rows.at(micro)
            whole[here] = self.group.whole(stage, value, block).reshape(whole[here].shape)
        return whole.reshape(of.value.shape)

    def result(self, of: StepOutput) -> np.ndarray:
        """An output of the step, whole, on every rank; all ranks call it together."""
        if of.source is None:
            return self.arrays[of.given]
        stage = self.plan.stages[of.source[0]]
        value = stage.pieces[of.source[1]].outputs[of.output].value
        found = self.joined(of) if of.source[0] in self.group.own else np.empty(of.value.shape, value.host_dtype)
        sent = torch.tensor(found)
        dist.broadcast(sent, stage.ranks[0])
        return sent.numpy()


def _by(boxes: Sequence[SentBox], source: int | None = None, target: int | None = None) -> dict[int, list[SentBox]]:
    """The boxes of a source by their targets, or of a target by their sources."""
    found: dict[int, list[SentBox]] = {}
    for one in boxes:
        if one.source == source:
            found.setdefault(one.target, []).append(one)
        elif one.target == target:
            found.setdefault(one.source, []).append(one)
    return found


def _size(box: SentBox) -> int:
    return int(np.prod([count for _, count, _ in box.placed], dtype=np.int64))
