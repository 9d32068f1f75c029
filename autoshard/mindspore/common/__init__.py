"""Seeds, parameters in rows, and (`initializer`) what parameters begin with."""

from __future__ import annotations

from autoshard.mindspore.common.initializer import initializer
from autoshard.mindspore.common.jit import jit
from autoshard.mindspore.common.lazy_inline import lazy_inline
from autoshard.mindspore.tensor import Tensor
from autoshard.trace.initializer import get_seed, set_seed
from autoshard.trace.parameter import Parameter

__all__ = ["Parameter", "ParameterTuple", "Tensor", "get_seed", "initializer", "jit", "lazy_inline", "set_seed"]


class ParameterTuple(tuple):
    """Parameters in a row.

    Example:
        >>> from autoshard.mindspore import nn
        >>> [one.name for one in ParameterTuple(nn.Dense(2, 3).trainable_params())]
        ['weight', 'bias']
    """

    def __new__(cls, parameters: object = ()) -> ParameterTuple:
        found = super().__new__(cls, parameters)  # type: ignore[arg-type]
        wrong = [one for one in found if not isinstance(one, Parameter)]
        if wrong:
            raise TypeError(f"ParameterTuple holds parameters, not {type(wrong[0]).__name__}")
        return found
