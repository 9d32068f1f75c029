"""Look-ups, extremes and attention on MPI ranks, with the dim split in which they look."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.core.strategy import Strategy
from autoshard.layout.mesh import Mesh
from autoshard.mindspore.communication import get_group_size
from autoshard.ops.registry import lookup
from autoshard.partition.lower import lower
from autoshard.runtime.interpret import Executor
from autoshard.runtime.mpi import default_comm
from tests.oracle.check import assert_same, plan_with, single
from tests.partition.exchanging import drawn

WORLD = get_group_size()
MESH = Mesh.flat(WORLD)
WINDOWS = {"offset_dims": (1, 2), "collapsed_slice_dims": (), "start_index_map": (0,), "index_vector_dim": 1}
WRITTEN = {"update_window_dims": (1, 2), "inserted_window_dims": (), "scatter_dims_to_operand_dims": (0,)}
SIZE = 5 * WORLD + 1
PLACES = np.array([[-1], [4], [SIZE - 2]], np.int32)
ZERO, THIRD = np.array(0, np.int32), np.array(3, np.int32)
SEQUENCE = [drawn(i, 2, 3 * WORLD, 4) for i in range(3)]
CASES = [
    ("DynamicSlice", [drawn(0, SIZE, 3), THIRD, ZERO], {"sizes": (4, 3)}),
    ("DynamicUpdateSlice", [drawn(0, SIZE, 3), drawn(1, 4, 3), THIRD, ZERO], {}),
    ("GatherSlices", [drawn(0, SIZE, 3), PLACES], {**WINDOWS, "slice_sizes": (3, 3)}),
    ("ScatterAddSlices", [drawn(0, SIZE, 3), PLACES, drawn(1, 3, 2, 3)], {**WRITTEN, "index_vector_dim": 1}),
    ("ArgMax", [drawn(0, SIZE, 3)], {"axis": 0}),
    ("ChloTopK", [drawn(0, SIZE)], {"k": 2}),
    ("Attention", SEQUENCE, {"sequence": "ring", "causal": True}),
]


@pytest.mark.parametrize(("op", "arrays", "attrs"), CASES, ids=[op for op, *_ in CASES])
def test_split_equals_whole(op, arrays, attrs):
    """The first dim of the first operand (of attention the second) split over all ranks."""
    graph, node = single(lookup(op), arrays, attrs)
    dim = 1 if op == "Attention" else 0
    (factor,) = node.rule.operands[0][dim]
    axes = tuple(MESH.all_axes if i == factor else () for i in range(len(node.rule.factors)))
    program = lower(plan_with(graph, node, Strategy(node.rule, MESH, axes)))
    outputs = Executor(program, default_comm(WORLD))(*arrays)
    for got, want in zip(outputs, node.op.evaluate(arrays, node.attrs), strict=True):
        assert_same(got, want, 1e-5, f"{op} {attrs} on {WORLD} ranks")
