"""Operators of linear algebra, order, scatter and random numbers from torch, in training and on ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

import autoshard as ash
from autoshard import nn, ops, optim
from autoshard.frontends.torch.table import TABLE
from autoshard.transform.train import train_step
from autoshard.util.errors import AutoshardError, ContextError, ShapeError
from tests.frontends.torch_functions import check_gradients
from tests.frontends.torch_steps import check_step

pytestmark = pytest.mark.torch


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_operands_that_are_broadcast_get_gradients_of_their_shape() -> None:
    check_gradients(
        {
            "fmod": lambda x, w: torch.fmod(x, w.abs() + 1),
            "remainder": lambda x, w: torch.remainder(x, w.abs() + 1),
            "atan2": torch.atan2,
            "atan2_back": lambda x, w: torch.atan2(w, x),
            "fmin": torch.fmin,
            "fmax": torch.fmax,
            "dist": torch.dist,
            "cumprod": lambda x, w: torch.cumprod(x * w, 0),
            "hypot": torch.hypot,
            "pad": lambda x, w: F.pad(x * w, (-1, 3)),
            "places filled twice": lambda x, w: x.index_fill(-1, torch.tensor([2, 1, 4, 2, 2]), w[0] * 2),
            "places filled with a number": lambda x, w: (x * w).index_fill(0, torch.tensor([1, 1]), 2.5),
        },
        normal(4, 8),
        normal(8, seed=1),
    )


def test_numbers_beside_complex_tensors() -> None:
    def parts(z: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(z.resolve_conj())

    check_gradients(
        {
            name: lambda x, y, function=function: parts(function(x, torch.complex(x, y)))
            for name, function in {
                "real times complex": lambda x, z: x * (1 + 2j),
                "real plus complex": lambda x, z: x + 1j,
                "complex over real": lambda x, z: (2 - 1j) / (x.abs() + 1),
                "power of a complex": lambda x, z: (1 + 1j) ** x,
                "exp": lambda x, z: torch.exp(-1j * x),
                "times float": lambda x, z: z * 2.5,
                "plus float": lambda x, z: z + 0.5,
                "minus": lambda x, z: 1j - z,
                "over": lambda x, z: z / (2 + 1j),
                "real over": lambda x, z: z / 3,
                "alpha": lambda x, z: torch.add(z, z * z, alpha=1j),
                "sub": lambda x, z: z.sub(z * z, alpha=0.5),
                "addcmul": lambda x, z: torch.addcmul(z, z, z, value=2j),
                "lerp": lambda x, z: torch.lerp(z, z * z, 0.5j),
                "mean": lambda x, z: z.mean(0),
                "full": lambda x, z: torch.full_like(z, 0.5 + 1j) * z,
                "where": lambda x, z: torch.where(x > 0, z, 1j),
                "fill": lambda x, z: z.masked_fill(x > 0, 1.5 - 2j),
                "tensor": lambda x, z: x * torch.tensor(2 - 1j),
            }.items()
        },
        normal(4, 3),
        normal(4, 3, seed=1),
    )


class Frequent(torch.nn.Module):
    """Embeddings whose gradients are divided by how often a row is used."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(7, 4, scale_grad_by_freq=True, padding_idx=2)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.rows(ids).square() * torch.arange(1.0, 5)).sum()}


def test_gradients_by_frequency() -> None:
    torch.manual_seed(0)
    ids = torch.tensor([1, 1, 4, 2, 6, 1, 4, 2])
    check_step(Frequent(), (ids,), steps=2)
    check_step(Frequent(), (ids,), steps=2, mesh="dp=2 tp=2")


def test_a_translator_that_fails_is_an_error_with_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(call: object, x: object) -> object:
        return x.nothing  # type: ignore[attr-defined]

    monkeypatch.setitem(TABLE, "aten.sin.default", broken)
    with pytest.raises(ShapeError, match=r"aten.sin.default: it cannot take these arguments.*test_torch_more.py"):
        ash.from_torch(Sines(), (normal(3),)).traced  # noqa: B018


