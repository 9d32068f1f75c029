"""ATen overloads against torch, family by family: results, element types and gradients, on drawn sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import autoshard as ash
from autoshard import nn
from autoshard.transform.simplify import prune
from autoshard.util.errors import ShapeError
from tests.frontends.torch_functions import check, check_gradients

pytestmark = pytest.mark.torch
SIZES = st.tuples(st.integers(1, 4), st.integers(2, 5), st.integers(3, 6))
FEW = settings(max_examples=2, deadline=None)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def apart(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers of which no two are near each other."""
    count = int(torch.tensor(shape).prod())
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).reshape(shape) / 7 - count / 20


@FEW
@given(SIZES)
def test_one_operand(shape: tuple[int, ...]) -> None:
    x = normal(*shape) + 0.05
    check_gradients(
        {
            "abs": torch.abs,
            "neg": torch.neg,
            "relu": F.relu,
            "exp": torch.exp,
            "sin": torch.sin,
            "cos": torch.cos,
            "tanh": torch.tanh,
            "sigmoid": torch.sigmoid,
            "erf": torch.erf,
            "silu": F.silu,
            "gelu": F.gelu,
            "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
            "leaky": lambda x: F.leaky_relu(x, 0.2),
            "elu": lambda x: F.elu(x, 1.5),
            "softplus": lambda x: F.softplus(x, 2.0),
            "square": torch.square,
            "log": lambda x: torch.log(x.abs() + 1),
            "log1p": lambda x: torch.log1p(x.abs()),
            "sqrt": lambda x: torch.sqrt(x.abs()),
            "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
            "reciprocal": lambda x: torch.reciprocal(x.abs() + 1),
            "clamp": lambda x: x.clamp(-0.4, 0.9),
            "clamp_min": lambda x: x.clamp(min=0.1),
            "hardswish": F.hardswish,
            "relu6": lambda x: F.relu6(x * 5),
            "floor": torch.floor,
            "trunc": torch.trunc,
            "sign": torch.sign,
            "pow3": lambda x: x**3,
            "pow-half": lambda x: (x.abs() + 1) ** -0.5,
            "two": lambda x: 2**x,
            "detach": lambda x: x.detach() * x,
            "expm1": lambda x: torch.expm1(x),
            "isnan": lambda x: x.isnan(),
            "isinf": lambda x: (x / 0).isinf(),
        },
        x,
    )


@FEW
@given(SIZES)
def test_two_operands(shape: tuple[int, ...]) -> None:
    a, b = normal(*shape), normal(*shape[1:], seed=1)
    check_gradients(
        {
            "add": lambda x, y: x + y,
            "alpha": lambda x, y: torch.add(x, y, alpha=0.5),
            "rsub": lambda x, y: 3 - x * y,
            "sub": lambda x, y: x - y - 2,
            "mul": lambda x, y: x * y * 3,
            "div": lambda x, y: x / (y.abs() + 1) / 4,
            "pow": lambda x, y: (x.abs() + 0.5) ** y,
            "max": torch.maximum,
            "min": torch.minimum,
            "where": lambda x, y: torch.where(x > y, x, y),
            "fill": lambda x, y: x.masked_fill(x < y, 0.5),
            "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3),
            "lerp": lambda x, y: torch.lerp(x, y, 0.3),
            "remainder": lambda x, y: torch.remainder(x, 0.7),
            "floordiv": lambda x, y: torch.floor_divide(x.detach(), 0.3),
            "compare": lambda x, y: (x < y) & (x >= -1) | (y != 0) ^ (x == y),
        },
        a,
        b,
    )


