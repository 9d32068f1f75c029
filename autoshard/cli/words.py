"""Messages of the library in the words of the command line: its options for the parameters of functions."""

from __future__ import annotations

import re

_OPTIONS = {
    "search": "--mode",
    "memory": "--memory",
    "mesh": "--mesh",
    "devices": "-n",
    "hardware": "--hardware",
    "dataset_strategy": "--dataset-strategy",
    "micro_batches": "--micro-batches",
    "statistics": "--statistics",
    "loss_pieces": "--loss-pieces",
}
"""The options of commands by the parameters of `autoshard.plan`."""

_GIVEN = re.compile(rf"\b({'|'.join(_OPTIONS)})=('[^']*'|[\w.]+)")
_NAMED = re.compile(r"\bdataset_strategy\b|^memory(?=:)")


def as_options(message: str) -> str:
    """The message with options where it names parameters: `--mode optimal` for `search='optimal'`."""
    found = _GIVEN.sub(lambda match: f"{_OPTIONS[match[1]]} {_bare(match[2])}", message)
    return _NAMED.sub(lambda match: _OPTIONS[match[0]], found)


def _bare(value: str) -> str:
    """A value without the quotes that a shell does not need."""
    return value if " " in value else value.strip("'")
