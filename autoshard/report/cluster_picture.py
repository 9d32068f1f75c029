"""How the devices of some hardware are linked, as a picture (SVG): boxes within boxes, a box per link."""

from __future__ import annotations

import networkx as nx

from autoshard.report.cluster import ALIKE, link_graph, link_words
from autoshard.util.svg import CHARACTER, SIZE, Svg
from costmodel import Hardware

_DEVICE, _PAD = 34, 8
_FILLS = ("#f3f5f7", "#e3e8ee", "#d2dae3", "#c1ccd8")
Box = tuple[int, int]


def cluster_svg(hardware: Hardware, devices: int | None = None) -> str:
    """Devices by rank in the boxes of the links that join them, outermost links outermost.

    Of more boxes that are alike the first and the last are drawn.

    Args:
        devices: how many there are; by default as many as the outermost links join.

    Raises:
        PlanError: links that join any number, and no number is given; more than the links join, or than can be shown.

    >>> from costmodel import preset
    >>> cluster_svg(preset("h100"), 16).count("<rect")
    15
    """
    graph = link_graph(hardware, devices)
    (root,) = (node for node in graph if graph.in_degree(node) == 0)
    picture = Svg()
    picture.words(0, SIZE, f"{hardware.name}: {hardware.device.name}")
    _draw(picture, graph, root, 0, SIZE + 10)
    return picture.text()


def _draw(picture: Svg, graph: nx.DiGraph, node: Box, x: float, y: float) -> tuple[float, float]:
    """A box with what is in it; its width and height."""
    inside = sorted(graph.successors(node))
    if not inside:
        picture.box(x, y, _DEVICE, _DEVICE, fill="#ffffff")
        picture.words(x + _DEVICE / 2, y + _DEVICE / 2 + 4, str(node[1]), anchor="middle", kind="ink")
        return _DEVICE, _DEVICE
    of = graph.nodes[node]
    label = link_words(of["name"], of["bandwidth"], of["latency"])
    most = ALIKE if node[0] > 1 else 2 * ALIKE
    shown = inside if len(inside) <= most else [inside[0], inside[1], None, inside[-1]]
    sizes = [_measure(graph, one) for one in shown]
    width = max(sum(wide for wide, _ in sizes) + _PAD * (len(sizes) + 1), (len(label) + 2) * CHARACTER)
    height = max(high for _, high in sizes) + 2 * _PAD + SIZE + 6
    picture.box(x, y, width, height, fill=_FILLS[min(node[0], len(_FILLS)) - 1])
    picture.words(x + _PAD, y + SIZE + 4, label, kind="ink")
    at, top = x + _PAD, y + SIZE + 6 + _PAD
    for one, (wide, high) in zip(shown, sizes, strict=True):
        if one is None:
            picture.words(at + wide / 2, top + high / 2, f"{len(inside) - 3} more", anchor="middle", kind="ink")
        else:
            _draw(picture, graph, one, at, top)
        at += wide + _PAD
    return width, height


def _measure(graph: nx.DiGraph, node: Box | None) -> tuple[float, float]:
    """The width and height of a box, or of the words that stand for many."""
    if node is None:
        return 9 * CHARACTER, _DEVICE
    return _draw(Svg(), graph, node, 0, 0)
