"""Hardware by name: presets, what was measured on this machine, saved files, clusters that people describe.

>>> preset("h100").name
'h100'
>>> preset("h100:inductor").device.fusion
'inductor'
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from costmodel.cluster import ENDING, read_cluster
from costmodel.hardware import Hardware
from costmodel.host import hosted
from costmodel.preset_table import PRESETS
from costmodel.store import CALIBRATED, is_saved, load

ALIASES = {"a100-80gb": "a100", "h100-80gb": "h100", "h100-700w": "h100", "trn2": "trainium2"}
"""Other names that presets have, which say what the shorter ones stand for."""


def preset(name: str) -> Hardware:
    """Hardware by name: of `presets()`, "calibrated" (what was measured here last), a saved FILE.json, or a cluster's
    FILE.toml. Behind a colon stands what makes its programs, as `Device.fusion` has it, and starts them from a host:
    "h100:eager" for PyTorch's operators, "h100:inductor" for `torch.compile`, "tpu_v5p:xla" for JAX.

    Raises:
        ValueError: an unknown name (the message lists all), or a file that cannot be read or holds no hardware.
    """
    base, colon, how = name.rpartition(":") if isinstance(name, str) else ("", "", "")
    if colon and not is_saved(name):
        return made_by(preset(base), how)
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


def made_by(hardware: Hardware, how: str) -> Hardware:
    """The hardware whose programs are made so (`Device.fusion`), and started by a host.

    Raises:
        ValueError: no such way.
    """
    device = replace(hosted(hardware.device, how), fusion=how)
    return replace(hardware, name=f"{hardware.name}:{how}", device=device)


def presets() -> tuple[str, ...]:
    """Names that `preset` knows."""
    return tuple(PRESETS)
