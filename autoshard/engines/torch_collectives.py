"""Collectives of `torch.distributed` as the text of a program calls them, and its loops and branches, on one rank.

Tensors lie on the rank's device, and what is sent on the `wire`: the same device where the backend moves it (gloo on
CPUs, NCCL on CUDA devices of their own), else the host's memory, with a copy there and one back. What the backends lack
is done by what both have: narrow floats, bools and small whole numbers are reduced as wider types, largest and least
floats by gathering, and what only moves goes as bytes.

This file needs numpy and torch, and files that need no more: exported code carries it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
import torch.distributed as dist

from autoshard.engines.boxes import Box, Table, slices
from autoshard.engines.grid import Axes, Grid
from autoshard.engines.per_rank import MeshQueries
from autoshard.engines.rounds import messages_of

Finish = Callable[[], Any]
"""Waits for what has begun, and returns its result."""

_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""By the names of torch 2.13, or else by those of before."""


class TorchControl:
    """Loops and branches of a text."""

    def while_loop(self, holds: Callable, turn: Callable, carried: tuple) -> tuple:
        while bool(holds(*carried)[0]):
            carried = turn(*carried)
        return carried

    def case(self, index: Any, branches: tuple[Callable, ...]) -> tuple:
        number, last = int(index), len(branches) - 1
        return branches[number if 0 <= number <= last else last]()


_GROUPS: WeakKeyDictionary[Any, dict[tuple[int, ...], Any]] = WeakKeyDictionary()
"""By torch's group of all ranks the groups that were made of it, by their members: each takes connections. They go with
it: threads of a group that outlives `destroy_process_group` may end the process when Python ends."""


_MET: WeakSet[Any] = WeakSet()
"""Torch's groups of all ranks over which something was sent on another wire than CPUs."""


