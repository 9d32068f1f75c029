"""Which layer of a step each operator and each input belongs to, and where in it.

Names say it of most: `model.layers.7.attention.query`, or `Block_7.Dense_0.kernel`. What bears no number belongs to the
layer whose values it reads, the later one of two; what makes a gradient to that of what it is the gradient of; what one
layer alone reads to that one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from autoshard.ir.graph import PARAMETER, Graph, Node, Value
from autoshard.transform.recompute import backward_begins

_NUMBER = re.compile(r"(?<!\d)\d+(?=\.)")
_GRADIENT = "grad."
SUM = "AddN"
"""The operator that sums up as many tensors as it is given, such as the gradients of what all layers read."""

Place = tuple[str, str, int]
"""Where in a layer something stands: its name before and after the layer's number, and which of that name it is. Of an
operator without a number: which of its kind it is; of an input: what reads it first."""
Placed = tuple[int, Place]
"""A layer, and where in it."""


def stems(graph: Graph) -> Iterator[tuple[str, int]]:
    """What names of parameters and of operators of the forward pass have before a number that runs from 0, and how many
    numbers there are: that of most of these first."""
    counts: dict[str, Counter[int]] = {}
    parameters = (value.name for value in graph.inputs if graph.role_of[value] == PARAMETER)
    for name in (*parameters, *(node.label for node in graph.nodes[: backward_begins(graph)])):
        for number in _NUMBER.finditer(name):
            if number.start():
                counts.setdefault(name[: number.start()], Counter())[int(number[0])] += 1
    whole = {stem: layers for stem, layers in counts.items() if set(layers) == set(range(len(layers)))}
    for stem in sorted(whole, key=lambda one: sum(whole[one].values()), reverse=True):
        yield stem, len(whole[stem])


@dataclass(frozen=True, eq=False)
class LayerPlaces:
    """The layers of a graph whose names begin with `stem`."""

    graph: Graph
    stem: str

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(rf"(^|\.){re.escape(self.stem)}(?P<number>\d+)\.")

    def named(self, name: str) -> int | None:
        """The number of the layer that a name tells; None if it tells none."""
        found = self._pattern.search(name)
        return int(found["number"]) if found else None

    def renumbered(self, name: str, layer: int) -> str:
        """A name with the number of another layer; the same where it tells none."""
        found = self._pattern.search(name)
        return name if found is None else f"{name[: found.start('number')]}{layer}{name[found.end('number') :]}"

    @cached_property
    def nodes(self) -> Mapping[Node, Placed]:
        """The layer of each node that is in one, and where it stands there.

        What makes something for layers that are not next to its own, such as a mask that all of them need, is in none:
        to these it comes from outside. A sum over more than two layers is in none of them.
        """
        layers = {node: layer for node, layer in self.layers.items() if not self._sums_layers(node)}
        shared: set[Node] = set()
        for node, layer in layers.items():
            shared.update(one for one in self._makers(node) if one in layers and abs(layers[one] - layer) > 1)
        seen: Counter[tuple[int, str, str]] = Counter()
        found = {}
        for node, layer in layers.items():
            before, after = self._split(node.label) or ("", node.op.name)
            if node not in shared:
                found[node] = layer, (before, after, seen[layer, before, after])
            seen[layer, before, after] += 1
        return found

    @cached_property
    def inputs(self) -> Mapping[Value, Placed]:
        """The same of each input that names tell a layer of, or that one layer alone reads: what reads it there first
        tells where it stands."""
        found = {}
        for value in self.graph.inputs:
            users = self.graph.users[value]
            readers = [(self.nodes[node], index) for node, index in users if node in self.nodes]
            layers = {layer for (layer, _), _ in readers}
            layer = self.named(value.name)
            if layer is None and len(layers) == 1 and len(readers) == len(users):
                (layer,) = layers
            if layer is not None:
                first = ((place, index) for (other, place), index in readers if other == layer)
                found[value] = layer, self._place_of_input(value, next(first, None))
        return found

    def _place_of_input(self, value: Value, reader: tuple[Place, int] | None) -> Place:
        if reader is None:
            before, after = self._split(value.name) or ("", value.name)
            return before, after, 0
        (before, after, number), index = reader
        return before, f"{after} {number}", index

    @cached_property
    def layers(self) -> Mapping[Node, int]:
        """The layer of each node that is in one by its name, or by what it reads, in the order of the graph."""
        begins = backward_begins(self.graph)
        found = self._forward(self.graph.nodes[:begins])
        of_label: dict[str, int | None] = {node.label: found.get(node) for node in self.graph.nodes[:begins]}
        of_value = self._of_values(found)
        for node in self.graph.nodes[begins:]:
            of = node.label.removeprefix(_GRADIENT).rpartition(".")[0] if node.label.startswith(_GRADIENT) else None
            layer = self.named(node.label)
            if layer is None:
                layer = of_label[of] if of in of_label else self._latest(node, of_value)
            if layer is not None:
                found[node] = layer
                of_value.update(dict.fromkeys(node.results, layer))
        found.update(self._read_by_one(found))
        return {node: found[node] for node in self.graph.nodes if node in found}

    def _forward(self, nodes: tuple[Node, ...]) -> dict[Node, int]:
        """The layers of nodes of the forward pass. What leads to nothing that bears the last layer's number, itself or
        as a parameter that it reads, follows that layer."""
        found: dict[Node, int] = {}
        of_value = self._of_values(found)
        for node in nodes:
            layer = self.named(node.label)
            layer = self._latest(node, of_value) if layer is None else layer
            if layer is not None:
                found[node] = layer
                of_value.update(dict.fromkeys(node.results, layer))
        last = max(found.values(), default=0)
        read: set[Value] = set()
        for node in reversed(nodes):
            if found.get(node) == last:
                if not self._bears_number(node) and read.isdisjoint(node.results):
                    del found[node]
                else:
                    read.update(node.operands)
        return found

    def _bears_number(self, node: Node) -> bool:
        return self.named(node.label) is not None or any(self.named(value.name) is not None for value in node.operands)

    def _of_values(self, layers: Mapping[Node, int]) -> dict[Value, int]:
        named = {value: layer for value in self.graph.inputs if (layer := self.named(value.name)) is not None}
        return named | {value: layer for node, layer in layers.items() for value in node.results}

    def _latest(self, node: Node, of_value: Mapping[Value, int]) -> int | None:
        return max((of_value[value] for value in node.operands if value in of_value), default=None)

    def _read_by_one(self, layers: Mapping[Node, int]) -> dict[Node, int]:
        """The layers of what one layer alone reads, but for what leads to the first one: constants, a mask in the form
        that a layer takes it in."""
        outputs = {*self.graph.outputs}
        found: dict[Node, int] = {}
        for node in reversed(self.graph.nodes):
            if node not in layers and outputs.isdisjoint(node.results):
                readers = (reader for value in node.results for reader, _ in self.graph.users[value])
                layer, *others = {found.get(one, layers.get(one)) for one in readers} or {None}
                if layer and not others:
                    found[node] = layer
        return found

    def _makers(self, node: Node) -> Iterator[Node]:
        producers = self.graph.producers
        return (producers[value][0] for value in node.operands if value in producers)

    def _sums_layers(self, node: Node) -> bool:
        if node.op.name != SUM:
            return False
        read = [self.layers[one] for one in self._makers(node) if one in self.layers]
        return bool(read) and max(read) - min(read) > 1

    def _split(self, name: str) -> tuple[str, str] | None:
        found = self._pattern.search(name)
        return (name[: found.start("number")], name[found.end() :]) if found else None
