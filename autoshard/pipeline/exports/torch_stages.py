"""`torch-stages`: a folder of Python modules that run a step in stages on torch alone, a module for each stage.

`stage_0.py` and so on have what a stage does as functions, for people: forward, gradients of its input, gradients of
its weights, update. `schedule.csv` says who does what when, `train.py` runs it all under torchrun, and
`stages_runtime.py` moves blocks between ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autoshard.engines.boxes import Box
from autoshard.engines.code import boundary_value, carried_text, imports_of
from autoshard.engines.extras import need
from autoshard.engines.groups import AxisPieces
from autoshard.engines.standalone import BoundaryValue
from autoshard.engines.standalone_stages import (
    ExportedRoute,
    Place,
    RowsPart,
    SentBox,
    StageInput,
    StageOutput,
    StepOutput,
    Wire,
)
from autoshard.engines.text import refs_of
from autoshard.ir.graph import Value
from autoshard.partition.program import Register
from autoshard.pipeline.exports.module_text import RUNTIME, ModuleText, WholePart
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Ready, Route
from autoshard.pipeline.schedules import csv_text
from autoshard.pipeline.schedules.action import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from autoshard.pipeline.stages.whole import ONCE, runs_per_micro_batch
from autoshard.pipeline.transfers.deal import Parcel, deal, passed_on
from autoshard.transform.micro.forms import MicroRows
from autoshard.util.errors import PlanError
from autoshard.util.files import write_atomically

_FUNCTIONS = {ONCE: "once", FORWARD: "forward", INPUT_GRADIENT: "input_gradient", WEIGHT_GRADIENT: "weight_gradient"}
_DATA = "from_data"


def save_torch_stages(planned: PipelineData, folder: str | Path) -> list[Path]:
    """Write the modules of a plan in stages into a folder; the files, each whole or not at all.

    Raises:
        RuntimeSetupError: torch is not installed.
        PlanError: an operator that torch lacks, or a file that cannot be written.
    """
    need("torch", "code of torch")
    return StageFolder(planned).write(folder)


class StageFolder:
    """The texts of all files of a plan in stages.

    Args:
        main: the function of the runtime that `train.py` calls.
        runtime: the files that the runtime carries.
        gradients: values of micro batches that are added to gradients of parameters, whose names these are.
        wires: by number how routes go from rank to rank.
        terms: which outputs of the last stage's forward pass `loss` makes the loss of.
    """

    def __init__(
        self,
        planned: PipelineData,
        main: str = "main_stages",
        runtime: Sequence[str] = RUNTIME,
        gradients: Mapping[Value, str] | None = None,
        wires: Mapping[int, Wire] | None = None,
        terms: tuple[int, ...] = (),
        loss: WholePart | None = None,
    ) -> None:
        self.main, self.runtime, self.gradients = main, runtime, gradients or {}
        self.wires, self.terms = wires or {}, terms
        data = WholePart.of(_DATA, planned.whole.from_data)
        parts = {_DATA: data, "loss": loss}
        self.alone = {name: part for name, part in parts.items() if part is not None}
        self.planned, self.programs, self.whole = planned, planned.programs, planned.whole
        self.step = planned.whole.pipeline.step
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()

    def write(self, folder: str | Path) -> list[Path]:
        """Write all files, each whole or not at all.

        Raises:
            PlanError: an operator that torch lacks, or a file that cannot be written.
        """
        files = self.files().items()
        return [write_atomically(Path(folder) / name, text, PlanError, folders=True) for name, text in files]

    def files(self) -> dict[str, str]:
        """The texts by the names of the files."""
        stages = range(self.planned.stages)
        found = {f"stage_{stage}.py": self._stage(stage) for stage in stages}
        found |= {f"{name}.py": self._alone(part, name) for name, part in self.alone.items()}
        found["train.py"] = self._train()
        found["stages_runtime.py"] = _runtime(self.runtime)
        found["schedule.csv"] = csv_text(self.planned.schedule)
        return found

    def name(self, value: Value) -> str:
        """A name for a value, which no other has."""
        if value not in self.names:
            name, count = value.name, 1
            while name in self.taken:
                name, count = f"{value.name}_{count}", count + 1
            self.names[value] = name
            self.taken.add(name)
        return self.names[value]

    # -- a stage

    def _stage(self, stage: int) -> str:
        group = self.planned.group_of(stage)
        pieces = {kind: self.programs.pieces[stage, kind] for kind in self.whole.stages[stage]}
        cuts = self.cuts(stage)
        module = ModuleText({_function(kind): ready.program for kind, ready in pieces.items()}, cuts)
        for ready in pieces.values():
            module.over.update(
                (cuts.axes(one.layout.partial), None) for one in ready.program.outputs if one.layout.partial
            )
        ends = [f"        {kind!r}: {self._piece(kind, ready, cuts)}," for kind, ready in pieces.items()]
        parameters = ", ".join(one.name for one in self.whole.pipeline.stages[stage].parameters) or "none"
        head = (
            f'"""{self.planned.graph.name}, stage {stage} of {self.planned.stages}: what each rank of {group} runs.'
            f"\n\nParameters: {parameters}.\nWhat stands in brackets is the layout of a value, `k` runs "
            'loops and `c` moves blocks between the ranks of the stage. Made by\nautoshard, and yours to edit.\n"""'
        )
        grid = cuts.grid
        plan = (
            "STAGE = ExportedStage(",
            f"    number={stage},",
            f"    ranks={group.ranks!r},",
            f"    grid={grid!r},",
            f"    axes={tuple(module.over)!r},",
            "    pieces={",
            *ends,
            "    },",
            ")",
        )
        return module.text(head, plan)

    def cuts(self, stage: int) -> AxisPieces:
        """The pieces of axes that all programs of a stage speak of."""
        programs = [self.programs.pieces[stage, kind].program for kind in self.whole.stages[stage]]
        refs, listed = set(), False
        for one in programs:
            own, lists = refs_of(one)
            refs |= own | {ref for end in (*one.inputs, *one.outputs) for ref in end.layout.used}
            listed = listed or lists
        return AxisPieces(self.planned.group_of(stage).mesh, {ref for ref in refs if ref.size > 1}, listed)

    def _piece(self, kind: str, ready: Ready, cuts: AxisPieces) -> str:
        inputs = tuple(self._input(ready, value, one, cuts) for value, one in self._ends(ready, "inputs"))
        outputs = tuple(
            self._output(ready, i, value, one, cuts) for i, (value, one) in enumerate(self._ends(ready, "outputs"))
        )
        return f"StageCode({_function(kind)}, {inputs!r}, {outputs!r})"

    @staticmethod
    def _ends(ready: Ready, what: str) -> Iterator[tuple[Value, Register]]:
        return zip(getattr(ready, what), getattr(ready.program, what), strict=True)

    def _input(self, ready: Ready, value: Value, one: Register, cuts: AxisPieces) -> StageInput:
        end = boundary_value(self.name(value), one, cuts)
        route = self.programs.arriving[ready.place].get(value)
        if route is not None:
            return StageInput(end, route=route.number)
        if value in self.step.body.slices:
            whole, part = self.step.body.slices[value]
            return StageInput(end, rows=(self.name(whole), RowsPart(part.dim, part.inner)))
        return StageInput(end)

    def _output(self, ready: Ready, i: int, value: Value, one: Register, cuts: AxisPieces) -> StageOutput:
        end = boundary_value(self.name(value), one, cuts)
        partial = cuts.axes(one.layout.partial) if one.layout.partial else ()
        terms = one.layout.reduction if partial else ""
        made = StageOutput(end, partial=partial, terms=terms, gradient_of=self.gradients.get(value, ""))
        carried = {value for value, _ in self.step.body.outputs.values()}
        if not runs_per_micro_batch(ready.place[1]) or value not in carried:
            return made
        if value in self.step.body.terms:
            return replace(made, reduction=self.step.body.terms[value].reduction)
        return replace(made, is_rows=ready.outputs.index(value) == i)

    # -- what every rank computes alone, on whole values

    def _alone(self, part: WholePart, name: str) -> str:
        """The module of a part."""
        program, graph = part.program(self.planned.hardware.for_ranks(1)), part.graph
        cuts = AxisPieces(program.mesh, *refs_of(program))
        module = ModuleText({name: program}, cuts)
        taken = zip(graph.inputs, program.inputs, strict=True)
        given = zip(graph.outputs, program.outputs, strict=True)
        inputs = tuple(StageInput(boundary_value(self.name(value), one, cuts)) for value, one in taken)
        outputs = tuple(StageOutput(boundary_value(self.name(value), one, cuts)) for value, one in given)
        head = f'"""{self.planned.graph.name}: {part.says}."""'
        return module.text(head, (f"{name.upper()} = StageCode({name}, {inputs!r}, {outputs!r})",))

    # -- the step

    def _train(self) -> str:
        planned, graph = self.planned, self.planned.graph
        inputs = "".join(f"        {self._whole(value)!r},\n" for value in graph.inputs)
        outputs = "".join(f"        {self._result(i)!r},\n" for i in range(len(graph.outputs)))
        routes = "".join(f"        {self._route(route)!r},\n" for route in self.programs.routes)
        late = {self.name(value): self._rows(value, value) for value in self._late()}
        stages = [f"stage_{i}" for i in range(planned.stages)]
        alone = "".join(f"    {name}={name.upper()},\n" for name in self.alone)
        imports = "".join(f"from {one} import STAGE as {one.upper()}\n" for one in stages)
        imports += "".join(f"from {name} import {name.upper()}\n" for name in self.alone)
        names = ("BoundaryValue", "ExportedRoute", "RowsPart", "SentBox", "StagesPlan", "StepOutput", "Wire", self.main)
        return (
            f'"""{graph.name} in {planned.described_devices}, with torch and numpy alone.\n\n'
            f"    torchrun --nproc-per-node {planned.devices} train.py [INPUTS.npz [OUTPUTS.npz]] [--steps N]\n\n"
            "Inputs that are not given are seeded random numbers. stage_0.py and so on have what each stage does,\n"
            'schedule.csv who does what when: edit them as you like. Made by autoshard.\n"""\n\n'
            "from __future__ import annotations\n\nfrom pathlib import Path\n\n"
            f"{imports}from stages_runtime import {', '.join(names)}\n\n"
            "PLAN = StagesPlan(\n"
            f"    stages=({', '.join(one.upper() for one in stages)},),\n"
            f"    micro_batches={planned.schedule.micro_batches},\n"
            f"    inputs=(\n{inputs}    ),\n    outputs=(\n{outputs}    ),\n"
            f"    updates={dict(graph.updates)!r},\n    late={late!r},\n"
            f"    terms={self.terms!r},\n{alone}    routes=(\n{routes}    ),\n)\n\n"
            'if __name__ == "__main__":\n'
            f'    {self.main}(PLAN, Path(__file__).with_name("schedule.csv"), __doc__ or "")\n'
        )

    def _late(self) -> list[Value]:
        """Values of the step whose rows micro batches make and that an update reads."""
        rows = {value for value, (_, form) in self.step.body.outputs.items() if isinstance(form, MicroRows)}
        read = dict.fromkeys(value for ready in self.programs.pieces.values() for value in ready.inputs)
        return [value for value in read if value in rows]

    def _whole(self, value: Value) -> BoundaryValue:
        of, shape = value.type, tuple(value.type.shape)
        return BoundaryValue(self.name(value), shape, shape, of.dtype.numpy.name, ((),) * len(shape))

    def _result(self, i: int) -> StepOutput:
        """An output of the step, and where it is made."""
        one, value = self.whole.outputs[i], self.planned.graph.outputs[i]
        if one not in self.whole.makers:
            return StepOutput(self._whole(value), given=self.name(one))
        form = self.step.body.outputs.get(value, (None, None))[1]
        return self._rows(value, value) if isinstance(form, MicroRows) else self._made(value, one)

    def _made(self, value: Value, one: Value) -> StepOutput:
        makers = self.whole.makers[one]
        stage = min(makers)
        place: Place = stage, makers[stage].kind
        outputs = self.programs.pieces[place].outputs
        # Of several layouts a sum's first is the one that is added up; of what is made once the last is no term.
        micro = runs_per_micro_batch(place[1])
        output = outputs.index(one) if micro else len(outputs) - 1 - outputs[::-1].index(one)
        return StepOutput(self._whole(value), place, output)

    def _rows(self, value: Value, of: Value) -> StepOutput:
        one, form = self.step.body.outputs[of]
        assert isinstance(form, MicroRows)
        piece = self.whole.pipeline.made_by[one]
        place: Place = piece.stage, piece.kind
        output = self.programs.pieces[place].outputs.index(one)
        return StepOutput(self._whole(value), place, output, RowsPart(form.dim, form.inner))

    def _route(self, route: Route) -> ExportedRoute:
        sent, passed = None, ()
        if not route.stays:
            groups = route.before.group.ranks, route.after.group.ranks
            sent = sent_boxes(deal(route.before, route.after, route.spans, route.relayed), *groups)
            passed = sent_boxes(passed_on(route.after, route.relayed), groups[1], groups[1])
        kinds = tuple(kind for _, kind in route.readers)
        dtype = route.value.type.dtype.numpy.name
        return ExportedRoute(
            route.source,
            route.output,
            route.stage,
            kinds,
            route.summed,
            route.after.local,
            dtype,
            sent,
            passed,
            self.wires.get(route.number),
        )


def _function(kind: str) -> str:
    """The name of the function of a kind of piece."""
    return _FUNCTIONS.get(kind) or f"update_{kind[1:]}"


def sent_boxes(parcels: Sequence[Parcel], sources: Sequence[int], targets: Sequence[int]) -> tuple[SentBox, ...]:
    """Parcels between ranks of meshes as boxes between those of all ranks."""
    return tuple(
        SentBox(sources[one.source], targets[one.target], _box(one.taken), _box(one.placed))
        for one in parcels
        if one.size
    )


def _box(place: Sequence[slice]) -> Box:
    return tuple((one.start, one.stop - one.start, 1) for one in place)


def _runtime(files: Sequence[str]) -> str:
    return "\n".join(
        (
            '"""What runs exported stages on torch: collectives inside of a stage, messages between stages, a step."""',
            "",
            "from __future__ import annotations",
            "",
            *imports_of(files),
            *carried_text(files),
            "",
        )
    )
