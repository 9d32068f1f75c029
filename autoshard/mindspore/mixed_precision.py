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

WHITE_CELLS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Dense, nn.LSTMCell, nn.RNNCell,
    nn.GRUCell,
)  # fmt: skip
WHITE_PRIMITIVES = tuple(
    PRIMITIVES[name] for name in ("Conv2D", "Conv2DTranspose", "MatMul", "BatchMatMul", "PReLU", "ReLU")
)
BLACK = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)
LEVELS = ("O0", "O1", "O2", "O3")
_BY_TARGET = {"GPU": "O2", "Ascend": "O3"}
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


def level_for(level: Any, target: str, what: str) -> Any:
    """The level that training has: "auto" is O2 for the device_target "GPU" and O3 for "Ascend".

    Raises:
        ContextError: "auto" for another target.
    """
    if level != "auto":
        return level
    if target not in _BY_TARGET:
        raise ContextError(
            f"{what} is 'auto', which is O2 for device_target 'GPU' and O3 for 'Ascend', but device_target is "
            f"{target!r}; name the level"
        )
    return _BY_TARGET[target]


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


def custom_mixed_precision(network: Cell, *, white_list: Any = None, black_list: Any = None, dtype: Any = _F16) -> Cell:
    """Let a network compute in a narrow type by a list of one's own of cells and primitives: these alone (white), or
    all but these (black); the network, or one around it.

    Raises:
        ContextError: both lists, or none; one that holds something else; another type; no cell.

    Example:
        >>> import numpy as np
        >>> from autoshard.mindspore import amp, nn
        >>> net = amp.custom_mixed_precision(nn.SequentialCell(nn.Dense(4, 6), nn.ReLU()), white_list=[nn.Dense])
        >>> net(np.ones((2, 4), np.float32)).dtype.name
        'float32'
    """
    narrow, what = _narrow(dtype), "custom_mixed_precision"
    if not isinstance(network, Cell):
        raise ContextError(f"{what}: network is {network!r}, which is no Cell")
    if (white_list is None) == (black_list is None):
        raise ContextError(f"{what}: give one of white_list and black_list")
    kinds = tuple(white_list if black_list is None else black_list)
    wrong = [one for one in kinds if not isinstance(one, type) or not issubclass(one, Cell | Named)]
    if wrong:
        raise ContextError(f"{what}: {wrong[0]!r} is no class of cells or primitives")
    if black_list is None:
        _only_white(network, narrow, kinds)
        return network
    held = [one for one in kinds if not issubclass(one, Cell)]
    if held:
        raise ContextError(f"{what}: black_list has the primitive {held[0].__name__}; it has cells here")
    _narrow_but(network, narrow, kinds)
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


def _only_white(cell: Cell, narrow: DType, white: tuple[type, ...] = WHITE_CELLS + WHITE_PRIMITIVES) -> None:
    if cell.compute_type is not None:
        return  # as the user said
    if type(cell) in white:
        cell.to_float(narrow)
        cell.result_type = _F32
        return
    for part in vars(cell).values():
        if isinstance(part, Named) and type(part) in white:
            part.compute_type = narrow
    for inner in cell.cells():
        _only_white(inner, narrow, white)


def _narrow(kind: Any) -> DType:
    try:
        found = element_type(kind)
    except Exception as error:
        raise ContextError(f"auto_mixed_precision: dtype is {kind!r}; it is float16 or bfloat16") from error
    if found.name not in ("f16", "bf16"):
        raise ContextError(f"auto_mixed_precision: dtype is {found}; it is float16 or bfloat16")
    return found