class TorchCollectives(MeshQueries):
    """`c` of a text on one rank. Each collective begins without waiting and gives what waits and returns its result.

    Args:
        device: where the rank computes, by torch's name.
        wire: where lies what it sends.
        members: which of all ranks each rank of the grid is; none: the same.
    """

    def __init__(
        self, grid: Grid, rank: int, device: str = "cpu", wire: str = "cpu", members: Sequence[int] = ()
    ) -> None:
        super().__init__(grid)
        self._members = tuple(members) or tuple(range(grid.size))
        self._device, self._wire = torch.device(device), torch.device(wire)
        self._rank, self.done = rank, []
        self._rows_of: dict[Axes, tuple[int, ...]] = {}
        """`done`: what was done, as (kind, ranks of the group, elements), for checks."""

    @property
    def _groups(self) -> dict[tuple[int, ...], Any]:
        return _GROUPS.setdefault(dist.group.WORLD, {})

    def prepare(self, over: Sequence[Axes]) -> None:
        """Make torch's groups for all axes of a text, on all ranks in one order; groups serve all texts.

        On another wire than CPUs all ranks meet once: messages from rank to rank wait for all ranks if they come first.
        """
        if self._wire.type != "cpu" and dist.group.WORLD not in _MET:
            dist.all_reduce(torch.zeros(1, device=self._wire))
            _MET.add(dist.group.WORLD)
        for axes in over:
            for row in self.grid.rows(axes):
                members = tuple(sorted(self._members[rank] for rank in row))
                if members not in self._groups:
                    self._groups[members] = dist.new_group(list(members))

    def group_of(self, axes: Axes) -> tuple[Any, tuple[int, ...]]:
        """Torch's group that this rank is in, and its members in the order of the axes (torch sorts them)."""
        row = tuple(self._members[rank] for rank in self._row(axes))
        return self._groups[tuple(sorted(row))], row

    def _sent(self, x: Any) -> Any:
        """A copy on the wire."""
        return x.to(self._wire, copy=True, memory_format=torch.contiguous_format)

    def _on_wire(self, x: Any) -> Any:
        """The same on the wire, where its memory lies in order; no copy where it does already."""
        return x.contiguous().to(self._wire)

    def _home(self, x: Any, kind: Any) -> Any:
        """What came, of a type that it is narrowed to, on the rank's device."""
        return x.to(kind).to(self._device)

    def _log(self, kind: str, row: Sequence[int], raw: Any) -> None:
        self.done.append((kind, tuple(row), raw.numel()))

    # -- blocking: begun and waited for

    def all_reduce(self, x: Any, axes: Axes, op: str) -> Any:
        return self._all_reduce(x, axes, op)()

    def all_gather(self, x: Any, axes: Axes, dim: int) -> Any:
        return self._all_gather(x, axes, dim)()

    def reduce_scatter(self, x: Any, axes: Axes, dim: int, op: str) -> Any:
        return self._reduce_scatter(x, axes, dim, op)()

    def all_to_all(self, x: Any, axes: Axes, split: int, concat: int) -> Any:
        return self._all_to_all(x, axes, split, concat)()

    def bundle(self, kind: str, xs: tuple, axes: Axes, dims: tuple, op: str = "sum") -> tuple:
        return self._bundle(kind, xs, axes, dims, op)()

    def start(self, collective: Callable, *args: Any) -> Finish:
        """Begin what the collective does; `wait` returns its result."""
        return getattr(self, f"_{collective.__name__}")(*args)

    def wait(self, begun: Finish) -> Any:
        return begun()

    # -- begun

    def _all_reduce(self, x: Any, axes: Axes, op: str) -> Finish:
        group, row = self.group_of(axes)
        self._log("all_reduce", row, x)
        if _is_gathered(op, x.dtype):
            return self._gathered(x, axes, op)
        sent = self._sent(_widened(x))
        work = dist.all_reduce(_reals(sent), _op(op), group=group, async_op=True)
        return lambda: _finished(work, lambda: self._home(sent, x.dtype))

    def _gathered(self, x: Any, axes: Axes, op: str) -> Finish:
        """What no backend reduces as numpy does, reduced by each rank."""
        finish = self._rows(x, axes)
        return lambda: _reduced(finish(), op)

    def _rows(self, x: Any, axes: Axes) -> Finish:
        """The blocks of a group stacked, in the order of the axes."""
        group, row = self.group_of(axes)
        sent = self._on_wire(_bytes(x.contiguous()))
        got = sent.new_empty((len(row) * sent.numel(),))
        work = _gather(got, sent.reshape(-1), group=group, async_op=True)

        def stacked() -> Any:
            rows = _in_order(got.reshape(len(row), -1), _order(row))
            return rows.view(x.dtype).reshape(len(row), *x.shape).to(self._device)

        return lambda: _finished(work, stacked)

    def _all_gather(self, x: Any, axes: Axes, dim: int) -> Finish:
        self._log("all_gather", self.group_of(axes)[1], x)
        finish = self._rows(x, axes)
        return lambda: finish().flatten(0, 1) if dim == 0 else torch.cat(finish().unbind(), dim)

    def _reduce_scatter(self, x: Any, axes: Axes, dim: int, op: str) -> Finish:
        group, row = self.group_of(axes)
        self._log("reduce_scatter", row, x)
        pieces = torch.stack(_widened(x).chunk(len(row), dim))
        if _is_gathered(op, x.dtype):
            finish = self._exchanged(pieces, axes)
            return lambda: _reduced(finish(), op).to(x.dtype)
        sent = self._on_wire(_in_order(pieces, _inverse(row)))
        got = torch.empty_like(sent[0])
        flat, parts = _reals(got).view(-1), _reals(sent).view(-1)
        work = _scatter(flat, parts, _op(op), group=group, async_op=True)
        return lambda: _finished(work, lambda: self._home(got, x.dtype))

    def _exchanged(self, pieces: Any, axes: Axes) -> Finish:
        """Piece j of dim 0 to member j; what arrives is stacked in the order of the axes."""
        group, row = self.group_of(axes)
        sent = self._on_wire(_bytes(_in_order(pieces, _inverse(row))).reshape(len(row), -1))
        got = torch.empty_like(sent)
        work = dist.all_to_all_single(got, sent, group=group, async_op=True)

        def stacked() -> Any:
            return _in_order(got, _order(row)).view(pieces.dtype).reshape(pieces.shape).to(self._device)

        return lambda: _finished(work, stacked)

    def _all_to_all(self, x: Any, axes: Axes, split: int, concat: int) -> Finish:
        row = self.group_of(axes)[1]
        self._log("all_to_all", row, x)
        finish = self._exchanged(torch.stack(x.chunk(len(row), split)), axes)
        return lambda: torch.cat(list(finish()), concat)

    def _bundle(self, kind: str, xs: tuple, axes: Axes, dims: tuple, op: str = "sum") -> Finish:
        """One collective on a common buffer: a row for each piece that goes to another rank."""
        count = len(self.group_of(axes)[1])
        parts = 1 if kind in ("all_reduce", "all_gather") else count
        cut = [x.reshape(1, -1) if parts == 1 else _pieces(x, count, dim) for x, (dim, _) in zip(xs, dims, strict=True)]
        buffer = torch.cat(cut, 1)
        rest = {"all_reduce": (op,), "all_gather": (0,), "reduce_scatter": (0, op), "all_to_all": (0, 0)}[kind]
        finish = getattr(self, f"_{kind}")(buffer, axes, *rest)
        widths = [one.shape[1] for one in cut]

        def taken() -> tuple:
            columns = finish().split(widths, 1)
            pairs = zip(columns, xs, dims, strict=True)
            return tuple(_joined(kind, rows, x, count, *dim) for rows, x, dim in pairs)

        return taken

    # -- one to one

    def slice(self, x: Any, axes: Axes, dim: int) -> Any:
        size = x.shape[dim] // len(self._row(axes))
        return x.narrow(dim, self._row(axes).index(self._rank) * size, size).clone()

    def _row(self, axes: Axes) -> tuple[int, ...]:
        if axes not in self._rows_of:
            self._rows_of[axes] = next(row for row in self.grid.rows(axes) if self._rank in row)
        return self._rows_of[axes]

    def permute(self, x: Any, sources: tuple[int | None, ...]) -> Any:
        self._log("permute", range(self.grid.size), x)
        sends = {target: x for target, source in enumerate(sources) if source == self._rank != target}
        source = sources[self._rank]
        if source is None or source == self._rank:
            self._exchange(sends, {}, x.dtype)
            return torch.zeros_like(x) if source is None else x.clone()
        return self._exchange(sends, {source: x.numel()}, x.dtype)[source].reshape(x.shape)

    def boxes(self, x: Any, shape: tuple[int, ...], table: Table, op: str = "sum", wide: str = "") -> Any:
        sends, counts = {}, {}
        for source, target, wanted in messages_of(table):
            if source == self._rank:
                sends[target] = torch.cat([_taken(x, box).reshape(-1) for box in wanted])
            if target == self._rank:
                counts[source] = sum(int(np.prod([count for _, count, _ in box])) for box in wanted)
        if any(source != rank for rank, row in enumerate(table) for source, *_ in row):
            self._log("permute", range(self.grid.size), x)
        got = self._exchange(sends, counts, x.dtype)
        kind = getattr(torch, wide) if wide else x.dtype
        block = x.new_zeros(shape, dtype=kind)
        combine = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum, "prod": torch.mul}[op]
        used = dict.fromkeys(got, 0)
        for source, taken, placed, adds in table[self._rank]:
            sizes = tuple(count for _, count, _ in taken)
            if source == self._rank:
                values = _taken(x, taken)
            else:
                values = got[source].narrow(0, used[source], int(np.prod(sizes))).reshape(sizes)
                used[source] += values.numel()
            here = slices(placed)
            block[here] = combine(block[here], values.to(kind)) if adds else values.to(kind)
        return block.to(x.dtype)

    def _exchange(self, sends: dict[int, Any], counts: dict[int, int], kind: Any) -> dict[int, Any]:
        """A message to each of `sends`, and one of so many elements from each of `counts`; all ranks take part."""
        got = {source: torch.empty(count, dtype=kind, device=self._wire) for source, count in counts.items()}
        flat = {target: self._on_wire(_bytes(part.contiguous().reshape(-1))) for target, part in sends.items()}
        asked = [
            dist.P2POp(dist.irecv, _bytes(part), self._members[source]) for source, part in got.items() if part.numel()
        ]
        asked += [dist.P2POp(dist.isend, part, self._members[target]) for target, part in flat.items() if part.numel()]
        # Begun together: NCCL would wait for ever where two ranks each send before they receive.
        for work in dist.batch_isend_irecv(asked) if asked else ():
            work.wait()
        return {source: part.to(self._device) for source, part in got.items()}

    def fit(self, x: Any, shape: tuple[int, ...]) -> Any:
        made = x.new_zeros(shape)
        inside = tuple(slice(min(old, new)) for old, new in zip(x.shape, shape, strict=True))
        made[inside] = x[inside]
        return made

    def each(self, ways: Sequence[int], functions: Sequence[Callable], *operands: Any) -> Any:
        """The function whose number stands at this rank's place in `ways`."""
        return functions[ways[self._rank]](*operands)

    def rank(self, counts: bool) -> Any:
        return torch.tensor(np.asarray(self._rank if counts else 0, np.uint32), device=self._device)


