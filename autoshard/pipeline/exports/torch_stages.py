"""`torch-stages`: a folder of Python modules that run a step in stages on torch alone, a module for each stage.

`stage_0.py` and so on have what a stage does as functions, for people: forward, gradients of its input, gradients of
its weights, update. `schedule.csv` says who does what when, `train.py` runs it all under torchrun, and
`stages_runtime.py` moves blocks between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoshard.engines.code import carried_text, imports_of
from autoshard.engines.extras import need
from autoshard.engines.standalone_stages import StageSpec
from autoshard.pipeline.exports.module_text import RUNTIME, ModuleText
from autoshard.pipeline.exports.stage_spec import LOSS, PROLOGUE, StagesSpec
from autoshard.pipeline.exports.stage_text import CodeName, function_name, text_of
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.programs import Place
from autoshard.pipeline.schedules import csv_text
from autoshard.util.errors import PlanError
from autoshard.util.files import write_atomically

_SAYS = {
    PROLOGUE: "what every rank makes of the whole data before the micro batches",
    LOSS: "the loss, of the sums over micro batches",
}
_NAMES = "BoundaryValue", "RouteSpec", "SentBox", "StandaloneStages", "ValueSource", "Wire"


def save_torch_stages(planned: PipelineData, folder: str | Path) -> list[Path]:
    """Write the modules of a plan in stages into a folder; the files, each whole or not at all.

    Raises:
        RuntimeSetupError: torch is not installed.
        PlanError: an operator that torch lacks, or a file that cannot be written.
    """
    need("torch", "code of torch")
    return StageFolder(StagesSpec(planned, has_boxes=True)).write(folder)


class StageFolder:
    """The texts of all files of a plan in stages.

    Args:
        main: the function of the runtime that `train.py` calls.
        runtime: the files that the runtime carries.
    """

    def __init__(self, spec: StagesSpec, main: str = "main_stages", runtime: Sequence[str] = RUNTIME) -> None:
        self.spec, self.planned, self.main, self.runtime = spec, spec.planned, main, runtime
        self.plan = spec.plan({place: CodeName(function_name(place)) for place in spec.programs})

    def write(self, folder: str | Path) -> list[Path]:
        """Write all files, each whole or not at all.

        Raises:
            PlanError: an operator that torch lacks, or a file that cannot be written.
        """
        files = self.files().items()
        return [write_atomically(Path(folder) / name, text, PlanError, folders=True) for name, text in files]

    def files(self) -> dict[str, str]:
        """The texts by the names of the files."""
        found = {f"stage_{stage.number}.py": self._stage(stage) for stage in self.plan.stages}
        found |= {f"{function_name(place)}.py": self._part(place) for place in self.spec.parts}
        found["train.py"] = self._train()
        found["stages_runtime.py"] = _runtime(self.runtime)
        found["schedule.csv"] = csv_text(self.planned.schedule)
        return found

    def _stage(self, stage: StageSpec) -> str:
        programs = {function_name(one.place): self.spec.programs[one.place] for one in stage.pieces.values()}
        module = ModuleText(programs, self.spec.cuts_of(stage.number), "STAGE")
        partial = (one.partial for piece in stage.pieces.values() for one in piece.outputs if one.partial)
        axes = tuple(dict.fromkeys((*module.over, *partial)))
        owned = self.planned.whole.pipeline.stages[stage.number].parameters
        parameters = ", ".join(one.name for one in owned) or "none"
        head = (
            f'"""{self.planned.graph.name}, stage {stage.number} of {self.planned.stages}: what each rank of '
            f"{self.planned.group_of(stage.number)} runs."
            f"\n\nParameters: {parameters}.\nWhat stands in brackets is the layout of a value, `k` runs "
            'loops and `c` moves blocks between the ranks of the stage. Made by\nautoshard, and yours to edit.\n"""'
        )
        return module.text(head, replace(stage, axes=axes))

    def _part(self, place: Place) -> str:
        """The module of what every rank computes alone, on whole values."""
        name, piece = function_name(place), self.plan.prologue if place == PROLOGUE else self.plan.loss
        module = ModuleText({name: self.spec.programs[place]}, self.spec.cuts_of(place[0]), name.upper())
        return module.text(f'"""{self.planned.graph.name}: {_SAYS[place]}."""', piece)

    def _train(self) -> str:
        planned, graph = self.planned, self.planned.graph
        stages = [f"stage_{stage.number}" for stage in self.plan.stages]
        parts = {place: function_name(place) for place in self.spec.parts}
        imports = "".join(f"from {one} import STAGE as {one.upper()}\n" for one in stages)
        imports += "".join(f"from {name} import {name.upper()}\n" for name in parts.values())
        told: dict[str, Any] = {"stages": tuple(CodeName(one.upper()) for one in stages), "orders": ()}
        told |= {"prologue" if at == PROLOGUE else "loss": CodeName(name.upper()) for at, name in parts.items()}
        return (
            f'"""{graph.name} in {planned.described_devices}, with torch and numpy alone.\n\n'
            f"    torchrun --nproc-per-node {planned.devices} train.py [INPUTS.npz [OUTPUTS.npz]] [--steps N]\n\n"
            "Inputs that are not given are seeded random numbers. stage_0.py and so on have what each stage does,\n"
            'schedule.csv who does what when: edit them as you like. Made by autoshard.\n"""\n\n'
            "from __future__ import annotations\n\nfrom pathlib import Path\n\n"
            f"{imports}from stages_runtime import {', '.join((*_NAMES, self.main))}\n\n"
            f"PLAN = {text_of(replace(self.plan, **told))}\n\n"
            'if __name__ == "__main__":\n'
            f'    {self.main}(PLAN, Path(__file__).with_name("schedule.csv"), __doc__ or "")\n'
        )


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
