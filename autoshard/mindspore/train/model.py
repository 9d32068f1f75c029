"""The same as in `autoshard.mindspore.train`, under the name of MindSpore's module."""

from autoshard.mindspore.model import Model

__all__ = ["Model"]