def _taken(x: Any, box: Box) -> Any:
    """The part of a block that a box names; torch itself knows no strides that go backward."""
    forward = tuple((start + min(0, (count - 1) * stride), count, abs(stride)) for start, count, stride in box)
    back = [dim for dim, (_, _, stride) in enumerate(box) if stride < 0]
    found = x[slices(forward)]
    return found.flip(back) if back else found


def _finished(work: Any, result: Finish) -> Any:
    work.wait()
    return result()


def _order(row: Sequence[int]) -> list[int]:
    """Where each member, in the order of the axes, stands in torch's group, which is sorted."""
    members = sorted(row)
    return [members.index(rank) for rank in row]


def _inverse(row: Sequence[int]) -> list[int]:
    """For each member of torch's group its place in the order of the axes."""
    return np.argsort(_order(row)).tolist()


def _in_order(rows: Any, order: list[int]) -> Any:
    """The rows of a tensor in that order; the tensor itself where they lie so."""
    return rows if order == [*range(len(order))] else rows.index_select(0, torch.tensor(order, device=rows.device))


def _pieces(x: Any, count: int, dim: int) -> Any:
    return torch.stack(x.chunk(count, dim)).reshape(count, -1)


def _joined(kind: str, rows: Any, x: Any, count: int, dim: int, to_dim: int) -> Any:
    """A bundle's part out of its columns of what came."""
    if kind == "all_reduce":
        return rows.reshape(x.shape)
    shape = list(x.shape)
    if kind != "all_gather":
        shape[dim] //= count
    if kind == "reduce_scatter":
        return rows.reshape(shape)
    return torch.cat([row.reshape(shape) for row in rows], dim if kind == "all_gather" else to_dim)