@FEW
@given(SIZES)
def test_element_types_are_promoted_as_in_torch(shape: tuple[int, ...]) -> None:
    whole, number = torch.arange(12).reshape(3, 4) - 5, torch.tensor(2.5)
    check(
        {
            "int+float": lambda i, s, f: i + 1.5,
            "int/int": lambda i, s, f: i / 4,
            "int//int": lambda i, s, f: i // 4,
            "int%int": lambda i, s, f: i % 4,
            "scalar": lambda i, s, f: i + s,
            "bool+bool": lambda i, s, f: (i > 0) + (i > 1),
            "bool*int": lambda i, s, f: (i > 0) * i,
            "half*scalar": lambda i, s, f: f.half() * s,
            "half+float": lambda i, s, f: f.half() + f,
            "sum of ints": lambda i, s, f: i.int().sum(),
            "mean": lambda i, s, f: f.mean(),
            "int32+int64": lambda i, s, f: i.int() + i,
            "bits": lambda i, s, f: i & 3 | 8 ^ i,
            "not": lambda i, s, f: ~i,
            "shift": lambda i, s, f: (i << 2) >> 1,
            "trunc": lambda i, s, f: torch.div(i, 4, rounding_mode="trunc"),
            "compare": lambda i, s, f: i > 1.5,
            "to": lambda i, s, f: f.to(torch.int32),
            "bool": lambda i, s, f: f.bool(),
            "double": lambda i, s, f: f.double() * 2,
        },
        whole,
        number,
        normal(*shape),
    )


@FEW
@given(SIZES)
def test_shapes(shape: tuple[int, ...]) -> None:
    a, b, c = shape
    x = apart(*shape)
    check_gradients(
        {
            "view": lambda x: x.view(a, b * c),
            "reshape": lambda x: x.reshape(c, -1) * 2,
            "permute": lambda x: x.permute(2, 0, 1),
            "transpose": lambda x: x.transpose(0, 2),
            "unsqueeze": lambda x: x.unsqueeze(-1),
            "squeeze": lambda x: x[None].squeeze(0),
            "expand": lambda x: x[:, None].expand(a, 3, b, c),
            "repeat": lambda x: x.repeat(2, 1, 3),
            "slice": lambda x: x[:, 1:, ::2],
            "back": lambda x: x[..., -2:],
            "select": lambda x: x[:, -1],
            "cat": lambda x: torch.cat([x, x[:, :1], x], 1),
            "stack": lambda x: torch.stack([x, x * 2], -1),
            "split": lambda x: x.split([1, b - 1], 1),
            "chunk": lambda x: x.chunk(2, -1),
            "unbind": lambda x: x.unbind(1),
            "flip": lambda x: x.flip(0, 2),
            "roll": lambda x: x.roll(1, -1),
            "tril": lambda x: x.tril(-1),
            "triu": lambda x: x.triu(1),
            "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
            "crop": lambda x: F.pad(x, (-1, 1), value=3.0),
            "interleave": lambda x: x.repeat_interleave(2, dim=1),
            "flatten": lambda x: x.flatten(1),
            "movedim": lambda x: x.movedim(0, 2),
            "slice_scatter": lambda x: torch.slice_scatter(x, x[:, :1] * 3, 1, 1, 2),
            "diff": lambda x: x.diff(dim=1),
            "select_scatter": lambda x: torch.select_scatter(x, x[:, 0] * 3, 1, 1),
            "clone": lambda x: x.clone().contiguous(),
            "strided": lambda x: x.permute(2, 0, 1).as_strided((3, b, c), (0, 1, b)),
            "new": lambda x: (
                torch.zeros_like(x),
                x.new_ones(2, 3),
                torch.full((2,), 3.0),
                torch.arange(5),
                torch.eye(3),
                x,
            ),
            "arange": lambda x: (torch.arange(2, 9, 3), torch.arange(4.0), torch.tensor(2.0), x),
        },
        x,
    )


@FEW
@given(SIZES)
def test_reductions_and_order(shape: tuple[int, ...]) -> None:
    x = apart(*shape)
    check_gradients(
        {
            "sum": lambda x: x.sum(),
            "sum dim": lambda x: x.sum((0, -1), keepdim=True),
            "mean": lambda x: x.mean(1),
            "prod": lambda x: (x / 3).prod(2),
            "amax": lambda x: x.amax((1, 2)),
            "amin": lambda x: x.amin(0),
            "max": lambda x: x.max(1),
            "min": lambda x: x.min(-1, keepdim=True),
            "all max": lambda x: x.max(),
            "argmax": lambda x: (x.argmax(1), x.argmin(), x.argmax(-1, keepdim=True)),
            "var": lambda x: x.var((1, 2)),
            "std": lambda x: x.std(1, correction=0),
            "var_mean": lambda x: torch.var_mean(x, 2, correction=0),
            "any": lambda x: ((x > 1).any(1), (x > 1).all()),
            "cumsum": lambda x: x.cumsum(1),
            "norm": lambda x: x.norm(dim=1),
            "norm1": lambda x: torch.linalg.vector_norm(x, 1),
            "topk": lambda x: x.topk(2, -1),
            "topk dim": lambda x: x.topk(2, 1, largest=False),
            "sort": lambda x: x.sort(1),
            "argsort": lambda x: x.argsort(-1, descending=True),
            "histc": lambda x: torch.histc(x.detach(), 4, -1.0, 1.0),
            "softmax": lambda x: (x / 3).softmax(1) * x,
            "log_softmax": lambda x: (x / 3).log_softmax(-1) * x,
        },
        x,
    )


