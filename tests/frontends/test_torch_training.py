"""A step of training is torch's own step: where gradients stop, where functions say them, what is left alone."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

import autoshard as ash
from autoshard.util.errors import AutoshardError, GraphError, ParseError, ShapeError
from tests.frontends.torch_functions import asserted
from tests.frontends.torch_steps import OPTIMIZERS, check_step, torch_step

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    """A loss of x and weights [4, 3], [6, 3] and a scale without dims."""

    def __init__(self, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.w = torch.nn.Parameter(torch.randn(4, 3))
        self.v = torch.nn.Parameter(torch.randn(6, 3))
        self.scale = torch.nn.Parameter(torch.tensor(0.7))
        self.register_buffer("mean", torch.zeros(3))
        self.loss = loss

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.loss(self, x)}


def example() -> Tensor:
    torch.manual_seed(4)
    return torch.randn(6, 4)


# -- gradients that stop


def _no_grad(net: Any, y: Tensor) -> Tensor:
    with torch.no_grad():
        scaled = y * net.scale
        target = scaled.view(3, -1).softmax(-1).reshape(y.shape)
    return target


def _running(net: Any, y: Tensor) -> Tensor:
    net.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
    return y - net.mean


def _running_data(net: Any, y: Tensor) -> Tensor:
    net.mean.data = net.mean.data * 0.9 + y.data.mean(0) * 0.1
    net.mean.data.mul_(1.5)
    return y - net.mean


def _running_in_block(net: Any, y: Tensor) -> Tensor:
    with torch.no_grad():
        net.mean.mul_(0.9)
        net.mean[1:].add_(y.mean(0)[1:] * 0.1)
    return y - net.mean.clone()


def _detached_in_place(net: Any, y: Tensor) -> Tensor:
    z = y * 2
    z.detach_()
    z += 1
    return y * z


def _changed_before(net: Any, y: Tensor) -> Tensor:
    z = F.relu(y * 2, inplace=True)
    return y * z.detach() + z


def _part_changes(net: Any, y: Tensor) -> Tensor:
    """A change of a part, which has to be decomposed."""
    with torch.no_grad():
        fixed = y * net.scale
    z = (y * net.v).view(3, -1)
    z[0] += 1
    return (fixed + z.view_as(y)).square()


def _autocast(net: Any, y: Tensor) -> Tensor:
    """What autocast leaves in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cut = y.detach() + 1
        with torch.no_grad():
            fixed = y * net.scale
            with torch.autocast("cpu", enabled=False):
                fixed = fixed * net.v
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            squared = net.v.square()
        return y * cut * fixed + squared * net.v


