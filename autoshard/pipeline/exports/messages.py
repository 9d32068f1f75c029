"""Lines of a dump for what goes from rank to rank between stages: boxes cut out, sent, received and put together.

All boxes that one rank sends to another of a value are one message, as in `execute.parcels`; what a rank keeps is none.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from autoshard.core.tensortype import TensorType
from autoshard.exporters.ir_dump import DumpWriter, tensor_type
from autoshard.exporters.ir_parse import DumpType, ListedValue
from autoshard.exporters.ir_steps import Attrs, number_of
from autoshard.ir.graph import Value
from autoshard.pipeline.execute.parcels import by_pair, parcels_over, tags_of
from autoshard.pipeline.planned.programs import Route
from autoshard.pipeline.transfers.deal import Parcel, passed_on

Key = Hashable
Shape = tuple[int, ...]


class Messages:
    """Writes what a rank sends and receives.

    Args:
        own: the rank, as one of its group's mesh.
    """

    def __init__(self, writer: DumpWriter, own: int) -> None:
        self.writer, self.own = writer, own
        self.kept: dict[tuple[int, int | None], Key] = {}

    def send(self, route: Route, key: Key, micro: int | None) -> None:
        """Send the rank's block to those that lack it; keep what it wants itself."""
        before, after = route.before.group.ranks, route.after.group.ranks
        for (source, target), parcels in by_pair(parcels_over(route)).items():
            if source != self.own:
                continue
            packed = self._packed(key, parcels, route, ("packed", route.number, target, micro))
            if before[source] == after[target]:
                self.kept[route.number, micro if route.is_repeated else None] = packed
            else:
                self._send(packed, route, before[source], after[target], tags_of(route)[0], micro)

    def receive(self, route: Route, micro: int | None) -> Key:
        """The block that the rank wants: received, put together, and passed on where others of its group want it."""
        before, after = route.before.group.ranks, route.after.group.ranks
        own = next(iter([self.own]))
        arrived: list[tuple[Key, list[Parcel]]] = []
        for (source, target), parcels in by_pair(parcels_over(route)).items():
            if target != own:
                continue
            if before[source] == after[target]:
                arrived.append((self.kept.pop((route.number, micro)), parcels))
            else:
                made = "received", route.number, source, micro
                self._receive(made, parcels, route, (before[source], after[target]), tags_of(route)[0], micro)
                arrived.append((made, parcels))
        block = self._joined(arrived, route, ("block", route.number, micro))
        return self._passed_on(block, route, micro)

    def _passed_on(self, block: Key, route: Route, micro: int | None) -> Key:
        """The block with what other ranks of the group have fetched for all; they get the rank's own piece."""
        pairs = by_pair(passed_on(route.after, route.relayed))
        ranks, tag = route.after.group.ranks, tags_of(route)[1]
        for (source, target), parcels in pairs.items():
            if source == self.own:
                packed = self._packed(block, parcels, route, ("relayed", route.number, target, micro))
                self._send(packed, route, ranks[source], ranks[target], tag, micro)
        arrived: list[tuple[Key, list[Parcel]]] = []
        for (source, target), parcels in pairs.items():
            if target == self.own:
                made = "passed", route.number, source, micro
                self._receive(made, parcels, route, (ranks[source], ranks[target]), tag, micro)
                arrived.append((made, parcels))
        return self._joined(arrived, route, ("whole block", route.number, micro), block) if arrived else block

    # -- boxes

    def box(self, source: Key, begin: Shape, end: Shape, name: str, made: Key) -> Key:
        """A box of a tensor."""
        reference, of = self.writer.read(source)
        assert of.tensor is not None
        cut = tuple(high - low for low, high in zip(begin, end, strict=True))
        bounds = (begin, end, (1,) * len(cut))
        types = [DumpType(f"Tuple[Int64*{len(one)}]") for one in bounds]
        result = tensor_type(of.tensor.with_shape(cut))
        self.writer.add(name, "StridedSlice", [reference, *bounds], [of, *types], [(made, result)])
        return made

    def _packed(self, key: Key, parcels: Sequence[Parcel], route: Route, made: Key) -> Key:
        """The boxes of a block that go to one rank: one box as it is, several behind each other."""
        name, local = route.value.name, route.before.local
        boxes = []
        for i, one in enumerate(parcels):
            begin, end = tuple(at.start for at in one.taken), tuple(at.stop for at in one.taken)
            is_all = end == local and not any(begin)
            boxes.append(key if is_all else self.box(key, begin, end, name, (made, i)))
        if len(boxes) == 1:
            return boxes[0]
        flat = [self._flat(one, name, (made, i, "flat")) for i, one in enumerate(boxes)]
        self._line(name, "Concat", flat, made, (sum(one.size for one in parcels),), route.value, (("axis", 0),))
        return made

    def _flat(self, key: Key, name: str, made: Key) -> Key:
        reference, of = self.writer.read(key)
        assert of.tensor is not None
        size = (math.prod(of.tensor.shape),)
        result = tensor_type(of.tensor.with_shape(size))
        self.writer.add(name, "Reshape", [reference], [of], [(made, result)], attrs=(("shape", size),))
        return made

    def _joined(
        self, arrived: Sequence[tuple[Key, list[Parcel]]], route: Route, made: Key, into: Key | None = None
    ) -> Key:
        """The rank's block out of what has arrived; elements that nothing brings are those of `into`, or 0."""
        local = route.after.local
        if len(arrived) == 1 and into is None:
            (key, parcels) = arrived[0]
            if len(parcels) == 1 and _shape(parcels[0]) == local:
                return key
        boxes = tuple(
            (number, tuple(at.start for at in one.placed), tuple(at.stop for at in one.placed))
            for number, (_, parcels) in enumerate(arrived)
            for one in parcels
        )
        keys = [key for key, _ in arrived] if into is None else [into, *(key for key, _ in arrived)]
        attrs: Attrs = (("shape", ListedValue(local)), ("boxes", boxes), ("into", into is not None))
        self._line(route.value.name, "JoinBoxes", keys, made, local, route.value, attrs)
        return made

    # -- messages

    def _send(self, key: Key, route: Route, source: int, target: int, tag: int, micro: int | None) -> None:
        reference, of = self.writer.read(key)
        attrs: Attrs = (("sr_tag", tag), ("dest_rank", target), *_between(source, target), *_what(of), ("micro", micro))
        self.writer.add(route.value.name, "Send", [reference], [of], [(object(), of)], attrs=attrs)

    def _receive(
        self, made: Key, parcels: Sequence[Parcel], route: Route, pair: tuple[int, int], tag: int, micro: int | None
    ) -> None:
        size = _shape(parcels[0]) if len(parcels) == 1 else (sum(one.size for one in parcels),)
        of = tensor_type(TensorType(size, route.value.type.dtype))
        attrs: Attrs = (("sr_tag", tag), ("src_rank", pair[0]), *_between(*pair), *_what(of), ("micro", micro))
        self.writer.add(route.value.name, "Receive", [], [], [(made, of)], attrs=attrs)

    def _line(self, name: str, op: str, keys: Sequence[Key], made: Key, shape: Shape, of: Value, attrs: Attrs) -> None:
        read = [self.writer.read(one) for one in keys]
        result = tensor_type(TensorType(shape, of.type.dtype))
        self.writer.add(name, op, [one for one, _ in read], [one for _, one in read], [(made, result)], attrs=attrs)


def _shape(parcel: Parcel) -> Shape:
    return tuple(at.stop - at.start for at in parcel.placed)


def _between(source: int, target: int) -> Attrs:
    """The group of two ranks."""
    ranks = "-".join(map(str, sorted((source, target))))
    return (("group", f"2-{number_of(ranks)}"), ("group_ranks", ranks))


def _what(of: DumpType) -> Attrs:
    """What is in a message."""
    assert of.tensor is not None
    return (("shape", ListedValue(of.tensor.shape)), ("dtype", of.tensor.dtype.long_name))
