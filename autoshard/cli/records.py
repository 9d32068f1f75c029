"""What commands print with --json, as Records, unless what they show has a form of its own elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

from autoshard.report.explained_records import ExplainedRecord, StageExplainedRecord
from costmodel.json_door import Natural, Positive, Record, described
from costmodel.store import HardwareRecord

# -- files


class FilesRecord(Record, frozen=True):
    """Files that were written."""

    files: tuple[str, ...]


class ViewRecord(Record, frozen=True):
    """A page that was written, its bytes, and the seconds of a step by the plans that it shows."""

    file: str
    bytes: Natural
    seconds: tuple[float, ...]


class TraceRecord(Record, frozen=True):
    """A trace that was written, the ranks in it, and the predicted seconds of a step."""

    file: str
    ranks: tuple[Natural, ...]
    seconds: float


class ExportRecord(Record, frozen=True):
    """A plan in another form: files that were written, or its text."""

    form: str
    files: tuple[str, ...] = ()
    text: str | None = None


# -- what is known


class ExplainRecord(Record, frozen=True):
    """A name: how it lies in the plan, or why there is no plan; and what rules say of it, in words, line by line. Of a
    plan in stages how it lies in each stage that has it."""

    name: str
    plan: ExplainedRecord | None = None
    no_plan: str = ""
    rules: tuple[str, ...] = ()
    stages: tuple[StageExplainedRecord, ...] = ()


class AgainstRecord(Record, frozen=True):
    """Whether another's pass leaves the same module, and the lines that only ours ('-') or only its ('+') has."""

    peer: str
    agrees: bool
    differences: tuple[str, ...] = ()


class HeldBlockRecord(Record, frozen=True):
    """A block of a tensor: for each dim where it begins and ends, and the ranks that hold it."""

    where: tuple[tuple[Natural, Natural], ...]
    ranks: tuple[Natural, ...]


class LayoutRecord(Record, frozen=True):
    """A tensor's layout: what a rank holds, MindSpore's device matrix and tensor map where there is one, who has what.

    Over `partial` axes each rank holds a term.
    """

    type: str
    mesh: str
    layout: str
    local_type: str
    bytes_per_rank: Natural
    partial: str
    device_matrix: tuple[Positive, ...] | None
    tensor_map: tuple[Any, ...] | None
    blocks: tuple[HeldBlockRecord, ...]


class StrategyRecord(Record, frozen=True):
    """A strategy of an operator's call: how it leaves results, and in how many parts the work is split."""

    in_strategy: tuple[tuple[Positive, ...], ...]
    results: tuple[str, ...]
    work_split: Positive


class CallRecord(Record, frozen=True):
    """A call of an operator: its rule, results, operations, and on a mesh its strategies."""

    rule: str
    results: tuple[str, ...]
    operations: float
    mesh: str = ""
    strategies: tuple[StrategyRecord, ...] = ()


class KnownOperatorRecord(Record, frozen=True):
    """An operator: how it is called, its rule if one text says it, whether it has a gradient, and what it does."""

    name: str
    signature: tuple[str, ...]
    rule: str | None
    differentiable: bool
    doc: str = ""
    call: CallRecord | None = None


class OperatorsRecord(Record, frozen=True):
    """Operators that there are."""

    operators: tuple[KnownOperatorRecord, ...]


class ModeRecord(Record, frozen=True):
    """A search mode, what it does, and its options."""

    mode: str
    does: str
    options: tuple[str, ...]
    named_plan: bool


class ModesRecord(Record, frozen=True):
    """Search modes that there are."""

    modes: tuple[ModeRecord, ...]


class NamedHardwareRecord(Record, frozen=True):
    """Hardware, and what to call it after --hardware; `file` if it was saved."""

    name: str
    hardware: HardwareRecord
    file: str | None = None


class AllHardwareRecord(Record, frozen=True):
    """Hardware that there is: presets, then what was saved."""

    hardware: tuple[NamedHardwareRecord, ...]