STOPS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "detach": lambda net, x, y: (y - y.detach() * 0.5).square().mean(),
    "a part of a parameter": lambda net, x, y: (net.w[0].detach() * net.w[1]).sum() + y.sum(),
    "a parameter": lambda net, x, y: (net.w.detach() * net.w).sum() + y.mean(),
    "no_grad": lambda net, x, y: F.cross_entropy(y, _no_grad(net, y)),
    "autocast": lambda net, x, y: _autocast(net, y).sum(),
    "inference_mode": lambda net, x, y: _inference(net, y).square().mean(),
    "smooth_l1": lambda net, x, y: F.smooth_l1_loss(y, y.detach() * 0.3),
    "huber": lambda net, x, y: F.huber_loss(y, _no_grad(net, y), delta=0.4),
    "bce_with_logits": lambda net, x, y: F.binary_cross_entropy_with_logits(y, y.detach().sigmoid() * 0.8),
    "kl_div": lambda net, x, y: F.kl_div(
        F.log_softmax(y, -1), F.log_softmax(y.detach() * 2, -1), reduction="batchmean", log_target=True
    ),
    "cosine_similarity": lambda net, x, y: F.cosine_similarity(y, y.detach().roll(1, 0) + 1).sum(),
    "logsumexp": lambda net, x, y: torch.logsumexp(y, 0).sum() + (net.v.detach() * net.v).sum(),
    "logaddexp": lambda net, x, y: torch.logaddexp(y, y.detach() * 2).sum(),
    "interpolate": lambda net, x, y: (
        F.interpolate(y[None], scale_factor=2, mode="linear")[0, :, ::2] * y.detach()
    ).sum(),
    "constants": lambda net, x, y: (
        (torch.tensor([1.0, 2, 3]) * y - y.detach()[:, torch.tensor([2, 0, 1])]).square().sum()
    ),
    "straight through": lambda net, x, y: ((y.round() - y).detach() + y).square().sum(),
    "a running mean": lambda net, x, y: F.smooth_l1_loss(_running(net, y), x[:, :3]),
    "data": lambda net, x, y: (y - y.data * 0.5).square().mean() + (net.w.data * net.w).sum(),
    "a running mean by data": lambda net, x, y: F.smooth_l1_loss(_running_data(net, y), x[:, :3]),
    "a running mean in a block": lambda net, x, y: F.smooth_l1_loss(_running_in_block(net, y), x[:, :3]),
    "a part changes": lambda net, x, y: _part_changes(net, y).sum(),
    "detach in place": lambda net, x, y: F.smooth_l1_loss(_detached_in_place(net, y), x[:, :3]),
    "changed before": lambda net, x, y: F.smooth_l1_loss(_changed_before(net, y), x[:, :3]),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPS)
def test_gradients_stop_where_they_do_in_torch(name: str) -> None:
    check_step(Net(lambda net, x: STOPS[name](net, x, x @ net.w)), (example(),), steps=2)


def _inference(net: Any, y: Tensor) -> Tensor:
    with torch.inference_mode():
        factor = (net.v * 2).sum()
    return y * factor.clone()


def _hooked(net: Any, y: Tensor) -> Tensor:
    y.register_hook(lambda grad: -grad)
    return y


@pytest.mark.parametrize(
    ("call", "hook"),
    [
        ("register_hook", lambda net: net.w.register_hook(lambda grad: -grad)),
        ("register_post_accumulate_grad_hook", lambda net: net.w.register_post_accumulate_grad_hook(lambda w: None)),
        ("register_full_backward_hook", lambda net: net.register_full_backward_hook(lambda *given: None)),
    ],
)
def test_hooks_of_gradients_are_refused_by_name(call: str, hook: Callable[[Any], Any]) -> None:
    net = Net(lambda net, x: (x @ net.w).sum())
    hook(net)
    with pytest.raises(GraphError, match=rf"has a hook of gradients \({call}\), which a step does not call"):
        check_step(net, (example(),))
    with pytest.raises(
        AutoshardError, match=r"at .*test_torch_training.py:\d+: hooks of gradients .* are not captured"
    ):
        check_step(Net(lambda net, x: _hooked(net, x @ net.w).sum()), (example(),))


def _changed_after(net: Any, y: Tensor) -> Tensor:
    z = y * 2
    cut = z.detach()
    z += 1
    return y * cut


def _changed_by_view(net: Any, y: Tensor) -> Tensor:
    z = y * 2
    z.detach()[0] += 1
    return z * z


@pytest.mark.parametrize("change", [_changed_after, _changed_by_view])
def test_a_detached_tensor_that_changes_later_is_refused_by_its_line(change: Callable[[Any, Tensor], Tensor]) -> None:
    net = Net(lambda net, x: F.smooth_l1_loss(change(net, x @ net.w), x[:, :3]))
    with pytest.raises(ShapeError, match=r"gradients stop at .*test_torch_training.py:\d+ at a tensor that is changed"):
        check_step(net, (example(),))


def _data_set(net: Any, y: Tensor) -> Tensor:
    y.data = y.data.tanh()
    return y


