"""What tests of traced models share: a trace held against what its function computes, and its settled shardings."""

from __future__ import annotations

import numpy as np

from autoshard.ir.text import parse, show
from autoshard.ir.verify import verify
from autoshard.layout import Mesh
from autoshard.propagate.pipeline import run_pipeline
from autoshard.propagate.traced import mutable_module, shardings
from autoshard.trace import Traced, evaluate, trace
from autoshard.trace.asking import is_tensor
from autoshard.trace.structure import flatten
from autoshard.transform import merge_equal, prune


def checked(fn, *args, **options) -> Traced:
    """The trace, after the laws of graphs and their text; it computes what `fn` computes at once."""
    traced = trace(fn, *args, **options)
    verify(traced.graph)
    again = parse(show(traced.graph))
    assert show(again) == show(traced.graph)
    arrays = traced.inputs(*args)
    wanted = [leaf for _, leaf in flatten(fn(*args), is_tensor)[0]]
    count = len(traced.graph.outputs) - len(traced.graph.updates)
    for graph in (traced.graph, again, merge_equal(traced.graph), prune(traced.graph)):
        verify(graph)
        for one, other in zip(evaluate(graph, arrays)[:count], wanted, strict=True):
            np.testing.assert_allclose(one, other, 1e-5, 1e-6)
            assert isinstance(other, int | float) or one.dtype == other.dtype
    return traced


def settled(traced: Traced, mesh: Mesh) -> dict[str, str]:
    """The shardings of the whole pipeline by the values' names, outputs under their position."""
    work = mutable_module(traced, mesh)
    run_pipeline(work)
    assert work.main is not None
    found = {value.name: sharding for value, sharding in shardings(work).items()}
    found |= {f"output {i}": sharding for i, sharding in enumerate(work.main.attrs["outputs"])}
    return {name: str(one).removeprefix("<@mesh, ").removesuffix(">") for name, one in found.items() if one is not None}
