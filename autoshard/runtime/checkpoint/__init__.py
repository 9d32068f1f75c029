"""Sharded checkpoints: what ranks hold as safetensors files and an index, loaded onto any other mesh.

save("checkpoints", {"w": LocalBlocks(parts, Placed(type, layout))}, comm, step=100, keep=3)
load("checkpoints", {"w": Placed(type, other_layout)}, comm).arrays["w"]
"""

from typing import Any

from autoshard.runtime.checkpoint.convert import STATES, export_file, import_files, model_names
from autoshard.runtime.checkpoint.folder import checkpoints, find
from autoshard.runtime.checkpoint.index import Index, read_index
from autoshard.runtime.checkpoint.load import Loaded, Reader, check_names, find_source, load, open_source
from autoshard.runtime.checkpoint.placed import LocalBlocks, Placed
from autoshard.runtime.checkpoint.save import save
from autoshard.runtime.checkpoint.verify import damage
from autoshard.util.moved import former

__all__ = [
    "STATES",
    "Index",
    "Loaded",
    "LocalBlocks",
    "Placed",
    "Reader",
    "check_names",
    "checkpoints",
    "damage",
    "export_file",
    "find",
    "find_source",
    "import_files",
    "load",
    "model_names",
    "open_source",
    "read_index",
    "save",
]


def __getattr__(name: str) -> Any:
    return former(__name__, name)
