"""The same as in `autoshard.mindspore.train`, under the name of MindSpore's module."""

from autoshard.mindspore.checkpoint import load_checkpoint, load_param_into_net, save_checkpoint

__all__ = ["load_checkpoint", "load_param_into_net", "save_checkpoint"]
