"""Commands that show what autoshard knows: layouts, operators, search modes, hardware."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from autoshard.cli.app import DeviceOptions, console, read_mesh
from autoshard.cli.output import Drawing, check_drawing, print_json
from autoshard.cli.progress import note
from autoshard.cli.records import (
    AllHardwareRecord,
    CallRecord,
    HeldBlockRecord,
    KnownOperatorRecord,
    LayoutRecord,
    ModeRecord,
    ModesRecord,
    NamedHardwareRecord,
    OperatorsRecord,
    StrategyRecord,
)
from autoshard.core.tensortype import TensorType
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.pictures import layout_svg
from autoshard.layout.show import show_layout
from autoshard.layout.tensor_map import TensorMap
from autoshard.util.errors import PlanError, ShapeError
from autoshard.util.files import write_atomically
from costmodel import Hardware, Link, calibrated_path, format_bytes, format_seconds, load, preset, presets
from costmodel.json_door import convert
from costmodel.store import CALIBRATED, HardwareRecord, hardware_data


def layout(
    tensor: Annotated[str, typer.Argument(metavar="TYPE", help="Type and shape, e.g. 'f32[64, 1024]'.")],
    text: Annotated[
        str,
        typer.Argument(
            metavar="LAYOUT",
            help="Axes per dim, e.g. 'dp, tp', 'dp.tp, -' or, with terms of a sum over tp, 'dp, - +tp'.",
        ),
    ],
    on: DeviceOptions,
    out: Drawing = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print blocks and ranks as JSON and nothing else.")] = False,
) -> None:
    """Draw which rank holds which block of a tensor, with MindSpore's device matrix and tensor map."""
    check_drawing(out)
    of, over = TensorType.parse(tensor), read_mesh(on)
    lies = Layout.parse(text, over)
    lies.check_fits(of.shape, str(of))
    local = of.with_shape(lies.local_shape(of.shape))
    if out is not None:
        write_atomically(out, layout_svg(of.shape, lies), PlanError)
    if as_json:
        print_json(_layout_record(of, lies))
        return
    typer.echo(f"{lies.show_type(of.shape, str(of.dtype))} on mesh {over}")
    typer.echo(f"a rank holds {local}, {format_bytes(local.nbytes)}")
    if not lies.partial and over.order is None:
        typer.echo(str(TensorMap.of(lies)))
    typer.echo(f"\n{show_layout(of.shape, lies)}")


def _layout_record(of: TensorType, lies: Layout) -> LayoutRecord:
    """A layout with its blocks, in the order of the ranks that hold them first."""
    local, over = of.with_shape(lies.local_shape(of.shape)), lies.mesh
    view = TensorMap.of(lies) if not lies.partial and over.order is None else None
    blocks: dict[tuple, list[int]] = {}
    for rank in range(over.devices):
        where = tuple((one.start, one.stop) for one in lies.block(rank, of.shape))
        blocks.setdefault(where, []).append(rank)
    return LayoutRecord(
        type=str(of),
        mesh=str(over),
        layout=str(lies),
        local_type=str(local),
        bytes_per_rank=local.nbytes,
        partial=".".join(map(over.show_ref, lies.partial)),
        device_matrix=None if view is None else tuple(view.device_matrix),
        tensor_map=None if view is None else tuple(view.tensor_map),
        blocks=tuple(HeldBlockRecord(where, tuple(ranks)) for where, ranks in blocks.items()),
    )


def operators(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One operator, e.g. MatMul.")] = None,
    call: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TYPE | ATTRIBUTE=VALUE]...",
            help="A call of it, e.g. 'f32[64, 24]' 'f32[24, 12]' transpose_b=False.",
        ),
    ] = None,
    *,
    on: DeviceOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON and nothing else.")] = False,
) -> None:
    """List the operators, or describe one: with a call also its rule, with -n or --mesh its strategies."""
    from autoshard.ops import lookup
    from autoshard.ops import operators as registered

    if name is None and as_json:
        print_json(OperatorsRecord(tuple(map(_operator_record, registered()))))
        return
    if name is None:
        table = Table("operator", "rule", "gradient", box=box.SIMPLE_HEAD, show_edge=False)
        for op in registered():
            table.add_row(f"{op.name}({_signature(op)})", _rule_text(op), "yes" if op.differentiable else "-")
        console().print(table)
        return
    op = lookup(name)
    over = read_mesh(on) if on.are_given else None
    if over is not None and not call:
        raise ShapeError(f"the strategies of {name} depend on its operands; add their types, e.g. 'f32[64, 24]'")
    if as_json:
        one = _operator_record(op, op.__doc__ or "", _call_record(op, call, over) if call else None)
        print_json(OperatorsRecord((one,)))
        return
    typer.echo(f"{op.name}({_signature(op)})")
    typer.echo(f"rule      {_rule_text(op)}")
    typer.echo(f"gradient  {'yes' if op.differentiable else 'none'}")
    if op.__doc__:
        typer.echo(f"\n{op.__doc__.strip()}")
    if call:
        _show_call(op, call, over)


def modes(
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON and nothing else.")] = False,
) -> None:
    """List the search modes, named plans among them, with the options that each takes by --option NAME=VALUE."""
    from autoshard.search import find_mode, search_modes
    from autoshard.search.named import named_plans
    from autoshard.search.registry import mode_options

    descriptions = {mode: (find_mode(mode).__doc__ or "").strip().partition("\n")[0] for mode in search_modes()}
    if as_json:
        named = named_plans()
        found = (ModeRecord(mode, words, mode_options(mode), mode in named) for mode, words in descriptions.items())
        print_json(ModesRecord(tuple(found)))
        return
    table = Table("mode", "what it does", "options", box=box.SIMPLE_HEAD, show_edge=False)
    for mode, words in descriptions.items():
        table.add_row(mode, words, ", ".join(mode_options(mode)))
    console().print(table)


