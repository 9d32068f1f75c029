"""Hardware by name: presets, what was measured on this machine, saved files.

>>> preset("h100").name
'h100'
"""

from __future__ import annotations

from costmodel.hardware import Hardware
from costmodel.preset_table import PRESETS
from costmodel.store import CALIBRATED, is_saved, load


def preset(name: str) -> Hardware:
    """Hardware by name: of `presets()`, "calibrated" (what was measured here last), or a saved FILE.json.

    Raises:
        ValueError: an unknown name (the message lists all), or a file that cannot be read or holds no hardware.
    """
    if name in PRESETS:
        return PRESETS[name]
    if isinstance(name, str) and is_saved(name):
        return load(name)
    raise ValueError(f"no hardware preset {name!r}; there are {', '.join(PRESETS)}, {CALIBRATED}, or a FILE.json")


def presets() -> tuple[str, ...]:
    """Names that `preset` knows."""
    return tuple(PRESETS)
