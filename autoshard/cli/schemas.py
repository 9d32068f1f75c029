"""The JSON schema of what each command prints with --json; `autoshard schema COMMAND` prints it.

Each is a Record. What commands print is made elsewhere; tests hold it to these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from autoshard.cli.output import print_json
from autoshard.cli.records import (
    AgainstRecord,
    AllHardwareRecord,
    CalibrateRecord,
    DamageRecord,
    ExplainRecord,
    ExportRecord,
    FilesRecord,
    HardwareShownRecord,
    ImportedRecord,
    LayoutRecord,
    ModesRecord,
    OperatorsRecord,
    PipelinePlanRecord,
    RunRecord,
    SafetensorsRecord,
    SchemasRecord,
    TraceRecord,
    ViewRecord,
)
from autoshard.cli.target import TargetError
from autoshard.util.near import did_you_mean
from costmodel.json_door import Natural, Positive, Record, schema

VERSION = 1
"""Of the forms that have none of their own; it grows when a field goes or means something else."""


class ContenderRecord(Record, frozen=True):
    """A mode on a mesh: what its plan costs, or why it has none."""

    mode: str
    mesh: str
    planning_seconds: float
    why: str | None = None
    seconds: float | None = None
    compute_seconds: float | None = None
    communication_seconds: float | None = None
    axes: dict[str, float] | None = None
    bytes_per_device: float | None = None
    peak_memory_bytes: Natural | None = None
    fits: bool | None = None
    waiting_seconds: float | None = None
    ignored: tuple[str, ...] | None = None


class CompareRecord(Record, frozen=True):
    """Plans of one model, the fastest first."""

    plans: tuple[ContenderRecord, ...]


class TrafficRecord(Record, frozen=True):
    """A collective: the bytes that a device sends, the ranks of a group, the operator that it is for."""

    kind: str
    bytes_moved: float
    group_size: Positive
    axes: tuple[str, ...]
    operator: str


class ExecutedRecord(Record, frozen=True):
    """How often a step runs each collective, and the bytes of them all."""

    times: tuple[Natural, ...]
    total_bytes_moved: float


class PartitionRecord(Record, frozen=True):
    """The collectives of a program."""

    collectives: tuple[TrafficRecord, ...]
    total_bytes_moved: float
    executed: ExecutedRecord


class ShardingRecord(Record, frozen=True):
    """A value and its sharding."""

    name: str
    type: str
    sharding: str | None
    cause: str


class ConflictSideRecord(Record, frozen=True):
    """One side of a conflict."""

    value: str
    dim: int | None
    axes: str


class PropagationConflictRecord(Record, frozen=True):
    """Two shardings that do not go together, and how it was decided."""

    operator: str
    source: str | None
    wanted: ConflictSideRecord
    into: ConflictSideRecord
    against: ConflictSideRecord
    decided: Any
    left: Any
    priority: Any
    reason: str
    text: str


class WithoutRuleRecord(Record, frozen=True):
    """An operation that nothing is propagated through."""

    name: str
    count: Natural
    sources: tuple[str, ...]


class PropagateRecord(Record, frozen=True, rename={"which": "pass"}):
    """Shardings spread by rule."""

    which: str
    values: tuple[ShardingRecord, ...]
    outputs: tuple[ShardingRecord, ...]
    conflicts: tuple[PropagationConflictRecord, ...]
    without_rule: tuple[WithoutRuleRecord, ...]
    warnings: tuple[str, ...]
    steps: Natural
    seconds: float
    against: AgainstRecord | None = None


class ScheduleRecord(Record, frozen=True):
    """A schedule of a pipeline: each rank's row, when each action runs, what stands idle."""

    schedule: str
    stages: Positive
    ranks: Positive
    micro_batches: Positive
    ranks_of_stages: tuple[Natural, ...]
    rows: tuple[tuple[str, ...], ...]
    makespan: float
    bubble_share: float
    busy: tuple[float, ...]
    idle: tuple[float, ...]
    peak_activations: tuple[Natural, ...]
    seconds: tuple[dict[str, tuple[float, float]], ...]
    period: float


class CheckpointTensorRecord(Record, frozen=True):
    """A tensor of a checkpoint."""

    type: str
    layout: str
    blocks: Natural