class LinkedRecord(Record, frozen=True):
    """A device or a link: of a link the devices that it joins, its bytes a second one way, seconds of a message."""

    id: str
    name: str
    inside: tuple[str, ...] = ()
    first: Natural | None = None
    count: Positive | None = None
    bandwidth: float | None = None
    latency: float | None = None


class HardwareShownRecord(Record, frozen=True):
    """Hardware and its links, a tree."""

    hardware: HardwareRecord
    links: tuple[LinkedRecord, ...]


class FittedRecord(Record, frozen=True):
    """A curve against its samples: relative errors, and the largest sample with what the curve says of it."""

    what: str
    samples: Natural
    median_error: float
    worst_error: float
    measured: float
    fitted: float


class CalibrateRecord(Record, frozen=True):
    """A calibration: the file, how to name it after --hardware, and how it fits what was measured, by title."""

    file: str
    name: str
    comparisons: dict[str, tuple[FittedRecord, ...]]
    doubtful: Annotated[bool, described("The errors are so large that something else was running, it seems.")]


class SchemasRecord(Record, frozen=True):
    """Commands whose --json has a schema: all."""

    commands: tuple[str, ...]


# -- plans in stages


class GroupRecord(Record, frozen=True):
    """The devices of a group of stages: what they do, the share of the step they stand idle, what lies on each."""

    mesh: str
    hardware: str
    ranks: tuple[Natural, ...]
    stages: tuple[Natural, ...]
    idle_share: float
    update_seconds: float
    bytes: Natural
    state_bytes: Natural
    accumulator_bytes: Natural
    activation_bytes: Natural
    transient_bytes: Natural


class StageRecord(Record, frozen=True):
    """A stage: its operators and parameters, and seconds of a micro batch."""

    operators: Natural
    parameters: tuple[str, ...]
    parameter_bytes: Natural
    forward_seconds: float
    input_gradient_seconds: float
    weight_gradient_seconds: float
    sent_on_seconds: float
    sent_back_seconds: float


class OtherPipelineRecord(Record, frozen=True):
    """A pipeline that a search has priced and not taken, in words, of how many groups, and whether it keeps to the
    limit of memory."""

    label: str
    groups: Positive
    seconds: float
    fits: bool


class PipelinePlanRecord(Record, frozen=True):
    """A plan in stages: its schedule, what a step takes, and what the schedule takes at least."""

    schedule: str
    micro_batches: Positive
    seconds: float
    schedule_seconds: float
    schedule_bound: float
    bubble_share: float
    groups: tuple[GroupRecord, ...]
    stages: tuple[StageRecord, ...]
    others: tuple[OtherPipelineRecord, ...] = ()


# -- runs and checkpoints


class RunRecord(Record, frozen=True, kw_only=True):
    """A model or a module that was run: what of it was split, the seconds of the first run, and whether it agrees.

    `difference` is the largest of outputs, as a share of their largest element; `step_difference` a thousandth of what
    updated tensors may differ by.
    """

    exit_code: int
    operators: Natural = 0
    split: Natural = 0
    collectives: Natural = 0
    seconds: float = 0.0
    outputs: tuple[str, ...] = ()
    compared_with: str | None = None
    equal: bool | None = None
    wrong: tuple[str, ...] = ()
    difference: float | None = None
    step_difference: float | None = None
    trace: str | None = None
    saved: str | None = None


class DamageRecord(Record, frozen=True):
    """A checkpoint that was verified: what is damaged, line by line."""

    folder: str
    tensors: Natural
    files: Natural
    damage: tuple[str, ...]


class SafetensorsRecord(Record, frozen=True):
    """A safetensors file that was written."""

    file: str
    tensors: tuple[str, ...]
    bytes: Natural


class ImportedRecord(Record, frozen=True):
    """A checkpoint that was made of files."""

    folder: str
    tensors: Natural
    bytes: Natural
