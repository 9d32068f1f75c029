"""What makes a mesh: names and sizes of its axes, and a device order; read from text, checked, shown."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Sequence

from autoshard.util.errors import MeshError, ParseError
from autoshard.util.text import natural

LISTED = 2**24
"""Ranks that are listed one by one at most: 128 MiB of 64-bit numbers, and more than any machine has devices."""
MOST_DEVICES = 2**63 - 1
"""Devices of a mesh at most: ranks are 64-bit numbers, in numpy and in the sdy dialect."""
_SHOWN = 64
"""Ranks of a device order that a message repeats at most."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_axes(words: list[str]) -> tuple[list[tuple[str, int]], list[int] | None]:
    """Axes and device order of the words of a mesh."""
    if len(words) == 1 and re.fullmatch(r"[0-9]+", words[0]):
        return [("d", natural(words[0]))], None
    if len(words) == 1 and re.fullmatch(r"[0-9]+(x[0-9]+)+", words[0]):
        return [(f"x{i}", natural(size)) for i, size in enumerate(words[0].split("x"))], None
    axes, order = [], None
    for word in words:
        name, _, value = word.partition("=")
        if name == "order" and re.fullmatch(r"[0-9]+(\.[0-9]+)*", value):
            order = [natural(rank) for rank in value.split(".")]
        elif _NAME.fullmatch(name) and re.fullmatch(r"[0-9]+", value):
            axes.append((name, natural(value)))
        else:
            raise ParseError(f"cannot read {word!r}")
    return axes, order


def axis_size(name: str, size: object) -> int:
    try:
        number = operator.index(size)  # type: ignore[arg-type]
    except TypeError:
        raise MeshError(f"axis {name!r} has size {size!r}; sizes are whole numbers") from None
    if number > MOST_DEVICES:
        raise MeshError(f"axis {name!r} has a size of {number.bit_length()} bits; a mesh has fewer than 2**63 devices")
    return number


def device_order(order: Sequence[int] | None, axes: tuple[tuple[str, int], ...]) -> tuple[int, ...] | None:
    """The device order of a mesh, None if it is that of the grid; nothing is listed before its length is right."""
    if order is None or not axes:
        return None if order is None else tuple(map(int, order))
    devices = math.prod(size for _, size in axes)
    if len(order) != devices:
        shown = list(order) if len(order) <= _SHOWN else f"of {len(order)} ranks"
        raise MeshError(f"device order {shown} must list each of the {devices} ranks 0..{devices - 1} once")
    if isinstance(order, range) and order == range(devices):
        return None
    if devices > LISTED:
        raise MeshError(f"a device order cannot list {devices} ranks; {LISTED} at most")
    ranks = tuple(map(int, order))
    return None if all(rank == position for position, rank in enumerate(ranks)) else ranks


def check_axes(axes: tuple[tuple[str, int], ...], order: Sequence[int] | None) -> None:
    if not axes and order is not None and (len(order) == 0 or (len(order) == 1 and order[0] >= 0)):
        return
    if not axes:
        raise MeshError("a mesh needs at least one axis, e.g. Mesh(dp=2, tp=4)")
    names = [name for name, _ in axes]
    for name, size in axes:
        if not _NAME.fullmatch(name) or name == "order":
            raise MeshError(f"axis name {name!r} must be letters, digits and _ (and not 'order')")
        if names.count(name) > 1:
            raise MeshError(f"axis {name!r} occurs twice in mesh axes {', '.join(names)}")
        if size < 1:
            raise MeshError(f"axis {name!r} has size {size}; sizes are at least 1")
    devices = math.prod(size for _, size in axes)
    if devices > MOST_DEVICES:
        raise MeshError(f"the axes {show_axes(axes)} make {devices} devices; a mesh has fewer than 2**63")
    if order is not None and sorted(order) != list(range(devices)):
        raise MeshError(f"device order {list(order)} must list each of the {devices} ranks 0..{devices - 1} once")


def show_axes(axes: Iterable[tuple[str, int]]) -> str:
    return " ".join(f"{name}={size}" for name, size in axes)
