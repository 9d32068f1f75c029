"""What a dump's line says of one step: the rank's group, and which part the rank itself takes in it.

Whom it hears and whom it tells is written out in full: of a permute in rounds each round, of boxes each box, of windows
the elements by rank. So the dumps of all ranks tell the whole exchange.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

from autoshard.exporters.ir_parse import Attr, ListedValue
from autoshard.redistribute.fetch import Box
from autoshard.redistribute.step import Step
from autoshard.redistribute.window import WindowStep

Attrs = tuple[tuple[str, Attr], ...]

REDUCTIONS = ("all_reduce", "reduce_scatter")
_PRIMITIVES = {
    "slice": "StridedSlice",
    "keep": "Keep",
    "all_gather": "AllGather",
    "all_reduce": "AllReduce",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "permute": "CollectivePermute",
    "halo": "NeighborExchange",
}
_SLICE_ATTRS: Attrs = (
    ("new_axis_mask", 0),
    ("shrink_axis_mask", 0),
    ("end_mask", 0),
    ("input_names", ListedValue(("x", "begin", "end", "strides"))),
    ("output_names", ListedValue(("output",))),
    ("keep_value_node_input", True),
    ("begin_mask", 0),
    ("ellipsis_mask", 0),
)


def primitive(step: Step | WindowStep) -> str:
    """MindSpore's name for the step; ranks that send each other boxes exchange with neighbours."""
    boxes = isinstance(step, Step) and step.fetched is not None
    return _PRIMITIVES["halo" if boxes else step.kind]


def step_attrs(
    step: Step | WindowStep, rank: int, shape: Sequence[int], fusion: int = 0, world: Sequence[int] | None = None
) -> Attrs:
    """The attributes of a step's line.

    Args:
        shape: of the whole tensor that the step works on, padding included.
        fusion: the number of the collectives that it is done together with; 0 if it is alone.
        world: which of all ranks each rank of the mesh is; None: the same.
    """
    if step.kind == "slice":
        return _SLICE_ATTRS
    ranks = ranks_of(step, rank, world)
    group: list[tuple[str, Attr]] = [("group", f"{step.groups.size}-{number_of(ranks)}")]
    if step.kind in REDUCTIONS:
        group += [("fusion", fusion), ("op", step.reduction)]
    elif fusion:
        group += [("fusion", fusion)]
    group += [("group_ranks", ranks), ("index", 0)]
    return (*group, *_place_attrs(step, rank, shape, world or range(step.groups.mesh.devices)))


def ranks_of(step: Step | WindowStep, rank: int, world: Sequence[int] | None = None) -> str:
    """The ranks of the rank's group."""
    members = step.groups.members(rank).tolist()
    return "-".join(str(one if world is None else world[one]) for one in members)


def number_of(*words: str) -> int:
    """A number that follows from the words, the same in every run and on every machine."""
    return int(hashlib.sha256("|".join(words).encode()).hexdigest()[:15], 16)


def _place_attrs(step: Step | WindowStep, rank: int, shape: Sequence[int], world: Sequence[int]) -> Attrs:
    """The dims that the step works on, and the rank's own part in it."""
    if step.kind in ("all_gather", "reduce_scatter"):
        return (("dim", step.dim),)
    if step.kind == "all_to_all":
        return (("split_count", step.groups.size), ("split_dim", step.dim), ("concat_dim", step.to_dim))
    if isinstance(step, WindowStep):
        return (("dim", step.dim), *_exchanged_attrs(step, rank, world))
    if step.kind == "keep":
        return (("root", 0), ("keeps_value", step.groups.position(rank) == 0))
    if step.fetched is not None:
        return _boxes_attrs(step, rank, shape, world)
    return _permute_attrs(step, rank, shape, world) if step.kind == "permute" else ()


def _permute_attrs(step: Step, rank: int, shape: Sequence[int], world: Sequence[int]) -> Attrs:
    """Whose block the rank gets and who gets its own; in rounds, also which piece of a block that is, and its place.

    In each round the rank sends the piece of its block that begins at `send_begin` and is `piece` large, and puts the
    one that it receives to `recv_begin` of its new block.
    """
    routing = step.routing
    cuts, joins = routing.digits.cuts, routing.digits.joins
    turns = [routing.round(number) for number in range(routing.rounds)]
    if not cuts and not joins:
        return (("src_rank", world[turns[0].sources[rank]]), ("dest_rank", world[turns[0].targets[rank]]))
    piece = list(step.before.local_shape(shape))
    for tail in cuts:
        piece[tail.dim] //= tail.ratio

    def begin(tails: Sequence, places: Sequence[int]) -> tuple[int, ...]:
        starts = {tail.dim: place * piece[tail.dim] for tail, place in zip(tails, places, strict=True)}
        return tuple(starts.get(dim, 0) for dim in range(len(piece)))

    return (
        ("src_rank", tuple(world[turn.sources[rank]] for turn in turns)),
        ("dest_rank", tuple(world[turn.targets[rank]] for turn in turns)),
        ("piece", tuple(piece)),
        ("send_begin", tuple(begin(cuts, turn.cuts[turn.targets[rank]]) for turn in turns)),
        ("recv_begin", tuple(begin(joins, turn.pieces[rank]) for turn in turns)),
    )


def _boxes_attrs(step: Step, rank: int, shape: Sequence[int], world: Sequence[int]) -> Attrs:
    """How many elements come from which ranks and go to which, and each box: its rank, where it begins and ends.

    Received boxes, the rank's own ones among them, tell where they lie in the source's block and in the new one, and
    whether they are added to what lies there.
    """
    assert step.fetched is not None
    pieces, wanted = step.fetched.pieces(rank, shape), step.fetched.wanted(rank, shape)
    come: dict[int, int] = {}
    for one in pieces:
        if one.source != rank:
            come[one.source] = come.get(one.source, 0) + _count(one.source_box)
    go = {target: sum(_count(one.source_box) for one in boxes) for target, boxes in wanted.items()}
    taken = tuple((world[one.source], *_ends(one.source_box), *_ends(one.target_box), one.adds) for one in pieces)
    sent = tuple((world[target], *_ends(one.source_box)) for target, boxes in wanted.items() for one in boxes)
    return (*_counts_attrs(come, go, world), ("recv_boxes", taken), ("send_boxes", sent))


def _count(box: Box) -> int:
    return math.prod(one.stop - one.start for one in box)


def _ends(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(one.start for one in box), tuple(one.stop for one in box)


def _exchanged_attrs(step: WindowStep, rank: int, world: Sequence[int]) -> Attrs:
    """How many elements of the dim come from which ranks and go to which."""
    members, own = step.groups.members(rank).tolist(), step.groups.position(rank)
    come, go = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
    for position, member in enumerate(members if step.is_split else ()):
        for piece in step.pieces(position):
            if position == own != piece.source:
                come[members[piece.source]] += piece.count
            elif piece.source == own != position:
                go[member] += piece.count
    return _counts_attrs(come, go, world)


def _counts_attrs(come: Mapping[int, int], go: Mapping[int, int], world: Sequence[int]) -> Attrs:
    """The ranks with which something is exchanged, and how many elements."""
    found: Attrs = ()
    for name, counts in (("recv", come), ("send", go)):
        ranks = [rank for rank, count in counts.items() if count]
        found += (
            (f"{name}_rank_ids", tuple(world[rank] for rank in ranks)),
            (f"{name}_lens", tuple(counts[rank] for rank in ranks)),
        )
    return found