@cache
def _op(name: str) -> Any:
    known = {"sum": "SUM", "max": "MAX", "min": "MIN", "prod": "PRODUCT"}
    return getattr(dist.ReduceOp, known[name])


def _is_gathered(op: str, kind: Any) -> bool:
    """Whether ranks gather and reduce themselves: the largest and least of floats, of which gloo loses NaN by the order
    of ranks, and products of complex numbers, which no backend has."""
    return kind.is_complex if op == "prod" else op != "sum" and kind.is_floating_point


def _reduced(rows: Any, op: str) -> Any:
    return {"max": torch.amax, "min": torch.amin, "prod": torch.prod}[op](rows, 0)


def _reals(x: Any) -> Any:
    """Complex numbers as pairs: sums are those of each part."""
    return torch.view_as_real(x) if x.dtype.is_complex else x


def _widened(x: Any) -> Any:
    """What backends reduce: narrow floats as f32 as on all engines, bools as bytes, small whole numbers as i32."""
    if x.dtype == torch.bool:
        return x.to(torch.uint8)
    if x.dtype.is_floating_point and x.dtype.itemsize < torch.float32.itemsize:
        return x.to(torch.float32)
    small = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}
    return x.to(small[x.dtype]) if x.dtype in small else x


def _bytes(x: Any) -> Any:
    """The same memory as bytes: backends move few types, and bytes always. A single element may have any stride."""
    flat = x.reshape(-1)
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8) if flat.numel() else flat.to(torch.uint8)
