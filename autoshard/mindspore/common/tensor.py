"""The same as in `autoshard.mindspore.common`, under the name of MindSpore's module."""

from autoshard.mindspore.tensor import Tensor

__all__ = ["Tensor"]
