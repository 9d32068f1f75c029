"""Attention of imported torch models is one operator, however it is written, with torch's numbers on any split."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import autoshard as ash  # noqa: E402
from autoshard import optim  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional
BATCH, HEADS, GROUPS, QUERIES, WIDTH = 4, 6, 2, 10, 3


def repeated(x):
    """Keys or values of groups for all heads, as transformers copies them."""
    batch, groups, length, width = x.shape
    return x[:, :, None].expand(batch, groups, HEADS // groups, length, width).reshape(batch, HEADS, length, width)


def later(queries, keys):
    return torch.triu(torch.ones(queries, keys, dtype=torch.bool), 1)


def by_hand(q, k, v, causal=True, add=True, scale=0.4):
    scores = torch.matmul(q, k.transpose(2, 3)) * scale
    if causal:
        hidden = later(q.shape[-2], k.shape[-2])
        added = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
        scores = scores + added if add else scores.masked_fill(hidden, -torch.inf)
    return torch.matmul(torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype), v)


def changed(change):
    """Attention by hand, with a change of causal scores before their softmax."""

    def form(q, k, v):
        hidden = later(q.shape[-2], k.shape[-2])
        scores = change(q @ repeated(k).transpose(-1, -2) * 0.5).masked_fill(hidden, -1e9)
        return torch.softmax(scores, -1) @ repeated(v)

    return form


def batched(q, k, v):
    """Batch and heads as one dim, products that add (Bloom)."""
    k, v = (repeated(one).flatten(0, 1) for one in (k, v))
    slopes = torch.linspace(0.1, 0.9, HEADS).repeat(BATCH)[:, None, None] * torch.arange(QUERIES)
    scores = torch.baddbmm(slopes, q.flatten(0, 1), k.transpose(1, 2), alpha=0.4)
    scores = scores.unflatten(0, (BATCH, HEADS)).masked_fill(later(QUERIES, QUERIES), -1e9)
    return torch.bmm(torch.softmax(scores, -1).flatten(0, 1), v).unflatten(0, (BATCH, HEADS))


def einsum(q, k, v):
    scores = torch.einsum("bhqd,bhkd->bhqk", q, repeated(k)) / WIDTH**0.5
    return torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), repeated(v))


class Biased(torch.nn.Module):
    """A learned bias of relative places (T5), or a learned sink (gpt-oss)."""

    def __init__(self, sinks: bool) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(HEADS) if sinks else torch.randn(2 * QUERIES - 1, HEADS))
        self.sinks = sinks

    def forward(self, q, k, v):
        scores = q @ repeated(k).transpose(-1, -2)
        if not self.sinks:
            places = torch.arange(QUERIES)[:, None] - torch.arange(QUERIES) + QUERIES - 1
            return torch.softmax(scores + self.bias[places].permute(2, 0, 1)[None], -1) @ repeated(v)
        last = self.bias.reshape(1, -1, 1, 1).expand(BATCH, -1, QUERIES, -1)
        scores = torch.cat([scores, last], -1)
        scores = scores - scores.max(-1, keepdim=True).values
        return torch.softmax(scores, -1)[..., :-1] @ repeated(v)


class Scaled(torch.nn.Module):
    """A learned scale of each head (Swin v2), or over one (a temperature)."""

    def __init__(self, shape: tuple[int, ...], over: bool = False) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.linspace(0.4, 1.3, HEADS).reshape(shape) if shape else torch.tensor(1.7))
        self.over = over

    def forward(self, q, k, v):
        scores = F.normalize(q, dim=-1) @ repeated(F.normalize(k, dim=-1)).transpose(-1, -2)
        scores = scores / self.scale if self.over else scores * self.scale.clamp(max=1.1).exp()
        return scores.softmax(-1) @ repeated(v)


def differential(q, k, v):
    """Two softmaxes, of which one is taken from the other."""
    scores = q @ repeated(k).transpose(-1, -2)
    first, second = scores.softmax(-1), (q.flip(-1) @ repeated(k).transpose(-1, -2)).softmax(-1)
    return (first - torch.linspace(0.1, 0.6, HEADS)[:, None, None] * second) @ repeated(v)


def off_by_one(q, k, v):
    """A sum with one more than the exponentials (softmax1)."""
    scores = q @ repeated(k).transpose(-1, -2) * 0.4
    most = scores.amax(-1, keepdim=True).clamp(min=0)
    powers = (scores - most).exp()
    return powers / (powers.sum(-1, keepdim=True) + (-most).exp()) @ repeated(v)


def divided_behind(q, k, v):
    scores = q @ repeated(k).transpose(-1, -2) * 0.4
    powers = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return powers @ repeated(v) / powers.sum(-1, keepdim=True)


def with_first_sink(q, k, v):
    scores = q @ repeated(k).transpose(-1, -2)
    return torch.cat([torch.zeros_like(scores[..., :1]), scores], -1).softmax(-1)[..., 1:] @ repeated(v)


def of_logarithms(q, k, v):
    scores = q @ repeated(k).transpose(-1, -2) * 0.4
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ repeated(v)


def of_two_products(q, k, v):
    """Features with places, and without, by products of their own (DeepSeek's latent attention)."""
    scores = q[..., :2] @ k[:, :1, :, :2].transpose(-1, -2) + 0.7 * torch.einsum(
        "bhqd,bkd->bhqk", q[..., 2:], k[:, 1, :, 2:]
    )
    scores = torch.tanh(scores / 5) * 2
    return scores.masked_fill(later(QUERIES, QUERIES), -1e9).softmax(-1) @ v[:, :1]


def zeroed(q, k, v, hidden=None, again=None):
    """Weights made zero where scores are hidden, in ESPnet's way; one sample sees nothing at all."""
    hidden = torch.arange(QUERIES) >= torch.tensor([4, 10, 0, 9])[:, None, None, None] if hidden is None else hidden
    scores = (q @ repeated(k).transpose(-1, -2)).masked_fill(hidden, torch.finfo(q.dtype).min)
    return scores.softmax(-1).masked_fill(hidden if again is None else again, 0.0) @ repeated(v)


def guarded(q, k, v, guard):
    """One sample sees nothing, and its weights are no numbers but for a guard."""
    scores = (q @ repeated(k).transpose(-1, -2)).masked_fill(~ALONE[:, None, None], -torch.inf)
    return guard(scores.softmax(-1)) @ repeated(v)


def rows_made_zero(q, k, v, also=True):
    """What pads a sequence hides keys, and makes the weights of its queries zero."""
    pad = ~PADDED[:, None, :, None] | ~PADDED[:, None, None]
    scores = (q @ repeated(k).transpose(-1, -2)).masked_fill(pad if also else ~PADDED[:, None, None], -1e9)
    zero = pad if also else ~PADDED[:, None, :, None]
    return scores.softmax(-1).masked_fill(zero, 0.0) @ repeated(v)


def added_behind_a_sink(q, k, v):
    scores = q @ repeated(k).transpose(-1, -2)
    scores = torch.cat([scores, torch.full_like(scores[..., :1], 0.3)], -1) - torch.linspace(0, 5, QUERIES)[:, None]
    return scores.softmax(-1)[..., :-1] @ repeated(v)


SEEN = torch.ones(QUERIES, QUERIES).tril()
PADDED = torch.arange(QUERIES) < torch.tensor([4, 10, 7, 9])[:, None]
ALONE = PADDED & (torch.arange(BATCH) != 2)[:, None]
ONE: dict[str, Callable] = {
    "sdpa": lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k), repeated(v)),
    "sdpa, causal": lambda q, k, v: F.scaled_dot_product_attention(q, repeated(k), repeated(v), is_causal=True),
    "sdpa, groups": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
    "sdpa, mask written out": lambda q, k, v: F.scaled_dot_product_attention(
        q, repeated(k), repeated(v), ~later(q.shape[-2], k.shape[-2])[None, None], scale=0.3
    ),
    "by hand": lambda q, k, v: by_hand(q, repeated(k), repeated(v)),
    "by hand, filled": lambda q, k, v: by_hand(q, repeated(k), repeated(v), add=False),
    "by hand, all keys": lambda q, k, v: by_hand(q, repeated(k), repeated(v), causal=False),
    "by hand, divided": lambda q, k, v: torch.softmax(q @ repeated(k).transpose(-1, -2) / 1.7, -1) @ repeated(v),
    "by hand, one head of keys": lambda q, k, v: torch.softmax(q @ k[:, :1].transpose(-1, -2) / 1.7, -1) @ v[:, :1],
    "sdpa, window": lambda q, k, v: F.scaled_dot_product_attention(
        q, repeated(k), repeated(v), torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril().triu(-3)
    ),
    "sdpa, padding": lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, PADDED[:, None, None] & ~later(QUERIES, QUERIES), enable_gqa=True
    ),
    "sdpa, bias": lambda q, k, v: F.scaled_dot_product_attention(
        q, repeated(k), repeated(v), torch.linspace(-1, 1, HEADS)[:, None, None] * later(QUERIES, QUERIES)
    ),
    "cap": changed(lambda scores: torch.tanh(scores / 4) * 4),
    "slopes (ALiBi)": changed(
        lambda scores: scores + torch.linspace(0.1, 0.9, HEADS)[:, None, None] * torch.arange(QUERIES)
    ),
    "window by hand": changed(lambda scores: scores.masked_fill(later(QUERIES, QUERIES).T.tril(-3), -1e30)),
    "gate (GPT)": changed(lambda scores: scores * SEEN + -1e4 * (1 - SEEN)),
    "gate, taken from": changed(lambda scores: scores * SEEN - 1e10 * (1 - SEEN)),
    "lifted (XGLM)": changed(
        lambda scores: torch.max(scores + later(QUERIES, QUERIES) * -3e38, torch.tensor(torch.finfo(torch.float32).min))
    ),
    "mask, then scale": lambda q, k, v: (
        torch.softmax(0.5 * (q @ repeated(k).transpose(-1, -2) + later(10, 10) * -20.0), -1) @ repeated(v)
    ),
    "mask, then scales (XLNet)": lambda q, k, v: (
        torch.softmax((q @ repeated(k).transpose(-1, -2) - SEEN.flip(0) + 0) * 0.5 / 0.8, -1) @ repeated(v)
    ),
    "one query that pools": lambda q, k, v: (
        torch.softmax(q[:, :, :1] @ repeated(k).transpose(-1, -2) * 0.4, -1) @ repeated(v)
    ),
    "batched": batched,
    "einsum": einsum,
    "learned bias": Biased(sinks=False),
    "learned sinks": Biased(sinks=True),
    "learned scale of heads": Scaled((HEADS, 1, 1)),
    "learned temperature": Scaled((), over=True),
    "logarithms": of_logarithms,
    "exp(log_softmax)": lambda q, k, v: (q @ repeated(k).transpose(-1, -2)).log_softmax(-1).exp() @ repeated(v),
    "divided behind": divided_behind,
    "off by one": off_by_one,
    "a sink before the keys": with_first_sink,
    "differential": differential,
    "two products": of_two_products,
    "weights made zero": zeroed,
    "causal weights made zero": lambda q, k, v: zeroed(q, k, v, later(QUERIES, QUERIES)),
    "no numbers made zero": lambda q, k, v: guarded(q, k, v, torch.nan_to_num),
    "no numbers made zero by hand": lambda q, k, v: guarded(
        q, k, v, lambda weights: torch.where(weights.isnan(), 0.0, weights)
    ),
    "queries and keys of padding": rows_made_zero,
    "queries of padding": lambda q, k, v: rows_made_zero(q, k, v, also=False),
    "scaled by place": changed(lambda scores: scores * torch.arange(1.0, QUERIES + 1).log1p()[:, None]),
    "by hand, scaled before": lambda q, k, v: by_hand(q * 0.7, repeated(k), repeated(v), scale=1.0),
}
SPREAD = {"learned scale of heads", "learned temperature", "two products"}
"""Forms in which lengths of queries and keys, or keys of one product alone, are spread."""
APART: dict[str, Callable] = {
    "over queries": lambda q, k, v: torch.softmax(q @ repeated(k).transpose(-1, -2), -2) @ repeated(v),
    "scale below zero behind a mask": lambda q, k, v: (
        torch.softmax(-0.5 * (q @ repeated(k).transpose(-1, -2) + later(10, 10) * -20.0), -1) @ repeated(v)
    ),
    "gate of halves": changed(lambda scores: scores * (SEEN + 0.5 * (1 - SEEN)) - 1e10 * (1 - SEEN)),
    "gate that hides too little": changed(lambda scores: scores * SEEN + -1e4 * (1 - SEEN.tril(-1))[:, :1]),
    "gate alone": changed(lambda scores: scores * SEEN),
    "lifted to what is seen": changed(lambda scores: torch.max(scores, torch.tensor(-0.1))),
    "scaled by place of both": changed(lambda scores: scores * torch.linspace(0.2, 1, 100).reshape(10, 10)),
    "added behind a sink": added_behind_a_sink,
    "other weights made zero": lambda q, k, v: zeroed(q, k, v, later(QUERIES, QUERIES), later(QUERIES, QUERIES).T),
    "a query that is hidden and weighs keys": lambda q, k, v: zeroed(
        q, k, v, ~PADDED[:, None, :, None] | ~PADDED[:, None, None], ~PADDED[:, None, None]
    ),
    "no numbers of others made zero": lambda q, k, v: guarded(
        q, k, v.masked_fill(~ALONE[:, None, :, None], 0), lambda weights: weights.masked_fill(
            torch.where(ALONE[:, None, None], q @ repeated(k).transpose(-1, -2), torch.nan).isnan(), 0)
    ),
    "weights read twice": lambda q, k, v: (
        lambda weights: weights @ repeated(v) + weights.sum(-1, keepdim=True)
    )(torch.softmax(q @ repeated(k).transpose(-1, -2), -1)),
}  # fmt: skip


