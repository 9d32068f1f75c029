"""Two annotated operators make Megatron's plan of a transformer block (Shoeybi et al. 2019)."""

from __future__ import annotations

from collections import Counter

import pytest

from autoshard.api import plan
from autoshard.transform.train import train_step
from tests.transformer import batches, build


@pytest.fixture(scope="module")
def planned():
    return plan(train_step(*build(2, 4), *batches(1)[0]), devices=8)


def _parts(planned, name: str):
    return planned.plan.strategy(planned.graph.node(name)).in_strategy


def _weight(planned, name: str):
    value = next(value for value in planned.graph.inputs if value.name == name)
    return planned.plan.layouts[value].parts


def test_first_matrices_are_split_by_columns_and_second_ones_by_rows(planned):
    for name in ("query", "key", "value"):
        assert _parts(planned, f"block.attention.{name}.matmul") == ((2, 1, 1), (4, 1)), name
    assert _parts(planned, "block.attention.output.matmul") == ((2, 1, 4), (1, 4))
    assert _parts(planned, "block.feed_forward.mapping.matmul") == ((2, 1, 1), (4, 1))
    assert _parts(planned, "block.feed_forward.projection.matmul") == ((2, 1, 4), (1, 4))


def test_heads_are_split_everywhere(planned):
    assert _parts(planned, "block.attention.context") == ((2, 4, 1, 1),) * 3
    grads = [node for node in planned.graph.nodes if node.op.name in ("AttentionQueryGrad", "AttentionKeyGrad")]
    assert len(grads) == 2
    for node in grads:
        assert set(planned.plan.strategy(node).in_strategy) == {(2, 4, 1, 1)}, node.name


def test_parameters_lie_as_their_products_need_them(planned):
    for name in ("query", "key", "value"):
        assert _weight(planned, f"block.attention.{name}.weight") == (4, 1)
    assert _weight(planned, "block.attention.output.weight") == (1, 4)
    assert _weight(planned, "block.feed_forward.mapping.weight") == (4, 1)
    assert _weight(planned, "block.feed_forward.projection.weight") == (1, 4)
    assert _weight(planned, "moment1.block.feed_forward.mapping.weight")[0] >= 4, "states are split as well"


def test_two_reductions_per_block_and_direction(planned):
    """Each as an all_reduce, or in the form of a reduce_scatter and what gathers it again."""
    tensor = [one for one in planned.program.collectives if one.step.groups.size == 4 and one.operand.whole.rank == 3]
    forward = [one for one in tensor if one.serves is not None and one.serves.name.startswith("block.")]
    backward = [one for one in tensor if one.serves is not None and one.serves.name.startswith("grad.block.")]
    kinds = Counter(one.step.kind for one in forward)
    assert kinds["all_reduce"] + kinds["reduce_scatter"] == 2
    assert kinds["all_gather"] + kinds["all_to_all"] <= 2
    kinds = Counter(one.step.kind for one in backward)
    assert kinds["all_reduce"] + kinds["reduce_scatter"] == 2
    attention = [one for one in planned.program.collectives if one.operand.whole.rank == 4]
    assert not attention, "no heads move"


def test_every_gradient_is_reduced_once_over_the_batch(planned):
    """The terms of a weight's gradient meet once, when the update asks for them."""
    for one in planned.program.collectives:
        if one.serves is not None and one.serves.name == "update.block.feed_forward.mapping.weight":
            assert one.step.kind in ("all_reduce", "reduce_scatter")
            assert one.step.groups.size == 2
