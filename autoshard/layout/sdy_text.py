"""Shardings, meshes and lists of them in sdy's own text, both ways, letter for letter as the sdy dialect prints.

Parsing reads what MLIR reads (any whitespace, comments, escapes in strings) and is memoized by text: a module repeats
few distinct shardings many times. It checks grammar and names only; `verify_sharding` states the invariants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.layout.mlir_text import INT64, Cursor, quoted
from autoshard.layout.sdy_show import show_mesh, show_symbol
from autoshard.layout.sharding import UNREDUCED_KINDS, DimSharding, Sharding
from autoshard.layout.verify_sharding import verify_mesh

_PRIORITY = re.compile(r"p(0|[1-9][0-9]*)")


class _Ref(NamedTuple):
    """An axis reference as written: `pre` None is the whole axis; `at` is where it stands in the text."""

    name: str
    pre: int | None
    size: int
    at: int


class _Dim(NamedTuple):
    axes: tuple[_Ref, ...]
    closed: bool
    priority: int | None


class _Written(NamedTuple):
    """A sharding as written, before its mesh is looked up."""

    symbol: str
    symbol_at: int
    mesh: Mesh | None
    dims: tuple[_Dim, ...]
    replicated: tuple[_Ref, ...]
    unreduced: tuple[_Ref, ...]
    reduction: str


def parse_mesh(text: str, *, strict: bool = False) -> Mesh:
    """Read `<["x"=2, "y"=4]>`, `<["x"=2], device_ids=[1, 0]>`, `<[], device_ids=[3]>` or `<[]>`.

    `#sdy.mesh` may precede. A device list equal to 0, 1, 2, ... is left out, as the released dialect does; `strict`
    refuses it, as its documents do.

    Raises:
        ParseError: the text is no mesh; the message points at the column.
        MeshError: a mesh that cannot exist.
    """
    cursor = Cursor(text, "mesh")
    cursor.take("#sdy.mesh")
    mesh = _mesh(cursor, strict)
    cursor.end()
    return mesh


def parse_sharding(text: str, meshes: Mapping[str, Mesh] | None = None) -> Sharding:
    """Read `<@mesh, [{"x"}, {"y":(1)2, ?}p1], replicated={"z"}, unreduced={"w"}>`; `#sdy.sharding` may precede.

    Terms that are reduced by another operation than a sum are `unreduced=max{"w"}` (in sdy after jaxlib 0.10.2).

    Args:
        text: one sharding.
        meshes: the meshes that a sharding may name, by symbol; an inlined one needs none.

    Raises:
        ParseError: the text is no sharding, or names a mesh or axis that does not exist.
    """
    return _sharding_on(text, _mesh_of(text, _read_sharding(text), meshes))


def show_sharding(sharding: Sharding) -> str:
    """The text that `parse_sharding` reads; `#sdy.sharding` before it makes an attribute of it."""
    return str(sharding)


def parse_per_value(text: str, meshes: Mapping[str, Mesh] | None = None) -> tuple[Sharding, ...]:
    """Read `<[<@mesh, [...]>, ...]>`, one sharding per value; `#sdy.sharding_per_value` may precede.

    The bare list `[<@mesh, [...]>, ...]` of in_shardings and out_shardings is read as well.

    Raises:
        ParseError: as for `parse_sharding`.
    """
    on = tuple(_mesh_of(text, written, meshes) for written in _read_per_value(text))
    return _shardings_on(text, on)


def show_per_value(shardings: Iterable[Sharding]) -> str:
    """The text `<[...]>` that `parse_per_value` reads; `#sdy.sharding_per_value` before it makes an attribute of it."""
    return f"<[{', '.join(map(str, shardings))}]>"


def parse_manual_axes(text: str) -> tuple[str, ...]:
    """Read `{"x", "y"}` or `#sdy<manual_axes{"x", "y"}>`.

    Raises:
        ParseError: the text is no list of axis names.
    """
    cursor = Cursor(text, "list of manual axes")
    wrapped = cursor.take("#sdy")
    if wrapped:
        cursor.expect("<")
        cursor.expect_word("manual_axes")
    cursor.expect("{")
    names = cursor.items("}", lambda: cursor.string("an axis name"))
    if wrapped:
        cursor.expect(">")
    cursor.end()
    return tuple(names)


def _mesh(cursor: Cursor, strict: bool = False) -> Mesh:
    cursor.expect("<")
    cursor.expect("[")
    axes = cursor.items("]", lambda: _mesh_axis(cursor))
    devices: list[int] = []
    if cursor.take(","):
        cursor.expect_word("device_ids")
        cursor.expect("=")
        cursor.expect("[")
        devices = cursor.some("]", cursor.integer)
    cursor.expect(">")
    verify_mesh(axes, devices or None, strict=strict)
    return Mesh(axes, devices or (None if axes else ()))


def _mesh_axis(cursor: Cursor) -> tuple[str, int]:
    name = cursor.string("an axis name")
    cursor.expect("=")
    return name, cursor.integer()


@lru_cache(maxsize=1 << 12)
def _read_sharding(text: str) -> _Written:
    cursor = Cursor(text, "sharding")
    cursor.take("#sdy.sharding")
    written = _sharding(cursor)
    cursor.end()
    return written


@lru_cache(maxsize=1 << 12)
def _read_per_value(text: str) -> tuple[_Written, ...]:
    cursor = Cursor(text, "list of shardings")
    prefixed = cursor.take("#sdy.sharding_per_value")
    wrapped = prefixed or cursor.peek("<")
    if wrapped:
        cursor.expect("<")
    cursor.expect("[")
    found = cursor.items("]", lambda: _sharding(cursor))
    if wrapped:
        cursor.expect(">")
    cursor.end()
    return tuple(found)


def _sharding(cursor: Cursor) -> _Written:
    cursor.expect("<")
    symbol_at = cursor.at
    mesh = _mesh(cursor) if cursor.take_word("mesh") else None
    symbol = "" if mesh is not None else _symbol(cursor)
    cursor.expect(",")
    parts = read_parts(cursor)
    cursor.expect(">")
    return _Written(symbol, symbol_at, mesh, *parts)


class ShardingText(NamedTuple):
    """A sharding as written, without its mesh."""

    dims: tuple[_Dim, ...]
    replicated: tuple[_Ref, ...]
    unreduced: tuple[_Ref, ...]
    reduction: str


def read_parts(cursor: Cursor) -> ShardingText:
    """Read `[{"x"}, {"y":(1)2, ?}p1], replicated={"z"}, unreduced={"w"}`: what stands behind the mesh."""
    cursor.expect("[")
    dims = cursor.items("]", lambda: _dim(cursor))
    lists: dict[str, tuple[_Ref, ...]] = {}
    reduction = "sum"
    while cursor.take(","):
        at, word = cursor.at, cursor.word()
        if word not in ("replicated", "unreduced") or word in lists:
            raise cursor.fail("expected replicated={...} or unreduced={...}, each at most once", at)
        cursor.expect("=")
        if word == "unreduced":
            reduction = _reduction(cursor)
        cursor.expect("{")
        lists[word] = tuple(cursor.some("}", lambda: _ref(cursor)))
    return ShardingText(tuple(dims), lists.get("replicated", ()), lists.get("unreduced", ()), reduction)


def _symbol(cursor: Cursor) -> str:
    at = cursor.at
    if not cursor.peek("@"):
        raise cursor.fail("expected a mesh: @name or mesh<[...]>")
    cursor.at += 1
    name = cursor.string("the name of a mesh") if cursor.peek('"') else cursor.word()
    if not name:
        raise cursor.fail("expected the name of a mesh behind @", at)
    return name


def _reduction(cursor: Cursor) -> str:
    at, word = cursor.at, cursor.word()
    if word is not None and word not in UNREDUCED_KINDS:
        raise cursor.fail(f"terms are reduced by {', '.join(UNREDUCED_KINDS)}", at)
    return word or "sum"


def _dim(cursor: Cursor) -> _Dim:
    cursor.expect("{")
    axes: list[_Ref] = []
    closed = True
    while closed and not cursor.peek("}"):
        if axes and not cursor.take(","):
            raise cursor.fail("expected ',' or '}'")
        if cursor.take("?"):
            closed = False
        else:
            axes.append(_ref(cursor))
    cursor.expect("}")
    return _Dim(tuple(axes), closed, _priority(cursor))


def _priority(cursor: Cursor) -> int | None:
    at, word = cursor.at, cursor.word()
    if word is None:
        return None
    match = _PRIORITY.fullmatch(word)
    if match is None or len(match[1]) > 19 or int(match[1]) >= INT64:
        raise cursor.fail("expected a priority: p0, p1, p2, ... without leading zeros", at)
    return int(match[1])


def _ref(cursor: Cursor) -> _Ref:
    at, name = cursor.at, cursor.string("an axis name")
    if not cursor.take(":"):
        return _Ref(name, None, 0, at)
    cursor.expect("(")
    pre = cursor.integer()
    cursor.expect(")")
    return _Ref(name, pre, cursor.integer(), at)


def _mesh_of(text: str, written: _Written, meshes: Mapping[str, Mesh] | None) -> Mesh:
    if written.mesh is not None:
        return written.mesh
    mesh = (meshes or {}).get(written.symbol)
    if mesh is None:
        known = ", ".join(map(show_symbol, meshes or ())) or "none"
        symbol = show_symbol(written.symbol)
        raise Cursor(text, "sharding").fail(f"unknown mesh {symbol}; the meshes are: {known}", written.symbol_at)
    return mesh


@lru_cache(maxsize=1 << 12)
def _sharding_on(text: str, mesh: Mesh) -> Sharding:
    return _resolved(text, _read_sharding(text), mesh)


@lru_cache(maxsize=1 << 12)
def _shardings_on(text: str, meshes: tuple[Mesh, ...]) -> tuple[Sharding, ...]:
    return tuple(_resolved(text, written, mesh) for written, mesh in zip(_read_per_value(text), meshes, strict=True))


def _resolved(text: str, written: _Written, mesh: Mesh) -> Sharding:
    """The sharding that is written, its axes looked up in its mesh."""

    def refs(axes: Iterable[_Ref]) -> tuple[AxisRef, ...]:
        return tuple(_resolved_ref(text, ref, mesh) for ref in axes)

    dims = tuple(DimSharding(refs(dim.axes), dim.closed, dim.priority) for dim in written.dims)
    replicated, unreduced = refs(written.replicated), refs(written.unreduced)
    return Sharding(mesh, dims, replicated, unreduced, written.reduction, written.symbol)


def _resolved_ref(text: str, ref: _Ref, mesh: Mesh) -> AxisRef:
    size = mesh.sizes.get(ref.name)
    name = quoted(ref.name)
    if size is None:
        raise Cursor(text, "sharding").fail(f"unknown axis {name}; the mesh is {show_mesh(mesh)}", ref.at)
    if ref.pre == 1 and ref.size == size:
        raise Cursor(text, "sharding").fail(f"this is the whole axis of size {size}; write {name}", ref.at)
    return AxisRef(ref.name, 1, size) if ref.pre is None else AxisRef(ref.name, ref.pre, ref.size)