def test_rows_that_are_masked_whole_have_gradients_beside_what_is_decomposed() -> None:
    """As a softmax of -inf alone, which is what decompositions make of it, they would be NaN."""
    masked = torch.tensor([[1.0, 2.0, -math.inf], [-math.inf, -math.inf, -math.inf]])
    check_gradients(
        {
            "softmax": lambda x: torch.ops.aten._safe_softmax(x, 1) * torch.arange(3.0),
            "decomposed": lambda x: torch.std_mean(x.nan_to_num(neginf=-1.0)),
        },
        masked,
    )


class Sines(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_linear_algebra_of_batches() -> None:
    def regular(x: torch.Tensor) -> torch.Tensor:
        return x @ x.mT + 2 * torch.eye(x.shape[-1])

    check_gradients(
        {
            "inv": lambda x, b: torch.linalg.inv(regular(x)),
            "det": lambda x, b: torch.linalg.det(regular(x)),
            "slogdet": lambda x, b: torch.linalg.slogdet(regular(x))[1],
            "solve": lambda x, b: torch.linalg.solve(regular(x), b),
            "cholesky": lambda x, b: torch.linalg.cholesky(regular(x)),
            "lu": lambda x, b: torch.linalg.lu(x)[1:],
            "qr": lambda x, b: torch.linalg.qr(x)[1].abs(),
            "svdvals": lambda x, b: torch.linalg.svdvals(x),
            "eigvalsh": lambda x, b: torch.linalg.eigvalsh(regular(x)),
            "pinv": lambda x, b: torch.linalg.pinv(b),
            "exp": lambda x, b: torch.linalg.matrix_exp(x / 4),
        },
        normal(3, 4, 4),
        normal(3, 4, 5, seed=1),
        rtol=2e-3,
    )


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (torch.linalg.inv, (6, 3, 3)),
        (lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(3)), (6, 3, 3)),
        (lambda x: F.pad(x, (-1, 3)), (5, 1)),
        (lambda x: torch.cummax(x, 1)[0], (4, 6)),
        (lambda x: torch.zeros(3, 6).scatter_reduce(0, (x > 0).long(), x, "amax"), (5, 6)),
    ],
)
def test_ranks_give_what_torch_gives(function, shape: tuple[int, ...]) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    x = normal(*shape)
    found = ash.plan(ash.from_torch(Net(), (x,)), devices=2, search="factor").run(x.numpy())
    np.testing.assert_allclose(found, function(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mod", "floor_div", "rem", "atan2", "div", "pow", "maximum", "quotient"])
def test_cells_train_what_is_broadcast(name: str) -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = ash.Parameter(np.linspace(1, 2, 8, dtype=np.float32))

        def construct(self, x):
            return ops.reduce_sum(getattr(ops, name)(x, self.w + 1.0))

    net = Net()
    step = train_step(net, nn.SGD([net.w], 0.1), np.ones((3, 8), np.float32))
    step(np.ones((3, 8), np.float32))
    assert net.w.data.shape == (8,) and np.isfinite(net.w.data).all()


class Drawn(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "rand": torch.rand_like(x),
            "randn": torch.randn_like(x),
            "exponential": x.new_empty(x.shape).exponential_(2.0),
            "cauchy": x.new_empty(x.shape).cauchy_(1.0, 0.5),
            "uniform": x.new_empty(x.shape).uniform_(-2.0, 3.0),
            "log_normal": x.new_empty(x.shape).log_normal_(0.5, 0.7),
            "geometric": x.new_empty(x.shape).geometric_(0.3),
            "bernoulli": torch.bernoulli(torch.full_like(x, 0.3)),
            "randint": torch.randint(-3, 4, (20000,)),
            "multinomial": torch.multinomial(torch.tensor([1.0, 3.0, 0.0, 6.0]), 20000, replacement=True),
        }


def test_random_numbers_have_torchs_distributions() -> None:
    """Two runs draw different numbers; those of one have the distribution function that torch documents."""
    x = torch.zeros(20000)
    model = ash.from_torch(Drawn(), (x,))
    first, again = model.traced(*model.arrays(x)), model.traced(*model.arrays(x))
    smooth = {
        "rand": stats.uniform(),
        "randn": stats.norm(),
        "exponential": stats.expon(scale=0.5),
        "cauchy": stats.cauchy(1.0, 0.5),
        "uniform": stats.uniform(-2, 5),
        "log_normal": stats.lognorm(0.7, scale=math.exp(0.5)),
    }
    for name, law in smooth.items():
        assert not np.array_equal(first[name], again[name]), name
        assert stats.kstest(first[name], law.cdf).statistic < 0.02, name
    counted = {
        "geometric": {k: 0.3 * 0.7 ** (k - 1) for k in (1, 2, 3)},
        "bernoulli": {0: 0.7, 1: 0.3},
        "randint": {k: 1 / 7 for k in range(-3, 4)},
        "multinomial": {0: 0.1, 1: 0.3, 2: 0.0, 3: 0.6},
    }
    for name, law in counted.items():
        for value, share in law.items():
            assert abs(np.mean(first[name] == value) - share) < 0.02, (name, value)


def test_what_cannot_be_captured_is_told_with_the_users_line() -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if torch.equal(x, x * 2) else x * 3

    with pytest.raises(AutoshardError, match=r"tests/frontends/test_torch_more.py:\d+: aten.equal"):
        ash.from_torch(Odd(), (normal(3),))


class Spectral(torch.nn.Module):
    """A layer of a Fourier neural operator: weights of the spectrum are complex parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3, 2, 4, dtype=torch.complex64))
        self.bias = torch.nn.Parameter(torch.randn(2, 1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        wave = torch.einsum("bcx,cdx->bdx", torch.fft.rfft(x), self.weight)
        return {"loss": (torch.fft.irfft(wave, n=6) + self.bias).square().mean() + self.weight.abs().sum() / 10}


@pytest.mark.parametrize(("optimizer", "mesh"), [("sgd", ""), ("adamw", "dp=2 tp=2")])
def test_complex_parameters_learn(optimizer: str, mesh: str) -> None:
    torch.manual_seed(1)
    check_step(Spectral(), (normal(4, 3, 6),), optimizer, 2, mesh)


def test_complex_gradients_are_clipped_and_scaled_as_in_torch() -> None:
    torch.manual_seed(1)
    model = ash.from_torch(
        Spectral(), (normal(4, 3, 6),), loss="loss",
        optimizer=lambda held: optim.SGD(held, 0.1, momentum=0.9, clip_norm=0.3, loss_scale=8.0),
    )  # fmt: skip
    wanted = model.reference_state()
    model.traced(*model.example_arrays)
    for name, found in model.state().items():
        np.testing.assert_allclose(found, wanted[name], rtol=1e-5, atol=1e-6)
    by_value = {"loss": "loss", "optimizer": lambda held: optim.SGD(held, 0.1, clip_value=0.3)}
    with pytest.raises(ContextError, match="weight is complex.*give clip_norm"):
        ash.from_torch(Spectral(), (normal(4, 3, 6),), **by_value).traced  # noqa: B018


class Bags(torch.nn.Module):
    def __init__(self, mode: str, padding: int | None) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(7, 4, mode=mode, padding_idx=padding)

    def forward(self, ids: torch.Tensor, scales: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"loss": (self.bag(ids, per_sample_weights=scales) * torch.arange(1.0, 5)).sin().mean()}


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_bags_of_equal_size_are_rows(mode: str, padding: int | None) -> None:
    torch.manual_seed(1)
    ids = torch.tensor([[1, 2, 2], [2, 2, 2], [6, 6, 0], [3, 1, 5]])
    args = (ids, torch.rand(4, 3)) if mode == "sum" else (ids,)
    model = check_step(Bags(mode, padding), args, steps=2)
    planned = ash.plan(model, devices=2, micro_batches=2)  # no row needs another one
    assert not any(
        node.op.name in ("IndexReduce", "GatherGrad") for node in planned.graph.nodes if "grad." not in node.name
    )


def test_covariances_are_those_of_torch() -> None:
    def weighted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cov(x, correction=0, fweights=torch.tensor([1, 3, 2, 1, 4]), aweights=y[0].detach().abs())

    check_gradients(
        {
            "cov": lambda x, y: torch.cov(x),
            "of one row": lambda x, y: x[0].cov(correction=2),
            "weighted": weighted,
            "corrcoef": lambda x, y: torch.corrcoef(x * y),
            "complex": lambda x, y: torch.cov(torch.complex(x, y)).abs(),
        },
        normal(3, 5),
        normal(3, 5, seed=1),
    )
