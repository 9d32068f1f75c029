"""Where a node of an exported graph comes from: the module that made it, and the line of the user's code."""

from __future__ import annotations

import linecache
import os
import re
import traceback
from functools import lru_cache
from typing import Any

from autoshard.util.source import Source, shown

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in [^\n]*\n(?:\s+(?P<text>[^\n]*))?')
_PREFIX = "L__self__"


def module_path(node: Any, wrapped: str = "") -> str:
    """`model.layers.0.mlp.up_proj`: the qualified name of the innermost module; `wrapped` is left out in front."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    path = path.removeprefix(f"{_PREFIX}.").removeprefix(_PREFIX)
    if wrapped and (path == wrapped or path.startswith(f"{wrapped}.")):
        return path[len(wrapped) + 1 :]
    return path


def source_line(node: Any) -> Source | None:
    """The innermost line outside of torch and autoshard that led to the node; None where torch noted none."""
    trace = node.meta.get("stack_trace")
    return _innermost(trace) if trace else None


def user_line(error: Exception) -> Source | None:
    """The innermost line outside of torch and autoshard that an error went through; None where there is none."""
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        file = frame.f_code.co_filename
        if not _inside_torch(file) and not _of_autoshard(file) and os.path.isfile(file):
            return Source(shown(file), line, linecache.getline(file, line).strip())
    return None


@lru_cache(maxsize=1024)
def _of_autoshard(file: str) -> bool:
    return file.startswith(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep)


@lru_cache(maxsize=8192)
def _innermost(trace: str) -> Source | None:
    found = _FRAME.finditer(trace)
    # What stands for torch's own functions (see `values`) is no more the user's than they are.
    frames = [match for match in found if not _inside_torch(match["file"]) and not _of_autoshard(match["file"])]
    if not frames:
        return None
    last = frames[-1]
    return Source(shown(last["file"]), int(last["line"]), (last["text"] or "").strip())


@lru_cache(maxsize=1024)
def _inside_torch(file: str) -> bool:
    """Whether it is a file of torch, or code that torch generated, which has none."""
    import torch

    return file.startswith("<") or file.startswith(os.path.dirname(torch.__file__) + os.sep)
