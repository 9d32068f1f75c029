"""The same as in `autoshard.mindspore.common`, under the name of MindSpore's module."""

from autoshard.mindspore.common import ParameterTuple
from autoshard.trace.parameter import Parameter

__all__ = ["Parameter", "ParameterTuple"]
