"""What one call of an operator takes in memory while it runs, numpy's own buffers included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from autoshard.core.rule import Rule
from autoshard.core.tensortype import TensorType
from autoshard.ops.registry import Operator

Types = tuple[TensorType, ...]


def call_bytes(op: Operator, rule: Rule | None, operands: Types, results: Types, attrs: Mapping[str, Any]) -> int:
    """Bytes that an operator takes while it runs on blocks of these types, besides them: its scratch, and the buffers
    through which numpy passes what it has to broadcast or to convert, of `np.getbufsize()` elements at most."""
    scratch = op.scratch(rule, operands, results, attrs)
    types = (*operands, *results)
    alike = op.spread == "pointwise" and len({(of.shape, of.dtype) for of in types}) == 1
    if not types or op.view or alike or rule is not None and rule.contracted:
        return scratch
    largest = max(types, key=lambda of: of.nbytes)
    return scratch + min(np.getbufsize() * largest.dtype.itemsize, largest.nbytes)
