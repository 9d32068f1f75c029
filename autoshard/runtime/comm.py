"""The one interface through which programs move data between ranks.

A `Comm` hosts some ranks of a world: `LocalComm` hosts all of them in this process, `MpiComm` exactly one.
Every collective takes one array per hosted rank and returns one array per hosted rank, so the same
interpreter drives both. Arguments are checked here, before anything is sent: a rank that would be left
waiting gets an error instead.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from autoshard.core.tensortype import dtype as element_type
from autoshard.layout.mesh import Grouping
from autoshard.runtime.progress import RankProgress
from autoshard.util.errors import AutoshardError, ShapeError

Parts = Sequence[np.ndarray]
Messages = Mapping[int, np.ndarray]
"""Arrays by the rank that they go to."""
Shapes = Mapping[int, tuple[int, ...]]
"""Shapes of arrays by the rank that they come from."""

REDUCTIONS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


class CommError(AutoshardError):
    """A collective was asked for something it can not do; nothing has been sent."""


class Comm(ABC):
    """Collectives over a world of ranks, some of which live in this process.

    `parts` holds the arrays of the hosted ranks in the order of `ranks`. Members of one group pass equal
    shapes and dtypes. Inputs are never modified; results are C-contiguous arrays that nobody else holds.
    """

    def __init__(self, world: int, ranks: tuple[int, ...]) -> None:
        self.world = world
        self.ranks = ranks
        self._trace = debug_level() >= 4
        self._progress: RankProgress | None = None
        self._in_world: Sequence[int] = range(world)
        """What number each rank has among all that were started."""

    # -- what the launcher is told, should this process die

    def place(self, text: str) -> int | None:
        """A number for an operator of a program, to be passed to `at`; None if no launcher wants to know."""
        return None if self._progress is None else self._progress.place(("operator", text), text)

    @property
    def running(self) -> list[int] | memoryview:
        """Where the number of the operator that is run is written, as `at` does; a list that nobody reads without a
        launcher."""
        return [0] if self._progress is None else self._progress.operator

    def at(self, place: int | None) -> None:
        """Say that the operator of this place is run from now on; None: that the program is over."""
        if self._progress is not None:
            self._progress.at(place)

    # -- collectives -----------------------------------------------------------------------------------------

    def all_reduce(self, parts: Parts, groups: Grouping, op: str = "sum") -> list[np.ndarray]:
        """Every member gets the elementwise `op` ("sum", "max", "min", "prod") over its group.

        For booleans max is "or" and min is "and"; float16 is accumulated in float32; max and min propagate
        NaN.
        """
        return self._at_once("all_reduce", parts, groups, op=op)

    def all_gather(self, parts: Parts, groups: Grouping, dim: int) -> list[np.ndarray]:
        """Every member gets the parts of its group joined along `dim`, in group order."""
        return self._at_once("all_gather", parts, groups, dim)

    def reduce_scatter(self, parts: Parts, groups: Grouping, dim: int, op: str = "sum") -> list[np.ndarray]:
        """Reduce over the group, and leave each member the piece of `dim` that its position names."""
        return self._at_once("reduce_scatter", parts, groups, dim, op=op)

    def all_to_all(self, parts: Parts, groups: Grouping, split_dim: int, concat_dim: int) -> list[np.ndarray]:
        """Cut along `split_dim`, send piece j to member j, join what arrives along `concat_dim` in group
        order."""
        return self._at_once("all_to_all", parts, groups, split_dim, concat_dim)

    def _at_once(
        self, kind: str, parts: Parts, groups: Grouping, dim: int = 0, to_dim: int = 0, op: str = "sum"
    ) -> list[np.ndarray]:
        self._check_any(kind, parts, groups, dim, to_dim, op)
        return fresh(parts) if groups.size == 1 else self._done(kind, parts, groups, dim, to_dim, op)

    def _done(self, kind: str, parts: Parts, groups: Grouping, dim: int, to_dim: int, op: str) -> list[np.ndarray]:
        call, *arguments = {
            "all_reduce": (self._all_reduce, op),
            "all_gather": (self._all_gather, dim),
            "reduce_scatter": (self._reduce_scatter, dim, op),
            "all_to_all": (self._all_to_all, dim, to_dim),
        }[kind]
        return self._run(kind, groups.size, parts, call, groups, *arguments)

    def start(
        self, kind: str, parts: Parts, groups: Grouping, dim: int = 0, to_dim: int = 0, op: str = "sum"
    ) -> Callable[[], list[np.ndarray]]:
        """Begin an all_reduce, all_gather, reduce_scatter or all_to_all; the function returned waits for its results.

        All ranks begin and await theirs in the same order; `parts` may not be written to in between. `dim` and `to_dim`
        are the dims that these collectives take, in their order. Where nothing runs beside computing, as in one
        process, it is done at once.
        """
        self._check_any(kind, parts, groups, dim, to_dim, op)
        if groups.size == 1:
            found = fresh(parts)
            return lambda: found
        return self._start(kind, parts, groups, dim, to_dim, op)

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
        """An all_reduce, all_gather, reduce_scatter or all_to_all of parts of this shape and type, to be done often.

        Called together on all ranks, as the collective itself; `dim` and `to_dim` as in `start`.
        """
        # One element that is repeated: checks look at shape and type alone.
        example = [np.broadcast_to(np.zeros((), dtype), shape)] * len(self.ranks)
        self._check_any(kind, example, groups, dim, to_dim, op)
        return lambda parts: self._at_once(kind, parts, groups, dim, to_dim, op)

    def sum_in_halves(
        self, shape: tuple[int, ...], dtype: np.dtype, groups: Grouping, op: str = "sum"
    ) -> tuple[Callable[[Parts], None], Callable[[], list[np.ndarray]]] | None:
        """An all_reduce by `start`, but `prepared`: what begins it with the parts, what waits for the results;
        None where it is not done sooner for that. One that has begun ends before it begins again."""
        return None

    def advance(self) -> None:
        """Let what was started go on; to be called now and then while computing."""
        return  # what is done at once needs no help

    def _start(
        self, kind: str, parts: Parts, groups: Grouping, dim: int, to_dim: int, op: str
    ) -> Callable[[], list[np.ndarray]]:
        done = self._done(kind, parts, groups, dim, to_dim, op)
        return lambda: done

    def permute(self, parts: Parts, source_of: Callable[[int], int]) -> list[np.ndarray]:
        """Rank r gets the part of rank `source_of(r)`, a one-to-one map of all ranks; all parts are alike."""
        self._check("permute", parts, None)
        sources = self._sources(source_of)
        return self._run("permute", self.world, parts, self._permute, sources)

    def exchange(
        self, sends: Sequence[Messages], awaited: Sequence[Shapes], dtype: np.typing.DTypeLike, groups: Grouping
    ) -> list[dict[int, np.ndarray]]:
        """Point to point inside groups: hosted rank k sends `sends[k][target]` to each target and gets an array of
        shape `awaited[k][source]` from each source. Every rank of a group takes part, be it with nothing."""
        dtype = np.dtype(dtype)
        self._check("exchange", [np.empty(0, dtype)] * len(sends), groups)
        for rank, sent, shapes in zip(self.ranks, sends, awaited, strict=True):
            self._check_peers(rank, sent, shapes, dtype, groups)
        arrays = [array for sent in sends for array in sent.values()] or [np.empty(0, dtype)]
        return self._run("exchange", groups.size, arrays, self._exchange, groups, sends, awaited, dtype)

    def collect(self, parts: Parts, root: int = 0) -> list[np.ndarray] | None:
        """The arrays of all ranks (of equal shape) in rank order, where `root` is hosted; None elsewhere."""
        self._check("collect", parts, None)
        self._check_root("collect", root)
        return self._run("collect", self.world, parts, self._collect, root)

    def broadcast(
        self, array: np.ndarray | None, shape: Sequence[int], dtype: np.typing.DTypeLike, root: int = 0
    ) -> list[np.ndarray]:
        """Every hosted rank gets root's array. Only the process of root must pass it; shape and dtype all
        know."""
        self._check_root("broadcast", root)
        shape, dtype = tuple(shape), np.dtype(dtype)
        if root in self.ranks:
            self._check_broadcast(array, shape, dtype, root)
        parts = [] if array is None else [array]
        return self._run("broadcast", self.world, parts, self._broadcast, shape, dtype, root)

    @abstractmethod
    def barrier(self) -> None:
        """Return when every rank has come here."""

    # -- what an implementation supplies; arguments are checked, groups have at least two members ------------

    @abstractmethod
    def _all_reduce(self, parts: Parts, groups: Grouping, op: str) -> list[np.ndarray]: ...

    @abstractmethod
    def _all_gather(self, parts: Parts, groups: Grouping, dim: int) -> list[np.ndarray]: ...

    @abstractmethod
    def _reduce_scatter(self, parts: Parts, groups: Grouping, dim: int, op: str) -> list[np.ndarray]: ...

    @abstractmethod
    def _all_to_all(self, parts: Parts, groups: Grouping, split: int, concat: int) -> list[np.ndarray]: ...

    @abstractmethod
    def _permute(self, parts: Parts, sources: list[int]) -> list[np.ndarray]: ...

    @abstractmethod
    def _exchange(
        self, parts: Parts, groups: Grouping, sends: Sequence[Messages], awaited: Sequence[Shapes], dtype: np.dtype
    ) -> list[dict[int, np.ndarray]]: ...

    @abstractmethod
    def _collect(self, parts: Parts, root: int) -> list[np.ndarray] | None: ...

    @abstractmethod
    def _broadcast(self, parts: Parts, shape: tuple[int, ...], dtype: np.dtype, root: int) -> list[np.ndarray]: ...

    # -- shared checks and the debug line --------------------------------------------------------------------

    def _run(self, name: str, size: int, parts: Parts, call: Callable, *args):
        if self._progress is not None:
            self._progress.enter(self._collective(self._progress, name, parts, args[0]))
        result = self._timed(name, size, parts, call, *args) if self._trace else call(parts, *args)
        if self._progress is not None:
            self._progress.leave()
        return result

    def _collective(self, progress: RankProgress, name: str, parts: Parts, over: object) -> int:
        """The place of a collective of these arrays, over the groups `over` or, if these are none, all ranks."""
        kind = (parts[0].dtype, parts[0].shape) if parts else None
        key = (name, over if isinstance(over, Grouping) else None, kind)
        known = progress.find(key)
        if known is not None:
            return known
        array = f" of {parts[0].dtype}{list(parts[0].shape)}" if parts else ""
        members = over.members(self.ranks[0]) if isinstance(over, Grouping) else range(self.world)
        started = [self._in_world[member] for member in members]
        return progress.place(key, f"{name}{array} over {show_ranks(members)}", started)

    def _timed(self, name: str, size: int, parts: Parts, call: Callable, *args):
        start = time.perf_counter()
        result = call(parts, *args)
        seconds = time.perf_counter() - start
        nbytes = sum(part.nbytes for part in parts)
        line = f"autoshard: {self._label()} {name} over {size} ranks, {nbytes} bytes, {seconds:.6f} s"
        print(line, file=sys.stderr, flush=True)
        return result

    def _label(self) -> str:
        first, last = self.ranks[0], self.ranks[-1]
        return f"rank {first}" if first == last else f"ranks {first}-{last}"

    def _check(self, name: str, parts: Parts, groups: Grouping | None) -> None:
        if len(parts) != len(self.ranks):
            raise CommError(
                f"{name}: {len(parts)} arrays were given, but this process hosts {len(self.ranks)} ranks;"
                " pass one array per hosted rank"
            )
        for part in parts:
            if not isinstance(part, np.ndarray):
                raise CommError(f"{name}: moves numpy arrays, not {type(part).__name__}")
            if part.dtype.hasobject:
                raise CommError(f"{name}: an array of dtype {part.dtype} holds Python objects, not plain numbers")
            if not part.dtype.isnative:
                raise CommError(f"{name}: an array of dtype {part.dtype} has foreign byte order; convert it first")
        if groups is not None and groups.world != self.world:
            raise CommError(f"{name}: groups of a mesh of {groups.world} ranks, but {self.world} ranks are running")

    def _check_any(self, kind: str, parts: Parts, groups: Grouping, dim: int, to_dim: int, op: str) -> None:
        """The checks of a collective that is named by its kind."""
        if kind not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            raise CommError(f"start: {kind} cannot run beside computing")
        self._check(kind, parts, groups)
        if kind in ("all_reduce", "reduce_scatter"):
            check_reduction(kind, parts, op)
        if kind in ("reduce_scatter", "all_to_all"):
            check_pieces(kind, parts, dim, groups.size)
        if kind in ("all_gather", "all_to_all"):
            check_dim(kind, parts, to_dim if kind == "all_to_all" else dim)

    def _check_peers(self, rank: int, sent: Messages, awaited: Shapes, dtype: np.dtype, groups: Grouping) -> None:
        others = set(groups.members(rank).tolist()) - {rank}
        for peer in (*sent, *awaited):
            if peer not in others:
                raise CommError(f"exchange: rank {rank} exchanges with rank {peer}, which is not another of its group")
        for peer, array in sent.items():
            if array.dtype != dtype:
                raise CommError(f"exchange: rank {rank} sends {array.dtype} to rank {peer}, who awaits {dtype}")

    def _check_root(self, name: str, root: int) -> None:
        if not 0 <= root < self.world:
            raise CommError(f"{name}: root {root} is not one of the ranks 0..{self.world - 1}")

    def _check_broadcast(self, array: np.ndarray | None, shape: tuple[int, ...], dtype: np.dtype, root: int) -> None:
        given = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
        if array is None or array.shape != shape or array.dtype != dtype:
            raise CommError(f"broadcast: root {root} must pass {dtype}{list(shape)}, but passed {given}")

    def _sources(self, source_of: Callable[[int], int]) -> list[int]:
        sources = [int(source_of(rank)) for rank in range(self.world)]
        if sorted(sources) == list(range(self.world)):
            return sources
        raise CommError(
            f"permute: the sources {sources} of ranks 0..{self.world - 1} are not one-to-one;"
            " every rank has to be the source of exactly one rank"
        )


# -- checks of one argument ----------------------------------------------------------------------------------


def check_dim(name: str, parts: Parts, dim: int) -> None:
    """Raise CommError unless `dim` counts a dim of every part from the left."""
    for part in parts:
        if not 0 <= dim < part.ndim:
            known = f"dims count from 0 to {part.ndim - 1}" if part.ndim else "a scalar has none"
            raise CommError(f"{name}: dim {dim} is not a dim of an array of shape {part.shape}; {known}")


def check_pieces(name: str, parts: Parts, dim: int, size: int) -> None:
    """Raise CommError unless `dim` of every part can be cut in `size` equal pieces."""
    check_dim(name, parts, dim)
    for part in parts:
        if part.shape[dim] % size:
            raise CommError(
                f"{name}: dim {dim} of shape {part.shape} has extent {part.shape[dim]}, which does not divide"
                f" into {size} equal pieces for a group of {size} ranks; pad it first"
            )


def check_reduction(name: str, parts: Parts, op: str) -> None:
    """Raise CommError unless `op` is known and defined for the dtype of every part."""
    if op not in REDUCTIONS:
        raise CommError(f"{name}: there is no reduction {op!r}; known are {', '.join(REDUCTIONS)}")
    for part in parts:
        kind = part.dtype.kind
        if kind == "b" and op in ("sum", "prod"):
            raise CommError(f"{name}: {op} of bool is not defined; use max for or, min for and, or cast to int")
        if kind == "c" and op in ("max", "min"):
            raise CommError(f"{name}: {op} of {part.dtype} is not defined, complex numbers have no order")
        if kind not in "biufc" and not _is_extended(part.dtype):
            raise CommError(f"{name}: can not reduce dtype {part.dtype}, only bool, int, float and complex")


# -- arrays and pieces ---------------------------------------------------------------------------------------


def split_pieces(array: np.ndarray, size: int, dim: int) -> np.ndarray:
    """View of shape (size, *piece): `dim` cut into `size` equal pieces, the pieces counted by a new first
    dim."""
    shape = array.shape
    cut = array.reshape(*shape[:dim], size, shape[dim] // size, *shape[dim + 1 :])
    return np.moveaxis(cut, dim, 0)


def join_pieces(pieces: np.ndarray, dim: int) -> np.ndarray:
    """The inverse of `split_pieces`; free for dim 0, otherwise one transposed copy."""
    shape = pieces.shape[1:]
    joined = (*shape[:dim], pieces.shape[0] * shape[dim], *shape[dim + 1 :])
    return np.ascontiguousarray(np.moveaxis(pieces, 0, dim).reshape(joined))


def fresh(parts: Parts) -> list[np.ndarray]:
    """C-contiguous copies."""
    return [np.array(part, order="C", copy=True) for part in parts]


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype that a reduction combines in.

    MPI has no narrow floats, and no integers below 8 bits. All could be combined by an operation of ours on their
    bytes, which would move less; but it would round at every hop, so that sums would depend on the number of ranks and
    lose digits fast, and would run in Python. So floats are widened to float32, which MPI adds up natively and in which
    the error is that of one rounding, and integers to 8 bits, of which the low ones are theirs.
    """
    if _is_extended(dtype):
        known = element_type(dtype)
        return np.dtype(np.float32 if known.is_float else np.uint8 if known.name.startswith("u") else np.int8)
    return np.dtype(np.float32) if dtype == np.float16 else dtype


def _is_extended(dtype: np.dtype) -> bool:
    """Whether it is one of ml_dtypes' dtypes that tensors may have (some of which call their kind "f", as numpy's)."""
    if dtype.isbuiltin == 1:
        return False
    try:
        return element_type(dtype).extended
    except ShapeError:
        return False


def show_ranks(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-3`, `ranks 0, 2, 5-7`: in the order given, runs of neighbours as one."""
    runs: list[list[int]] = []
    for rank in map(int, ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if sum(map(len, runs)) > 1 else ''} {', '.join(texts)}"


def debug_level() -> int:
    """AUTOSHARD_DEBUG as a number; 0 when unset or unreadable."""
    text = os.environ.get("AUTOSHARD_DEBUG", "0")
    return int(text) if text.isdecimal() else 0
