"""Values that go from the devices of one stage to those of another: who sends which box to whom, and what it takes."""

from typing import Any

from autoshard.pipeline.transfers.deal import GroupLayout, Parcel, deal
from autoshard.pipeline.transfers.group import RankGroup, groups_along, read_groups
from autoshard.util.moved import former

__all__ = ["GroupLayout", "Parcel", "RankGroup", "deal", "groups_along", "read_groups"]


def __getattr__(name: str) -> Any:
    return former(__name__, name)
