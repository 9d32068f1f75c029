"""The same as in `autoshard.mindspore.nn`, under the name of MindSpore's module."""

from autoshard.trace.cell import Cell

__all__ = ["Cell"]
