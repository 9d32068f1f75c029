"""The same training step with fewer layers: what equal layers cost need be found once.

    layers = RepeatedLayers.of(graph)      operators called `model.layers.7.attention.query` make up layer 7
    layers.only(4)                         the step of layers 0 and 1 and the last two
    layers.alike(layers.only(4))           what each operator and value of the whole step is like in this one

Layers are found by names (`layer_places.py`) and proven equal: the same operators in the same order on equal types,
that read the same of the layer before, of the one after (in the backward pass), and of what lies outside. Where layers
of several kinds take turns (a window of attention in all but each sixth layer), each equals the one a period further
on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from autoshard.ir.graph import Graph, Node, Value
from autoshard.transform.layer_places import SUM, LayerPlaces, Place, Placed, stems
from autoshard.transform.recompute import backward_begins
from autoshard.transform.simplify import prune, with_nodes
from autoshard.util.errors import GraphError

FEWEST = 3
"""Layers that are kept at least: the first, and the last two, as the last but one reads gradients of what follows the
last where a residual hands them on."""


@dataclass(frozen=True, eq=False)
class RepeatedLayers:
    """The layers of a step whose names begin alike; of all but the first ones and the last two each equals the one a
    period further on.

    Attributes:
        stem: what stands before the number of a layer in names, such as `model.layers.`.
        count: how many layers there are.
        first: how many there are before those that come again.
        period: how many kinds of these take turns.
    """

    graph: Graph
    stem: str
    count: int
    first: int = 1
    period: int = 1

    @classmethod
    def of(cls, graph: Graph) -> RepeatedLayers | None:
        """The longest chain of layers of a step, without operators that nothing needs; None where there is none of more
        than `FEWEST` whose layers are equal, or take turns at least twice."""
        graph = prune(graph)
        stem, count = next(stems(graph), ("", 0))
        return cls._with_turns(graph, stem, count)

    @classmethod
    def each(cls, graph: Graph) -> Iterator[RepeatedLayers]:
        """All such chains, also those within a layer of another: an encoder's and a decoder's, blocks of stages. Those
        of most operators come first."""
        graph = prune(graph)
        found = (cls._with_turns(graph, stem, count) for stem, count in stems(graph) if count > FEWEST)
        yield from filter(None, found)

    @classmethod
    def _with_turns(cls, graph: Graph, stem: str, count: int) -> RepeatedLayers | None:
        found = cls(graph, stem, count)
        turns = found._turns if count > FEWEST else None
        return None if turns is None else replace(found, first=turns[0], period=turns[1])

    @cached_property
    def _places(self) -> LayerPlaces:
        return LayerPlaces(self.graph, self.stem)

    @property
    def places(self) -> Mapping[Node, Placed]:
        """The layer of each node that is in one, and where it stands there."""
        return self._places.nodes

    @property
    def forward(self) -> Iterator[tuple[Node, int]]:
        """The operators of the forward pass that are in a layer, each with its number."""
        for node in self.graph.nodes[: backward_begins(self.graph)]:
            if (layer := self._places.layers.get(node)) is not None:
                yield node, layer

    @cached_property
    def _turns(self) -> tuple[int, int] | None:
        """How many layers there are before the others, and after how many these come again, but for the last two: the
        least of both together. None where they do not come twice."""
        shapes: list[list[tuple]] = [[] for _ in range(self.count - 2)]
        for node, (layer, position) in self.places.items():
            if layer < len(shapes):
                read = tuple(self._read(value, layer) for value in node.operands)
                shapes[layer].append((position, node.key, node.regions, read))
        if len(shapes) == FEWEST - 1:
            return 1, 1  # there is but one between the first and the last two
        for total in range(2, len(shapes)):
            for period in range(1, min(total, len(shapes) - total + 1)):
                if shapes[total:] == shapes[total - period : len(shapes) - period]:
                    return total - period, period
        return None

    @property
    def are_equal(self) -> bool:
        """Whether all but the first and the last two are of one kind."""
        return self.first == self.period == 1

    @property
    def share(self) -> float:
        """The part of the operators of the forward pass that is in layers, from 0 to 1."""
        return sum(1 for _ in self.forward) / max(1, backward_begins(self.graph))

    @property
    def fewest(self) -> int:
        """How many layers `only` keeps at least, so that one of each kind is among those between the ends."""
        least = self.first + self.period + 2
        return least + (self.count - least) % self.period

    def _read(self, value: Value, layer: int) -> tuple:
        """What a value is to a layer that reads it, in words that equal layers share."""
        made = self._made(value)
        if made is not None:
            other, position, number = made
            return other - layer, position, number
        placed = self._places.inputs.get(value)
        return (value,) if placed is None else (placed[0] - layer, placed[1])

    def _made(self, value: Value) -> tuple[int, Place, int] | None:
        """The layer that makes a value, where in it, and which result it is; None if no layer does."""
        found = self.graph.producers.get(value)
        known = None if found is None else self.places.get(found[0])
        return None if found is None or known is None else (*known, found[1])

    @cached_property
    def at(self) -> Mapping[Placed, Node]:
        """The node that stands at a place of a layer."""
        return {of: node for node, of in self.places.items()}

    @cached_property
    def input_at(self) -> Mapping[Placed, Value]:
        """The input that stands at a place of a layer."""
        return {of: value for value, of in self._places.inputs.items()}

    def only(self, count: int) -> Graph:
        """The step with so many layers: the first ones, and the last two.

        Raises:
            GraphError: fewer than `FEWEST` or more than there are, or not some periods less; or what lies outside of
                layers reads one that is left out, or a layer does that is not next to it.
        """
        if not FEWEST <= count <= self.count:
            raise GraphError(f"{self.graph.name!r} has {self.count} layers; {FEWEST} to {self.count} can be kept")
        if (self.count - count) % self.period:
            raise GraphError(
                f"layers of {self.graph.name!r} come again after {self.period}; {count} of {self.count} do not"
            )
        gone, by = range(count - 2, self.count - 2), self.count - count
        if not gone:
            return self.graph
        nodes = [node for node in self.graph.nodes if node not in self.places or self.places[node][0] not in gone]
        kept = tuple(self._joined(node, gone, by) for node in nodes)
        made = {value for node in kept for value in node.results}
        outputs = [i for i, value in enumerate(self.graph.outputs) if value in made or value in self.graph.role_of]
        if any(i not in self.graph.updates for i in set(range(len(self.graph.outputs))) - set(outputs)):
            raise GraphError(f"{self.graph.name!r} returns what a layer makes, and so needs all of them")
        return self._of(kept, outputs)

    def alike(self, short: Graph) -> Alike:
        """What of the step with fewer layers, as `only` makes it, all of this step is like: what is in both itself, and
        what is in a layer that was left out what stands in its place in the last layer of its kind that was kept before
        these. What nothing reads of the inputs is like none."""
        made = {node.results: node for node in short.nodes}
        kept = sorted({self.places[node][0] for node in self.places if node.results in made})
        inputs = {*short.inputs}
        nodes: dict[Node, Node] = {}
        values: dict[Value, Value] = {}
        found = Alike(self, tuple(kept), nodes, values)
        for value in self.graph.inputs:
            one = value if value in inputs else self._input_like(value, found)
            if one in inputs:
                values[value] = one
        for node in self.graph.nodes:
            one = node
            if node.results not in made:
                layer, place = self.places[node]
                one = self.at[found.like(layer), place]
            nodes[node] = made[one.results]
            values.update(zip(node.results, one.results, strict=True))
        return found

    def _input_like(self, value: Value, alike: Alike) -> Value | None:
        placed = self._places.inputs.get(value)
        return None if placed is None else self.input_at.get((alike.like(placed[0]), placed[1]))

    @cached_property
    def labelled(self) -> Mapping[str, Placed]:
        """Where what bears a name stands: an operator, or an input."""
        inputs = {value.name: placed for value, placed in self._places.inputs.items()}
        return inputs | {node.label: placed for node, placed in self.places.items()}

    def layer_of(self, name: str) -> int | None:
        """The number of the layer that a name belongs to, of an operator, a gradient, an update, or a parameter."""
        known = self.labelled.get(name)
        return self._places.named(name) if known is None else known[0]

    def moved(self, name: str, layer: int) -> str:
        """The name of what stands in another layer in the place of what bears this name; the same outside of layers."""
        known = self.labelled.get(name)
        if known is not None and (node := self.at.get((layer, known[1]))) is not None:
            return node.label
        if known is not None and (value := self.input_at.get((layer, known[1]))) is not None:
            return value.name
        return self._places.renumbered(name, layer)

    def _joined(self, node: Node, gone: range, by: int) -> Node:
        """A node that is kept, reading what is kept: of the layer that is next to its own now. A sum over layers is one
        over those that are kept."""
        if node.op.name == SUM and node not in self.places:
            left = tuple(value for value in node.operands if not self._is_gone(value, gone))
            if len(left) > 1:
                return node if left == node.operands else replace(node, operands=left)

        def kept(value: Value) -> Value:
            made = self._made(value)
            if made is None or made[0] not in gone:
                return value
            layer, position, number = made
            own = self.places.get(node, (None, position))[0]
            shifted = layer + by if own is None or own < layer else layer - by
            other = self.at.get((shifted, position))
            near = own is not None and abs(own - layer) == 1 and shifted not in gone
            if not near or other is None or other.results[number].type != value.type:
                name = self.graph.name
                raise GraphError(f"{name!r} cannot do without layer {layer}: {node.label} reads {value.name}")
            return other.results[number]

        if any(self._is_gone(value, gone) for value in node.uses[len(node.operands) :]):
            raise GraphError(f"{self.graph.name!r} cannot do without layers: {node.label} holds what reads one")
        operands = tuple(map(kept, node.operands))
        return node if operands == node.operands else replace(node, operands=operands)

    def _is_gone(self, value: Value, gone: range) -> bool:
        made = self._made(value)
        return made is not None and made[0] in gone

    def _of(self, nodes: tuple[Node, ...], outputs: list[int]) -> Graph:
        """The graph of these nodes and these of its outputs, with the inputs that are still read."""
        graph = self.graph
        read = {value for node in nodes for value in node.uses} | {graph.outputs[i] for i in outputs}
        inputs = [i for i, value in enumerate(graph.inputs) if value in read or value not in self._places.inputs]
        place_in, place_out = ({old: new for new, old in enumerate(some)} for some in (inputs, outputs))
        short = replace(
            graph,
            inputs=tuple(graph.inputs[i] for i in inputs),
            roles=tuple(graph.roles[i] for i in inputs),
            outputs=tuple(graph.outputs[i] for i in outputs),
            updates={place_out[i]: place_in[into] for i, into in graph.updates.items() if i in place_out},
        )
        return with_nodes(short, nodes)


@dataclass(frozen=True, eq=False)
class Alike:
    """What of a step with fewer layers each operator and value of the whole step is like.

    Attributes:
        kept: the numbers of the layers that the other step has.
        nodes: of the whole step -> of the other.
        values: the same.
    """

    layers: RepeatedLayers
    kept: tuple[int, ...]
    nodes: Mapping[Node, Node]
    values: Mapping[Value, Value]

    @property
    def described(self) -> str:
        """How many layers of which the other step has: "4 of 12 layers (encoder.block)"."""
        return f"{len(self.kept)} of {self.layers.count} layers ({self.layers.stem.rstrip('._')})"

    def like(self, layer: int) -> int:
        """The layer that was kept which a layer is like."""
        if layer in self.kept:
            return layer
        return max(one for one in self.kept[:-2] if (layer - one) % self.layers.period == 0)

    def told(self, name: str, node: Node) -> str:
        """The name of an operator of the other step that is said of what a node is like, as it is said of the node: a
        layer before or after its own."""
        told, known = self.layers.layer_of(name), self.layers.places.get(node)
        if told is None or known is None:
            return name
        at, layer = {layer: i for i, layer in enumerate(self.kept)}, known[0]
        own = self.like(layer)
        ahead = at[told] - at[own] if told in at else told - own
        return self.layers.moved(name, min(max(layer + ahead, 0), self.layers.count - 1))
