"""Manual computations run with numpy: all positions along the manual axes side by side, collectives across them.

A value inside is a list of arrays, one per position. Positions are the coordinates along the manual axes entered so
far, row-major, outer ones first; all devices that differ along other axes only are one position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from autoshard.ir.graph import Graph, Node, walk
from autoshard.ir.run import CALLS, Held, Runner, cast
from autoshard.layout.mesh import AxisRef, Mesh, size_of
from autoshard.layout.sharding import Sharding
from autoshard.trace.collectives import COLLECTIVES
from autoshard.util.errors import ShapeError, at

Parts = list
# What a position can tell by itself.
RANK_NUMBERS = ("PartitionId", "ReplicaId")
_ACROSS = {*COLLECTIVES, "ManualComputation"}


class _Member(Runner):
    """Runs nodes for one position alone."""

    def __init__(self, functions: Mapping[str, Graph], rank: int) -> None:
        super().__init__(functions)
        self.rank = rank

    def node(self, node: Node, held: Held) -> tuple:
        if node.op.name in RANK_NUMBERS:
            return (np.asarray(self.rank if node.op.name == "PartitionId" else 0, np.uint32),)
        return super().node(node, held)


class Team(Runner):
    """Runs nodes for every position along `axes` of `mesh` in step.

    Args:
        functions: those that calls name.
        mesh: None outside of all manual computations, where there is one position.
    """

    def __init__(self, functions: Mapping[str, Graph], mesh: Mesh | None, axes: tuple[AxisRef, ...]) -> None:
        super().__init__(functions)
        self.mesh = mesh
        self.axes = axes
        self._teamwork: dict[Node, bool] = {}

    @staticmethod
    def run(functions: Mapping[str, Graph], node: Node, held: Held) -> tuple:
        """The results of a manual computation among whole tensors."""
        whole = Team(functions, None, ())
        results = whole.enter(node, {value: [held[value]] for value in node.uses})
        return tuple(parts[0] for parts in results)

    # -- positions

    @cached_property
    def ranks(self) -> list[int]:
        """For each position one device: that with coordinate 0 along all other axes."""
        if self.mesh is None:
            return [0]
        mesh, names = self.mesh, {ref.name for ref in self.axes}
        others = [mesh.axis(name) for name in mesh.names if name not in names]
        ranks = [rank for rank in mesh.listed("trace a manual computation") if mesh.index(rank, others) == 0]
        return sorted(ranks, key=self.position)

    @cached_property
    def members(self) -> list[_Member]:
        return [_Member(self.functions, rank) for rank in self.ranks]

    def position(self, rank: int) -> int:
        return self.mesh.index(rank, self.axes) if self.mesh is not None else 0

    # -- nodes

    def node(self, node: Node, held: Held) -> tuple:
        name = node.op.name
        if name == "ManualComputation":
            return self.enter(node, held)
        if name in COLLECTIVES:
            return self.collective(node, [held[value] for value in node.operands])
        if self.is_teamwork(node):
            return self.control(node, held)
        return self.each(node, held)

    def each(self, node: Node, held: Held) -> tuple:
        """Every position by itself."""
        uses = node.uses
        found = [
            one.node(node, {value: held[value][place] for value in uses}) for place, one in enumerate(self.members)
        ]
        return tuple(list(parts) for parts in zip(*found, strict=True)) if node.results else ()

    def collective(self, node: Node, operands: list[Parts]) -> tuple:
        results = COLLECTIVES[node.op.name](self, node, operands)
        by_position = [cast(one, node.result_types) for one in zip(*results, strict=True)]
        return tuple(list(parts) for parts in zip(*by_position, strict=True))

    def is_teamwork(self, node: Node) -> bool:
        """Whether positions talk to each other inside the node."""
        if not node.regions and node.op.name not in CALLS:
            return False
        if node not in self._teamwork:
            inside = [one for region in node.regions for one in walk(region.nodes)]
            if node.op.name in CALLS:
                inside += walk(self.functions[node.attrs["callee"]].nodes)
            self._teamwork[node] = any(one.op.name in _ACROSS or self.is_teamwork(one) for one in inside)
        return self._teamwork[node]

    def control(self, node: Node, held: Held) -> tuple:
        """A loop, a branch or a call in which positions talk to each other: all take the same way."""
        operands = [held[value] for value in node.operands]
        if node.op.name in CALLS:
            return self.graph(self.functions[node.attrs["callee"]], operands)
        if node.op.name == "NamedComputation":
            return self.region(node.regions[0], held, operands)
        if node.op.name == "While":
            return self.loop(node, held, operands)
        if node.op.name in ("Case", "If"):
            agreed = self.agreed(node, operands[0])
            bodies = tuple(lambda region=region: self.region(region, held, ()) for region in node.regions)
            return node.op.run(agreed, **node.attrs, regions=bodies)
        raise ShapeError(f"running {node.op.name}{at(node.source)}: collectives inside it cannot be run")

    def loop(self, node: Node, held: Held, operands: Sequence[Parts]) -> tuple:
        cond, body = node.regions
        carried = tuple(operands)
        while bool(self.agreed(node, self.region(cond, held, carried)[0])):
            carried = self.region(body, held, carried)
        return carried

    def agreed(self, node: Node, parts: Parts) -> np.ndarray:
        """The value that all positions have.

        Raises:
            ShapeError: they differ, so that some would wait for others in a collective for ever.
        """
        if any(part != parts[0] for part in parts):
            values = ", ".join(str(part) for part in parts)
            raise ShapeError(
                f"running {node.op.name}{at(node.source)} in a manual computation: positions go different ways "
                f"({values}) although there are collectives inside; all have to take part in each"
            )
        return parts[0]

    # -- manual computations

    def enter(self, node: Node, held: Held) -> tuple:
        """The results of a manual computation, from values that are lists over this team's positions."""
        attrs = node.attrs
        mesh = self.mesh or _mesh_of(node)
        if mesh is None:
            inner = self
        else:
            inner = Team(self.functions, mesh, self.axes + tuple(mesh.axis(name) for name in attrs["manual_axes"]))
        count = len(inner.ranks) // len(self.ranks)
        entering = {value: [part for part in held[value] for _ in range(count)] for value in node.uses}
        pairs = zip(node.operands, attrs["in_shardings"], strict=True)
        arguments = [inner.cut(entering[value], sharding, attrs["manual_axes"], node) for value, sharding in pairs]
        results = inner.region(node.regions[0], entering, arguments)
        leaving = zip(results, attrs["out_shardings"], node.result_types, strict=True)
        return tuple(
            [
                inner.join(range(start, start + count), parts, sharding, attrs["manual_axes"], of.shape)
                for start in range(0, len(inner.ranks), count)
            ]
            for parts, sharding, of in leaving
        )

    def cut(self, parts: Parts, sharding: Sharding, manual: Sequence[str], node: Node) -> Parts:
        """The block of each position's tensor along the manual axes."""
        return [
            part[self.block_of(rank, sharding, manual, part.shape, node)]
            for rank, part in zip(self.ranks, parts, strict=True)
        ]

    def block_of(
        self, rank: int, sharding: Sharding, manual: Sequence[str], shape: tuple[int, ...], node: Node | None = None
    ) -> tuple[slice, ...]:
        slices = []
        for dim, (size, asked) in enumerate(zip(shape, sharding.dims, strict=True)):
            refs = [ref for ref in asked.axes if ref.name in manual]
            if size % size_of(refs):
                raise ShapeError(
                    f"running a manual computation{at(node.source) if node else ''}: dim {dim} of size {size} does "
                    f"not divide by the {size_of(refs)} parts that the manual axes {', '.join(manual)} cut it into"
                )
            chunk = size // size_of(refs)
            start = sharding.mesh.index(rank, refs) * chunk
            slices.append(slice(start, start + chunk))
        return tuple(slices)

    def join(
        self, places: range, parts: Parts, sharding: Sharding, manual: Sequence[str], shape: tuple[int, ...]
    ) -> np.ndarray:
        """The tensor whose blocks the positions `places` hold; terms along unreduced axes are combined."""
        terms = [ref for ref in sharding.unreduced if ref.name in manual]
        combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[sharding.reduction]
        whole = np.empty(shape, parts[places[0]].dtype)
        filled: set[tuple] = set()
        for place in places:
            rank = self.ranks[place]
            block = self.block_of(rank, sharding, manual, shape)
            where = tuple((one.start, one.stop) for one in block)
            term = sharding.mesh.index(rank, terms)
            if (where, term) in filled:
                continue  # a copy of what is there already
            started = any((where, other) in filled for other in range(size_of(terms)))
            whole[block] = combine(whole[block], parts[place]) if started else parts[place]
            filled.add((where, term))
        return whole


def _mesh_of(node: Node) -> Mesh | None:
    """The mesh of a manual computation; None if nothing goes in or out."""
    shardings = (*node.attrs["in_shardings"], *node.attrs["out_shardings"])
    return next((one.mesh for one in shardings if not one.mesh.is_empty), None)