@FEW
@given(SIZES)
def test_products_and_attention(shape: tuple[int, ...]) -> None:
    a, b, c = shape
    x, w, v = normal(a, b, c), normal(7, c, seed=1), normal(7, seed=2)
    check_gradients(
        {
            "linear": lambda x, w, v: F.linear(x, w, v),
            "mm": lambda x, w, v: w @ w.T,
            "bmm": lambda x, w, v: x.bmm(x.transpose(1, 2)),
            "addmm": lambda x, w, v: torch.addmm(v, x[0], w.T, beta=0.5, alpha=2.0),
            "vector": lambda x, w, v: w.T @ v,
            "row": lambda x, w, v: v @ w,
            "baddbmm": lambda x, w, v: torch.baddbmm(x[:, :, :1], x, x.transpose(1, 2)),
            "dot": lambda x, w, v: v.dot(v),
            "matmul": lambda x, w, v: x @ w.T,
            "broadcast": lambda x, w, v: x[:, None] @ w.T,
            "einsum": lambda x, w, v: torch.einsum("abc,dc->dab", x, w),
        },
        x,
        w,
        v,
    )
    q, k = normal(a, 4, b, 8), normal(a, 2, c, 8, seed=1)
    mask = torch.rand(b, c, generator=torch.Generator().manual_seed(3)) < 0.5
    mask[0] = False  # sees nothing: zeros
    check_gradients(
        {
            "plain": lambda q, k: F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), k.repeat(1, 2, 1, 1)),
            "groups": lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True, scale=0.3),
            "causal": lambda q, k: F.scaled_dot_product_attention(q, q, q, is_causal=True),
            "added": lambda q, k: F.scaled_dot_product_attention(q, k, k, k[:1, :1, :, 0] * 0 + 0.5, enable_gqa=True),
        },
        q,
        k,
    )
    check({"mask": lambda q, k, m: F.scaled_dot_product_attention(q, k, k, m, enable_gqa=True)}, q, k, mask)


@FEW
@given(SIZES)
def test_indexing(shape: tuple[int, ...]) -> None:
    a, b, c = shape
    x, rows, index = apart(*shape), torch.tensor([[0, -1, 1], [1, 0, 0]]), torch.tensor([1, 0])

    def put(x, r, i):
        y = x.clone()
        y[:, i] = x[:, :1] * 2
        y[0, 0, 1:] = 5.0
        return y

    check_gradients(
        {
            "rows": lambda x, r, i: x[:, r],
            "two": lambda x, r, i: x[:, i, i],
            "apart": lambda x, r, i: x[i[:, None] * 0, :, r[:, :2].abs()],
            "select": lambda x, r, i: x.index_select(1, i),
            "embedding": lambda x, r, i: F.embedding(r.abs(), x[0]),
            "put": put,
            "accumulate": lambda x, r, i: x.index_put((i * 0, i), x[0, 0], accumulate=True),
            "add": lambda x, r, i: x.index_add(1, i, x[:, :2]),
            "gather": lambda x, r, i: x.gather(1, r.abs()[:1, :2, None].expand(a, 2, c)),
            "one_hot": lambda x, r, i: F.one_hot(i, 3),
            "scatter": lambda x, r, i: x.scatter(1, i[None, :, None].expand(a, 2, c), x[:, :2] * 2),
            "value": lambda x, r, i: x.scatter(2, x.argmax(2, keepdim=True), 9.0),
            "scatter_add": lambda x, r, i: x.scatter_add(1, (i * 0)[None, :, None].expand(a, 2, c), x[:, :2]),
            "bucketize": lambda x, r, i: torch.bucketize(x, torch.tensor([-1.0, 0.0, 0.5])),
            "mask": lambda x, r, i: x.masked_fill(i[0] > 0, 0.0),
        },
        x,
        rows,
        index,
    )