def show_all_hardware(as_json: bool = False) -> None:
    """List the hardware presets and what `autoshard calibrate` saved, with their figures and where these are from."""
    if as_json:
        known = [NamedHardwareRecord(name, _hardware_record(preset(name))) for name in presets()]
        saved = [NamedHardwareRecord(name, _hardware_record(one), str(path)) for name, path, one in _saved()]
        print_json(AllHardwareRecord((*known, *saved)))
        return
    for name in presets():
        show_hardware(preset(name))
    _show_saved()


def _hardware_record(one: Hardware) -> HardwareRecord:
    return convert(hardware_data(one), HardwareRecord)


def _signature(op: Any) -> str:
    return ", ".join(_arguments(op))


def _arguments(op: Any) -> tuple[str, ...]:
    from autoshard.ops.positional import attribute_order

    operands = ("*xs",) if op.variadic else op.operand_names
    return (*operands, *attribute_order(op))


def _operator_record(op: Any, doc: str = "", call: CallRecord | None = None) -> KnownOperatorRecord:
    rule = op.options.rule if isinstance(op.options.rule, str) else None
    return KnownOperatorRecord(op.name, _arguments(op), rule, op.differentiable, doc.strip(), call)


def _call_record(op: Any, call: list[str], over: Mesh | None) -> CallRecord:
    rule, results, flops = _called(op, call)
    found = CallRecord(str(rule), results, flops)
    if over is None:
        return found
    from autoshard.core.enumerate import enumerate_strategies

    strategies = (
        StrategyRecord(one.in_strategy, tuple(map(str, one.result_layouts)), one.work_split)
        for one in enumerate_strategies(rule, over)
    )
    return CallRecord(str(rule), results, flops, str(over), tuple(strategies))


def _rule_text(op: Any) -> str:
    return op.options.rule if isinstance(op.options.rule, str) else "follows from the shapes"


def _called(op: Any, call: list[str]) -> tuple[Any, tuple[str, ...], float]:
    """The rule of a call, its results, and its operations."""
    operands = tuple(TensorType.parse(word) for word in call if "=" not in word)
    attrs = op.check_attributes(dict(_attribute(word) for word in call if "=" in word))
    results = op.result_types(operands, attrs)
    return op.rule(operands, attrs), tuple(map(str, results)), float(op.flops(operands, attrs))


def _show_call(op: Any, call: list[str], over: Mesh | None) -> None:
    rule, results, flops = _called(op, call)
    typer.echo(f"\nrule      {rule}")
    typer.echo(f"results   {', '.join(results)}")
    typer.echo(f"work      {flops:.3g} operations")
    if over is not None:
        _show_strategies(rule, over)


def _show_strategies(rule: Any, over: Mesh) -> None:
    from autoshard.core.enumerate import enumerate_strategies
    from autoshard.core.strategy import show_parts

    typer.echo(f"\nstrategies on mesh {over}")
    table = Table("in_strategy", "results", "work split", box=box.SIMPLE_HEAD, show_edge=False)
    for one in enumerate_strategies(rule, over):
        results = "; ".join(f"[{lies}]" for lies in one.result_layouts)
        table.add_row(show_parts(one.in_strategy), results, str(one.work_split))
    console().print(table)


def _attribute(word: str) -> tuple[str, Any]:
    name, _, value = word.partition("=")
    if not name.isidentifier():
        raise ShapeError(f"cannot read {word!r}; write a type, f32[64, 24], or an attribute, transpose_b=True")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return name, value


def show_hardware(known: Hardware) -> None:
    """The figures of one kind of hardware."""
    device = known.device
    rates = ", ".join(f"{dtype} {rate / 1e12:g}" for dtype, rate in device.peak_flops)
    typer.echo(f"{known.name}: {device.name}")
    typer.echo(f"  10^12 operations a second: {rates}")
    typer.echo(f"  memory {format_bytes(device.memory_bytes)}, {_rate(device.memory_bandwidth)}")
    typer.echo(f"  starting an operator takes {format_seconds(device.launch_seconds)}")
    if device.host_seconds:
        typer.echo(f"  its host starts one in {format_seconds(device.host_seconds)}")
    typer.echo(f"  source: {device.source}")
    for span, link in known.topology.levels:
        typer.echo(f"  {_reach(span)}: {_link(link)}")
    typer.echo("")


def _show_saved() -> None:
    """The calibration of this machine, and other saved hardware beside it."""
    own = calibrated_path()
    if not own.is_file():
        typer.echo("no calibration of this machine is saved; `autoshard calibrate -n RANKS` makes one")
    for name, path, found in _saved():
        measured = ", ".join(str(ranks) for ranks, _ in found.by_ranks)
        typer.echo(f"--hardware {name}, in {path}" + (f", for {measured} ranks" if measured else ""))
        show_hardware(found)


def _saved() -> Iterator[tuple[str, Path, Hardware]]:
    """What to call saved hardware, its file, and the hardware."""
    own = calibrated_path()
    for path in sorted(own.parent.glob("*.json"), key=lambda path: (path != own, path)):
        try:
            yield CALIBRATED if path == own else str(path), path, load(path)
        except ValueError as error:
            if path == own:  # others may be files of any kind
                note(str(error))


def _reach(span: int | None) -> str:
    return "any number of devices" if span is None else f"{span} devices"


def _link(link: Link) -> str:
    speed = f"{format_seconds(link.latency)} a message, {_rate(link.bandwidth)} one way"
    return f"{link.name}, {speed}; {link.source}"


def _rate(nbytes: float) -> str:
    return f"{nbytes / 1e9:g} GB/s"
