"""Manual computations in model code: `manual_computation`, whose function sees blocks, and collectives on these.

Shardy's ManualComputationOp (JAX's shard_map): along manual axes each rank has its block, and what ranks do together
is written out; other axes are split by propagation as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from autoshard.core.tensortype import TensorType
from autoshard.ir.graph import Value
from autoshard.layout.mesh import AxisRef, Mesh, size_of
from autoshard.layout.sharding import Sharding
from autoshard.layout.spec import Spec
from autoshard.layout.verify_sharding import verify_manual
from autoshard.ops.body import REDUCTIONS, Body
from autoshard.ops.registry import lookup
from autoshard.trace.asking import entries, is_tensor, recorder_of
from autoshard.trace.function import trace
from autoshard.trace.structure import flatten, unflatten
from autoshard.trace.tensor import Enclosure, Recorder, TracedTensor
from autoshard.util.errors import GraphError, ShapeError, ShardingError, at
from autoshard.util.source import caller

_BODIES = {reduction: name for name, reduction in REDUCTIONS.items()}
# JAX, too, lets all collectives of a program share one channel: it only says that groups list devices.
_CHANNEL = 1


def manual_computation(
    fn: Callable,
    *xs: Any,
    mesh: Mesh | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    manual_axes: Sequence[str] | None = None,
) -> Any:
    """`fn` of the blocks that each rank has along the manual axes; what it returns are blocks of the results.

    Args:
        fn: works on blocks, with `all_reduce` and the like. Tensors and parameters that it uses from outside
            are whole along the manual axes.
        xs: tensors, or nested tuples, lists and dicts of them.
        mesh: all devices; inside another manual computation by default the same one.
        in_shardings: how the tensors are cut: an entry per argument that `Spec.of` takes, nested as the argument is.
            Manual axes come before others in each dim. None: whole along the manual axes.
        out_shardings: how the blocks that `fn` returns are joined, nested as what it returns.
        manual_axes: the axes that blocks are cut along; all of the mesh, without those taken around, by default.

    Raises:
        ShardingError: shardings that do not fit the tensors or the mesh, axes that are taken already, sizes that the
            manual axes do not divide.
        GraphError: there is no mesh, or another one than around.
    """
    leaves, structure = flatten(xs, is_tensor)
    recorder = recorder_of(leaf for _, leaf in leaves)
    options = {"mesh": mesh, "in_shardings": in_shardings, "out_shardings": out_shardings, "manual_axes": manual_axes}
    if recorder is None:
        return trace(lambda *ys: manual_computation(fn, *ys, **options), *xs, name="manual_computation")(*xs)
    where = f"manual_computation{at(caller())}"
    enclosure, axes = _enclosure(recorder, mesh, manual_axes, where)
    values = [recorder.lift(leaf) for _, leaf in leaves]
    side = _Side(enclosure, axes, recorder, where)
    cut = side.shardings([value.type for value in values], structure, in_shardings, "in_shardings")
    blocks = [_scaled(value.type, sharding, axes, inward=True) for value, sharding in zip(values, cut, strict=True)]
    side.check(cut, [value.type for value in values], blocks, "in_shardings")
    found: dict[str, Any] = {}

    def body(*tensors: TracedTensor) -> list[Value]:
        made, found["structure"] = flatten(fn(*unflatten(structure, tensors)), is_tensor)
        found["values"] = [recorder.lift(leaf) for _, leaf in made]
        return found["values"]

    with recorder.enclosed(enclosure):
        region = recorder.region(body, blocks, "manual", names=[path for path, _ in leaves])
    local = [value.type for value in found["values"]]
    joined = side.shardings(local, found["structure"], out_shardings, "out_shardings")
    types = [_scaled(of, sharding, axes, inward=False) for of, sharding in zip(local, joined, strict=True)]
    side.check(joined, types, local, "out_shardings")
    brought = enclosure.brought
    whole = [side.whole(value.type.rank) for value in brought]
    region = type(region)((*region.args, *brought.values()), region.nodes, region.outputs)
    attrs = {
        "in_shardings": (*cut, *whole),
        "out_shardings": tuple(joined),
        "manual_axes": axes,
        "types": tuple(types),
    }
    operands = [recorder.tensor(value) for value in (*values, *brought)]
    results = recorder.add(lookup("ManualComputation"), operands, attrs, (region,))
    return unflatten(found["structure"], results)


def _enclosure(
    recorder: Recorder, mesh: Mesh | None, manual_axes: Sequence[str] | None, where: str
) -> tuple[Enclosure, tuple[str, ...]]:
    """The new enclosure, and the axes that it alone takes, in mesh order."""
    around = recorder.enclosures[-1] if recorder.enclosures else None
    outer = around.axes if around is not None else ()
    if around is not None and mesh not in (None, around.mesh):
        raise GraphError(f"{where} is on mesh '{mesh}', inside a manual computation on '{around.mesh}'; use that one")
    mesh = mesh if around is None else around.mesh
    if not isinstance(mesh, Mesh):
        raise GraphError(f"{where}: mesh is {mesh!r}; give the Mesh that blocks are cut on")
    given = (manual_axes,) if isinstance(manual_axes, str) else manual_axes
    wanted = [name for name in mesh.names if name not in outer] if given is None else list(given)
    for name in wanted:
        if name not in mesh.sizes:
            raise ShardingError(f"{where}: manual axis {name!r} is not in the mesh '{mesh}'")
    axes = tuple(name for name in mesh.names if name in wanted)
    return Enclosure(mesh, (*outer, *axes)), axes


class _Side:
    """Reads and checks the shardings of what goes in and comes out."""

    def __init__(self, enclosure: Enclosure, axes: tuple[str, ...], recorder: Recorder, where: str) -> None:
        self.mesh = enclosure.mesh
        self.axes = axes
        self.outer = tuple(name for name in enclosure.axes if name not in axes)
        if set(axes) & {name for one in recorder.enclosures for name in one.axes}:
            taken = next(name for name in axes if any(name in one.axes for one in recorder.enclosures))
            raise ShardingError(f"{where} takes axis {taken!r}, which the manual computation around it has taken")
        self.where = where

    def whole(self, rank: int) -> Sharding:
        """Whole along the manual axes, and free along the others."""
        plain = Sharding.open(self.mesh, rank)
        return plain.replace(replicated=tuple(self.mesh.axis(name) for name in self.axes))

    def shardings(self, types: Sequence[TensorType], structure: Any, given: Any, which: str) -> list[Sharding]:
        found = [self.whole(of.rank) for of in types]
        for i, entry in entries(structure, given, f"{self.where}: {which}"):
            what = f"{self.where}: {which}, tensor {i} ({types[i]})"
            sharding = Spec.of(entry, what).on(self.mesh, types[i].rank, what=what, manual=self.outer)
            found[i] = self._with_all_axes(sharding)
        return found

    def _with_all_axes(self, sharding: Sharding) -> Sharding:
        """The sharding that says of every manual axis what it does: those not mentioned keep the tensor whole."""
        used = {ref.name for ref in sharding.used}
        missing = (self.mesh.axis(name) for name in self.axes if name not in used)
        return sharding.replace(replicated=sorted((*sharding.replicated, *missing), key=self.mesh.sort_key))

    def check(
        self, shardings: Sequence[Sharding], types: Sequence[TensorType], local: Sequence[TensorType], which: str
    ) -> None:
        shapes, blocks = [of.shape for of in types], [of.shape for of in local]
        verify_manual(shardings, shapes, blocks, self.axes, f"{self.where}: {which}", outer=self.outer)


def _scaled(of: TensorType, sharding: Sharding, axes: Sequence[str], inward: bool) -> TensorType:
    """The type of a block of a tensor, or of the tensor that blocks make up; rounded down, as `check` refuses rests."""
    parts = [size_of(ref for ref in dim.axes if ref.name in axes) for dim in sharding.dims]
    pairs = zip(of.shape, parts, strict=True)
    return of.with_shape(size // count if inward else size * count for size, count in pairs)


# -- what ranks do together


def all_reduce(x: Any, axes: str | Sequence[str], op: str = "sum") -> Any:
    """Each element of the blocks combined over the ranks along `axes`; for use inside a manual computation.

    Args:
        axes: names of manual axes, or sub-axes such as 'tp:(1)2', major first.
        op: 'sum', 'max', 'min' or 'prod'.

    Raises:
        GraphError: outside of a manual computation, or along an axis that is not manual.
        ShapeError: another op.
    """
    refs, attrs = _together("all_reduce", x, axes)
    return _collective("AllReduce", x, refs, {**attrs, "body": _body("all_reduce", op)}, lambda shape: shape)


def all_gather(x: Any, axes: str | Sequence[str], dim: int = 0) -> Any:
    """The blocks of the ranks along `axes`, joined in `dim`. Arguments and errors as in `all_reduce`."""
    refs, attrs = _together("all_gather", x, axes)
    dim = _dim("all_gather", x, dim)
    return _collective("AllGather", x, refs, {**attrs, "dim": dim}, lambda shape: _resized(shape, dim, refs))


def reduce_scatter(x: Any, axes: str | Sequence[str], dim: int = 0, op: str = "sum") -> Any:
    """Each element combined over the ranks along `axes`, of which each keeps its block in `dim`.

    Arguments and errors as in `all_reduce`; ShapeError also where `dim` does not divide.
    """
    refs, attrs = _together("reduce_scatter", x, axes)
    dim = _dim("reduce_scatter", x, dim, refs)
    attrs |= {"dim": dim, "body": _body("reduce_scatter", op)}
    return _collective("ReduceScatter", x, refs, attrs, lambda shape: _cut(shape, dim, refs))


def all_to_all(x: Any, axes: str | Sequence[str], split: int, concat: int) -> Any:
    """Blocks cut in dim `split` and sent one to each rank along `axes`; what arrives is joined in dim `concat`.

    Arguments and errors as in `all_reduce`; ShapeError also where `split` does not divide.
    """
    refs, attrs = _together("all_to_all", x, axes)
    split, concat = _dim("all_to_all", x, split, refs), _dim("all_to_all", x, concat)
    attrs = {"groups": attrs["groups"], "channel": _CHANNEL, "split": split, "concat": concat, "count": size_of(refs)}
    return _collective("AllToAll", x, refs, attrs, lambda shape: _resized(_cut(shape, split, refs), concat, refs))


def _together(name: str, x: Any, axes: str | Sequence[str]) -> tuple[tuple[AxisRef, ...], dict[str, Any]]:
    """The axes, and the attributes that tell which devices work together."""
    recorder = recorder_of([x])
    if recorder is None or not recorder.enclosures:
        raise GraphError(
            f"{name}{at(caller())} is used outside of a manual computation; only there ranks have blocks of their own"
        )
    around = recorder.enclosures[-1]
    refs = tuple(around.mesh.ref(text) for text in ((axes,) if isinstance(axes, str) else axes))
    for ref in refs:
        if ref.name not in around.axes:
            raise GraphError(
                f"{name}{at(caller())} goes along axis {ref.name!r}, which is not manual here; manual are "
                f"{', '.join(around.axes)}"
            )
    return refs, {"groups": _groups(around.mesh, refs), "channel": _CHANNEL, "global_ids": True}


@lru_cache(maxsize=1024)
def _groups(mesh: Mesh, refs: tuple[AxisRef, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(_rows(mesh, refs))


def _rows(mesh: Mesh, refs: tuple[AxisRef, ...]) -> Iterator[tuple[int, ...]]:
    groups = mesh.groups(refs)
    for rank in mesh.listed("list the groups of a collective"):
        if groups.position(rank) == 0:
            yield tuple(map(int, groups.members(rank)))


def _collective(
    name: str, x: Any, refs: tuple[AxisRef, ...], attrs: dict[str, Any], shape: Callable[[tuple[int, ...]], Any]
) -> Any:
    recorder = recorder_of([x])
    assert recorder is not None, "there is one inside a manual computation"
    tensor = recorder.tensor(recorder.lift(x))
    types = (tensor.type.with_shape(shape(tensor.shape)),)
    op = lookup(name)
    return recorder.apply(op, [tensor], op.check_attributes({**attrs, "types": types}))


def _body(name: str, op: str) -> Body:
    if op not in _BODIES:
        raise ShapeError(f"{name}{at(caller())}: op is {op!r}; it is one of {', '.join(_BODIES)}")
    return Body(_BODIES[op])


def _dim(name: str, x: Any, dim: int, refs: tuple[AxisRef, ...] = ()) -> int:
    """The dim, counted from 0; it has to divide into parts along `refs`."""
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise ShapeError(f"{name}{at(caller())}: dim is {dim}, but the tensor {tuple(x.shape)} has {rank} dims")
    if x.shape[dim] % size_of(refs):
        raise ShapeError(
            f"{name}{at(caller())}: dim {dim} of {tuple(x.shape)} does not divide into {size_of(refs)} blocks"
        )
    return dim % rank


def _resized(shape: tuple[int, ...], dim: int, refs: tuple[AxisRef, ...]) -> tuple[int, ...]:
    return (*shape[:dim], shape[dim] * size_of(refs), *shape[dim + 1 :])


def _cut(shape: tuple[int, ...], dim: int, refs: tuple[AxisRef, ...]) -> tuple[int, ...]:
    return (*shape[:dim], shape[dim] // size_of(refs), *shape[dim + 1 :])
