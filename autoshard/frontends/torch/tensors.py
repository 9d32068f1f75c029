"""Arrays and element types of torch as those of autoshard; bfloat16 by its bits, as numpy has no such type."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import numpy as np

from autoshard.core.tensortype import DType, TensorType
from autoshard.core.tensortype import dtype as element_type
from autoshard.trace.initializer import Deferred
from autoshard.util.errors import RuntimeSetupError, ShapeError

_NAMES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64", "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip


def element(of: Any) -> DType:
    """The element type of a torch.dtype.

    Raises:
        ShapeError: a type that autoshard has not, such as a quantized one.
    """
    name = str(of).removeprefix("torch.")
    if name not in _NAMES:
        raise ShapeError(f"tensors of {of} cannot be imported; known are {', '.join(_NAMES)}")
    return element_type(_NAMES[name])


def type_of_tensor(tensor: Any) -> TensorType:
    """Shape and element type of a tensor, a fake or meta one as well.

    Raises:
        ShapeError: an element type that autoshard has not, or a size that only a run tells.
    """
    unknown = [dim for dim, size in enumerate(tensor.shape) if not isinstance(size, int)]
    if unknown:
        raise ShapeError(f"the size of dim {unknown[0]} of its result depends on the data")
    return TensorType.of(tensor.shape, element(tensor.dtype))


def array_of(tensor: Any) -> np.ndarray:
    """The numbers of a tensor, copied.

    Raises:
        RuntimeSetupError: a meta tensor has none.
    """
    import torch

    if tensor.device.type == "meta":
        _no_numbers(f"a tensor {type_of_tensor(tensor)}")
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(element_type("bf16").numpy).copy()
    return tensor.numpy().copy()


def tensor_of(array: np.ndarray) -> Any:
    """The torch tensor with the numbers of an array."""
    import torch

    array = np.ascontiguousarray(array).reshape(np.shape(array))  # numpy gives a scalar a dim
    if element_type(array.dtype).name == "bf16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def values_of(tensor: Any, name: str) -> np.ndarray | Deferred:
    """What a Parameter of the name takes: the numbers, or for a meta tensor a type that has none."""
    if tensor.device.type != "meta":
        return array_of(tensor)
    return Deferred(type_of_tensor(tensor), partial(_no_numbers, name))


def _no_numbers(what: str) -> NoReturn:
    raise RuntimeSetupError(
        f"{what} is on torch's meta device: it has a type but no numbers, so the model can be planned and priced, "
        "but not run; build the module on the cpu to run it"
    )