@FEW
@given(SIZES)
def test_norms_and_losses(shape: tuple[int, ...]) -> None:
    a, b, c = shape
    x, w = normal(a + 1, 2 * b, c), normal(c, seed=1)
    target = torch.arange(a + 1) % c
    check_gradients(
        {
            "layer": lambda x, w, t: F.layer_norm(x, (c,), w, w),
            "plain": lambda x, w, t: F.layer_norm(x, x.shape[1:]) * x,
            "rms": lambda x, w, t: F.rms_norm(x, (c,), w, 1e-5),
            "group": lambda x, w, t: F.group_norm(x, 2, x[0, :, 0], x[0, :, 1]) * x,
            "batch": lambda x, w, t: F.batch_norm(x, x.detach()[0, :, 0] * 0.1, x.detach()[0, :, 0] ** 2),
            "batch stats": lambda x, w, t: F.batch_norm(x, None, None, x[0, :, 0], training=True) * x,
            "dropout": lambda x, w, t: F.dropout(x, 0.5, False),
            "cross": lambda x, w, t: F.cross_entropy(x[:, 0], t),
            "ignored": lambda x, w, t: F.cross_entropy(x[:, 0], t, ignore_index=1, reduction="sum"),
            "weighted": lambda x, w, t: F.cross_entropy(x[:, 0], t, w.detach().abs() + 0.1),
            "each": lambda x, w, t: F.nll_loss(x[:, 0], t, reduction="none"),
            "space": lambda x, w, t: F.cross_entropy(x, torch.zeros_like(x[:, 0]).long()),
            "shares": lambda x, w, t: F.cross_entropy(x[:, 0], x.detach()[:, 1].softmax(-1)),
            "smooth": lambda x, w, t: F.cross_entropy(x[:, 0], t, label_smoothing=0.2, ignore_index=1),
            "smooth weighted": lambda x, w, t: F.cross_entropy(x[:, 0], t, w.detach().abs() + 0.1, label_smoothing=0.2),
            "smooth weighted space": lambda x, w, t: F.cross_entropy(
                x,
                (x > 0).long()[:, 0],
                x.detach()[0, :, 0].abs(),
                ignore_index=1,
                label_smoothing=0.3,
                reduction="none",
            ),
            "shares weighted": lambda x, w, t: F.cross_entropy(
                x, x.detach().roll(1, 0).softmax(1), x.detach()[0, :, 0].abs(), label_smoothing=0.2
            ),
            "mse": lambda x, w, t: F.mse_loss(x, x * 2 + 1),
            "l1": lambda x, w, t: F.l1_loss(x, x * 2 + 1),
        },
        x,
        w,
        target,
    )
    labels = torch.arange(c).repeat(a + 1, 1) - 1  # what follows the first -1 is no label
    labels = torch.cat([labels[:1], labels[1:].flip(1)])
    check_gradients(
        {
            "labels": lambda x, t: F.multilabel_margin_loss(x, t),
            "labels of one": lambda x, t: F.multilabel_margin_loss(x[-1], t[-1]),
            "label of a number": lambda x, t: F.multilabel_margin_loss(x[-1, -1], t[-1, 0] * 0),
            "labels of each": lambda x, t: F.multilabel_margin_loss(x, t.roll(1, 1), reduction="none"),
        },
        apart(a + 1, c),
        labels,
    )
    check_gradients({"softly": lambda x: F.binary_cross_entropy_with_logits(x, (x > 0).float())}, x)


CONVOLUTIONS = st.tuples(st.integers(1, 2), st.integers(0, 2), st.integers(1, 2), st.integers(2, 3))


