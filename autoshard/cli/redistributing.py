"""`autoshard redistribute`: how a tensor gets from one layout to another, what it costs, and which blocks move."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from autoshard.cli.app import Devices, MeshText, read_mesh
from autoshard.errors import LayoutError
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.show import MAX_BLOCKS, show_layout
from autoshard.tensortype import TensorType
from costmodel import format_bytes, format_seconds, preset

if TYPE_CHECKING:
    from autoshard.redistribute.step import Step
    from autoshard.search.prices import Prices

_CHANGE = re.compile(r"\s*(\w+\s*\[[^\]]*\])\s*(.*?)\s*->\s*(.*?)\s*", re.DOTALL)


def redistribute(
    change: Annotated[
        str,
        typer.Argument(
            metavar="'TYPE FROM -> TO'",
            help="A type and two layouts, e.g. 'f32[64, 1024] dp, - -> -, tp' or 'f32[64, 32] -, - +tp -> tp, -'.",
        ),
    ],
    devices: Devices = None,
    mesh: MeshText = None,
    hardware: Annotated[
        str, typer.Option("--hardware", metavar="NAME", help="Links to price the steps by; see autoshard hardware.")
    ] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the steps as JSON.")] = False,
) -> None:
    """Plan the collectives that bring a tensor from one layout to another with the fewest bytes received.

    Each step is shown with the bytes that one rank receives and its time, the sum with the least that any plan must
    receive, and a picture of who holds which block before, between and after.
    """
    from autoshard.redistribute.planner import evened, plan_steps
    from autoshard.search.prices import Prices

    over = read_mesh(devices, mesh)
    true, before, after = read_change(change, over)
    of = true.with_shape(evened(before, after, true.shape))
    steps = plan_steps(before, after, of.shape)
    told = _told(of, before, after, steps, Prices(preset(hardware)))
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    ends = (layout.show_type(true.shape, str(true.dtype)) for layout in (before, after))
    held = "" if of == true else f", held as {of}: the layouts do not divide it"
    typer.echo(f"{' -> '.join(ends)} on {over}{held}\n")
    _print_steps(told)
    if max(over.devices, before.split, after.split) > MAX_BLOCKS:
        typer.echo(f"\n{over.devices} ranks: no picture (at most {MAX_BLOCKS})")
        return
    _draw(of, before, steps)


def read_change(text: str, mesh: Mesh) -> tuple[TensorType, Layout, Layout]:
    """Read `f32[64, 1024] dp, - -> -, tp`.

    Raises:
        LayoutError: not of this form, or a layout does not fit the shape.
    """
    found = _CHANGE.fullmatch(text)
    if found is None:
        raise LayoutError(f"cannot read {text!r}; write a type and two layouts: 'f32[64, 1024] dp, - -> -, tp'")
    of = TensorType.parse(found[1])
    ends = Layout.parse(found[2], mesh), Layout.parse(found[3], mesh)
    for layout in ends:
        layout.check_fits(of.shape, str(of))
    return of, *ends


def _told(of: TensorType, before: Layout, after: Layout, steps: tuple[Step, ...], prices: Prices) -> dict:
    from autoshard.redistribute.bound import fewest_elements

    size = of.dtype.itemsize
    rows = [
        {
            "step": str(step),
            "kind": step.kind,
            "axes": str(step.groups),
            "group_size": step.groups.size,
            "rounds": step.rounds,
            "before": str(step.before),
            "after": str(step.after),
            "bytes_received": step.elements_moved(of.shape) * size,
            "seconds": prices.step(step, of),
        }
        for step in steps
    ]
    return {
        "type": str(of),
        "mesh": str(before.mesh),
        "from": str(before),
        "to": str(after),
        "steps": rows,
        "bytes_received": sum(row["bytes_received"] for row in rows),
        "bound_bytes": fewest_elements(before, after, of.shape) * size,
        "seconds": sum(row["seconds"] for row in rows),
    }


def _print_steps(told: dict) -> None:
    rows = [
        (row["step"], f"[{row['after']}]", format_bytes(row["bytes_received"]), format_seconds(row["seconds"]))
        for row in told["steps"]
    ]
    if not rows:
        typer.echo("nothing to do: the layouts are the same")
        return
    total = f"bound {format_bytes(told['bound_bytes'])}"
    rows = [
        ("step", "then", "received", "time"),
        *rows,
        ("all", total, format_bytes(told["bytes_received"]), format_seconds(told["seconds"])),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        left = "  ".join(cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False))
        typer.echo(f"{left}  {row[2].rjust(widths[2])}  {row[3].rjust(widths[3])}")


def _draw(of: TensorType, before: Layout, steps: tuple[Step, ...]) -> None:
    typer.echo(f"\n[{before}]\n{show_layout(of.shape, before)}")
    for step in steps:
        typer.echo(f"\n{step}")
        for line in _moves(step):
            typer.echo(f"  {line}")
        typer.echo(f"[{step.after}]\n{show_layout(of.shape, step.after)}")


def _moves(step: Step) -> list[str]:
    """Who exchanges with whom."""
    mesh = step.before.mesh
    if step.kind == "permute":
        rounds = []
        for number in range(step.rounds):
            sources = step.routing.round(number).sources
            moves = [f"{source}>{rank}" for rank, source in enumerate(sources) if source != rank]
            name = f"round {number}: " if step.rounds > 1 else ""
            rounds.append(name + (" ".join(moves) or "each keeps its own piece"))
        return rounds
    if not step.communicates:
        return []
    groups = dict.fromkeys(tuple(map(int, step.groups.members(rank))) for rank in range(mesh.devices))
    return ["among " + "  ".join(",".join(map(str, members)) for members in groups)]
