"""`autoshard redistribute`: how a tensor gets from one layout to another, what it costs, and which blocks move."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from autoshard.cli.app import DeviceOptions, read_mesh
from autoshard.core.tensortype import TensorType
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.show import MAX_BLOCKS, show_layout
from autoshard.util.doing import doing
from autoshard.util.errors import LayoutError
from costmodel import format_bytes, format_seconds

if TYPE_CHECKING:
    from autoshard.cost.prices import Prices
    from autoshard.redistribute.reshape import Leg
    from autoshard.redistribute.step import Step

_TYPE = r"\w+\s*\[[^\]]*\]"
_CHANGE = re.compile(rf"\s*({_TYPE})\s*(.*?)\s*->\s*({_TYPE})?\s*(.*?)\s*", re.DOTALL)
# Ranks whose boxes are listed one by one at most.
MAX_BOXES = 64


class RedistributionRequest(NamedTuple):
    """What is asked for: `new` is the type after, of another shape if the tensor is reshaped."""

    of: TensorType
    before: Layout
    after: Layout
    new: TensorType


def redistribute(
    change: Annotated[
        str,
        typer.Argument(
            metavar="'TYPE FROM -> [TYPE] TO'",
            help="A type and two layouts, e.g. 'f32[64, 1024] dp, - -> -, tp' or 'f32[64, 32] -, - +tp -> tp, -'; "
            "with a type after the arrow the tensor is reshaped: 'f32[64, 32] dp, tp -> f32[2048] dp.tp'.",
        ),
    ],
    on: DeviceOptions,
    hardware: Annotated[
        str, typer.Option("--hardware", metavar="NAME", help="Links to price the steps by; see autoshard hardware.")
    ] = "cpu",
    allow_memory: Annotated[
        bool, typer.Option("--allow-memory", help="Blocks on the way may be larger than both ends.")
    ] = False,
    thrifty: Annotated[
        bool,
        typer.Option("--thrifty", help="Fewest bytes even if it takes more collectives: all ranks take part in sums."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the steps as JSON.")] = False,
) -> None:
    """Plan the collectives that bring a tensor from one layout to another with the fewest bytes received.

    Of ways that receive equally much the quickest on the given links is taken. Each step is shown with the bytes that
    one rank receives and its time, the sum with the least that any plan must receive, and a picture of who holds which
    block before, between and after.
    """
    from autoshard.api import known_hardware
    from autoshard.cost.prices import Prices

    over, prices = read_mesh(on), Prices(known_hardware(hardware))
    asked = read_change(change, over)
    if asked.new != asked.of:
        _reshape(asked, prices, as_json)
        return
    with doing("planning the redistribution"):
        leg = _planned(asked, prices, allow_memory, thrifty)
    record = _record(asked.of, leg, prices)
    if as_json:
        typer.echo(json.dumps(record, indent=2))
        return
    ends = (layout.show_type(asked.of.shape, str(asked.of.dtype)) for layout in (asked.before, asked.after))
    even = asked.of.with_shape(leg.shape)
    held = "" if even == asked.of else f", held as {even}: the layouts do not divide it"
    typer.echo(f"{' -> '.join(ends)} on {over}{held}\n")
    _print_steps(record)
    _draw(leg, asked.of.shape)


def _planned(asked: RedistributionRequest, prices: Prices, allow_memory: bool, thrifty: bool) -> Leg:
    from autoshard.redistribute.planner import evened, plan_steps, step_shape
    from autoshard.redistribute.reshape import Leg

    of, before, after, _ = asked
    even = evened(before, after, of.shape)

    def seconds(step: Step) -> float:
        return prices.step(step, of.with_shape(step_shape(step, even, of.shape)))

    ends = before, after
    steps = plan_steps(*ends, even, size=of.shape, seconds=seconds, allow_memory=allow_memory, thrifty=thrifty)
    return Leg(even, before, after, steps)


def _reshape(asked: RedistributionRequest, prices: Prices, as_json: bool) -> None:
    """Plan and show a redistribution across a reshape."""
    from autoshard.redistribute.reshape import reshape_steps

    of, before, after, new = asked
    legs = reshape_steps(before, of.shape, after, new.shape).legs
    records = [_record(of.with_shape(leg.shape), leg, prices) for leg in legs]
    if as_json:
        received = sum(one["bytes_received"] for one in records)
        whole = {"type": str(of), "to_type": str(new), "mesh": str(before.mesh), "legs": records}
        typer.echo(json.dumps({**whole, "bytes_received": received}, indent=2))
        return
    ends = (layout.show_type(one.shape, str(one.dtype)) for one, layout in ((of, before), (new, after)))
    typer.echo(f"{' -> '.join(ends)} on {before.mesh}")
    if not legs:
        typer.echo("\nnothing to do: each block is reshaped where it is")
    for leg, one in zip(legs, records, strict=True):
        typer.echo(f"\nas {of.with_shape(leg.shape)}: [{leg.before}] -> [{leg.after}]")
        _print_steps(one)
        _draw(leg, leg.shape)


def read_change(text: str, mesh: Mesh) -> RedistributionRequest:
    """Read `f32[64, 1024] dp, - -> -, tp`, or with a type after the arrow.

    Raises:
        LayoutError: not of this form, a layout does not fit its shape, or the types differ in more than their shape.
    """
    found = _CHANGE.fullmatch(text)
    if found is None:
        raise LayoutError(f"cannot read {text!r}; write a type and two layouts: 'f32[64, 1024] dp, - -> -, tp'")
    of = TensorType.parse(found[1])
    new = TensorType.parse(found[3]) if found[3] else of
    if new.dtype != of.dtype:
        raise LayoutError(f"{of} cannot become {new}: a redistribution does not convert elements")
    asked = RedistributionRequest(of, Layout.parse(found[2], mesh), Layout.parse(found[4], mesh), new)
    asked.before.check_fits(of.shape, str(of))
    asked.after.check_fits(new.shape, str(new))
    return asked


def _record(of: TensorType, leg: Leg, prices: Prices) -> dict:
    from autoshard.redistribute.bound import fewest_elements
    from autoshard.redistribute.planner import step_shape

    size = of.dtype.itemsize
    shapes = [step_shape(step, leg.shape, of.shape) for step in leg.steps]
    rows = [
        {
            "step": str(step),
            "kind": step.kind,
            "axes": str(step.groups),
            "group_size": step.groups.size,
            "rounds": step.rounds,
            "before": str(step.before),
            "after": str(step.after),
            "bytes_received": step.elements_moved(shape) * size,
            "seconds": prices.step(step, of.with_shape(shape)),
        }
        for step, shape in zip(leg.steps, shapes, strict=True)
    ]
    return {
        "type": str(of.with_shape(leg.shape)),
        "mesh": str(leg.before.mesh),
        "from": str(leg.before),
        "to": str(leg.after),
        "steps": rows,
        "bytes_received": sum(row["bytes_received"] for row in rows),
        "bound_bytes": fewest_elements(leg.before, leg.after, leg.shape, size=of.shape) * size,
        "seconds": sum(row["seconds"] for row in rows),
    }


def _print_steps(record: dict) -> None:
    rows = [
        (row["step"], f"[{row['after']}]", format_bytes(row["bytes_received"]), format_seconds(row["seconds"]))
        for row in record["steps"]
    ]
    if not rows:
        typer.echo("nothing to do: the layouts are the same")
        return
    total = f"bound {format_bytes(record['bound_bytes'])}"
    rows = [
        ("step", "then", "received", "time"),
        *rows,
        ("all", total, format_bytes(record["bytes_received"]), format_seconds(record["seconds"])),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        left = "  ".join(cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False))
        typer.echo(f"{left}  {row[2].rjust(widths[2])}  {row[3].rjust(widths[3])}")


def _draw(leg: Leg, size: tuple[int, ...]) -> None:
    """The blocks before and after each step, as far as the tensor reaches, and what moves between ranks."""
    devices = leg.before.mesh.devices
    if max(devices, leg.before.split, leg.after.split) > MAX_BLOCKS:
        typer.echo(f"\n{devices} ranks: no picture (at most {MAX_BLOCKS})")
        return
    typer.echo(f"\n[{leg.before}]\n{show_layout(leg.shape, leg.before, size)}")
    for step in leg.steps:
        typer.echo(f"\n{step}")
        for line in _boxes(step, leg.shape) if step.fetched else _moves(step):
            typer.echo(f"  {line}")
        typer.echo(f"[{step.after}]\n{show_layout(leg.shape, step.after, size)}")


def _boxes(step: Step, shape: tuple[int, ...]) -> list[str]:
    """Which boxes of the tensor each rank gets from whom."""
    mesh, fetched = step.before.mesh, step.fetched
    if fetched is None or mesh.devices > MAX_BOXES:
        return [f"{mesh.devices} ranks: their boxes are not listed (at most {MAX_BOXES})"]
    lines = []
    for rank in range(mesh.devices):
        found: dict[int, list[str]] = {}
        for piece in fetched.pieces(rank, shape):
            if piece.source != rank:
                found.setdefault(piece.source, []).append(_box(step.after, rank, piece.target_box, shape))
        got = ", ".join(f"{' '.join(boxes)} of {source}" for source, boxes in sorted(found.items()))
        lines.append(f"{rank} gets {got}" if got else f"{rank} has what it needs")
    return lines


def _box(layout: Layout, rank: int, placed: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    """Where a box of a rank's block lies in the tensor."""
    starts = [block.start for block in layout.block(rank, shape)]
    spans = (f"{start + one.start}:{start + one.stop}" for start, one in zip(starts, placed, strict=True))
    return f"[{', '.join(spans)}]"


def _moves(step: Step) -> list[str]:
    """Who exchanges with whom."""
    mesh = step.before.mesh
    if step.kind == "permute":
        rounds = []
        for number in range(step.rounds):
            sources = step.round(number).sources
            moves = [f"{source}>{rank}" for rank, source in enumerate(sources) if source != rank]
            name = f"round {number}: " if step.rounds > 1 else ""
            rounds.append(name + (" ".join(moves) or "each keeps its own piece"))
        return rounds
    if not step.communicates:
        return []
    groups = dict.fromkeys(tuple(map(int, step.groups.members(rank))) for rank in range(mesh.devices))
    return ["among " + "  ".join(",".join(map(str, members)) for members in groups)]
