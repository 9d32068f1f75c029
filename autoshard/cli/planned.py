"""The plan of a target of the command line, and the options of it that several commands share, as groups.

A command that has a parameter of such a group, `asked: Asked`, has the options that are its fields (`with_common`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from autoshard.cli.app import DeviceOptions, read_mesh
from autoshard.cli.progress import note
from autoshard.cli.target import TargetError, is_module, load_target, prints_apart
from autoshard.util.doing import doing
from autoshard.util.errors import ContextError
from costmodel.json_door import JsonError, decode

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # of typing from Python 3.13 on

    from autoshard.api import Planned
    from autoshard.pipeline import PlannedPipeline

Target = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT.py:FUNCTION|MODULE.mlir",
        help="A script and a function in it that returns (model, example inputs), or something traced; or a StableHLO "
        "module, which mostly names its mesh itself.",
    ),
]
HardwareName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Whose times to reckon with: `autoshard hardware` lists them; or `calibrated`, a FILE.json, or a"
        " cluster's FILE.toml; with what makes the programs: h100:eager, h100:inductor (torch.compile), tpu_v5p:xla.",
    ),
]
DatasetStrategy = Annotated[
    str,
    typer.Option(
        metavar="WHICH",
        help="Data inputs: 'full_batch' (whole on every rank) or 'data_parallel' (dim 0 split over all).",
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="What a device has, like '80 GiB': a plan that needs more is refused."),
]
MicroBatches = Annotated[
    int,
    typer.Option(
        metavar="M",
        help="Into how many parts the batch is cut, which are done one after the other; gradients are added.",
    ),
]
LossPieces = Annotated[
    int,
    typer.Option(
        metavar="P",
        help="Into how many parts the rows of a training step's logits are cut: their loss and gradients are made one "
        "after the other, so that logits are never there as a whole.",
    ),
]
Statistics = Annotated[
    str,
    typer.Option(
        metavar="WHOSE",
        callback=lambda whose: _statistics(whose),
        help="With --micro-batches: whose statistics a batch normalization takes in training: batch (refused, as they "
        "are not known in time) or micro-batch, as gradient accumulation does.",
    ),
]
AUTO, HARDWARE, DATASET, BATCH = "auto", "cpu", "full_batch", "batch"
Found = TypeVar("Found")


def _statistics(whose: str) -> str:
    """The library's word for whose statistics are taken."""
    if whose not in ("batch", "micro-batch", "micro_batch"):
        raise ContextError(f"--statistics is {whose!r}; it can be batch or micro-batch")
    return whose.replace("-", "_")


@dataclass(frozen=True)
class PlanOptions:
    """How a target is planned."""

    search: Annotated[
        str | None,
        typer.Option(
            "--mode",
            "--search",
            metavar="MODE",
            help="How strategies are found; `autoshard modes` lists the modes. Or the FILE.json of a saved plan. "
            "Default: sharding_propagation.",
        ),
    ] = None
    hardware: HardwareName = HARDWARE
    dataset_strategy: DatasetStrategy = DATASET
    memory: Memory = None
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            metavar="NAME=VALUE",
            help="An option of the search mode, such as time_limit=30 of optimal, or placement=search; may be given "
            "again.",
        ),
    ] = None
    micro_batches: MicroBatches = 1
    statistics: Statistics = BATCH
    loss_pieces: LossPieces = 1

    @property
    def settings(self) -> dict[str, Any]:
        """What `autoshard.plan` takes by name, and but for `dataset_strategy` `plan_pipeline`, too.

        Raises:
            TargetError: an option of the mode that is none.
        """
        names = ("search", "hardware", "dataset_strategy", "memory", "micro_batches", "statistics", "loss_pieces")
        return {**{name: getattr(self, name) for name in names}, "options": read_options(self.option or ())}


@dataclass(frozen=True)
class StageOptions:
    """How a training step is cut into stages."""

    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            metavar="AXIS|MESHES|auto",
            help="Cut a training step into stages: along an axis of the mesh (pp), or the mesh of each group of "
            "devices in turn: tp=2/dp=2,tp=2/tp=2, of unlike devices tp=2@h100/tp=4@a100; or auto: cuts, meshes, micro "
            "batches unless given, and schedule are searched, of unlike devices auto:4@h100/4@a100.",
        ),
    ] = None
    schedule: Annotated[
        str | None,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="With --pipeline: see `autoshard schedule`, or auto, the fastest by prediction; by default 1f1b.",
        ),
    ] = None
    chunks: Annotated[
        int | None,
        typer.Option("--chunks", metavar="V", min=1, help="With --pipeline: stages of each group of devices."),
    ] = None
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--stage",
            metavar="PATTERN=S",
            help="With --pipeline: the stage of operators and parameters by name, such as 'model.layers.{0..15}.*=0'; "
            "may be given again. By default stages cost alike.",
        ),
    ] = None

    @cached_property
    def stages(self) -> dict[str, Any] | None:
        """What `plan_pipeline` takes by name; None without a pipeline.

        Raises:
            TargetError: a PATTERN=S that is none, or what goes with a pipeline only.
        """
        if self.pipeline is None:
            given = {"--schedule": self.schedule, "--chunks": self.chunks, "--stage": self.stage or None}
            wrong = [name for name, value in given.items() if value is not None]
            if wrong:
                raise TargetError(f"{' and '.join(wrong)}: for stages; give --pipeline AXIS, too")
            return None
        from autoshard.pipeline.found_stages import is_auto

        usual = AUTO if is_auto(self.pipeline) else "1f1b"
        found = {"pipeline": self.pipeline, "schedule": self.schedule or usual, "chunks": self.chunks}
        return {**found, "stages": _stages(self.stage) if self.stage else None}


