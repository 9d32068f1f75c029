"""Spec: what model code asks of a tensor before a mesh is known; `spec.on(mesh, rank)` makes the Sharding of it.

It is written as sdy's text without the mesh, `[{"x", ?}p1, {?}], replicated={"z"}` (the quotes may be left out), or as
a tuple with an entry per dim as in JAX's PartitionSpec: None (whole), "tp", ("dp", "tp"); "?" or ... leaves a dim open.

>>> str(Spec.of(("dp", None, ("tp", "?"))))
'[{"dp"}, {}, {"tp", ?}]'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from autoshard.layout.layout import Layout
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.layout.mlir_text import Cursor, quoted
from autoshard.layout.sdy_show import show_mesh
from autoshard.layout.sdy_text import parse_sharding, read_parts
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.layout.verify_sharding import verify_sharding
from autoshard.util.errors import ParseError, ShardingError
from autoshard.util.text import natural

_AXIS = re.compile(r"([^\s:]+)(?::\(([0-9]+)\)([0-9]+))?")
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Axis(NamedTuple):
    """An axis as written: the whole of `name`, or with a pre-size the piece `name:(pre)size` of it."""

    name: str
    pre: int | None = None
    size: int = 0

    def __str__(self) -> str:
        return quoted(self.name) if self.pre is None else f"{quoted(self.name)}:({self.pre}){self.size}"

    def on(self, mesh: Mesh) -> AxisRef:
        return AxisRef(self.name, 1, mesh.sizes[self.name]) if self.pre is None else AxisRef(*self)  # type: ignore[arg-type]


class DimSpec(NamedTuple):
    """What is asked of one dim, as in a DimSharding."""

    axes: tuple[Axis, ...] = ()
    closed: bool = True
    priority: int | None = None

    def __str__(self) -> str:
        inside = [*map(str, self.axes), *([] if self.closed else ["?"])]
        return f"{{{', '.join(inside)}}}" + ("" if self.priority is None else f"p{self.priority}")


@dataclass(frozen=True)
class Spec:
    """What is asked of one tensor on whatever mesh has these axes; `mesh` is set if it is meant for that one only.

    Making one checks nothing beyond its form: most invariants depend on the mesh, and `on` checks them all.
    """

    dims: tuple[DimSpec, ...]
    replicated: tuple[Axis, ...] = ()
    unreduced: tuple[Axis, ...] = ()
    reduction: str = "sum"
    mesh: Mesh | None = None

    @staticmethod
    def of(given: Any, what: str = "value") -> Spec:
        """The Spec that is meant by a text, a tuple with an entry per dim, a Sharding, a Layout or a Spec.

        A Layout asks for exactly itself: every dim is closed. A Sharding or Layout stays bound to its mesh.

        Args:
            what: whose it is, for messages.

        Raises:
            ShardingError: it is none of these.
            ParseError: a text that is not of the form; the message points at the column.
        """
        if isinstance(given, Spec):
            return given
        if isinstance(given, str):
            try:
                return _parsed(given)
            except ParseError as error:
                raise ParseError(f"{what}: {error}") from None
        if isinstance(given, Layout):
            given = Sharding(given.mesh, [DimSharding(d) for d in given.dims], (), given.partial, given.reduction)
        if isinstance(given, Sharding):
            return _of_sharding(given)
        if isinstance(given, Sequence) or (hasattr(given, "__iter__") and hasattr(given, "__len__")):
            return Spec(tuple(_dim_of(entry, given, what) for entry in given))
        raise _malformed(given, what, f"it is of type {type(given).__name__}")

    @property
    def rank(self) -> int:
        return len(self.dims)

    def __str__(self) -> str:
        """Text that `Spec.of` reads back; a mesh that it is bound to stands before it, as in sdy."""
        text = f"[{', '.join(map(str, self.dims))}]"
        for name, axes in (("replicated", self.replicated), ("unreduced", self.unreduced)):
            kind = self.reduction if name == "unreduced" and self.reduction != "sum" else ""
            text += f", {name}={kind}{{{', '.join(map(str, axes))}}}" if axes else ""
        return text if self.mesh is None else f"<mesh{show_mesh(self.mesh)}, {text}>"

    def check_rank(self, rank: int, what: str = "value") -> None:
        """Raise ShardingError unless it has an entry for each of `rank` dims."""
        if self.rank != rank:
            raise ShardingError(
                f"{what} is asked to lie as {self}, which is for {self.rank} dims, but it has {rank}; "
                "write one entry per dim, {} or None for a whole one"
            )

    def on(
        self, mesh: Mesh, rank: int, mesh_name: str = "mesh", *, what: str = "value", manual: Iterable[str] = ()
    ) -> Sharding:
        """The Sharding of a tensor of that rank, with every invariant checked.

        Args:
            mesh_name: the symbol of the mesh in text.
            what: whose it is, for messages.
            manual: axes that enclosing manual computations have taken.

        Raises:
            ShardingError: the mesh, the rank or one of sdy's invariants does not fit; the message names `what`.
        """
        self.check_rank(rank, what)
        if self.mesh is not None and self.mesh is not mesh:
            raise ShardingError(
                f"{what} is asked to lie as {self}, but the mesh is '{mesh}'; ask by axes alone, or on that mesh"
            )
        for axis in self._axes:
            if axis.name not in mesh.sizes:
                raise ShardingError(
                    f"{what} is asked to lie as {self}: axis {axis.name!r} is not in the mesh, which is '{mesh}'"
                )
        sharding = _resolved(self, mesh, mesh_name)
        # Sizes do not matter to the invariants: dims need not divide.
        verify_sharding(sharding, (1,) * rank, what, manual=frozenset(manual))
        return sharding

    @property
    def _axes(self) -> tuple[Axis, ...]:
        return (*(axis for dim in self.dims for axis in dim.axes), *self.replicated, *self.unreduced)


@lru_cache(maxsize=1 << 12)
def _resolved(spec: Spec, mesh: Mesh, mesh_name: str) -> Sharding:
    def refs(axes: Iterable[Axis]) -> list[AxisRef]:
        return [axis.on(mesh) for axis in axes]

    dims = [DimSharding(tuple(refs(dim.axes)), dim.closed, dim.priority) for dim in spec.dims]
    # The order in which they are written says nothing; shardings have one.
    replicated = sorted(refs(spec.replicated), key=mesh.sort_key)
    unreduced = sorted(refs(spec.unreduced), key=mesh.sort_key)
    return Sharding(mesh, dims, replicated, unreduced, spec.reduction, mesh_name)


class _Lenient(Cursor):
    """Reads names of axes without quotes, too."""

    def string(self, of: str) -> str:
        match = None if self.peek('"') else _BARE.match(self.text, self.at)
        if match is None:
            return super().string(of)
        self.at = match.end()
        self.skip()
        return match[0]


@lru_cache(maxsize=1 << 12)
def _parsed(text: str) -> Spec:
    if text.lstrip().startswith("<"):
        return _of_sharding(parse_sharding(text))
    cursor = _Lenient(text, "sharding")
    parts = read_parts(cursor)
    cursor.end()

    def axes(refs: Iterable[Any]) -> tuple[Axis, ...]:
        return tuple(Axis(ref.name, ref.pre, ref.size) for ref in refs)

    dims = tuple(DimSpec(axes(dim.axes), dim.closed, dim.priority) for dim in parts.dims)
    return Spec(dims, axes(parts.replicated), axes(parts.unreduced), parts.reduction)


@lru_cache(maxsize=1 << 12)
def _of_sharding(sharding: Sharding) -> Spec:
    def axes(refs: Iterable[AxisRef]) -> tuple[Axis, ...]:
        return tuple(Axis(ref.name) if _is_whole(ref, sharding.mesh) else Axis(*ref) for ref in refs)

    dims = tuple(DimSpec(axes(dim.axes), dim.closed, dim.priority) for dim in sharding.dims)
    replicated, unreduced = axes(sharding.replicated), axes(sharding.unreduced)
    return Spec(dims, replicated, unreduced, sharding.reduction, sharding.mesh)


def _is_whole(ref: AxisRef, mesh: Mesh) -> bool:
    return ref.pre == 1 and mesh.sizes.get(ref.name) == ref.size


def _dim_of(entry: Any, given: Any, what: str) -> DimSpec:
    parts = [] if entry is None else [entry] if isinstance(entry, str) or entry is ... else entry
    if not isinstance(parts, tuple | list):
        raise _malformed(given, what, f"its entry {entry!r} is of type {type(entry).__name__}")
    is_open = [part == "?" or part is ... for part in parts]
    if any(is_open[:-1]):
        raise _malformed(given, what, f"in its entry {entry!r} '?' is not the last")
    closed = not any(is_open)
    return DimSpec(tuple(_axis_of(part, given, what) for part in (parts if closed else parts[:-1])), closed)


def _axis_of(part: Any, given: Any, what: str) -> Axis:
    match = _AXIS.fullmatch(part) if isinstance(part, str) else None
    if match is None:
        raise _malformed(given, what, f"{part!r} is no axis")
    if match[2] is None:
        return Axis(match[1])
    return Axis(match[1], natural(match[2], ShardingError), natural(match[3], ShardingError))


def _malformed(given: Any, what: str, why: str) -> ShardingError:
    return ShardingError(
        f"{what} is asked to lie as {given!r}, but {why}; write a tuple with an axis, a tuple of axes, None or '?' per "
        "dim, or text such as '[{dp}, {tp, ?}]', or give a Sharding or a Layout"
    )
