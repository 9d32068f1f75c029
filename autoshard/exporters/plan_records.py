"""The one form of a plan as JSON, version 2: Records that `plan_file` fills and reads, and whose schema is published.

What a plan is stands in fields without a default; figures, which `autoshard plan --json` adds, may be left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from autoshard.layout.mesh import Mesh
from autoshard.util.errors import MeshError
from costmodel.json_door import Natural, Positive, Record, described, schema, with_schema

FORMAT, VERSION = "autoshard plan", 2
FORMAT_1 = "autoshard plan 1"
STAGES_FORMAT, STAGES_VERSION = "autoshard stages", 1

Axes = Annotated[str, described("Axes, major first, joined by dots: 'dp.tp', 'd:(1)2'; empty for none.")]
LayoutText = Annotated[str, described("The axes that split each dim, then '+axes' for terms of a sum: 'dp, - +tp'.")]
Parts = tuple[tuple[Positive, ...], ...]


class ValueRecord(Record, frozen=True):
    """A value, its type, and how it is left by what makes it."""

    name: str
    type: str
    layout: LayoutText


class Caused(Record, frozen=True, kw_only=True):
    """Why something is as it is: see autoshard.plan.Cause."""

    cause: str
    cause_from: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    instead: str = ""
    why: Annotated[str, described("The same in words.")] = ""


class InputRecord(Caused, frozen=True, kw_only=True):
    """An input of the graph."""

    name: str
    type: str
    layout: LayoutText
    role: str | None = None
    parts: tuple[Positive, ...] | None = None
    bytes_per_device: Natural | None = None


class OptionRecord(Record, frozen=True):
    """A strategy that was weighed, and what it costs; of `alternatives` one that was not taken."""

    in_strategy: Parts
    redistribution_seconds: float
    completion_seconds: float
    seconds: float
    leaves: tuple[LayoutText, ...] = ()


class OperatorRecord(Caused, frozen=True, kw_only=True):
    """An operator: for each factor of its rule the axes that split it; or how values enter and leave, if it has bodies.

    `signature` is the operator with its operands and results, by which another model is known. Along the `carried` axes
    the operands `carriers` are terms of a sum while it runs. `decided` are the seconds of redistributions, of
    completing partial results and of the work at the moment of decision.
    """

    name: str
    signature: str
    axes: tuple[Axes, ...] | None = None
    carried: Axes = ""
    carriers: tuple[Natural, ...] = ()
    decided: tuple[float, float, float] = (0.0, 0.0, 0.0)
    entering: tuple[LayoutText, ...] | None = None
    leaving: tuple[LayoutText, ...] | None = None
    op: str = ""
    in_strategy: Parts | None = None
    out_strategy: Parts | None = None
    device_matrix: tuple[Positive, ...] | None = None
    operands: tuple[str, ...] | None = None
    results: tuple[ValueRecord, ...] | None = None
    seconds: float | None = None
    source: str | None = None
    depth: Natural = 0
    runs: Natural = 1
    alternatives: tuple[OptionRecord, ...] | None = None
    around: Annotated[Natural | None, described("Which of the plan's `options` are its strategy and others.")] = None

    def __post_init__(self) -> None:
        _check_operator(self)


def _check_operator(one: OperatorRecord | Operator1) -> None:
    if not (one.axes is None) == (one.entering is not None) == (one.leaving is not None):
        raise ValueError("an operator has either axes, or entering and leaving")
    if bool(one.carried) != bool(one.carriers):
        raise ValueError("an operator has carried axes and carriers, or neither")


_ONE_OR_OTHER = {
    "oneOf": [{"required": ["axes"]}, {"required": ["entering", "leaving"]}],
    "dependentRequired": {
        "carried": ["carriers"],
        "carriers": ["carried"],
        "entering": ["leaving"],
        "leaving": ["entering"],
    },
}


class StepRecord(Record, frozen=True):
    """A collective of a redistribution, its bytes on a device."""

    kind: str
    axes: str
    ranks: Positive
    dim: int | None
    to_dim: int | None
    bytes: float
    seconds: float


class MoveRecord(Record, frozen=True, rename={"from_": "from"}):
    """A value that is redistributed; bytes and seconds of one time.

    It happens before the operator `serves` (none: at the end), whose line in the user's code is `source`.
    """

    value: str
    from_: LayoutText
    to: LayoutText
    bytes: float
    seconds: float
    runs: Natural
    users: tuple[str, ...]
    steps: tuple[StepRecord, ...]
    serves: str | None = None
    source: str | None = None


class ConflictRecord(Record, frozen=True, rename={"from_": "from"}):
    """Two configured operators that want one value in different layouts."""

    value: str
    producer: str
    consumer: str
    from_: LayoutText
    to: LayoutText
    bytes: float
    seconds: float


class TaskRecord(Record, frozen=True):
    """A piece of the step: seconds from its start, on the lane `compute` or that of the axes that it talks over.

    It runs the operator of that number, or collectives of the redistributions of those numbers, from 0. `moment` is
    its place in the program, by which memory counts. Nothing is computed during the `exposed` seconds of it.
    """

    start: float
    seconds: float
    lane: str
    moment: Natural
    operator: Natural | None = None
    redistributions: tuple[Natural, ...] = ()
    exposed: float = 0.0


class ModuleRecord(Record, frozen=True):
    """A module: the last part of its name; those of all equal ones that it stands for; operators of the first.

    Seconds and bytes are of one of them: of its operators, and of the redistributions that happen for them.
    """

    name: str
    copies: tuple[str, ...]
    operators: tuple[Natural, ...]
    modules: tuple[ModuleRecord, ...]
    seconds: float
    redistribution_seconds: float
    bytes: float


class PlacementRecord(Record, frozen=True):
    """Who holds what under a layout: the parts of each dim, and for each dim the part that each rank holds."""

    parts: tuple[Positive, ...]
    held: tuple[tuple[Natural, ...], ...]
    partial: Annotated[str, described("What each rank holds a term of, in words; empty for whole values.")] = ""


class AxisCostRecord(Record, frozen=True):
    """What a step talks over axes of the mesh: seconds, bytes that a device sends, and the number of collectives."""

    axes: str
    seconds: float
    bytes: float
    collectives: Natural


class HeldRecord(Record, frozen=True):
    """Bytes that a device holds from the moment `first` to the moment `last` of the step, and what they are."""

    name: str
    kind: str
    bytes: Natural
    first: int
    last: int


class MemoryRecord(Record, frozen=True):
    """Bytes on a device at each moment of a step, and what lies there when they are most (`held`), or ever."""

    peak_at: str
    peak_moment: Natural
    timeline: tuple[Natural, ...]
    held: tuple[HeldRecord, ...] | None = None
    everything: tuple[HeldRecord, ...] | None = None


class CostRecord(Record, frozen=True):
    """What a step costs: seconds, and bytes on one device."""

    seconds: float
    compute_seconds: float
    communication_seconds: float
    hidden_seconds: float
    axes: tuple[AxisCostRecord, ...]
    bytes_per_device: float
    peak_memory_bytes: Natural
    device_memory_bytes: Natural
    waiting_seconds: float | None = None
    memory: MemoryRecord | None = None


class PlanRecord(Record, frozen=True):
    """The whole plan: how the values of a graph lie on a mesh of devices, and how its operators are split."""

    format: Literal["autoshard plan"]
    version: Literal[2]
    graph: str
    mesh: Annotated[str, described("The axes and their sizes, major first, such as 'dp=2 tp=4'.")]
    devices: Positive
    search: Annotated[str, described("The mode that found the plan.")]
    started_from: Annotated[str, described("In words, where the search began.")]
    search_stats: Annotated[dict[str, float], described("What the mode knows of the plan as a whole, by name.")]
    inputs: tuple[InputRecord, ...]
    operators: Annotated[
        tuple[Annotated[OperatorRecord, with_schema(_ONE_OR_OTHER)], ...], described("In order, inner ones too.")
    ]
    layouts: Annotated[dict[str, LayoutText], described("By the name of each value, how it is left by what makes it.")]
    outputs: Annotated[tuple[ValueRecord, ...], described("How each output of the graph leaves the program.")]
    hardware: str | None = None
    ignored: Annotated[tuple[str, ...] | None, described("What was asked and is not followed, by name.")] = None
    redistributions: tuple[MoveRecord, ...] | None = None
    conflicts: tuple[ConflictRecord, ...] | None = None
    cost: CostRecord | None = None
    timeline: Annotated[tuple[TaskRecord, ...] | None, described("When each piece of a step runs.")] = None
    modules: Annotated[ModuleRecord | None, described("The modules of the model, equal ones as one.")] = None
    placements: Annotated[dict[str, PlacementRecord] | None, described("Who holds what, by layout.")] = None
    options: Annotated[
        tuple[tuple[OptionRecord, ...], ...] | None,
        described("A strategy that operators have, then others, priced with all else as it is in the plan."),
    ] = None
    types: Annotated[dict[str, str] | None, described("The types of values that no operator of the plan makes.")] = None


def plan_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a plan: of plan files, and of what `autoshard plan --json` prints."""
    return schema(PlanRecord, f"{FORMAT}, version {VERSION}")


