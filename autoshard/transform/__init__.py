"""Graph to graph: gradients, and leaving out what is not needed."""

from autoshard.transform.grad import gradient
from autoshard.transform.simplify import merge_equal, prune

__all__ = ["gradient", "merge_equal", "prune"]
