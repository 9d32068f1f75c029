"""A step of exported stages on torch: this process is a rank of one group, which does its actions in order.

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
    Place,
    SentBox,
    StageSpec,
    ValueSource,
    joined_rows,
)
from autoshard.engines.standalone_stages_group import StageGroup, widened

Key = tuple[int, int | None]
_COMBINE: dict[str, Callable] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul}


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

    def run(self) -> None:
        """Do all actions, then the update."""
        own = self.group.own
        for stage in own:
            self._do((stage, ONCE), None)
        for place, micro in self.plan.actions(next(iter(own.values())).group):
            self._do(place, micro)
        for number, route in enumerate(self.plan.routes):
            if route.summed and route.source[0] in own:
                self._set_out(number, self.total(route.source, route.output), None)
        for piece in self.plan.rounds():
            if piece.stage in own:
                self._do(piece.place, None)
        for work, _ in self.sent:
            work.wait()

    def _do(self, place: Place, micro: int | None) -> None:
        """Run a piece on what has arrived."""
        piece = self.plan.by_place.get(place)
        if piece is None:
            return
        stage = self.group.own[place[0]]
        made = self.group.run(piece, [self._input(stage, *end, micro) for end in piece.ends])
        if micro is None:
            self.made.update(((place, i), block) for i, block in enumerate(made))
        for i, reduction in piece.sums.items():
            self._add((place, i), reduction, widened(made[i]))
        for i in piece.rows:
            self.rows.setdefault((place, i), {})[micro or 0] = made[i]
        for number in self.plan.leaving[place]:
            route = self.plan.routes[number]
            if not route.summed:
                self._set_out(number, made[route.output], micro)
        for number in self.plan.arriving[place]:
            self._let_go(self.plan.key(number, micro))

    def _add(self, at: tuple[Place, int], reduction: str, term: torch.Tensor) -> None:
        self.sums[at] = _COMBINE[reduction](self.sums[at], term) if at in self.sums else term

    def total(self, place: Place, output: int) -> torch.Tensor:
        """What all micro batches gave to an output, in its own type."""
        of = self.plan.by_place[place].outputs[output]
        return self.sums[place, output].to(getattr(torch, of.dtype))

    # -- what goes in

    def _input(self, stage: StageSpec, of: BoundaryValue, source: ValueSource, micro: int | None) -> torch.Tensor:
        if source.kind == "route":
            key = self.plan.key(source.of, micro)
            if key not in self.held:
                self._hold(key, self._received(key))
            return self.held[key]
        if source.kind == "rows":
            assert micro is not None
            return self.group.rows(stage, of, self._array(stage, source.of), source, micro)
        name, key = source.of, (stage.number, of)
        if name not in self.arrays or name in self.fresh:  # of this step alone
            return self.group.place(stage, of, self._array(stage, name))
        if key not in self.group.blocks:
            self.group.blocks[key] = self.group.place(stage, of, self.arrays[name])
        return self.group.blocks[key]

    def _array(self, stage: StageSpec, name: str) -> np.ndarray:
        """A whole value that was there before, that this stage made before, or whose rows micro batches made."""
        if name in self.arrays:
            return self.arrays[name]
        if name in self.plan.joined:
            return self._joined(name)
        piece = stage.pieces[ONCE]
        i = next(i for i, made in piece.made.items() if made == name)
        self.fresh.add(name)
        self.arrays[name] = self.group.whole(stage, piece.outputs[i], self.made[piece.place, i])
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
        if not route.moved:
            self._hold(self.plan.key(number, micro), block)
            return
        for target, boxes in _by(route.sent, source=self.group.rank).items():
            if target == self.group.rank:
                continue
            self._send(target, block, boxes, (number, 0, micro))
        if any(one.source == one.target == self.group.rank for one in route.sent):
            self.held[-1 - number, micro] = block  # what this rank sends to itself, until it is received

    def _send(self, target: int, block: torch.Tensor, boxes: Sequence[SentBox], message: tuple) -> None:
        """Send boxes of a block as one row, which lies on the host: of the backends gloo alone heeds tags."""
        row = torch.cat([block[slices(one.taken)].reshape(-1) for one in boxes]).cpu()
        self.sent.append((dist.isend(row, target, tag=self._tag(*message)), row))

    def _tag(self, number: int, part: int, micro: int | None) -> int:
        return (2 * number + part) * self.plan.micro_batches + (micro or 0)

    def _received(self, key: Key) -> torch.Tensor:
        """A rank's block of a route's value: what others send, then what those of the group pass on."""
        number, micro = key
        route = self.plan.routes[number]
        grid, kind = self.plan.stages[route.stage].grid, getattr(torch, route.value.dtype)
        block = torch.zeros(route.value.local(grid), dtype=kind, device=self.group.device)
        for part, boxes in enumerate((route.sent, route.passed_on)):
            if part == 1:
                for target, own in _by(boxes, source=self.group.rank).items():
                    self._send(target, block, own, (number, part, micro))
            for source, wanted in _by(boxes, target=self.group.rank).items():
                self._place(block, source, wanted, (number, part, micro))
        return block

    def _place(self, block: torch.Tensor, source: int, boxes: list[SentBox], message: tuple) -> None:
        if source == self.group.rank:
            own = self.held.pop((-1 - message[0], message[2]))
            for one in boxes:
                block[slices(one.placed)] = own[slices(one.taken)]
            return
        row = torch.empty(sum(_size(one) for one in boxes), dtype=block.dtype)
        dist.recv(row, source, tag=self._tag(*message))
        row = row.to(block.device)
        start = 0
        for one in boxes:
            here = block[slices(one.placed)]
            here.copy_(row[start : start + _size(one)].reshape(here.shape))
            start += _size(one)

    # -- what comes out

    def _joined(self, name: str) -> np.ndarray:
        """A value whose rows micro batches of its stage have made, whole; all ranks of the stage call it together."""
        place, i = self.plan.makers[name]
        stage, of = self.group.own[place[0]], self.plan.by_place[place].outputs[i]
        parts = [self.group.whole(stage, of, block) for _, block in sorted(self.rows[place, i].items())]
        return joined_rows(parts, *self.plan.joined[name])

    def _added(self, place: Place, i: int) -> np.ndarray:
        """An output of a stage with the terms of all ranks, whole; all ranks of the stage call it together."""
        stage, of = self.group.own[place[0]], self.plan.by_place[place].outputs[i]
        block = self.made[place, i] if (place, i) in self.made else self.total(place, i)
        if of.partial:
            block = self.group.collectives[stage.number].all_reduce(block, of.partial, of.reduction)
        return self.group.whole(stage, of, block)

    def result(self, value: BoundaryValue, source: ValueSource) -> np.ndarray:
        """An output of the step, whole, on every rank; all ranks call it together."""
        if source.kind == "given":
            return self.arrays[source.of]
        place, i = (source.of[:2], source.of[2]) if source.kind == "sum" else self.plan.makers[source.of]
        stage, found = self.plan.stages[place[0]], np.empty(value.shape, value.host_dtype)
        if stage.number in self.group.own:
            found = self._joined(source.of) if source.kind == "joined" else self._added(place, i)
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