# -- version 1


Cause1 = tuple[str, tuple[str, ...], tuple[str, ...], str]


class Operator1(Record, frozen=True, rename={"signature": "is"}):
    """An operator of version 1: its cause is a list, and `seconds` what `decided` is now."""

    name: str
    signature: str
    cause: Cause1
    axes: tuple[str, ...] | None = None
    carried: str = ""
    carriers: tuple[Natural, ...] = ()
    seconds: tuple[float, float, float] = (0.0, 0.0, 0.0)
    entering: tuple[str, ...] | None = None
    leaving: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_operator(self)

    def now(self) -> OperatorRecord:
        """The same in the present form."""
        same = {name: getattr(self, name) for name in _SAME}
        return OperatorRecord(**same, **_cause1(self.cause), decided=self.seconds)


_SAME = ("name", "signature", "axes", "carried", "carriers", "entering", "leaving")


class Plan1(Record, frozen=True):
    """A plan file of version 1: inputs are 'name: type', outputs layouts."""

    format: Literal["autoshard plan 1"]
    graph: str
    mesh: str
    search: str
    started_from: str
    search_stats: dict[str, float]
    inputs: tuple[str, ...]
    operators: tuple[Operator1, ...]
    layouts: dict[str, str]
    input_causes: dict[str, Cause1]
    outputs: tuple[str, ...]

    def now(self) -> PlanRecord:
        """The same in the present form."""
        return PlanRecord(
            format=FORMAT,
            version=VERSION,
            graph=self.graph,
            mesh=self.mesh,
            devices=_devices(self.mesh),
            search=self.search,
            started_from=self.started_from,
            search_stats=self.search_stats,
            inputs=tuple(map(self._input, self.inputs)),
            operators=tuple(one.now() for one in self.operators),
            layouts=self.layouts,
            outputs=tuple(ValueRecord(name="", type="", layout=layout) for layout in self.outputs),
        )

    def _input(self, text: str) -> InputRecord:
        name, _, of = text.rpartition(": ")
        cause = self.input_causes.get(name, ("given", (), (), ""))
        return InputRecord(name=name, type=of, layout=self.layouts.get(name, ""), **_cause1(cause))


def _devices(mesh: str) -> int:
    """The devices of a mesh; 1 of a text that is none, which the reader of the plan says."""
    try:
        return Mesh.parse(mesh).devices
    except MeshError:
        return 1


def _cause1(cause: Cause1) -> dict[str, Any]:
    return dict(zip(("cause", "cause_from", "left_out", "instead"), cause, strict=True))
