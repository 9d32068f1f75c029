"""What ranks of exported stages send each other, as boxes of their blocks."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.engines.boxes import Box
from autoshard.engines.standalone_stages import SentBox
from autoshard.pipeline.planned.programs import Route
from autoshard.pipeline.transfers.deal import Parcel, deal, passed_on


def route_boxes(route: Route) -> tuple[tuple[SentBox, ...], tuple[SentBox, ...]]:
    """What goes from group to group on a route, then what the ranks of the one that reads pass on."""
    if route.stays:
        return (), ()
    before, after = route.before.group.ranks, route.after.group.ranks
    sent = sent_boxes(deal(route.before, route.after, route.spans, route.relayed), before, after)
    return sent, sent_boxes(passed_on(route.after, route.relayed), after, after)


def sent_boxes(parcels: Sequence[Parcel], sources: Sequence[int], targets: Sequence[int]) -> tuple[SentBox, ...]:
    """Parcels between ranks of meshes as boxes between those of all ranks."""
    return tuple(
        SentBox(sources[one.source], targets[one.target], _box(one.taken), _box(one.placed))
        for one in parcels
        if one.size
    )


def _box(place: Sequence[slice]) -> Box:
    return tuple((one.start, one.stop - one.start, 1) for one in place)
