"""Model code to graphs: cells, parameters, layers, optimizers, and the trace that runs them symbolically."""

from autoshard.trace.cell import Cell, CellList, SequentialCell
from autoshard.trace.evaluate import evaluate
from autoshard.trace.function import Annotation, Traced, trace
from autoshard.trace.initializer import initializer, set_seed
from autoshard.trace.parameter import Parameter
from autoshard.trace.tensor import Tensor

__all__ = [
    "Annotation",
    "Cell",
    "CellList",
    "Parameter",
    "SequentialCell",
    "Tensor",
    "Traced",
    "evaluate",
    "initializer",
    "set_seed",
    "trace",
]