def test_data_that_is_set_of_what_has_a_gradient_is_refused_by_its_line() -> None:
    net = Net(lambda net, x: _data_set(net, x @ net.w).sum())
    with pytest.raises(
        AutoshardError, match=r"at .*test_torch_training.py:\d+: tensor.data is set of a tensor that has"
    ):
        check_step(net, (example(),))


# -- parameters that the loss does not depend on


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_without_a_gradient_are_left_alone(optimizer: str) -> None:
    """Steps (round) have a gradient of zeros: there, decay goes on."""

    def loss(net: Any, x: Tensor) -> Tensor:
        order = torch.argsort(net.v[:, 0] * x[:, 0])
        return (x @ net.w)[order].square().mean() + net.scale.round()

    model = check_step(Net(loss), (example(),), optimizer, steps=2)
    assert [one.name for one in model.step.untouched] == ["v"]
    states = {one.of.name for one in model.traced.parameters.values() if hasattr(one, "of")}
    assert states == (set() if optimizer == "sgd" else {"w", "scale"})


class Averaged(torch.nn.Module):
    """Keeps the mean of its weights over the steps in a copy that is not trained."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.net, self.mean = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3).requires_grad_(trained)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            for mean, one in zip(self.mean.parameters(), self.net.parameters(), strict=True):
                mean.lerp_(one.detach(), 0.1)
        return {"loss": (self.net(x) - self.mean(x)).square().sum()}


def test_parameters_that_are_not_trained_may_be_changed() -> None:
    check_step(Averaged(trained=False), (example(),), steps=3, mesh="d=2")
    with pytest.raises(ShapeError, match="in place afterwards|parameters that need no gradient"):
        check_step(Averaged(trained=True), (example(),))


def test_a_loss_without_any_gradient_is_refused() -> None:
    net = Net(lambda net, x: (x @ net.w).detach().sum())
    with pytest.raises(GraphError, match="only where no gradient passes"):
        ash.from_torch(net, (example(),), loss="loss", optimizer=OPTIMIZERS["sgd"][0]).traced  # noqa: B018


def test_scalars_stay_scalars() -> None:
    model = check_step(Net(lambda net, x: (x @ net.w * net.scale.exp()).sum()), (example(),), "adamw", 2, "dp=2 tp=2")
    assert model.state()["scale"].shape == () and model.parameters_dict()["scale"].data.shape == ()
    module = copy.deepcopy(model.module)
    module.load_state_dict(model.state())
    torch.testing.assert_close(module.scale.detach(), model.state()["scale"])


# -- gradients where there are several or none


CORNERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "logsigmoid": lambda zero, v: F.logsigmoid(zero).sum(),
    "bce_with_logits": lambda zero, v: F.binary_cross_entropy_with_logits(zero, torch.full((6, 3), 0.3)),
    "bce": lambda zero, v: (
        F.binary_cross_entropy(zero, torch.zeros(6, 3), weight=torch.tensor([1.0, 2, 3]))
        + F.binary_cross_entropy((v * 30).sigmoid(), (v > 0).float(), reduction="sum")
        + F.binary_cross_entropy((zero + 0.3).sigmoid(), v.sigmoid(), reduction="none").max()
    ),
    "std": lambda zero, v: (
        torch.std_mean(v)[0] + zero.std() + zero.std((0, 1), unbiased=False) + torch.std_mean(zero, 0)[0].sum()
        + v.std(1, keepdim=True).sum() + torch.std_mean(v, 1, correction=0)[1].sum()
        + torch.std_mean(v, 0, correction=1)[0].sum()
    ),
    "bounds": lambda zero, v: (
        F.hardtanh(zero, -1.0, 0.0) + F.relu6(zero) + F.relu6(v * 9) + F.hardtanh(v) + F.hardsigmoid(zero + 3)
    ).sum(),
    "norm": lambda zero, v: (
        torch.stack([zero, v * 3]).norm(p=0.5, dim=1).sum() + torch.stack([zero, v]).norm(p=-1, dim=0).sum()
    ),
    "sinc": lambda zero, v: torch.sinc(zero).sum() + torch.sinc(v).sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", CORNERS)
def test_gradients_in_corners_are_those_of_torch(name: str) -> None:
    check_step(Net(lambda net, x: CORNERS[name](net.v - net.v.detach(), net.v) + net.v.sum()), (example(),))


# -- what looks at values to raise an error


def _checked(net: Any, x: Tensor) -> Tensor:
    torch._check_tensor_all(x.abs() < 100)
    torch._check((x > -100).sum().item() == x.numel())
    return (x @ net.w).sum()


def _distributed(net: Any, x: Tensor) -> Tensor:
    policy = torch.distributions.Normal(x @ net.w, F.softplus(net.scale))
    chosen = torch.distributions.Categorical(logits=net.v).log_prob(torch.arange(6) % 3)
    prior = torch.distributions.Independent(torch.distributions.Normal(0.0, torch.ones(6, 3)), 1)
    return policy.log_prob(x[:, :3]).sum() + chosen.sum() + prior.log_prob(net.v).mean()


def _of_variances(net: Any, x: Tensor) -> Tensor:
    means, variances = x @ net.w, net.v.sigmoid()
    below = F.gaussian_nll_loss(means, x[:, :3], variances, full=True, eps=0.5)
    return below + F.gaussian_nll_loss(means, x[:, :3], variances[:, 0], reduction="sum")


def _chosen(net: Any, x: Tensor) -> Tensor:
    if (x > 0).all():
        warnings.warn("positive")  # noqa: B028
        return x.sum()
    return (x @ net.w).sum()


class _Adaptive(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = torch.nn.Linear(4, 12)
        self.classes = torch.nn.AdaptiveLogSoftmaxWithLoss(12, 20, [5, 11], div_value=2.0)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h = self.layer(x)
        return {"loss": self.classes(h, y).loss + self.classes(h[0], y[0]).output, "best": self.classes.predict(h)}


def test_adaptive_softmax_has_all_clusters() -> None:
    model = check_step(_Adaptive(), (example(), torch.tensor([0, 19, 4, 5, 12, 2])), mesh="dp=2 tp=3")
    found = ash.from_torch(model.module, model.example[0]).traced(*model.example_arrays)
    assert found["best"].tolist() == model.module(*model.example[0])["best"].tolist()


@pytest.mark.parametrize("loss", [_checked, _distributed, _of_variances, asserted])
def test_checks_of_values_are_left_out(loss: Callable[..., Tensor]) -> None:
    check_step(Net(loss), (example(),))
    with pytest.raises(ValueError, match="Expected parameter scale"):
        torch.distributions.Normal(0.0, -torch.ones(2), validate_args=True)


def test_a_branch_that_does_more_than_check_is_refused() -> None:
    with pytest.raises(ParseError, match=r"cannot capture Net .*test_torch_training.py:\d+: Could not guard"):
        ash.from_torch(Net(_chosen), (example(),))


def _branching(net: Any, x: Tensor) -> Tensor:
    """What is set before, in both branches alone, as a help inside of one, and two branches in a row."""
    y = x @ net.w
    if net.v.abs().max() > 0.1:
        most = 0.5
        y = torch.clamp(y, -most, most)
    if y.dim() == 2 and not (y.abs() < 1e-9).all():
        y = y * net.scale
    if (x > 1).any():
        z = y.exp()
    elif x.sum() == 0:
        z = y + 1
    else:
        z = y.sin()
    return (z + net.mean).sum()


def _called(net: Any, x: Tensor) -> Tensor:
    y, bag = x @ net.w, torch.nn.ModuleDict({"norm": torch.nn.BatchNorm1d(3)})
    if (y > 0).any():
        y = bag.norm(y)
    return y.sum()


def _listed(net: Any, x: Tensor) -> Tensor:
    y, others = x @ net.w, [x]
    if (y > 0).any():
        y = y + others.pop().sum()
    return y.sum()


def _another_shape(net: Any, x: Tensor) -> Tensor:
    return (x @ net.w if x.sum() > 0 else net.mean).sum()


def _by_expressions(net: Any, x: Tensor) -> Tensor:
    """Expressions one inside of the other, over several lines, in a branch, of a number, by parts of a condition."""
    y = x @ net.w
    y = (
        y.clamp(max=0.1)
        if y.max() > 0.1
        else y.exp() if y.dim() == 2 and (y < -9).any() else y
    )  # fmt: skip
    if (x > 1).any():
        y = y * 2 if (x.sum() > 0 or x.dim() == 3) else y - net.scale
    more = y.mean() if not (x.isnan().any() or (x.dim() == 2 and x.isinf().any())) and x.sum() != 0 else 0.5
    return (y.sin() * net.scale + net.mean).sum() + more


@pytest.mark.parametrize("loss", [_branching, _by_expressions])
def test_branches_that_set_variables_are_choices(loss: Callable[..., Tensor]) -> None:
    model = check_step(Net(loss), (example(),), steps=2, mesh="dp=2 tp=3")
    for x in (example() * 0, example().abs() * 9):
        found = ash.from_torch(model.module, (x,)).traced(x.numpy())["loss"]
        np.testing.assert_allclose(found, model.module(x)["loss"].item(), rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (_called, "calls 'norm' of ModuleDict, which may change it"),
        (_listed, "The module asks for a tensor's values"),
        (_another_shape, r"makes its value torch.float32 \(6, 3\), where it is torch.float32 \(3,\) else"),
    ],
)
def test_branches_that_may_change_others_are_refused(loss: Callable[..., Tensor], told: str) -> None:
    code = loss.__code__
    with pytest.raises(ParseError, match=told):
        ash.from_torch(Net(loss), (example(),))
    assert loss.__code__ is code


# -- losses of sequences


def _aligned(net: Any, x: Tensor) -> Tensor:
    """Labels padded, one behind the other, selected out of padded ones, and of one sequence."""
    frames, counts = torch.tensor([6, 4, 5, 3]), torch.tensor([2, 1, 0, 3])
    held = torch.arange(3) < counts[:, None]
    labels = torch.tensor([[1, 1, -1], [2, 0, 0], [-1, -1, -1], [2, 1, 2]])
    weights = torch.stack([net.w, -net.w, net.w.roll(1, 0), net.w * net.scale])
    log_probs = torch.einsum("fi, nic -> fnc", x, weights).log_softmax(-1)
    own = torch.nn.CTCLoss(zero_infinity=True)(log_probs, labels, frames, counts)
    behind = F.ctc_loss(log_probs, torch.tensor([1, 1, 2, 2, 1]), (6, 5, 5, 4), (2, 1, 0, 2), reduction="sum")
    chosen = F.ctc_loss(log_probs, labels.masked_select(held), frames, counts, zero_infinity=True, reduction="none")
    alone = F.ctc_loss(log_probs[:, 0], labels[0, :2], torch.tensor(6), torch.tensor(2), reduction="none")
    return own + behind + chosen.square().sum() / 9 + alone + net.v.sum()


@pytest.mark.parametrize("mesh", ["", "dp=2 tp=3"])
def test_labels_are_aligned_as_in_torch(mesh: str) -> None:
    check_step(Net(_aligned), (example(),), steps=2, mesh=mesh)


def _counted(net: Any, x: Tensor) -> Tensor:
    kinds = (x * 2).abs().long().flatten()
    counts, sums = torch.bincount(kinds, minlength=9), kinds.bincount(x.flatten(), 9)
    return (counts + sums)[:3] @ net.w[0] + (torch.bincount(kinds, kinds, 9) @ torch.arange(9.0).double()) * net.scale


def test_bins_are_counted_as_many_as_are_asked_for() -> None:
    x = example()
    model = check_step(Net(_counted), (x,))
    assert (x * 2).abs().max() < 9
    with pytest.raises(ShapeError, match=r"indices from \d to \d\d, but the axis has places 0..8"):
        model.traced(np.asarray(x * 9))


def _apart(net: Any, x: Tensor) -> Tensor:
    """Each row against the others, and a buffer that is changed, which makes torch take the graph apart."""
    near = net.v @ net.v.t()
    near.fill_diagonal_(-1e9)
    net.mean.copy_(x.mean(0)[:3])
    cube = (net.w[:3, :3, None] * net.w[:3, None, :]).fill_diagonal_(0)
    return near.logsumexp(-1).sum() + net.w.clone().fill_diagonal_(2).square().sum() + cube.sigmoid().sum()


def _on_grid(net: Any, x: Tensor) -> Tensor:
    scale, zero = torch.tensor([0.05, 0.2, 0.4]), torch.tensor([0, 3, -2], dtype=torch.int32)
    w = torch.fake_quantize_per_channel_affine(net.w, scale, zero, 1, -8, 7)
    h = torch.fake_quantize_per_tensor_affine(x @ w + net.v, 0.03, 20, 0, 63)
    both = torch.fake_quantize_per_tensor_affine(h * net.scale, scale[1], zero[1], 0, 15)
    return h.sum() + both.square().sum()


@pytest.mark.parametrize("loss", [_apart, _on_grid])
def test_what_torch_says_by_memory_or_by_masks_learns_as_in_torch(loss: Callable[..., Tensor]) -> None:
    check_step(Net(loss), (example(),), steps=2)


# -- functions that say their gradients


class Rounded(torch.autograd.Function):
    """Straight through where it is not clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        grad = grad.clone()
        grad[x.abs() > ctx.bound] = 0
        return grad, None


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -0.5 * grad


