"""Rows that masks select, whose number depends on the data: run split, and trained, with torch's numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

import autoshard
from autoshard import optim
from autoshard.util.errors import AutoshardError

torch = pytest.importorskip("torch")
F = torch.nn.functional
pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.loss = loss
        self.dense, self.norm = torch.nn.Linear(6, 6), torch.nn.LayerNorm(6)
        self.table = torch.nn.Embedding(9, 6)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Any, t: Any) -> Any:
        return self.loss(self, self.dense(x), t)


def logarithms(net: Any, y: Any, t: Any) -> Any:
    """Of rows that do not count there is none, and no gradient either."""
    return y[y > 0].log().mean() + (1 / y[y[:, 0] > 0][:, 0].sqrt()).sum()


def words(net: Any, y: Any, t: Any) -> Any:
    known = t != -100
    return F.cross_entropy(net.norm(y)[known], t[known])


def counted(net: Any, y: Any, t: Any) -> Any:
    places = torch.nonzero(t >= 0).flatten()
    likely = F.log_softmax(y.index_select(0, places), -1)
    return F.nll_loss(likely, t[places], reduction="sum") / max(places.numel(), 1)


def looked_up(net: Any, y: Any, t: Any) -> Any:
    known = t != -100
    y = y.clone()
    y[known] = net.table(t[known])
    return (y[t > 2].softmax(0) * F.one_hot(t[t > 2], 6)).square().sum() + y.mean()


def scattered(net: Any, y: Any, t: Any) -> Any:
    """Elements by a mask, of whole rows and of parts of them."""
    wide = y.reshape(6, 4, 6)
    some = wide[:, 0, 0] > 0
    parts = net.norm(wide[some]).reshape(-1, 6)
    y = y.masked_scatter((t > 0)[:, None].expand_as(y), net.table(t[t > 0]))
    return wide.masked_scatter(some[:, None, None].expand(6, 4, 6), parts).pow(3).sum() + y.square().sum()


def joined(net: Any, y: Any, t: Any) -> Any:
    rows = torch.cat([y[t > 2], net.table.weight, y[t < 0]])
    return rows.square().mean() + rows.amax()


def products(net: Any, y: Any, t: Any) -> Any:
    rows = y[t > 0]
    centred = rows - rows.mean(0)
    return (rows.T @ rows).sum() + torch.einsum("nd,ne->de", centred, centred).pow(2).mean() / (rows.shape[0] - 1)


def added(net: Any, y: Any, t: Any) -> Any:
    """At places of their own."""
    known = t > 0
    return torch.zeros(12, 6).index_add(0, t[known], y[known]).square().sum()


def in_pairs(net: Any, y: Any, t: Any) -> Any:
    row, column = torch.where(y > 0.1)
    return (net.norm(y[row]) * net.table.weight[column]).sum()


def experts(net: Any, y: Any, t: Any) -> Any:
    gates, chosen = y[:, :3].softmax(-1).topk(2, -1)
    out = torch.zeros_like(y)
    for i, expert in enumerate(net.experts):
        token, nth = torch.where(chosen == i)
        out[token] += gates[token, nth, None] * expert(y[token])
    return out.square().mean()


def added_experts(net: Any, y: Any, t: Any) -> Any:
    """By a mask whose largest dim is its last, and gates taken by another mask."""
    gates, chosen = y[:, :3].softmax(-1).topk(2, -1)
    out = torch.zeros_like(y)
    for i, expert in enumerate(net.experts):
        nth, token = torch.where(F.one_hot(chosen, 3).permute(2, 1, 0)[i])
        out.index_add_(0, token, expert(y[None, token].reshape(-1, 6)) * gates[token, nth, None])
        out[(chosen == i).any(-1)] += gates[chosen == i].unsqueeze(-1)
    return out.square().mean()


def experts_that_are_asked_for(net: Any, y: Any, t: Any) -> Any:
    """By branches, by loops that go on, and by a loop over the places of a mask."""
    gates, chosen = y[:, :3].softmax(-1).topk(2, -1)
    out, times = torch.zeros_like(y), torch.zeros(())
    for i, expert in enumerate(net.experts):
        mine = (chosen == i).any(-1)
        if mine.any():
            found = 2 * expert(y[mine])
            found *= 0.5
            out[mine] += found * gates[chosen == i].unsqueeze(-1)
            times += 1
    for i, expert in enumerate(net.experts):
        token, nth = torch.where(chosen == i)
        if token.numel() == 0:
            continue
        out[token] = out[token] + F.silu(expert(y[token])) * gates[token, nth, None]
    counts = torch.bincount(chosen.flatten(), minlength=3).tolist()
    for i in torch.greater(F.one_hot(chosen, 3).sum((0, 1)), 0).nonzero():
        token = (chosen == i).any(-1).nonzero().squeeze(-1)
        part = net.experts[i](y[token])
        if i == 1:
            part = net.norm(part)
        out.index_add_(0, token, part / counts[i])
        times.add_(1)
    for i in F.one_hot(chosen, 4).permute(2, 1, 0).sum((1, 2)).greater(0).nonzero():
        i = i[0]  # the variable of the loop itself, as transformers' experts have it
        if i == 3:
            continue
        token = torch.where((chosen == i).any(-1))[0]
        out.index_add_(0, token, net.experts[i](y[token]))
    return out.square().mean() * times + y.sum() / (y > 0).sum().item() + y.abs().mean() * y.abs().mean().item()


def experts_of_sorted_tokens(net: Any, y: Any, t: Any) -> Any:
    """In parts of as many as each expert was chosen, which are joined again, by `split` and by slices."""
    gates, chosen = y[:, :3].softmax(-1).max(-1)
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=3).tolist()
    parts = zip(net.experts, y[order].split(counts), gates[order].split(counts), strict=True)
    out = torch.zeros_like(y).index_copy(
        0, order, torch.cat([F.silu(one(part)) * by[:, None] for one, part, by in parts])
    )
    begin, found = 0, []
    for expert, count in zip(net.experts, counts, strict=True):
        found.append(net.norm(expert(y[order][begin : begin + count])).exp())
        begin += count
    return (out + torch.zeros_like(y).index_add(0, order, torch.cat(found))).square().mean()


def only_where_it_holds(net: Any, y: Any, t: Any) -> Any:
    """Branches that change what would be another number where they are not taken."""
    out = y.clone()
    if (t > 99).any():
        out[0] += 1
        out.mul_(3)
    for i in (t[:3] > 99).nonzero().flatten():
        out[i] = 7
    return out.square().mean()


LOSSES = [
    experts_that_are_asked_for,
    experts_of_sorted_tokens,
    only_where_it_holds,
    logarithms,
    words,
    counted,
    looked_up,
    scattered,
    joined,
    products,
    added,
    in_pairs,
    experts,
    added_experts,
]


def _data() -> tuple[Any, Any]:
    torch.manual_seed(0)
    t = torch.randint(-1, 6, (24,))
    return torch.randn(24, 6), torch.where(t < 0, -100, t)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: one.__name__)
def test_a_step_has_torchs_numbers(loss: Callable[..., Any]) -> None:
    x, t = _data()
    net = Net(loss)
    beside = copy.deepcopy(net)
    model = autoshard.from_torch(net, (x, t), loss=lambda loss, *_: loss, optimizer=lambda held: optim.SGD(held, 0.1))
    found = float(autoshard.plan(model, mesh="dp=2 tp=2").run(*model.arrays(x, t)))
    wanted = beside(x, t)
    wanted.backward()
    assert found == pytest.approx(wanted.item(), rel=1e-4)
    state = model.state()
    for name, parameter in beside.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(state[name], parameter.detach() - 0.1 * parameter.grad, rtol=1e-3, atol=1e-4)


def test_no_row_may_count() -> None:
    x, t = _data()
    net = Net(lambda net, y, t: y[t > 99].square().sum() + y.mean())
    model = autoshard.from_torch(net, (x, t))
    found = autoshard.plan(model, mesh="dp=2").run(*model.arrays(x, t))
    assert float(found) == pytest.approx(net(x, t).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda net, y, t: y[t > 0], "whose size depends on the data; return it with all rows, and the mask beside it"),
        (lambda net, y, t: y[t > 0].cumsum(0).sum(), "aten.cumsum.default.*goes along the selected rows"),
        (lambda net, y, t: y[t > 0][y[t > 0][:, 0] > 0].sum(), "already; make one mask of both by &"),
        (lambda net, y, t: y[: (t > 0).sum().item() : 2].sum(), "takes every so manieth row, or counts from the end"),
        (lambda net, y, t: torch.unique(t).sum(), "depends on the data"),
    ],
)
def test_what_all_rows_cannot_say_is_refused(loss: Callable[..., Any], told: str) -> None:
    with pytest.raises(AutoshardError, match=told):
        autoshard.from_torch(Net(loss), _data())


def _with_statistics(net: Any, y: Any, t: Any) -> Any:
    if (t > 0).any():
        y = net.statistics[0](y)
    return y.sum()


def _of_another_memory(net: Any, y: Any, t: Any) -> Any:
    if (t > 0).any():
        part = y.view(-1)
        part.mul_(2)
    return y.sum()


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (_with_statistics, "calls 'BatchNorm1d', which may change something"),
        (_of_another_memory, "The module asks for a tensor's values"),
    ],
)
def test_branches_that_may_change_what_others_hold_are_refused(loss: Callable[..., Any], told: str) -> None:
    net = Net(loss)
    net.statistics = torch.nn.ModuleList([torch.nn.BatchNorm1d(6)])
    with pytest.raises(AutoshardError, match=told):
        autoshard.from_torch(net, _data())
