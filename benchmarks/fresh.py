"""What benchmarks share that measure each case in a process of its own, so that nothing is remembered from one to the
next: running them, the sizes on the command line, and figures as JSON or as a table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.progress import track


def measured(measure: Callable, tasks: Iterable[tuple], doing: str) -> list[Any]:
    """What `measure(*task)` gives for each task, one after another, each in a fresh process; progress on stderr.

    `measure` is a function of a module, which the process imports; what it raises is raised here.
    """
    shown = track(list(tasks), doing, console=Console(stderr=True), transient=True)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return [pool.apply(measure, task) for task in shown]


def layers_on_mesh(text: str) -> tuple[int, str]:
    """A type for argparse: '12:8x8' is 12 layers on the mesh 8x8."""
    layers, _, mesh = text.partition(":")
    if not (layers.isdecimal() and int(layers) > 0 and mesh):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form LAYERS:MESH, such as 12:8x8")
    return int(layers), mesh


def tell(rows: list, as_json: bool, show: Callable[[list], None]) -> None:
    """The rows on stdout: as JSON, or as `show` has them."""
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)