class Net(torch.nn.Module):
    """Queries, keys and values of one sequence, by the form of attention."""

    def __init__(self, form: Callable) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.form = form
        self.query = torch.nn.Linear(8, HEADS * WIDTH)
        self.key, self.value = torch.nn.Linear(8, GROUPS * WIDTH), torch.nn.Linear(8, GROUPS * WIDTH)
        self.out = torch.nn.Linear(HEADS * WIDTH, 5)

    def forward(self, x):
        found = (one(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for one in (self.query, self.key, self.value))
        return self.out(self.form(*found).transpose(1, 2).flatten(2)).square().sum(-1).mean()


def _data():
    return torch.from_numpy(np.random.default_rng(0).normal(size=(BATCH, QUERIES, 8)).astype(np.float32))


@pytest.mark.parametrize("name", ONE)
def test_one_operator_in_all_splits(name):
    """A step of training by a plan that splits batch and heads; and by the default one, which may split anything."""
    x, net = _data(), Net(ONE[name])
    loss = net(x)
    loss.backward()
    wanted = {key: value.detach().numpy() - 0.1 * value.grad.numpy() for key, value in net.named_parameters()}
    for mesh, mode in (("dp=2 tp=2", "megatron"), ("4", "sharding_propagation"))[: 2 if "groups" in name else 1]:
        model = ash.from_torch(net, (x,), loss="output", optimizer=lambda params: optim.SGD(params, 0.1))
        names = [node.op.name for node in model.traced.graph.nodes]
        assert names.count("Attention") == 1 + (name == "differential")
        assert "Softmax" not in names and ("BroadcastTo" not in names or name in SPREAD)
        got = ash.plan(model, mesh=mesh, search=mode).run(*model.arrays(x))
        np.testing.assert_allclose(got, loss.detach().numpy(), rtol=1e-4)
        for key, value in model.state().items():
            if key in wanted:
                np.testing.assert_allclose(np.asarray(value), wanted[key], rtol=1e-3, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", APART)
def test_what_is_something_else_stays_apart(name):
    x, net = _data(), Net(APART[name])
    model = ash.from_torch(net, (x,))
    names = [node.op.name for node in model.traced.graph.nodes]
    assert "Attention" not in names and "Softmax" in names
    got = ash.plan(model, mesh="dp=2", search="data_parallel").run(*model.arrays(x))
    np.testing.assert_allclose(got, net(x).detach().numpy(), rtol=1e-4)