class Binary(torch.autograd.Function):
    """Straight through truth values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Clipped(torch.autograd.Function):
    """Not linear in the gradient, in the new style, with an argument by name."""

    @staticmethod
    def forward(x: Tensor, limit: float = 1.0) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.limit = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.clamp(-ctx.limit, ctx.limit), None


class Pair(torch.autograd.Function):
    """Several inputs and results, one of which has no gradient; saves a result, and one input it does not look at."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, unused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, top, rest = x @ w, (x @ w).argmax(-1), w.exp()
        ctx.save_for_backward(x, w, rest)
        ctx.mark_non_differentiable(top)
        return y, top, rest

    @staticmethod
    def backward(ctx: Any, y: Tensor, top: Tensor, rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, w, kept = ctx.saved_tensors
        return y @ w.t(), 3 * (x.t() @ y) + rest * kept, y.sum() * torch.ones(())


class Quiet(torch.autograd.Function):
    """Turns gradients off once more inside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x * 2
        return y + 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Turned(torch.autograd.Function):
    """Complex numbers: torch's gradients of them are the conjugates of autoshard's."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return torch.complex(z.real - 2 * z.imag, z.imag + 2 * z.real)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.complex(2 * grad.real + 3 * grad.imag, 2 * grad.imag - 3 * grad.real)


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * float(grad.abs().max())


def _pair(net: Any, x: Tensor) -> Tensor:
    y, top, rest = Pair.apply(x, net.w.sin(), net.scale * 2)
    return (y * F.one_hot(top, 3)).sum() + (rest * rest).mean() + (y * 0.1).exp().sum()


def _checkpoints(net: Any, x: Tensor) -> Tensor:
    """The reentrant kind has a gradient only for what depends on one that goes in."""
    y = checkpoint(lambda x: (x @ net.w).tanh(), x, use_reentrant=False)
    return checkpoint(lambda y: (y * net.v).sin(), y, use_reentrant=True) + checkpoint(
        lambda x: (x @ net.w * net.scale).cos(), x, use_reentrant=True
    )


FUNCTIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "straight through": lambda net, x: (Rounded.apply(x @ net.w, 1.5) * net.v).square().mean(),
    "through truth values": lambda net, x: (Binary.apply(x @ net.w) * net.v + Binary.apply(net.scale)).square().mean(),
    "beside decompositions": lambda net, x: F.smooth_l1_loss(Rounded.apply(x @ net.w, 1.5), net.v.detach()),
    "reversed beside itself": lambda net, x: (
        (Reversed.apply(net.w * net.scale) * x.t()[:, :3]).sum() + net.w.square().sum()
    ),
    "clipped": lambda net, x: (Clipped.apply(x @ net.w, limit=0.1) ** 2).sum() + Clipped.apply(net.v).sum(),
    "several results": _pair,
    "one in another": lambda net, x: Reversed.apply(Rounded.apply(x @ net.w, 2.0) * net.scale).square().sum(),
    "on a parameter itself": lambda net, x: (x @ Rounded.apply(net.w, 1.0) - net.v).square().sum(),
    "gradients off inside": lambda net, x: (Quiet.apply(x @ net.w) * Quiet.apply(x[:, :3]) * net.v).square().mean(),
    "checkpoints": lambda net, x: _checkpoints(net, x).square().mean(),
    "complex numbers": lambda net, x: (Turned.apply(torch.fft.rfft(net.v, dim=0)) ** 2).imag.sum() + (x @ net.w).sum(),
    "without gradients": lambda net, x: (Rounded.apply((x @ net.w).detach(), 1.0) * net.v).square().sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_own_gradients(name: str) -> None:
    model = check_step(Net(FUNCTIONS[name]), (example(),), steps=2)
    names = {node.op.name for node in model.traced.graph.nodes}
    assert names.isdisjoint({"Cotangent", "CustomGradient"})


def test_functions_keep_their_gradients_when_split() -> None:
    check_step(Net(FUNCTIONS["straight through"]), (example(),), "adamw", mesh="dp=2 tp=3")
    check_step(Net(_pair), (example(),), mesh="x=2")


def test_a_function_needs_no_gradient_to_be_run() -> None:
    net, x = Net(lambda net, x: Broken.apply(x @ net.w) + Rounded.apply(x @ net.w, 1.0)), example()
    model = ash.from_torch(net, (x,))
    for found in (model(x.numpy()), ash.plan(model, mesh="x=3", search="factor").run(x.numpy())):
        np.testing.assert_allclose(found["loss"], net(x)["loss"].detach(), rtol=1e-4, atol=1e-5)


def test_a_backward_that_cannot_be_captured_is_refused_by_its_line() -> None:
    net = Net(lambda net, x: Broken.apply(x @ net.w).sum())
    with pytest.raises(AutoshardError, match=r"test_torch_training.py:\d+.*the backward of Broken cannot be captured"):
        check_step(net, (example(),))


def test_torch_has_its_own_functions_again() -> None:
    before = vars(torch.autograd.Function)["apply"]
    ash.from_torch(Net(FUNCTIONS["straight through"]), (example(),))
    assert vars(torch.autograd.Function)["apply"] is before
    x = torch.tensor([0.6, 3.0], requires_grad=True)
    Rounded.apply(x, 1.0).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1, 0]


