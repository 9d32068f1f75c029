"""Device matrix and tensor map, MindSpore's way to write a layout, as a view of Layout; with a text form.

A device matrix [d_0, .., d_m-1] arranges the ranks, the last axis varying fastest. A tensor map has an entry
per dim: -1 whole, k split by the matrix axis counted from the RIGHT (axis m-1-k), a tuple for several, major
first.

>>> mesh = Mesh.flat(8)
>>> view = TensorMap.of(Layout.parse("d:(1)2, d:(2)4", mesh))
>>> str(view)
'device_matrix [2, 4] tensor_map [1, 0]'
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoshard.layout.layout import Layout, free_refs
from autoshard.layout.mesh import AxisRef, Mesh
from autoshard.util.errors import LayoutError, MeshError
from autoshard.util.text import integer, natural

MapEntry = int | tuple[int, ...]
_ENTRY = re.compile(r"-?[0-9]+|\([^()]*\)")
_LIST = r"(?:{0}(?:, *{0})*)?"
_TUPLE = r"\(" + _LIST.format("[0-9]+") + r",?\)"
_TEXT = re.compile(
    rf"\s*device_matrix \[({_LIST.format('[0-9]+')})\] tensor_map \[({_LIST.format(f'(?:-?[0-9]+|{_TUPLE})')})\]\s*"
)


@dataclass(frozen=True)
class TensorMap:
    """A layout as MindSpore writes it. `layout(mesh)` is the inverse of `of(layout)`; partial has no view."""

    device_matrix: tuple[int, ...]
    tensor_map: tuple[MapEntry, ...]

    @staticmethod
    def of(layout: Layout) -> TensorMap:
        """The view in standard form: no axes of size 1, the matrix no finer than the layout needs."""
        if layout.partial:
            raise LayoutError(f"layout [{layout}] is partial; device matrix and tensor map cannot say that")
        if layout.mesh.order is not None:
            raise LayoutError(f"mesh '{layout.mesh}' has a device order; device matrix and tensor map cannot say that")
        pieces = sorted((*layout.used, *layout.free()), key=layout.mesh.sort_key)
        from_right = {piece: len(pieces) - 1 - i for i, piece in enumerate(pieces)}
        return TensorMap(
            tuple(piece.size for piece in pieces),
            tuple(_entry([from_right[ref] for ref in refs]) for refs in layout.dims),
        )

    @staticmethod
    def parse(text: str) -> TensorMap:
        match = _TEXT.fullmatch(text)
        if match is None:
            raise LayoutError(f"cannot read {text!r}; write e.g. 'device_matrix [2, 4] tensor_map [1, -1]'")
        entries = (_read_entry(entry) for entry in _ENTRY.findall(match[2]))
        return TensorMap(tuple(_numbers(match[1])), tuple(entries))

    def __str__(self) -> str:
        return f"device_matrix {list(self.device_matrix)} tensor_map {list(self.tensor_map)}"

    def layout(self, mesh: Mesh) -> Layout:
        """The layout on `mesh` that puts the same blocks on the same ranks.

        Raises:
            LayoutError: the matrix has another device count, a map entry is out of range or used twice, or the mesh
                cannot express the matrix.
        """
        if math.prod(self.device_matrix) != mesh.devices:
            raise LayoutError(
                f"{self} arranges {math.prod(self.device_matrix)} devices, mesh '{mesh}' has {mesh.devices}"
            )
        pieces = matrix_axes(mesh, self.device_matrix)
        count = len(pieces)
        dims: list[tuple[AxisRef, ...]] = []
        for entry in self.tensor_map:
            places = [position for position in (entry if isinstance(entry, tuple) else (entry,)) if position != -1]
            if any(not 0 <= position < count for position in places):
                raise LayoutError(f"{self}: entry {entry} is not -1 nor one of 0..{count - 1}")
            dims.append(tuple(ref for position in places for ref in pieces[count - 1 - position]))
        return Layout(mesh, dims)


def _read_entry(text: str) -> MapEntry:
    return tuple(_numbers(text)) if text.startswith("(") else integer(text, LayoutError)


def _numbers(text: str) -> list[int]:
    return [natural(one, LayoutError) for one in re.findall("[0-9]+", text)]


def _entry(places: list[int]) -> MapEntry:
    if not places:
        return -1
    return places[0] if len(places) == 1 else tuple(places)


def matrix_axes(mesh: Mesh, device_matrix: Sequence[int]) -> list[tuple[AxisRef, ...]]:
    """The refs that stand for each axis of a device matrix laid over the mesh, first axis major.

    Where the matrix covers fewer devices than the mesh, the rest repeats the calculation as the last axis
    (MindSpore's default position).

    Raises:
        LayoutError: the matrix does not divide the device count, or cuts a mesh axis unevenly.
    """
    total = math.prod(device_matrix)
    if mesh.devices % total:
        raise LayoutError(
            f"device matrix {list(device_matrix)} needs {total} devices, which does not divide {mesh.devices}"
        )
    refs, start = [], 1
    for size in device_matrix:
        try:
            refs.append(mesh.interval(start, size))
        except MeshError as error:
            raise LayoutError(f"device matrix {list(device_matrix)} does not fit mesh '{mesh}': {error}") from None
        start *= size
    return refs


def onto(layout: Layout, mesh: Mesh) -> Layout:
    """The same blocks on the same ranks, said on another mesh of as many devices (named axes, a flat one).

    Raises:
        LayoutError: the device counts or orders differ, or the mesh cannot express it.
    """
    if layout.mesh is mesh:
        return layout
    if layout.mesh.devices != mesh.devices or layout.mesh.order != mesh.order:
        raise LayoutError(
            f"layout [{layout}] is on mesh '{layout.mesh}' ({layout.mesh.devices} devices), "
            f"the plan is for mesh '{mesh}' ({mesh.devices} devices)"
        )
    pieces = sorted((*layout.used, *free_refs(layout.mesh, layout.used)), key=layout.mesh.sort_key)
    places = dict(zip(pieces, matrix_axes(mesh, [piece.size for piece in pieces]), strict=True))

    def move(refs: Iterable[AxisRef]) -> list[AxisRef]:
        return [new for ref in refs for new in places[ref]]

    return Layout(mesh, [move(refs) for refs in layout.dims], move(layout.partial), layout.reduction)
