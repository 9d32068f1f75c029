"""Where the data inputs of a graph lie: whole, split along the batch, or as a strategy for each says."""

from __future__ import annotations

from typing import Any

from autoshard.ir.graph import DATA, Graph, Value
from autoshard.layout.layout import Layout
from autoshard.layout.mesh import Mesh
from autoshard.layout.tensor_map import matrix_axes, onto
from autoshard.util.checks import positive
from autoshard.util.errors import AutoshardError, ContextError, PlanError

FULL_BATCH, DATA_PARALLEL = "full_batch", "data_parallel"
DatasetStrategy = str | tuple


def check_dataset_strategy(what: str, value: Any) -> DatasetStrategy:
    """`value`, if it is "full_batch", "data_parallel", or has a tuple of parts or a Layout per data input.

    Raises:
        ContextError: anything else.
    """
    if value in (FULL_BATCH, DATA_PARALLEL):
        return value
    if isinstance(value, Layout):
        return (value,)
    if isinstance(value, list | tuple) and value and all(isinstance(one, Layout | list | tuple) for one in value):
        return tuple(one if isinstance(one, Layout) else _parts(what, one) for one in value)
    raise ContextError(
        f"{what} is {value!r}; it can be 'full_batch', 'data_parallel', or a tuple with a tuple of parts "
        "(or a Layout) for each data input, such as ((8, 1), (8,))"
    )


def _parts(what: str, one: list | tuple) -> tuple[int, ...]:
    for parts in one:
        if positive(parts) is None:
            raise ContextError(f"{what} has {parts!r} parts in {tuple(one)}; parts are whole numbers of at least 1")
    return tuple(map(int, one))


def data_layouts(graph: Graph, mesh: Mesh, strategy: DatasetStrategy) -> dict[Value, Layout]:
    """The layouts that a dataset strategy gives to the graph's data inputs.

    Raises:
        PlanError: a strategy for another number of inputs, or one that does not fit or divide an input.
    """
    strategy = check_dataset_strategy("dataset_strategy", strategy)
    data = [value for value, role in zip(graph.inputs, graph.roles, strict=True) if role == DATA]
    if not isinstance(strategy, str) and len(strategy) != len(data):
        names = ", ".join(value.name for value in data)
        raise PlanError(
            f"dataset_strategy has {len(strategy)} entries, but there are {len(data)} data inputs ({names})"
        )
    layouts = {value: data_layout(mesh, strategy, i, value.type.rank, value.name) for i, value in enumerate(data)}
    for place, (value, layout) in enumerate(layouts.items()):
        uneven = not isinstance(strategy, str) and isinstance(strategy[place], Layout)
        if not uneven and not layout.divides(value.type.shape):
            raise PlanError(
                f"dataset_strategy splits {value.name}: {value.type} as [{layout}] into {layout.parts} "
                "parts, which do not divide it"
            )
    return layouts


def data_layout(mesh: Mesh, strategy: DatasetStrategy, place: int, rank: int, name: str = "") -> Layout:
    """The layout of data input number `place`, a tensor of `rank` dims.

    Raises:
        PlanError: an entry with another number of dims, or that the mesh cannot express.
    """
    if strategy == FULL_BATCH or not rank:
        return Layout.replicated(mesh, rank)
    if strategy == DATA_PARALLEL:
        return Layout(mesh, [mesh.all_axes, *[()] * (rank - 1)])
    assert not isinstance(strategy, str), "check_dataset_strategy knows both words"
    entry = strategy[place]
    count = entry.rank if isinstance(entry, Layout) else len(entry)
    label = name or f"number {place}"
    if count != rank:
        raise PlanError(f"dataset_strategy gives {count} entries to data input {label}, which has {rank} dims")
    try:
        return onto(entry, mesh) if isinstance(entry, Layout) else Layout(mesh, matrix_axes(mesh, entry))
    except AutoshardError as error:
        raise PlanError(f"dataset_strategy of data input {label}: {error}") from None
