"""The plan of a target of the command line, and what several commands ask for it: arguments that they share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoshard.cli.app import read_mesh
from autoshard.cli.target import TargetError, is_module, load_target
from costmodel.json_door import JsonError, decode

if TYPE_CHECKING:
    from autoshard.api import Planned

Target = Annotated[
    str,
    typer.Argument(
        metavar="SCRIPT.py:FUNCTION|MODULE.mlir",
        help="A script and a function in it that returns (model, example inputs), or something traced; or a StableHLO "
        "module, which mostly names its mesh itself.",
    ),
]
Search = Annotated[
    str | None,
    typer.Option(
        "--mode",
        "--search",
        metavar="MODE",
        help="How strategies are found; `autoshard modes` lists the modes. Or the FILE.json of a saved plan. "
        "Default: sharding_propagation.",
    ),
]
HardwareName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Whose times to reckon with: `autoshard hardware` lists them; or `calibrated`, a FILE.json, or a"
        " cluster's FILE.toml.",
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
ModeOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the search mode, such as time_limit=30 of optimal, or placement=search; may be given again.",
    ),
]
MicroBatches = Annotated[
    int,
    typer.Option(
        metavar="M",
        help="Into how many parts the batch is cut, which are done one after the other; gradients are added.",
    ),
]
HARDWARE, DATASET = "cpu", "full_batch"


def planned_target(
    target: str, devices: int | None, mesh: str | None, options: Sequence[str] | None = None, **settings: Any
) -> Planned:
    """The plan of a target.

    Args:
        options: of the search mode, as NAME=VALUE.
        settings: what `autoshard.plan` takes by name: search, hardware, dataset_strategy, memory, micro_batches.

    Raises:
        TargetError: an option that is none.
        AutoshardError: as `autoshard.plan`.
    """
    from autoshard.api import plan
    from autoshard.mindspore.context import set_auto_parallel_context

    settings["options"] = read_options(options or ())
    if is_module(target):
        over = None if devices is None and mesh is None else read_mesh(devices, mesh)
        return plan(Path(target), mesh=over if mesh else None, devices=devices, **settings)
    over = read_mesh(devices, mesh)
    # A script may ask how many devices there are while it is loaded.
    set_auto_parallel_context(device_num=over.devices)
    model, inputs = load_target(target)
    return plan(model, inputs, over, **settings)


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
