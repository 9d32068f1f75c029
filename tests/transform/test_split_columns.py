"""split_columns keeps what a graph computes, and cuts columns before they are reshaped."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import autoshard as ash
from autoshard import ops
from autoshard.ir.graph import Graph
from autoshard.ir.verify import verify
from autoshard.partition.program import Collective
from autoshard.trace import evaluate, trace
from autoshard.transform.dim_atoms import DimAtom, reshaped
from autoshard.transform.split_columns import split_columns

RNG = np.random.default_rng(0)
BATCH, LENGTH, WIDTH, HEADS, SIZE = 4, 5, 6, 2, 7
X = RNG.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32)
W = RNG.normal(size=(WIDTH, 3 * HEADS * SIZE)).astype(np.float32)
APART = (BATCH, LENGTH, 3, HEADS, SIZE)


def summed(parts):
    query, key, value = parts
    return query * key + ops.relu(value)


def unstacked(x, w):
    return summed(ops.unstack(ops.reshape(ops.matmul(x, w), APART), axis=2))


def turned_and_unstacked(x, w):
    apart = ops.transpose(ops.reshape(ops.matmul(x, w), APART), (2, 0, 3, 1, 4))
    return summed(ops.unstack(apart, axis=0))


def turned_twice(x, w):
    apart = ops.transpose(ops.transpose(ops.reshape(ops.matmul(x, w), APART), (0, 3, 2, 1, 4)), (2, 1, 3, 0, 4))
    return summed(ops.unstack(apart, axis=0))


def places(x, w):
    apart = ops.reshape(ops.matmul(x, w), APART)
    return summed(apart[:, :, i] for i in (2, 0, 1))


def two_parts(x, w):
    apart = ops.transpose(ops.reshape(ops.matmul(x, w), APART), (0, 3, 1, 2, 4))
    first, second = ops.split(apart, axis=3, sizes=(1, 2))
    return first + second


def slices(x, w):
    made = ops.matmul(x, w)
    size = HEADS * SIZE
    return summed(made[..., i * size : (i + 1) * size] for i in range(3))


CASES: dict[str, tuple[Callable, dict[str, int]]] = {
    "unstacked": (unstacked, {"Split": 1, "Reshape": 3, "Transpose": 0, "Unstack": 0}),
    "turned and unstacked": (turned_and_unstacked, {"Split": 1, "Reshape": 3, "Transpose": 3, "Unstack": 0}),
    "turned twice": (turned_twice, {"Split": 1, "Reshape": 3, "Transpose": 3, "Unstack": 0}),
    "places": (places, {"Split": 1, "StridedSlice": 0}),
    "two parts": (two_parts, {"Split": 1, "Reshape": 2, "Transpose": 2}),
    "slices": (slices, {"Split": 1, "StridedSlice": 0}),
}


def made(function: Callable, *arrays: np.ndarray) -> Graph:
    """The graph as it is rewritten, which computes the same."""
    graph = trace(function, *arrays).graph
    found = split_columns(graph)
    verify(found)
    for got, want in zip(evaluate(found, arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    return found


def counted(graph: Graph, name: str) -> int:
    return sum(node.op.name == name for node in graph.nodes)


@pytest.mark.parametrize("case", CASES)
def test_columns_are_cut_once_and_first(case: str) -> None:
    function, wanted = CASES[case]
    found = made(function, X, W)
    assert {name: counted(found, name) for name in wanted} == wanted
    assert not any(value.type.shape == APART for value in found.values)
    assert len({node.label for node in found.nodes}) == len(found.nodes)


def needed_whole(x, w):
    apart = ops.reshape(ops.matmul(x, w), APART)
    return summed(ops.unstack(apart, axis=2)), ops.relu(apart)


def by_heads(x, w):
    """Each head has its query, key and value side by side: blocks of columns are heads."""
    return summed(ops.unstack(ops.reshape(ops.matmul(x, w), (BATCH, LENGTH, HEADS, 3, SIZE)), axis=3))


def gaps(x, w):
    made = ops.matmul(x, w)
    return made[..., :10] + made[..., 11:21]


def halves_turned(x, w):
    """As positions are turned: slices of what is no product stay, a roll is made of them."""
    made = ops.relu(ops.matmul(x, w))
    return ops.concat(made[..., 21:], made[..., :21], axis=2)


@pytest.mark.parametrize("function", [needed_whole, by_heads, gaps, halves_turned])
def test_what_is_needed_otherwise_stays(function: Callable) -> None:
    graph = trace(function, X, W).graph
    assert split_columns(graph) is graph


def test_annotated_nodes_stay() -> None:
    graph = trace(unstacked, X, W).graph
    for name in ("Reshape", "Unstack"):
        (node,) = (node for node in graph.nodes if node.op.name == name)
        assert split_columns(graph, [node]) is graph
    graph = trace(slices, X, W).graph
    node = next(node for node in graph.nodes if node.op.name == "StridedSlice")
    assert split_columns(graph, [node]) is graph


@pytest.mark.torch
def test_heads_of_fused_columns_are_split() -> None:
    """Megatron's attention runs by heads where people view columns as (3, heads, size): nothing is gathered."""
    import torch
    from torch import nn as tnn

    from tests.frontends.torch_steps import check_step

    class Block(tnn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = tnn.Linear(24, 72), tnn.Linear(24, 24)

        def forward(self, x):
            query, key, value = self.qkv(x).view(4, 6, 3, 4, 6).permute(2, 0, 3, 1, 4).unbind(0)
            mixed = tnn.functional.scaled_dot_product_attention(query, key, value)
            return {"loss": self.out(mixed.transpose(1, 2).reshape(4, 6, 24)).square().mean()}

    torch.manual_seed(0)
    model = check_step(Block(), (torch.randn(4, 6, 24),), mesh="dp=2 tp=2")
    planned = ash.plan(model, mesh="dp=2 tp=2", search="megatron", passes=())
    attention = next(node for node in planned.plan.graph.nodes if node.op.name == "Attention")
    assert planned.plan.strategy(attention).operand_layouts[0].parts[1] == 2
    kinds = {one.step.kind for one in planned.program.instructions if isinstance(one, Collective)}
    assert "all_gather" not in kinds


@pytest.mark.parametrize("before, after", [((2, 3), (3, 2)), ((4, 9), (6, 6)), ((2, 3, 5), (3, 10)), ((12,), (5, 2))])
def test_dims_that_are_cut_unevenly_are_not_known(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert reshaped(tuple((DimAtom(size),) for size in before), after) is None
