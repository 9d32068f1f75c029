"""How the devices of some hardware are linked, as a networkx graph, and drawn as a tree."""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from autoshard.util.errors import PlanError
from costmodel import Hardware, format_seconds

MOST_SHOWN = 4096
"""Devices of a graph at most: it is to be looked at."""
ALIKE = 4
"""Of more runs of devices that are linked alike only the first and the last are drawn."""
_BAR, _LAST, _DOWN, _NOTHING = "|- ", "`- ", "|  ", "   "


def link_graph(hardware: Hardware, devices: int | None = None) -> nx.DiGraph:
    """The links as a tree: a node per link and run of devices that it joins, leaves are the devices.

    Nodes are (level, place), level 0 the devices by rank; with the attributes `name`, and of links `devices` (the range
    that it joins), `bandwidth` (bytes per second) and `latency` (seconds).

    Args:
        devices: how many there are; by default as many as the outermost links join.

    Raises:
        PlanError: links that join any number, and no number is given; more than the links join, or than can be shown.

    >>> from costmodel import preset
    >>> graph = link_graph(preset("h100"), 16)
    >>> sorted(graph.successors((2, 0)))
    [(1, 0), (1, 1)]
    """
    count = _count(hardware, devices)
    graph = nx.DiGraph()
    below = [(0, rank) for rank in range(count)]
    graph.add_nodes_from((node, {"name": f"device {node[1]}"}) for node in below)
    spans = [1]
    for level, (span, link) in enumerate(hardware.topology.levels, start=1):
        wide = min(span or count, count)
        for position in range(-(-count // wide)):
            joined = range(position * wide, min(count, (position + 1) * wide))
            graph.add_node(
                (level, position), name=link.name, devices=joined, bandwidth=link.bandwidth, latency=link.latency
            )
            first = joined.start // spans[-1]
            inner = range(first, first + -(-len(joined) // spans[-1]))
            graph.add_edges_from(((level, position), (level - 1, i)) for i in inner)
        spans.append(wide)
        if wide == count:
            break
    return graph


def _count(hardware: Hardware, devices: int | None) -> int:
    most = hardware.topology.levels[-1][0]
    count = most if devices is None else devices
    if count is None:
        raise PlanError(f"the links of {hardware.name!r} join any number of devices; give how many to show, by -n N")
    if count < 1 or (most is not None and count > most):
        many = "any number of" if most is None else f"1 to {most}"
        raise PlanError(f"the links of {hardware.name!r} join {many} devices, and {count} were asked for")
    if count > MOST_SHOWN:
        raise PlanError(f"{count} devices are too many to show; {MOST_SHOWN} at most, give fewer by -n N")
    return count


def drawn(graph: nx.DiGraph) -> str:
    """The tree as text: each link with what it joins; devices as ranges."""
    (root,) = (node for node in graph if graph.in_degree(node) == 0)
    return "\n".join(_lines(graph, root, "", ""))


def _lines(graph: nx.DiGraph, node: tuple[int, int], lead: str, mark: str) -> Iterator[str]:
    yield f"{lead}{mark}{_label(graph.nodes[node])}"
    if node[0] < 2:
        return
    inside = sorted(graph.successors(node))
    shown = inside if len(inside) <= ALIKE else [inside[0], None, inside[-1]]
    below = lead + {"": "", _BAR: _DOWN, _LAST: _NOTHING}[mark]
    for one in shown:
        if one is None:
            yield f"{below}{_BAR}{len(inside) - 2} more like it"
        else:
            yield from _lines(graph, one, below, _LAST if one == inside[-1] else _BAR)


def _label(link: dict) -> str:
    joined = link.get("devices")
    if joined is None:
        return link["name"]
    ranks = f"device {joined.start}" if len(joined) == 1 else f"devices {joined.start} to {joined.stop - 1}"
    return f"{ranks}: {link_words(link['name'], link['bandwidth'], link['latency'])}"


def link_words(name: str, bandwidth: float, latency: float) -> str:
    """A link in words."""
    return f"{name}, {bandwidth / 1e9:g} GB/s one way, {format_seconds(latency)} a message"


def plain(graph: nx.DiGraph) -> nx.DiGraph:
    """The same with names and numbers alone, as files such as GraphML hold them."""
    found = nx.DiGraph()
    for node, of in graph.nodes(data=True):
        simple = {name: value for name, value in of.items() if not isinstance(value, range)}
        if "devices" in of:
            simple |= {"first": of["devices"].start, "count": len(of["devices"])}
        found.add_node(f"{node[0]}.{node[1]}", **simple)
    found.add_edges_from((f"{a[0]}.{a[1]}", f"{b[0]}.{b[1]}") for a, b in graph.edges)
    return found