class CheckpointRecord(Record, frozen=True):
    """What a checkpoint holds."""

    folder: str
    step: Natural
    mesh: str
    ranks: Natural
    bytes: Natural
    metadata: dict[str, Any]
    files: dict[str, Natural]
    tensors: dict[str, CheckpointTensorRecord]


class TruthRowRecord(Record, frozen=True):
    """A step that others measured, and what is predicted for it; or why nothing is."""

    source: str
    id: str
    table: str
    devices: Positive
    plan: str
    measured_seconds: float | None
    measured_gib: float | None
    refused: str | None = None
    predicted_seconds: float | None = None
    ratio: float | None = None
    predicted_gib: float | None = None
    parts: dict[str, float] | None = None


class TruthRecord(Record, frozen=True):
    """Predictions beside measurements."""

    rows: tuple[TruthRowRecord, ...]


class RedistributionStepRecord(Record, frozen=True):
    """A collective of a redistribution, or a local cut."""

    step: str
    kind: str
    axes: str
    group_size: Positive
    rounds: Positive
    before: str
    after: str
    bytes_received: float
    seconds: float


class LegRecord(Record, frozen=True, rename={"from_": "from"}):
    """From one layout to another: the steps, the bytes that a device receives, and the fewest that any way needs."""

    type: str
    mesh: str
    from_: str
    to: str
    steps: tuple[RedistributionStepRecord, ...]
    bytes_received: float
    bound_bytes: float
    seconds: float


class ReshapeRecord(Record, frozen=True):
    """The same across a reshape, leg by leg."""

    type: str
    to_type: str
    mesh: str
    legs: tuple[LegRecord, ...]
    bytes_received: float


def _redistribute() -> dict[str, Any]:
    leg, reshape = (schema(one, "") for one in (LegRecord, ReshapeRecord))
    return {
        "$schema": leg["$schema"],
        "title": f"autoshard redistribute, version {VERSION}",
        "oneOf": [{"$ref": leg["$ref"]}, {"$ref": reshape["$ref"]}],
        "$defs": {**leg["$defs"], **reshape["$defs"]},
    }


def _plan() -> dict[str, Any]:
    from autoshard.exporters.plan_records import plan_schema

    return plan_schema()


def _diff() -> dict[str, Any]:
    from autoshard.exporters.difference import difference_schema

    return difference_schema()


SCHEMAS: Mapping[str, type[Record] | Callable[[], dict[str, Any]]] = {
    "plan": _plan,
    "plan pipeline": PipelinePlanRecord,
    "dump": FilesRecord,
    "partition": PartitionRecord,
    "compare": CompareRecord,
    "diff": _diff,
    "view": ViewRecord,
    "trace": TraceRecord,
    "export": ExportRecord,
    "propagate": PropagateRecord,
    "explain": ExplainRecord,
    "run": RunRecord,
    "layout": LayoutRecord,
    "redistribute": _redistribute,
    "schedule": ScheduleRecord,
    "operators": OperatorsRecord,
    "modes": ModesRecord,
    "hardware": AllHardwareRecord,
    "hardware show": HardwareShownRecord,
    "calibrate": CalibrateRecord,
    "truth": TruthRecord,
    "schema": SchemasRecord,
    "checkpoint show": CheckpointRecord,
    "checkpoint verify": DamageRecord,
    "checkpoint export": SafetensorsRecord,
    "checkpoint import": ImportedRecord,
}
"""The record that a command prints as JSON, or what makes its schema; `plan pipeline` is that of `plan --pipeline`, and
`schema` that of the list of commands."""


def schema_of(command: str) -> dict[str, Any]:
    """The schema of what a command prints."""
    found = SCHEMAS[command]
    return schema(found, f"autoshard {command}, version {VERSION}") if isinstance(found, type) else found()


def print_schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A command, such as plan, or hardware show; default: list them."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="List the commands as JSON; a schema is JSON.")] = False,
) -> None:
    """Print the JSON schema (draft 2020-12) of what a command prints with --json."""
    name = " ".join(command or ())
    if not name:
        if as_json:
            print_json(SchemasRecord(tuple(SCHEMAS)))
        else:
            typer.echo("\n".join(SCHEMAS))
        return
    if name not in SCHEMAS:
        hint = did_you_mean(name, SCHEMAS, otherwise=f"; there are {', '.join(sorted(SCHEMAS))}")
        raise TargetError(f"there is no schema of {name!r}{hint}")
    typer.echo(json.dumps(schema_of(name), indent=2))
