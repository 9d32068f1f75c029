"""The same as `autoshard.mindspore.communication`, under the name of MindSpore's module."""

from autoshard.mindspore.communication import get_group_size, get_rank, init, release

__all__ = ["get_group_size", "get_rank", "init", "release"]
