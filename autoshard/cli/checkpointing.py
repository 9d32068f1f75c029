"""`autoshard checkpoint show|verify|export|import`: look into checkpoints, check them, make plain files of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoshard.cli.command import Commands
from autoshard.cli.output import check_file, print_json
from autoshard.cli.records import DamageRecord, ImportedRecord, SafetensorsRecord
from autoshard.util.doing import doing
from autoshard.util.errors import CheckpointError
from costmodel import format_bytes, format_count

if TYPE_CHECKING:
    from autoshard.runtime.checkpoint import Index

checkpoint = Commands(
    name="checkpoint",
    help="Show and verify sharded checkpoints; export them to and import them from plain safetensors files.",
    no_args_is_help=True,
)

Directory = Annotated[
    Path,
    typer.Argument(metavar="DIRECTORY", help="A directory of checkpoints, of which the newest is meant; or one."),
]
Step = Annotated[int | None, typer.Option("--step", metavar="N", help="The checkpoint of this step.")]
Renames = Annotated[
    list[str] | None,
    typer.Option("--rename", metavar="REGEX=NEW", help=r"Change names, e.g. '^backbone\.=model.'; several in order."),
]
Only = Annotated[str, typer.Option("--only", metavar="GLOB", help="Take only the tensors of these names.")]


@checkpoint.command()
def show(
    directory: Directory,
    step: Step = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """Tell what a checkpoint holds: its step, what saved it, and each tensor with its layout and blocks."""
    from autoshard.runtime.checkpoint import checkpoints, find, read_index

    folder = find(directory, step)
    index = read_index(folder)
    if as_json:
        typer.echo(json.dumps(_record(folder, index), indent=2))
        return
    typer.echo(f"{folder}: step {index.step}, {_tensors(index)}, {format_bytes(index.nbytes)}")
    typer.echo(f"saved on mesh {index.mesh}, in {format_count(len(index.files), 'file')}")
    if folder != directory:
        typer.echo(f"checkpoints, oldest first: {', '.join(checkpoints(directory))}")
    for key, value in index.metadata.items():
        if value != []:
            typer.echo(f"{key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
    typer.echo()
    _print_tensors(index)


def _record(folder: Path, index: Index) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "step": index.step,
        "mesh": index.mesh,
        "ranks": index.ranks,
        "bytes": index.nbytes,
        "metadata": dict(index.metadata),
        "files": {name: one.nbytes for name, one in index.files.items()},
        "tensors": {
            name: {"type": str(one.type), "layout": one.layout, "blocks": len(one.blocks)}
            for name, one in index.tensors.items()
        },
    }


def _print_tensors(index: Index) -> None:
    rows = [("tensor", "type", "layout", "blocks", "bytes")]
    for name, one in index.tensors.items():
        rows.append((name, str(one.type), f"[{one.layout}]", str(len(one.blocks)), format_bytes(one.type.nbytes)))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        left = "  ".join(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False))
        typer.echo(f"{left}  {row[3].rjust(widths[3])}  {row[4].rjust(widths[4])}")


@checkpoint.command()
def verify(
    directory: Directory,
    step: Step = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is damaged as JSON and nothing else.")] = False,
) -> None:
    """Compare every byte of a checkpoint with its checksums; the exit code is 1 if anything is damaged."""
    from autoshard.runtime.checkpoint import damage, find, read_index

    folder = find(directory, step)
    index, wrong = read_index(folder), []
    with doing("comparing checksums"):
        for line in damage(folder):
            wrong.append(line)
            if not as_json:
                typer.echo(line)
    if as_json:
        print_json(DamageRecord(str(folder), len(index.tensors), len(index.files), tuple(wrong)))
    if wrong:
        raise typer.Exit(1)
    if as_json:
        return
    typer.echo(f"{folder}: {_tensors(index)} in {format_count(len(index.files), 'file')}, all as they were written")


@checkpoint.command("export")
def export_(
    directory: Directory,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The safetensors file to write.")],
    step: Step = None,
    rename: Renames = None,
    only: Only = "*",
    states: Annotated[bool, typer.Option("--states", help="Write the optimizer's states too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON and nothing else.")] = False,
) -> None:
    """Write a checkpoint's tensors, whole, into one safetensors file that any framework reads."""
    from autoshard.runtime.checkpoint import export_file

    check_file(file, making=True)
    with doing(f"writing {file}"):
        names = export_file(directory, file, step, _renaming(rename, only), states)
    if as_json:
        print_json(SafetensorsRecord(str(file), tuple(names), file.stat().st_size))
        return
    typer.echo(f"{file}: {format_count(len(names), 'tensor')}, {format_bytes(file.stat().st_size)}")


@checkpoint.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Safetensors files of one model.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIRECTORY", help="The directory of checkpoints.")],
    step: Annotated[int, typer.Option("--step", metavar="N", help="The step that the checkpoint is of.")] = 0,
    rename: Renames = None,
    only: Only = "*",
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON and nothing else.")] = False,
) -> None:
    """Make a checkpoint of the safetensors files that a framework wrote; any mesh and plan can load it."""
    from autoshard.runtime.checkpoint import import_files, read_index

    with doing("making the checkpoint"):
        folder = import_files(files, to, step, _renaming(rename, only))
    index = read_index(folder)
    if as_json:
        print_json(ImportedRecord(str(folder), len(index.tensors), index.nbytes))
        return
    typer.echo(f"{folder}: {_tensors(index)}, {format_bytes(index.nbytes)}")


def _tensors(index: Index) -> str:
    return format_count(len(index.tensors), "tensor")


def _renaming(texts: list[str] | None, only: str) -> Callable[[str], str | None]:
    """A function from old names to new ones; None for names that are left out."""
    changes = [_change(text) for text in texts or ()]

    def rename(name: str) -> str | None:
        if not fnmatchcase(name, only):
            return None
        for pattern, new in changes:
            try:
                name = pattern.sub(new, name)
            except (re.error, IndexError) as error:
                raise CheckpointError(f"cannot rename {name} by {pattern.pattern}={new}: {error}") from error
        return name

    return rename


def _change(text: str) -> tuple[re.Pattern[str], str]:
    old, equals, new = text.partition("=")
    try:
        if not equals:
            raise ValueError("it has no =")
        pattern = re.compile(old)
    except (re.error, ValueError) as error:
        raise CheckpointError(f"cannot read --rename {text!r}: {error}; write REGEX=NEW") from error
    return pattern, new