def test_an_imported_model_that_is_part_of_a_step_keeps_them_too() -> None:
    """Imported without an optimizer, trained by `train_step`."""
    net, x = Net(FUNCTIONS["beside decompositions"]), example()
    wanted = torch_step(net, (x,))
    model = ash.from_torch(net, (x,))
    step = ash.transform.train.train_step(
        lambda x: model(x)["loss"], OPTIMIZERS["sgd"][0](model.trainable_params()[:1]), x.numpy()
    )
    step(x.numpy())
    torch.testing.assert_close(model.state()["w"], wanted["w"], rtol=1e-4, atol=1e-5)


# -- branches


BRANCHES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "both": lambda net, x: torch.cond(
        x.sum() > 0, lambda y, v: (y * v).sum(), lambda y, v: (y.sin() - v).square().sum(), (x @ net.w, net.v)
    ),
    "one uses less": lambda net, x: torch.cond(
        x.sum() > 100, lambda y, v: (y * v).sum(0), lambda y, v: y.exp().sum(0), (x @ net.w, net.v)
    ).square().sum(),
    "nested": lambda net, x: torch.cond(
        x.sum() < 100,
        lambda y, v: torch.cond(y.sum() > 0, lambda y, v: y * v, lambda y, v: y - v * v, (y, v)) * 2,
        lambda y, v: y * 1.0,
        (x @ net.w, net.v),
    ).square().mean(),
}  # fmt: skip


