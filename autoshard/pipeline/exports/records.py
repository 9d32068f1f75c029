"""The form of a plan in stages as JSON, version 1: where it is cut, who does what when, and the plan of each stage."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from autoshard.exporters.plan_records import STAGES_FORMAT, STAGES_VERSION, PlanRecord
from costmodel.json_door import Natural, Positive, Record, described, schema


class StageOrderRecord(Record, frozen=True):
    """Who does what when: for each group a row of actions, as `autoshard schedule --csv` writes them."""

    name: str
    rows: tuple[tuple[str, ...], ...]


class StageGroupRecord(Record, frozen=True):
    """The devices of a row of the schedule: their mesh, which of all ranks each is, and the name of their hardware,
    where it is not that of the plan."""

    mesh: str
    ranks: tuple[Natural, ...]
    hardware: str = ""


class StagesRecord(Record, frozen=True):
    """A plan in stages.

    `operators` has the stage of each operator of the forward pass, by the name of its first result, `parameters` the
    stage that updates each; all else follows.
    """

    format: Literal["autoshard stages"]
    version: Literal[1]
    graph: str
    micro_batches: Positive
    schedule: StageOrderRecord
    groups: tuple[StageGroupRecord, ...]
    operators: dict[str, Natural]
    parameters: dict[str, Natural]
    stages: tuple[PlanRecord, ...]
    again: Annotated[tuple[str, ...], described("Values of the step that the backward pass makes again.")] = ()
    statistics: Annotated[
        Literal["batch", "micro_batch"], described("Whose statistics a batch normalization takes in training.")
    ] = "batch"
    loss_pieces: Annotated[Positive, described("In how many pieces each micro batch has its logits and loss.")] = 1


def stages_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a file of a plan in stages.

    >>> stages_schema()["title"]
    'autoshard stages, version 1'
    """
    return schema(StagesRecord, f"{STAGES_FORMAT}, version {STAGES_VERSION}")
