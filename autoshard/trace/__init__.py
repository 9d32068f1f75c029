"""Model code to graphs: cells, parameters, layers, optimizers, and the trace that runs them symbolically."""

from typing import Any

from autoshard.trace.cell import Cell, CellList, SequentialCell
from autoshard.trace.evaluate import evaluate
from autoshard.trace.function import NodeAnnotation, Traced, trace
from autoshard.trace.initializer import initializer, set_seed
from autoshard.trace.parameter import Parameter
from autoshard.trace.tensor import TracedTensor
from autoshard.util.moved import former

__all__ = [
    "Cell",
    "CellList",
    "NodeAnnotation",
    "Parameter",
    "SequentialCell",
    "Traced",
    "TracedTensor",
    "evaluate",
    "initializer",
    "set_seed",
    "trace",
]


def __getattr__(name: str) -> Any:
    return former(__name__, name)