@pytest.mark.parametrize("name", BRANCHES)
@pytest.mark.parametrize("sign", [1, -1])
def test_gradients_of_branches(name: str, sign: int) -> None:
    check_step(Net(BRANCHES[name]), (sign * example(),), steps=1)


def test_gradients_of_branches_split() -> None:
    check_step(Net(BRANCHES["both"]), (example(),), mesh="x=2")


# -- half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_embeddings_in_half_precision_learn(dtype: torch.dtype) -> None:
    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(5)
            self.embed, self.head = torch.nn.Embedding(11, 6), torch.nn.Linear(6, 11)

        def forward(self, ids: Tensor) -> dict[str, Tensor]:
            return {"loss": F.cross_entropy(self.head(self.embed(ids)).flatten(0, 1).float(), ids.flatten())}

    net, ids = Words().to(dtype), torch.tensor([[1, 5, 0, 7], [4, 4, 9, 10], [2, 1, 1, 3]])
    wanted = torch_step(net, (ids,))
    for mesh in ("", "x=2"):
        model = ash.from_torch(net, (ids,), loss="loss", optimizer=OPTIMIZERS["sgd"][0])
        (ash.plan(model, mesh=mesh, search="factor").run if mesh else model.traced)(*model.example_arrays)
        for name, found in model.state().items():
            assert found.dtype == dtype
            torch.testing.assert_close(found, wanted[name], rtol=0.02, atol=0.02)
        assert not torch.equal(model.state()["embed.weight"], net.embed.weight)