@dataclass(frozen=True)
class Asked(PlanOptions, DeviceOptions):
    """What a command asks of a plan in one piece."""

    def planned(self, target: str, search: str | None = None) -> Planned:
        """The plan of a target in one piece, by `search` if that is another mode than the one asked for.

        Raises:
            TargetError: an option that is none.
            AutoshardError: as `autoshard.plan`.
        """
        from autoshard.api import plan

        if is_module(target):
            over = read_mesh(self) if self.are_given else None
            settings = {**self.settings, "search": search or self.search}
            return plan(Path(target), mesh=over if self.mesh else None, devices=self.devices, **settings)
        return self._planned_by(partial(plan, search=search or self.search), target)

    def _planned_by(self, plan: Callable[..., Found], target: str) -> Found:
        """What a planning function makes of the model of a target on the devices that are given."""
        from autoshard.mindspore.context import set_auto_parallel_context

        over = read_mesh(self)
        # A script may ask how many devices there are while it is loaded.
        set_auto_parallel_context(device_num=over.devices)
        model, inputs = load_target(target)
        with prints_apart():
            return plan(model, inputs, over, **{name: one for name, one in self.settings.items() if name != "search"})


@dataclass(frozen=True)
class AskedInStages(StageOptions, Asked):
    """What a command asks of a plan in one piece or in stages."""

    def found(self, target: str, unlike: Mapping[str, Any] | None = None) -> Planned | PlannedPipeline:
        """The plan of a target: in stages if that is asked for, or where mode "auto" finds such a plan to be faster.

        Args:
            unlike: as `planned_stages` takes them; with one of these mode "auto" plans in one piece, and says so.
        """
        from autoshard.pipeline import plan_auto

        if self.stages is not None:
            return self.planned_stages(target, unlike)
        if is_module(target) or self.search != AUTO:
            return self.planned(target)
        if wrong := given_of(unlike or {}):
            note_one_piece(wrong)
            return self.planned(target)
        return self._planned_by(plan_auto, target)

    def planned_stages(self, target: str, unlike: Mapping[str, Any] | None = None) -> PlannedPipeline:
        """The plan of a target in stages.

        Args:
            unlike: other options that only a plan in one piece has, None where they are not given.

        Raises:
            ContextError: one of them, or a layout of data inputs: those of stages lie whole on every rank.
            AutoshardError: as `plan_pipeline`.
        """
        from autoshard.mindspore.context import set_auto_parallel_context
        from autoshard.pipeline import plan_pipeline

        assert self.stages is not None, "a plan in stages is asked for by --pipeline"
        usual = self.dataset_strategy == DATASET
        _refuse({**(unlike or {}), "--dataset-strategy": None if usual else self.dataset_strategy})
        if is_module(target):
            raise TargetError(
                f"--pipeline goes with a model, SCRIPT.py:NAME, not with {target}: a module has no stages"
            )
        settings = {name: value for name, value in self.settings.items() if name != "dataset_strategy"}
        over = read_mesh(self) if self.are_given else None
        if over is not None:
            set_auto_parallel_context(device_num=over.devices)
        model, inputs = load_target(target)
        with doing("planning in stages"), prints_apart():
            return plan_pipeline(model, inputs, over, **self.stages, **settings)


def is_whole(planned: Planned | PlannedPipeline) -> TypeIs[Planned]:
    """Whether a plan is in one piece."""
    from autoshard.api import Planned

    return isinstance(planned, Planned)


def check_has_stages(target: str) -> None:
    if is_module(target):
        raise TargetError(f"--pipeline goes with a model, SCRIPT.py:NAME, not with {target}: a module has no stages")


def given_of(options: Mapping[str, Any]) -> str:
    """The names of options that are given, as words."""
    return " and ".join(name for name, value in options.items() if value is not None)


def note_one_piece(wrong: str) -> None:
    """Tell that mode "auto" leaves plans in stages out, for which these options are not."""
    note(f"{wrong}: not for plans in stages, which mode auto leaves out here")


def _refuse(given: Mapping[str, Any]) -> None:
    if wrong := given_of(given):
        raise ContextError(f"{wrong}: not for a plan in stages (--pipeline) yet; leave it out")


def _stages(given: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in given:
        pattern, _, number = one.rpartition("=")
        if not pattern or not number.isdecimal():
            raise TargetError(f"cannot read --stage {one!r}; write PATTERN=S, like 'model.layers.{{0..15}}.*=0'")
        found[pattern] = int(number)
    return found


def read_options(given: Sequence[str]) -> dict[str, Any]:
    """Options of a mode by name; a value is a JSON number, true or false, else text.

    Raises:
        TargetError: something that is no NAME=VALUE, or a name given twice.
    """
    found: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not name or not equals or name in found:
            raise TargetError(f"cannot read --option {one!r}; write NAME=VALUE, each name once, like time_limit=30")
        found[name] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return decode(text, bool | int | float)
    except JsonError:
        return text
