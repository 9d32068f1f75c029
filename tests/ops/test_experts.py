"""Tokens to experts and back: meaning, gradients, the split law, the work, and what there is no room for."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import ops
from autoshard.core.tensortype import TensorType
from autoshard.ops.registry import lookup
from autoshard.util.errors import ShapeError
from tests.oracle.samples import experts


@pytest.mark.parametrize(("blocks", "room"), [(12, 1), (4, 3), (1, 24)])
def test_each_token_meets_its_experts(blocks: int, room: int) -> None:
    rng, chosen = np.random.default_rng(3), experts.CHOSEN
    x, w, gates = rng.standard_normal((12, 5)), rng.standard_normal((8, 5, 7)), rng.standard_normal((12, 2))
    how = {"blocks": blocks, "room": room}
    sent = ops.dispatch_tokens(x, chosen, np.ones((12, 2)) / (1 + (chosen[:, :1] == chosen[:, 1:]) * (room == 1)),
                               experts=8, **how)  # fmt: skip
    found = ops.combine_tokens(np.matmul(sent, w), chosen, gates, **how)
    np.testing.assert_allclose(found, np.einsum("td,tjdf,tj->tf", x, w[chosen], gates))


def test_an_expert_without_room_is_an_error() -> None:
    with pytest.raises(ShapeError, match="3 of 6 choices in a block are of one expert, which has room for 2"):
        ops.dispatch_tokens(np.ones((3, 4)), np.array([[1, 0], [1, 2], [1, 3]]), np.ones((3, 2)), experts=4, blocks=1,
                            room=2)  # fmt: skip
    with pytest.raises(ShapeError, match="5 blocks with room for 1 do not divide 12 tokens"):
        ops.dispatch_tokens(np.ones((12, 4)), experts.CHOSEN, np.ones((12, 2)), experts=8, blocks=5, room=1)


def test_a_choice_counts_once_in_the_work() -> None:
    types = tuple(TensorType.parse(text) for text in ("f32[64, 6]", "i32[64, 2]", "f32[64, 2]"))
    op = lookup("DispatchTokens")
    assert op.flops(types, op.check_attributes({"experts": 8, "blocks": 16, "room": 1})) == 2 * 64 * 6 * 2


def test_rows_stay_in_their_own_type() -> None:
    """Rows of a shorter type than gates go to the tokens as they are, and so do their gradients."""
    rows, chosen = np.ones((8, 12, 6), "f2"), experts.CHOSEN
    attrs = lookup("CombineTokens").check_attributes(experts.OWN)
    gates = np.full((12, 2), 0.5, "f4")
    found = lookup("CombineTokens").evaluate([rows, chosen, gates], attrs)[0]
    grads = lookup("CombineTokens").cotangents(found, found, [rows, chosen, gates], attrs)
    assert (found.dtype, grads[0].dtype, grads[2].dtype) == ("f4", "f2", "f4")
