"""The invariants of meshes and shardings, each with an error that says what is wrong and what would be right.

They are those that the sdy dialect verifies (verifyTensorShardingAttr and MeshAttr::verify), and on request those that
the Shardy RFC adds. A verdict is memoized: a module repeats few distinct shardings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache

from autoshard.layout.mesh import AxisRef, Mesh, size_of
from autoshard.layout.sharding import UNREDUCED_KINDS, DimSharding, Sharding
from autoshard.util.errors import MeshError, ShardingError

Shape = tuple[int, ...]


def verify_mesh(
    axes: Sequence[tuple[str, int]], devices: Sequence[int] | None = None, what: str = "mesh", *, strict: bool = False
) -> None:
    """Check the axes (name, size) and the device list of a mesh.

    Args:
        axes: none for the empty mesh, and with one device for a maximal one.
        devices: the devices in grid order; None for 0, 1, 2, ...
        what: who has the mesh, for messages.
        strict: refuse a list that only says 0, 1, 2, ...; sdy's documents do, its released parser leaves it out.

    Raises:
        MeshError: the first invariant that is broken.
    """
    names = [name for name, _ in axes]
    for name, size in axes:
        if size < 1:
            raise MeshError(f"{what}: axis {name!r} has size {size}; sizes are at least 1")
        if names.count(name) > 1:
            raise MeshError(f"{what}: axis {name!r} occurs twice; the names of axes must differ")
    if devices is None:
        return
    count = math.prod(size for _, size in axes)
    listed = ", ".join(map(str, devices))
    if any(device < 0 for device in devices):
        raise MeshError(f"{what}: device ids are {listed}; none may be negative")
    if len(devices) != count:
        wanted = f"the axes make {count}" if axes else "a mesh without axes has one"
        raise MeshError(f"{what}: {len(devices)} device ids are listed ({listed}), but {wanted}")
    if axes and sorted(devices) != list(range(count)):
        raise MeshError(f"{what}: device ids {listed} must be each of 0 to {count - 1} once")
    if axes and strict and list(devices) == sorted(devices):
        raise MeshError(f"{what}: device ids {listed} are the default order; leave the list out")


def verify_sharding(
    sharding: Sharding,
    shape: Sequence[int] | None,
    what: str = "value",
    *,
    manual: Collection[str] = (),
    even: bool = False,
    strict: bool = False,
) -> None:
    """Check a sharding against its mesh and the shape of its tensor.

    Args:
        sharding: what is asked.
        shape: sizes of the tensor's dims; None for a value that is no tensor (a token).
        what: who has the sharding, for messages.
        manual: axes that enclosing manual computations have taken.
        even: also require every size to be divisible by the number of its parts; sdy does not, and pads.
        strict: also require what the RFC asks and sdy does not check: an axis has more than one element to split,
            and one splitting of an axis holds all its pieces.

    Raises:
        ShardingError: the first invariant that is broken.
    """
    key = None if shape is None else tuple(shape)
    fault = _fault(sharding, key, frozenset(manual), even, strict)
    if fault is not None:
        raise ShardingError(f"{what} has sharding {sharding}: {fault}")


def verify_per_value(
    shardings: Sequence[Sharding],
    shapes: Sequence[Sequence[int] | None],
    what: str = "operation",
    *,
    manual: Collection[str] = (),
    even: bool = False,
    strict: bool = False,
) -> None:
    """Check one sharding per value. An operation without results may have one, which says where it runs.

    Raises:
        ShardingError: another number of shardings than values, or the first invariant that is broken.
    """
    alone = shardings[0] if not shapes and len(shardings) == 1 else None
    if alone is not None and (alone.mesh.is_maximal or not any(dim.axes for dim in alone.dims)):
        verify_sharding(alone, None, what)
        return
    if len(shardings) != len(shapes):
        raise ShardingError(f"{what} has {len(shardings)} shardings for {len(shapes)} values; write one for each")
    for i, (sharding, shape) in enumerate(zip(shardings, shapes, strict=True)):
        verify_sharding(sharding, shape, f"{what}, value {i}", manual=manual, even=even, strict=strict)


def verify_manual(
    shardings: Sequence[Sharding],
    shapes: Sequence[Sequence[int] | None],
    local: Sequence[Sequence[int] | None],
    manual: Collection[str],
    what: str = "manual computation",
    *,
    outer: Collection[str] = (),
) -> None:
    """Check one side (operands or results) of a manual computation.

    Manual axes come before free ones in each dim, they divide its size, and the values inside have the local shapes
    that follow. Its operands and results together must have a `common_mesh`; that is the caller's to check.

    Args:
        shardings: in_shardings or out_shardings.
        shapes: global shapes of the values outside; None where one is no tensor.
        local: shapes of the block arguments or returned values inside.
        manual: the axes it takes.
        what: who it is, for messages.
        outer: the axes that enclosing manual computations have taken.

    Raises:
        ShardingError: the first invariant that is broken.
    """
    for name in manual:
        if name in outer:
            raise ShardingError(f"{what} takes axis {name!r}, which an enclosing manual computation has taken")
    verify_per_value(shardings, shapes, what, manual=outer)
    if len(shapes) != len(local):
        raise ShardingError(f"{what} has {len(shapes)} values outside, but {len(local)} inside")
    for i, (sharding, shape, inner) in enumerate(zip(shardings, shapes, local, strict=True)):
        fault = _manual_fault(sharding, shape, inner, manual)
        if fault is not None:
            raise ShardingError(f"{what}, value {i} has sharding {sharding}: {fault}")


def _manual_fault(
    sharding: Sharding, shape: Sequence[int] | None, inner: Sequence[int] | None, manual: Collection[str]
) -> str | None:
    unknown = [name for name in manual if name not in sharding.mesh.sizes and not sharding.mesh.is_empty]
    if unknown:
        return f"manual axis {unknown[0]!r} is not in mesh '{sharding.mesh}'"
    for d, dim in enumerate(sharding.dims):
        free = [ref.name not in manual for ref in dim.axes]
        if free != sorted(free):
            return f"dim {d} has a manual axis behind a free one; manual axes ({', '.join(manual)}) come first"
    if shape is None:
        return None
    parts = [size_of(ref for ref in dim.axes if ref.name in manual) for dim in sharding.dims]
    for d, (size, count) in enumerate(zip(shape, parts, strict=True)):
        if size % count:
            return f"dim {d} of size {size} is split {count} ways by manual axes; they must divide it"
    wanted = tuple(size // count for size, count in zip(shape, parts, strict=True))
    if inner is not None and tuple(inner) != wanted:
        return f"the value of shape {tuple(shape)} is {tuple(inner)} inside, but {wanted} is the part of each device"
    return None


@lru_cache(maxsize=1 << 12)
def _fault(sharding: Sharding, shape: Shape | None, manual: frozenset[str], even: bool, strict: bool) -> str | None:
    """The first broken invariant; None if there is none."""
    bare = not sharding.dims and not sharding.replicated and not sharding.unreduced
    if sharding.mesh.is_maximal:
        return None if bare else "a mesh of one device takes no dims, replicated or unreduced axes; write []"
    if shape is None:
        return None if bare else "the value is no tensor, so it takes no dims, replicated or unreduced axes; write []"
    if len(sharding.dims) != len(shape):
        return f"it is for {len(sharding.dims)} dims, but the tensor {shape} has {len(shape)}; write one {{}} per dim"
    checks = itertools.chain(_ref_faults(sharding), _dim_faults(sharding), _list_faults(sharding, strict))
    wanted = itertools.chain(checks, _manual_faults(sharding, manual), _size_faults(sharding, shape, even, strict))
    return next(wanted, None)


def _ref_faults(sharding: Sharding) -> Iterator[str]:
    """Each axis is in the mesh, each sub-axis is a proper piece of its axis."""
    mesh = sharding.mesh
    for ref in sharding.used:
        whole = mesh.sizes.get(ref.name)
        if whole is None:
            yield f"axis {ref.name!r} is not in mesh '{mesh}'"
        elif ref.pre == 1 and ref.size == whole:
            continue
        elif ref.pre < 1:
            yield f"sub-axis {_text(ref)} has pre-size {ref.pre}; it is at least 1"
        elif ref.size < 2:
            yield f"sub-axis {_text(ref)} has size {ref.size}; it is at least 2"
        elif whole % ref.next:
            yield f"sub-axis {_text(ref)} does not exist: {ref.pre} x {ref.size} must divide {ref.name}={whole}"


def _dim_faults(sharding: Sharding) -> Iterator[str]:
    for d, dim in enumerate(sharding.dims):
        if dim.priority is not None and dim.priority < 0:
            yield f"dim {d} has priority {dim.priority}; the most urgent is 0"
        if dim.priority is not None and dim.closed and not dim.axes:
            yield f"dim {d} has priority {dim.priority}, but is closed and has no axes; leave the priority out or add ?"


def _list_faults(sharding: Sharding, strict: bool) -> Iterator[str]:
    """No axis is used twice, neighbours are joined, replicated and unreduced axes are in mesh order."""
    mesh = sharding.mesh
    if sharding.reduction not in UNREDUCED_KINDS:
        yield f"terms are reduced by {', '.join(UNREDUCED_KINDS)}, not by {sharding.reduction!r}"
    for name, refs in (("replicated", sharding.replicated), ("unreduced", sharding.unreduced)):
        right = sorted(refs, key=mesh.sort_key)
        if list(refs) != right:
            yield f"{name} axes must be in the order of mesh '{mesh}': {', '.join(map(mesh.show_ref, right))}"
    for refs in (*(dim.axes for dim in sharding.dims), sharding.replicated, sharding.unreduced):
        for major, minor in itertools.pairwise(refs):
            if major.can_merge(minor) and minor.size > 1:
                joined = mesh.show_ref(major.merge(minor))
                yield f"{mesh.show_ref(major)} and {mesh.show_ref(minor)} follow each other; write {joined}"
    yield from _overlap_faults(mesh, sharding.used, strict)


def _overlap_faults(mesh: Mesh, used: Iterable[AxisRef], strict: bool) -> Iterator[str]:
    by_name: dict[str, list[AxisRef]] = {}
    for ref in used:
        by_name.setdefault(ref.name, []).append(ref)
    for refs in by_name.values():
        for a, b in itertools.combinations(refs, 2):
            if a == b:
                yield f"{mesh.show_ref(a)} is used twice; an axis splits one dim, or is replicated or unreduced"
            elif a.overlaps(b) or mesh.sizes[a.name] in (a.size, b.size):
                yield f"{mesh.show_ref(a)} and {mesh.show_ref(b)} overlap; the pieces of an axis must be disjoint"
            elif strict and not a.can_coexist(b):
                yield f"{mesh.show_ref(a)} and {mesh.show_ref(b)} are pieces of no common splitting of {a.name}"


def _manual_faults(sharding: Sharding, manual: frozenset[str]) -> Iterator[str]:
    for ref in sharding.used:
        if ref.name in manual:
            yield f"axis {ref.name!r} is manual here: an enclosing manual computation has taken it"


def _size_faults(sharding: Sharding, shape: Shape, even: bool, strict: bool) -> Iterator[str]:
    for d, (dim, size) in enumerate(zip(sharding.dims, shape, strict=True)):
        if even and size % dim.size:
            yield f"dim {d} of size {size} is not divisible by its {dim.size} parts"
        if strict and _is_spent(dim, size):
            last = sharding.mesh.show_ref(dim.axes[-1])
            yield f"dim {d} of size {size} has no more to split for {last}; leave it out"


def _is_spent(dim: DimSharding, size: int) -> bool:
    """Whether the axes but the minor-most already split the dim into single elements (RFC, dimension divisibility)."""
    return dim.size > size and size_of(dim.axes[:-1]) >= size


def _text(ref: AxisRef) -> str:
    return f"{ref.name}:({ref.pre}){ref.size}"
