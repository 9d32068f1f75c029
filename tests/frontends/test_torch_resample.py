"""Interpolation, adaptive pooling, padding by copies, windows, complex numbers, branches and loops, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.while_loop import while_loop

import autoshard as ash
from tests.frontends.torch_functions import check, check_gradients

pytestmark = pytest.mark.torch
SIDES = (5, 7)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_interpolation() -> None:
    new = (8, 3)
    check_gradients(
        {
            "bilinear": lambda x: F.interpolate(x, size=new, mode="bilinear"),
            "corners": lambda x: F.interpolate(x, size=new, mode="bilinear", align_corners=True),
            "one corner": lambda x: F.interpolate(x, size=(1, new[1]), mode="bilinear", align_corners=True),
            "factor": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
            "factors": lambda x: F.interpolate(x, scale_factor=(2, 0.5), mode="bilinear"),
            "recomputed": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
            "linear": lambda x: F.interpolate(x[0], size=new[0], mode="linear"),
            "trilinear": lambda x: F.interpolate(x[None], size=(5, *new), mode="trilinear"),
            "bicubic": lambda x: F.interpolate(x, size=new, mode="bicubic"),
        },
        normal(2, 3, *SIDES),
    )


@pytest.mark.parametrize("sides, new", [((6, 9), (4, 2)), ((5, 4), (1, 3))])
def test_pooling_by_windows_of_other_lengths(sides: tuple[int, int], new: tuple[int, int]) -> None:
    x = torch.randperm(6 * sides[0] * sides[1], generator=torch.Generator().manual_seed(0)).reshape(2, 3, *sides) / 7
    check_gradients(
        {
            "mean": lambda x: F.adaptive_avg_pool2d(x, new),
            "largest": lambda x: F.adaptive_max_pool2d(x, new),
            "line": lambda x: F.adaptive_avg_pool1d(x[0], new[1]),
            "beyond the end": lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True),
            "beyond, padded": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            "beyond, without padding": lambda x: F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, count_include_pad=False),
            "within, padded": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            "power": lambda x: F.lp_pool2d(x.abs() + 1, 3, 2),
        },
        x,
    )


def test_copies_of_elements() -> None:
    check_gradients(
        {
            "reflect": lambda x: F.pad(x, (1, 3, 2, 0), mode="reflect"),
            "replicate": lambda x: F.pad(x, (1, 5, 2, 0), mode="replicate"),
            "circular": lambda x: F.pad(x, (1, 3, 2, 0), mode="circular"),
            "circular, cut": lambda x: F.pad(x, (-1, 2, 3, -2), mode="circular"),
            "replicate, cut": lambda x: F.pad(x, (-2, 3, 1, -1), mode="replicate"),
            "nearest": lambda x: F.interpolate(x, scale_factor=(0.6, 2.3)),
            "nearest, sizes": lambda x: F.interpolate(x, size=(12, 4)),
            "windows": lambda x: x.unfold(2, 3, 2),
            "windows, last": lambda x: x.unfold(-1, 2, 1),
            "columns": lambda x: F.unfold(x, (2, 3), padding=1, stride=2),
            "diagonal": lambda x: torch.diagonal(x, 1, 2, 3),
            "diagonal below": lambda x: torch.diagonal(x, -2, 3, 0),
            "trace": lambda x: x[0, 0, :3, :3].trace(),
            "lower": lambda x: x[0, 0][tuple(torch.tril_indices(4, 4, -1))],
            "upper": lambda x: x[0, 0][tuple(torch.triu_indices(4, 3))],
        },
        normal(2, 3, *SIDES),
    )


def test_more_functions_of_elements() -> None:
    x, y = normal(3, 5) + 0.05, normal(3, 5, seed=1)
    check_gradients(
        {
            "log2": lambda x, y: torch.log2(x.abs() + 1) + torch.log10(y.abs() + 1),
            "exp2": lambda x, y: torch.exp2(x) * y,
            "hypot": torch.hypot,
            "copysign": lambda x, y: torch.copysign(x, y.detach()),
            "ldexp": lambda x, y: torch.ldexp(x, torch.tensor([1, 0, 2, 3, 1])),
            "addmv": lambda x, y: torch.addmv(x[:, 0], y, x[0], beta=0.5, alpha=2),
            "norm": lambda x, y: x.norm(3, dim=1) + y.norm(1.5, dim=1),
        },
        x,
        y,
    )
    check(
        {
            "special": lambda x: (torch.erfc(x), torch.erfinv(x.tanh()), torch.lgamma(x.abs()), torch.digamma(x.abs())),
            "round": lambda x: x.round(decimals=2),
            "norms": lambda x: (x.relu().norm(0, dim=1), x.norm(float("-inf"), dim=0)),
            "searched": lambda x: (
                torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x),
                torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x, right=True),
            ),
        },
        x,
    )


def test_masks_and_places_that_reduce() -> None:
    x, source = normal(4, 6), normal(4, 6, seed=1)
    places = torch.tensor([[0, 1, 1, 5, 0, 2], [3, 3, 3, 3, 0, 0], [5, 4, 3, 2, 1, 0], [2, 2, 0, 0, 1, 1]])
    check_gradients(
        {
            "scattered mask": lambda x, s: x.masked_scatter(x.detach() > 0, s),
            "rows": lambda x, s: x.masked_scatter((x.detach()[:, :1] > 0), s),
            "sum": lambda x, s: x.scatter_reduce(1, places, s, "sum"),
            "mean": lambda x, s: x.scatter_reduce(1, places, s, "mean"),
            "sum alone": lambda x, s: x.scatter_reduce(1, places, s, "sum", include_self=False),
            "mean alone": lambda x, s: x.scatter_reduce(1, places, s, "mean", include_self=False),
        },
        x,
        source,
    )


def test_complex_numbers_and_fourier_transforms() -> None:
    x, y = normal(3, 4, 6), normal(3, 5, 8, seed=1)

    def turned(x: torch.Tensor) -> torch.Tensor:
        """Rotary positions by complex numbers."""
        angle = torch.polar(torch.ones(4, 3), torch.arange(12.0).reshape(4, 3))
        return torch.view_as_real(torch.view_as_complex(x.reshape(3, 4, 3, 2)) * angle).flatten(-2)

    check(
        {
            "turned": lambda x, y: turned(x),
            "parts": lambda x, y: (torch.complex(x, x + 1).conj().imag, torch.complex(x, x).abs()),
            "spectrum": lambda x, y: torch.fft.rfft(y),
            "there and back": lambda x, y: torch.fft.irfft(torch.fft.rfft(y, norm="ortho"), n=8, norm="forward"),
            "mixed": lambda x, y: torch.fft.fft2(x).real,
            "whole": lambda x, y: torch.fft.ifft(torch.fft.fft(y, dim=1), dim=1, norm="ortho").real,
            "planes": lambda x, y: torch.fft.irfft2(torch.fft.rfft2(y, dim=(2, 1)), dim=(2, 1)),
            "windows": lambda x, y: torch.stft(
                y.flatten(1), 8, window=torch.hamming_window(8) + torch.kaiser_window(8, False), return_complex=True
            ),
        },
        x,
        y,
    )


class Chosen(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (self.dense(x).relu(), x.sum()), lambda x: (x * 2, x.mean()), (x,))


class Repeated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return while_loop(lambda i, y: i < 5, lambda i, y: (i + 1, self.dense(y)), (torch.tensor(0), x))


@pytest.mark.parametrize("made", [Chosen, Repeated])
def test_branches_and_loops_run_whole_and_split(made: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    module = made()
    x = torch.randn(8, 4).abs()
    model = ash.from_torch(module, (x,))
    planned = ash.plan(model, mesh="dp=2 tp=2", search="factor")
    for sample in (x, -x):
        wanted = [one.detach().numpy() for one in module(sample)]
        for run in (model.traced, planned.run):
            for found, want in zip(run(sample.numpy()), wanted, strict=True):
                np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_recurrent_layers() -> None:
    x = normal(5, 3, 6)
    torch.manual_seed(0)
    for layer in (torch.nn.LSTM(6, 4, bidirectional=True), torch.nn.GRU(6, 4, batch_first=True)):
        model = ash.from_torch(layer, (x,))
        found = torch.utils._pytree.tree_leaves(model.traced(x.numpy()))
        for got, want in zip(found, model.reference(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=type(layer).__name__)
