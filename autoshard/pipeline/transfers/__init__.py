"""Values that go from the devices of one stage to those of another: who sends which box to whom, and what it takes."""

from autoshard.pipeline.transfers.deal import Held, Parcel, deal
from autoshard.pipeline.transfers.group import Group, groups_along, read_groups

__all__ = ["Group", "Held", "Parcel", "deal", "groups_along", "read_groups"]
