"""Hardware by name: presets, what was measured on this machine, saved files, clusters that people describe.

>>> preset("h100").name
'h100'
"""

from __future__ import annotations

from difflib import get_close_matches

from costmodel.cluster import ENDING, read_cluster
from costmodel.hardware import Hardware
from costmodel.preset_table import PRESETS
from costmodel.store import CALIBRATED, is_saved, load

ALIASES = {"a100-80gb": "a100", "h100-80gb": "h100", "h100-700w": "h100", "trn2": "trainium2"}
"""Other names that presets have, which say what the shorter ones stand for."""


def preset(name: str) -> Hardware:
    """Hardware by name: of `presets()`, "calibrated" (what was measured here last), a saved FILE.json, or a cluster's
    FILE.toml.

    Raises:
        ValueError: an unknown name (the message lists all), or a file that cannot be read or holds no hardware.
    """
    name = ALIASES.get(name, name) if isinstance(name, str) else name
    if name in PRESETS:
        return PRESETS[name]
    if isinstance(name, str) and is_saved(name):
        return load(name)
    if isinstance(name, str) and name.endswith(ENDING):
        return read_cluster(name)
    known = (*PRESETS, CALIBRATED)
    near = get_close_matches(str(name), known)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f"no hardware preset {name!r}{meant}; there are {', '.join(known)}, or a FILE.json or FILE.toml")


def presets() -> tuple[str, ...]:
    """Names that `preset` knows."""
    return tuple(PRESETS)