@FEW
@given(CONVOLUTIONS)
def test_windows(drawn: tuple[int, int, int, int]) -> None:
    stride, pad, dilation, size = drawn
    x, w, v = apart(2, 4, 9, 7), normal(6, 2, size, 3, seed=1), normal(6, seed=2)
    half = size // 2
    check_gradients(
        {
            "conv": lambda x, w, v: F.conv2d(x, w.repeat(1, 2, 1, 1), v, stride, pad, dilation),
            "groups": lambda x, w, v: F.conv2d(x, w, None, stride, (pad, 1), groups=2),
            "one": lambda x, w, v: F.conv1d(x[:, :, 0], w[:, :, 0].repeat(1, 2, 1), padding="same"),
            "back": lambda x, w, v: F.conv_transpose2d(x[:, :3], w[:3], None, stride, min(pad, 1)),
            "back groups": lambda x, w, v: F.conv_transpose2d(x, w[:4], None, 2, 1, 1, 2),
            "max": lambda x, w, v: F.max_pool2d(x, size, stride, half),
            "avg": lambda x, w, v: F.avg_pool2d(x, size, stride, half),
            "inner": lambda x, w, v: F.avg_pool2d(x, size, stride, half, count_include_pad=False),
            "adaptive": lambda x, w, v: (F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (3, 7))),
            "max1": lambda x, w, v: F.max_pool1d(x[0], 3, 2, 1),
            "nearest": lambda x, w, v: F.interpolate(x, scale_factor=2),
        },
        x,
        w,
        v,
        rtol=2e-4,
        atol=2e-4,
    )
    check(
        {
            "ceil": lambda x: F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True),
            "ceil 1": lambda x: F.max_pool2d(x, 2, 2, ceil_mode=True),
        },
        x,
    )


class Masked(torch.nn.Module):
    """Attention with a mask of numbers, and torch's softmax for it: some queries see no key."""

    def __init__(self, query: torch.Tensor) -> None:
        super().__init__()
        self.query = torch.nn.Parameter(query)

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        found = F.scaled_dot_product_attention(self.query, self.query, self.query, attn_mask=mask)
        return (found**2).sum() + (torch.ops.aten._safe_softmax(mask, -1) ** 2).sum()


def test_queries_that_see_no_key() -> None:
    mask = torch.zeros(2, 1, 5, 5)
    mask[:, :, 2] = mask[1, :, 1, 3:] = -torch.inf
    module = Masked(normal(2, 3, 5, 4))
    model = ash.from_torch(module, (mask,), loss="output", optimizer=lambda params: nn.SGD(params, 1.0))
    loss = ash.plan(model, mesh="tp=3", search="factor").run(mask.numpy())
    wanted = module(mask)
    wanted.backward()
    np.testing.assert_allclose(loss, wanted.detach().numpy(), rtol=1e-5)
    moved = (module.query - module.query.grad).detach()
    np.testing.assert_allclose(model.state()["query"], moved, rtol=1e-4, atol=1e-5)


def test_a_variance_of_one_element_is_no_number() -> None:
    check({"var": lambda x: x.var(0), "of all": lambda x: x[:1, 0, 0].std()}, normal(1, 2, 3))


def test_averages_of_whole_numbers_are_refused() -> None:
    model = ash.from_torch(torch.nn.AvgPool2d(2), (torch.ones(1, 1, 4, 4, dtype=torch.long),))
    with pytest.raises(ShapeError, match="averages of whole numbers, which torch rounds"):
        ash.plan(model, mesh="dp=2", search="factor")


def test_what_is_written_in_parts_is_nowhere_whole() -> None:
    def joined(x, w):
        made = x.new_empty(*x.shape[:-1], 40 * 1024)
        made[..., : 24 * 1024].copy_(x.repeat(1, 1024))
        made[..., 24 * 1024 :].copy_(w[:, None].expand(4, 16 * 1024))
        return made[..., 8 : 24 * 1024 : 2] * made[..., -16:].sum()

    class Joined(torch.nn.Module):
        def forward(self, x, w):
            return joined(x, w)

    values = normal(4, 24), normal(4, seed=1)
    names = [node.op.name for node in prune(ash.plan(Joined(), values, mesh="dp=2").graph).nodes]
    assert "Concat" not in names and "Fill" not in names
    check_gradients({"buffer": joined}, *values)


def test_special_functions_stay_whole_where_others_are_decomposed() -> None:
    """The decomposed log_ndtr has no gradient far below 0, where a branch that is not taken divides by zero."""
    x = torch.tensor([[-12.0, -9.0, -2.0], [0.5, 2.0, 8.0]])
    check_gradients({"with chunks": lambda x: torch.special.log_ndtr(x) + torch.cat(x.unsafe_chunk(2))}, x)
