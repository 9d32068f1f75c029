"""Data for training under MindSpore's names: rows of numpy arrays, and what is done to them on their way.

data = GeneratorDataset(rows, ["input", "label"]).map(Rescale(1 / 255, 0.0), "input")
data = data.shuffle(seed=1).batch(32, drop_remainder=True)
"""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.mindspore.dataset import transforms, vision
from autoshard.mindspore.dataset.datasets import BatchInfo, Dataset, Epochs
from autoshard.mindspore.dataset.rows import DataError
from autoshard.mindspore.dataset.sources import GeneratorDataset, NumpySlicesDataset

__all__ = [
    "BatchInfo", "DataError", "Dataset", "Epochs", "GeneratorDataset", "NumpySlicesDataset", "transforms", "vision",
    "zip",
]  # fmt: skip


def zip(datasets: Sequence[Dataset]) -> Dataset:
    """Rows of the columns of all, as many as the shortest has. Raises DataError: a name of a column comes twice."""
    first, *others = datasets
    return first.zip(others)
