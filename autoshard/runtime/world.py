"""How many ranks there are where nobody says it: those that were started, else those that settings plan for, else 1."""

from __future__ import annotations

import os
from collections.abc import Callable

from autoshard.runtime.identity import identity

_settings: list[Callable[[], int]] = []


def started_ranks() -> int:
    """How many ranks a launcher says it started together with this process; 0 if there is no sign of one."""
    own = identity()
    return own.ranks if own is not None else 0


def under_launcher() -> bool:
    """Whether each rank is a process of its own."""
    return os.environ.get("AUTOSHARD_LAUNCHED") == "1" or started_ranks() > 1


def planned_by(devices: Callable[[], int]) -> None:
    """Registers settings that may name a number of devices; `devices()` tells it, 0 if they name none."""
    _settings.append(devices)


def world_size() -> int:
    """The ranks that were started, else the devices that settings name, else 1."""
    if under_launcher():
        return max(started_ranks(), 1)
    return next((count for devices in _settings if (count := devices())), 1)
