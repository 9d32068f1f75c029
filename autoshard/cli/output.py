"""What commands write: files and folders, looked at before anything is planned, which may take long; and JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from autoshard.util.errors import ContextError
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
    """That a file can be written; None is no file.

    Args:
        making: whether its own directory will be made if it is not there.

    Raises:
        ContextError: it is a directory, its own directory is not there, or one of both must not be written.
    """
    if path is None:
        return
    parent = path.absolute().parent
    if path.is_dir():
        raise ContextError(f"cannot write {path}: it is a directory; name a file")
    if making:
        check_folder(parent)
    elif not parent.is_dir():
        raise ContextError(f"cannot write {path}: there is no directory {path.parent}")
    if parent.exists() and not os.access(path if path.exists() else parent, os.W_OK):
        raise ContextError(f"cannot write {path}: permission denied")


def check_folder(path: Path) -> None:
    """That files can be written into a folder, which is made if it is not there.

    Raises:
        ContextError: it, or what it would be made in, is a file or must not be written.
    """
    near = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    if not near.is_dir():
        raise ContextError(f"cannot write into {path}: {near} is a file")
    if not os.access(near, os.W_OK):
        raise ContextError(f"cannot write into {path}: permission denied")


def print_json(record: Any) -> None:
    """Print a Record, or plain data, as JSON on the standard output."""
    typer.echo(json.dumps(plain(record), indent=2))