# -- flex_attention


class Flexible(torch.nn.Module):
    """A learned bias by distance, and a window of what may be seen; heads in groups."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.into, self.back = torch.nn.Linear(6, 16), torch.nn.Linear(8, 6)
        self.slope = torch.nn.Parameter(torch.tensor([0.3, -0.2]))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        q, k, v = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in self.into(x).split((8, 4, 4), -1))
        window = create_block_mask(lambda b, h, i, j: (i >= j) & (i - j < 3), None, None, 5, 5, device="cpu")
        found = flex_attention(
            q, k, v, lambda score, b, h, i, j: score + self.slope[h] * (i - j), block_mask=window, enable_gqa=True
        )
        return {"loss": self.back(found.transpose(1, 2).flatten(2)).square().mean()}


def test_flex_attention_learns() -> None:
    """torch has no gradient of it on CPUs: the reference is its own unfused implementation."""
    before = flex_attention(*(torch.ones(1, 1, 4, 2) for _ in "qkv"))
    net, x = Flexible(), torch.randn(2, 5, 6)
    model = ash.from_torch(net, (x,), loss="loss", optimizer=OPTIMIZERS["sgd"][0])
    wanted = model.reference_state()
    loss = ash.plan(model, mesh="x=2", search="factor").run(*model.example_arrays)
    np.testing.assert_allclose(loss, net.requires_grad_(False)(x)["loss"], rtol=1e-5)
    for name, found in model.state().items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert torch.equal(before, flex_attention(*(torch.ones(1, 1, 4, 2) for _ in "qkv")))
