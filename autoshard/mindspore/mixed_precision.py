"""Mixed precision: which cells and primitives of a network compute in a narrow float type.

    net = amp.auto_mixed_precision(net, "O2")

| level | in the narrow type | in float32 |
|---|---|---|
| O0 | nothing | all |
| O1 | products, convolutions, ReLU and PReLU (`WHITE`), whose results are float32 | all else |
| O2 | all else | batch and layer norms (`BLACK`), and the network's result |
| O3 | all | the network's result |

Parameters stay float32: what is computed takes a narrow copy.
"""

from __future__ import annotations

from typing import Any

from autoshard.core.tensortype import DType
from autoshard.core.tensortype import dtype as element_type
from autoshard.mindspore import nn
from autoshard.mindspore.ops.primitive import PRIMITIVES, Named
from autoshard.trace.cell import Cell
from autoshard.trace.parameter import cast_all_to
from autoshard.util.errors import ContextError

WHITE_CELLS = (nn.Conv1d, nn.Conv2d, nn.Dense)
WHITE_PRIMITIVES = tuple(PRIMITIVES[name] for name in ("Conv2D", "MatMul", "BatchMatMul", "PReLU", "ReLU"))
BLACK = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)
LEVELS = ("O0", "O1", "O2", "O3")
_F16, _F32 = element_type("f16"), element_type("f32")


class WideResult(Cell):
    """A network whose results are float32; names stay as they are without it."""

    def __init__(self, network: Cell) -> None:
        super().__init__()
        self.network = network

    def prefixes(self, label: str, part: object) -> bool:
        return label != "network"

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return cast_all_to(_F32, self.network(*args, **kwargs))


def check_level(level: Any, what: str) -> None:
    """Raises ContextError where it is none of the levels."""
    if level == "auto":
        raise ContextError(f"{what}: 'auto' is not offered; 'O1' computes products and convolutions in float16, too")
    if level not in LEVELS:
        raise ContextError(f"{what} is {level!r}; it is one of {', '.join(map(repr, LEVELS))}")


def auto_mixed_precision(network: Cell, amp_level: str = "O0", dtype: Any = _F16) -> Cell:
    """Let a network compute in a narrow type as its level says; the network, or one around it.

    Args:
        dtype: float16 or bfloat16.

    Raises:
        ContextError: another level or type; no cell.

    Example:
        >>> import numpy as np
        >>> from autoshard.mindspore import amp, nn
        >>> net = amp.auto_mixed_precision(nn.SequentialCell(nn.Dense(4, 6), nn.LayerNorm((6,))), "O2")
        >>> net(np.ones((2, 4), np.float32)).dtype.name
        'float32'
    """
    check_level(amp_level, "auto_mixed_precision: amp_level")
    narrow = _narrow(dtype)
    if not isinstance(network, Cell):
        raise ContextError(f"auto_mixed_precision: network is {network!r}, which is no Cell")
    if amp_level == "O0":
        return network
    if amp_level == "O1":
        _only_white(network, narrow)
        return network
    _narrow_but(network, narrow, BLACK if amp_level == "O2" else ())
    return WideResult(network)


def mixed(network: Any, level: Any, keep_batchnorm_fp32: bool | None) -> bool:
    """Let a network that is trained at a level compute in float16; whether its loss is to be given float32.

    Raises:
        ContextError: another level, or no bool.
    """
    check_level(level, "amp_level")
    if not isinstance(keep_batchnorm_fp32, bool | None):
        raise ContextError(f"keep_batchnorm_fp32 is {keep_batchnorm_fp32!r}; it is True or False")
    if level == "O0":
        return False
    if level == "O1":
        auto_mixed_precision(network, level)
        return False
    keeps = level == "O2" if keep_batchnorm_fp32 is None else keep_batchnorm_fp32
    _narrow_but(network, _F16, BLACK if keeps else ())
    return True


def _narrow_but(network: Cell, narrow: DType, wide: tuple[type, ...]) -> None:
    """Let all of a network compute in the narrow type, but cells of these kinds, whose results are cast to it."""
    network.to_float(narrow)
    for _, cell in network.cells_and_names():
        if cell is not network and isinstance(cell, wide):
            cell.to_float(_F32)
            cell.result_type = narrow


def _only_white(cell: Cell, narrow: DType) -> None:
    if cell.compute_type is not None:
        return  # as the user said
    if type(cell) in WHITE_CELLS:
        cell.to_float(narrow)
        cell.result_type = _F32
        return
    for part in vars(cell).values():
        if isinstance(part, Named) and type(part) in WHITE_PRIMITIVES:
            part.compute_type = narrow
    for inner in cell.cells():
        _only_white(inner, narrow)


def _narrow(kind: Any) -> DType:
    try:
        found = element_type(kind)
    except Exception as error:
        raise ContextError(f"auto_mixed_precision: dtype is {kind!r}; it is float16 or bfloat16") from error
    if found.name not in ("f16", "bf16"):
        raise ContextError(f"auto_mixed_precision: dtype is {found}; it is float16 or bfloat16")
    return found
