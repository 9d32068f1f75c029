"""Graph to graph: gradients, training steps, and leaving out what is not needed."""

from autoshard.transform.grad import gradient
from autoshard.transform.simplify import merge_equal, prune
from autoshard.transform.train import TrainStep, train_step

__all__ = ["TrainStep", "gradient", "merge_equal", "prune", "train_step"]
