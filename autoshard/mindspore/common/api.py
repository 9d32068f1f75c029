"""The same as in `autoshard.mindspore.common`, under the name of MindSpore's module."""

from autoshard.mindspore.common.jit import jit

__all__ = ["jit"]
