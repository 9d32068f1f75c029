"""Matrix products and einsum: values against numpy, rules in MindSpore's factor order, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard import ops
from autoshard.core.place import parse_strategy
from autoshard.core.tensortype import TensorType, dtype, type_of
from autoshard.layout import Mesh
from autoshard.ops.contract import parse_equation
from autoshard.util.errors import ShapeError
from tests.ops.checks import check_gradient

RNG = np.random.default_rng(12)


def rule_text(op: ops.Operator, *types: str, **attrs: object) -> str:
    return str(op.rule(tuple(map(TensorType.parse, types)), op.check_attributes(attrs)))


def test_rules_list_batch_m_k_n() -> None:
    assert rule_text(ops.matmul, "f32[4, 6]", "f32[6, 10]") == "m k, k n -> m n {m=4, k=6, n=10}"
    turned = rule_text(ops.matmul, "f32[4, 6]", "f32[10, 6]", transpose_b=True)
    assert turned == "m k, n k -> m n {m=4, k=6, n=10}"
    batched = rule_text(ops.batch_matmul, "f32[2, 12, 4, 6]", "f32[12, 6, 10]")
    assert batched == "_0 _1 m k, _1 k n -> _0 _1 m n {_0=2, _1=12, m=4, k=6, n=10}"


def test_splitting_k_leaves_a_partial_sum() -> None:
    types = (TensorType.parse("f32[24, 12]"), TensorType.parse("f32[12, 6]"))
    rule = ops.matmul.rule(types, ops.matmul.check_attributes({}))
    shapes = [one.shape for one in types]
    strategy = parse_strategy(rule, ((2, 4), (4, 1)), Mesh.parse("x=8"), shapes, "matmul")
    assert strategy.device_matrix == (2, 4, 1)
    assert strategy.out_strategy == ((2, 1),)
    assert len(strategy.reduced) == 1 and strategy.reduced[0].size == 4


def test_flops_count_a_multiplication_and_an_addition() -> None:
    types = (TensorType.parse("f32[24, 12]"), TensorType.parse("f32[12, 6]"))
    assert ops.matmul.flops(types, ops.matmul.check_attributes({})) == 2 * 24 * 12 * 6


@pytest.mark.parametrize("turns", [(a, b) for a in (False, True) for b in (False, True)], ids=str)
@pytest.mark.parametrize("lead", [(), (3,), (3, 2)], ids=str)
def test_matmul_and_its_gradient_with_leading_dims(lead: tuple[int, ...], turns: tuple[bool, bool]) -> None:
    attrs = {"transpose_a": turns[0], "transpose_b": turns[1]}
    x = RNG.normal(size=(*lead, *((6, 4) if turns[0] else (4, 6))))
    w = RNG.normal(size=(10, 6) if turns[1] else (6, 10))
    want = np.einsum("...mk,kn->...mn", np.swapaxes(x, -1, -2) if turns[0] else x, w.T if turns[1] else w)
    np.testing.assert_allclose(ops.matmul(x, w, **attrs), want)
    assert check_gradient(ops.matmul, [x, w], attrs) == 2


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_einsum_of_two_agrees_with_numpy(data: st.DataObject) -> None:
    sizes = dict(zip("abcde", (2, 3, 4, 5, 6), strict=True))
    names = st.lists(st.sampled_from("abcde"), unique=True, max_size=4).map("".join)
    left, right = data.draw(names), data.draw(names)
    known = sorted(set(left + right))
    result = "".join(data.draw(st.permutations(known))[: data.draw(st.integers(0, len(known)))])
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, w = (rng.normal(size=[sizes[one] for one in letters]) for letters in (left, right))
    equation = f"{left},{right}->{result}"
    np.testing.assert_allclose(ops.einsum(x, w, equation=equation), np.einsum(equation, x, w), atol=1e-12)
    assert check_gradient(ops.einsum, [x, w], {"equation": equation}) == 2


def test_einsum_of_three_agrees_with_products() -> None:
    a, b, c = RNG.normal(size=(4, 6)), RNG.normal(size=(6, 10)), RNG.normal(size=(10, 3))
    np.testing.assert_allclose(ops.einsum(a, b, c, equation="ij, jk, kl -> li"), (a @ b @ c).T)
    assert parse_equation("ij, jk -> ik") == (("ij", "jk"), "ik")


@pytest.mark.parametrize(("count", "equation"), [(1, "ij->i"), (2, "ij,kj->i"), (3, "ij,ij,ij->i")])
def test_narrow_floats_are_added_up_in_wider_ones(count: int, equation: str) -> None:
    ones = np.ones((2, 1000), dtype("bf16").numpy)
    assert (
        ops.einsum(*[ones] * count, equation=equation)[0]
        == ops.einsum(*[np.ones((2, 1000))] * count, equation=equation)[0]
    )


def test_gradient_repeats_what_was_summed_in_one_operand_alone() -> None:
    x, w = RNG.normal(size=(4, 6)), RNG.normal(size=(4, 3))
    y = ops.einsum(x, w, equation="ij,ik->i")
    dx, _ = ops.einsum.cotangents(np.ones(4), y, (x, w), {"equation": "ij,ik->i"})
    np.testing.assert_allclose(dx, np.repeat(w.sum(1)[:, None], 6, 1))


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "text"),
    [
        ("matmul", [(4, 6), (10, 6)], {}, r"MatMul .*k is 10 in operand 1 \(10, 6\) but k is 6 in operand 0"),
        ("matmul", [(4, 6), (2, 6, 10)], {}, "else use BatchMatMul"),
        ("batch_matmul", [(6,), (6, 10)], {}, "2 or more dims"),
        ("batch_matmul", [(2, 4, 6), (3, 6, 10)], {}, "is 3 in operand 1"),
        ("einsum", [(4, 6), (6, 10)], {"equation": "ij,jk"}, "it has no '->'"),
        ("einsum", [(4, 4)], {"equation": "ii->i"}, "operand 0 repeats a letter"),
        ("einsum", [(4, 6)], {"equation": "ij->jj"}, "the result repeats a letter"),
        ("einsum", [(4, 6)], {"equation": "ij->ik"}, "no operand has k"),
        ("einsum", [(4, 6)], {"equation": "...j->j"}, "'...' is not supported"),
        ("einsum", [(4, 6)], {"equation": "ij,jk->ik"}, "takes 2 operands, not 1"),
        ("einsum", [(4, 6)], {"equation": "ijk->i"}, "operand 0 has 2 dims"),
    ],
)
def test_bad_operands_are_named(op: str, shapes: list, attrs: dict, text: str) -> None:
    arrays = [np.ones(shape) for shape in shapes]
    with pytest.raises(ShapeError, match=text):
        getattr(ops, op)(*arrays, **attrs)
    with pytest.raises(ShapeError, match=text):
        getattr(ops, op).rule(tuple(map(type_of, arrays)), getattr(ops, op).check_attributes(attrs))
