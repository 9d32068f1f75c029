"""What commands write: files and folders, looked at before anything is planned, which may take long; and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from autoshard.util.errors import ContextError
from autoshard.util.files import check_folder_writable, check_writable
from costmodel.json_door import plain

Drawing = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE.svg", help="Draw it as a picture.")]


def check_drawing(path: Path | None) -> None:
    """That a picture can be written; None is none.

    Raises:
        ContextError: its name does not end in .svg, or it cannot be written.
    """
    if path is not None and path.suffix != ".svg":
        raise ContextError(f"cannot draw {path}: the name of a picture must end in .svg")
    check_file(path)


def check_file(path: Path | None, making: bool = False) -> None:
    """That a file can be written, as `check_writable` says; None is no file.

    Raises:
        ContextError: it cannot.
    """
    if path is not None:
        check_writable(path, ContextError, making)


def check_folder(path: Path) -> None:
    """That files can be written into a folder, which is made if it is not there.

    Raises:
        ContextError: they cannot.
    """
    check_folder_writable(path, ContextError)


def print_json(record: Any) -> None:
    """Print a Record, or plain data, as JSON on the standard output."""
    typer.echo(json.dumps(plain(record), indent=2))
