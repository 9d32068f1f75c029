"""mint: functions and cells that are called as PyTorch's, with PyTorch's numbers, whole and split."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import autoshard as ash
from autoshard.mindspore import mint, nn
from autoshard.util.errors import ShapeError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
RNG = np.random.default_rng(12)
X, Y = (RNG.normal(size=(4, 6)).astype(np.float32) for _ in range(2))
IDS = np.array([[0, 3], [1, 2], [2, 2], [3, 0]])
IMAGE, KERNEL = RNG.normal(size=(2, 4, 6, 5)).astype(np.float32), RNG.normal(size=(6, 4, 3, 3)).astype(np.float32)

SAME = {
    "cat": lambda m, x, y: m.cat((x, y), dim=1),
    "stack": lambda m, x, y: m.stack((x, y), dim=1),
    "split": lambda m, x, y: m.split(x, 4, dim=1)[1],
    "transpose": lambda m, x, y: m.transpose(x, 0, 1),
    "permute": lambda m, x, y: m.permute(x, (1, 0)),
    "squeeze": lambda m, x, y: m.squeeze(m.unsqueeze(x, 1), dim=1),
    "flatten": lambda m, x, y: m.flatten(m.unsqueeze(x, 0), 1),
    "chunk": lambda m, x, y: m.chunk(x, 4, dim=1)[1],
    "narrow": lambda m, x, y: m.narrow(x, dim=1, start=2, length=3),
    "meshgrid": lambda m, x, y: m.meshgrid(x[0], y[:, 0])[1],
    "count_nonzero": lambda m, x, y: m.count_nonzero(m.nn.functional.relu(x), dim=1),
    "tile": lambda m, x, y: m.tile(x, (2, 1)),
    "smooth_l1_loss": lambda m, x, y: m.nn.functional.smooth_l1_loss(x, y),
    "bce": lambda m, x, y: m.nn.functional.binary_cross_entropy_with_logits(x, m.sigmoid(y), None, reduction="sum"),
    "flip": lambda m, x, y: m.flip(x, dims=(1,)),
    "roll": lambda m, x, y: m.roll(x, 2, 1),
    "mean": lambda m, x, y: m.mean(x, dim=1, keepdim=True),
    "sum": lambda m, x, y: m.sum(x, dim=(0, 1)),
    "prod": lambda m, x, y: m.prod(x, 1),
    "var": lambda m, x, y: m.var(x, dim=1),
    "std": lambda m, x, y: m.std(x, dim=0, correction=0, keepdim=True),
    "max": lambda m, x, y: m.max(x),
    "max of a dim": lambda m, x, y: m.max(x, dim=1)[0],
    "min": lambda m, x, y: m.min(x, 0, True)[0],
    "amax": lambda m, x, y: m.amax(x, (0,)) + m.amin(x),
    "any": lambda m, x, y: m.any(x > 2, dim=1) | m.all(x > -9),
    "cumsum": lambda m, x, y: m.cumsum(x, dim=1),
    "softmax": lambda m, x, y: m.softmax(x, dim=0),
    "sort": lambda m, x, y: m.sort(x, dim=0, descending=True)[0],
    "matmul": lambda m, x, y: m.matmul(x, m.t(y)),
    "where": lambda m, x, y: m.where(x > 0, m.exp(x), m.maximum(x, y)),
    "linear": lambda m, x, y: m.nn.functional.linear(x, y, x[:, 0]),
    "log_softmax": lambda m, x, y: m.nn.functional.log_softmax(x, dim=-1),
    "leaky_relu": lambda m, x, y: m.nn.functional.leaky_relu(x),
    "gelu": lambda m, x, y: m.nn.functional.gelu(x) + m.nn.functional.silu(y),
    "group_norm": lambda m, x, y: m.nn.functional.group_norm(x, 3),
}


@pytest.mark.parametrize("name", SAME)
def test_functions_are_those_of_torch(name: str) -> None:
    want = SAME[name](torch, torch.tensor(X), torch.tensor(Y)).numpy()
    np.testing.assert_allclose(SAME[name](mint, X.view(ash.mindspore.Tensor), Y), want, rtol=2e-5, atol=2e-6)
    planned = ash.plan(lambda x, y: SAME[name](mint, x, y), (X, Y), devices=2)
    np.testing.assert_allclose(planned.run(X, Y), want, rtol=2e-5, atol=2e-6)


def test_further_functions_are_those_of_torch() -> None:
    theirs, ours = torch.nn.functional, mint.nn.functional
    for padding in (1, "same", "valid"):
        want = theirs.conv2d(torch.tensor(IMAGE), torch.tensor(KERNEL), padding=padding).numpy()
        np.testing.assert_allclose(ours.conv2d(IMAGE, KERNEL, padding=padding), want, rtol=2e-5, atol=1e-5)
    np.testing.assert_array_equal(ours.one_hot(IDS, 4), theirs.one_hot(torch.tensor(IDS), 4).numpy())
    np.testing.assert_array_equal(mint.gather(X, 1, IDS), torch.gather(torch.tensor(X), 1, torch.tensor(IDS)).numpy())
    with pytest.raises(AttributeError, match="mint does not offer MindSpore's 'meam'; did you mean 'mean'"):
        _ = mint.meam


def test_cells_have_the_names_and_numbers_of_torch() -> None:
    class Net(nn.Cell):
        def __init__(self, page: Any) -> None:
            super().__init__()
            self.embedding, self.norm = page.Embedding(9, 8), page.LayerNorm(8)
            self.linear, self.gelu, self.out = page.Linear(8, 6), page.GELU(), page.Linear(6, 4, bias=False)
            self.drop, self.softmax = page.Dropout(0.0), page.Softmax(dim=-1)

        def construct(self, x: Any) -> Any:
            hidden = self.gelu(self.linear(self.norm(self.embedding(x))))
            return self.softmax(self.out(self.drop(hidden)))

    net = Net(mint.nn)
    module = torch.nn.Module()
    for name in ("embedding", "norm", "linear", "gelu", "out", "drop", "softmax"):
        made = {
            "embedding": torch.nn.Embedding(9, 8), "norm": torch.nn.LayerNorm(8), "linear": torch.nn.Linear(8, 6),
            "gelu": torch.nn.GELU(), "out": torch.nn.Linear(6, 4, bias=False), "drop": torch.nn.Dropout(0.0),
            "softmax": torch.nn.Softmax(-1),
        }[name]  # fmt: skip
        setattr(module, name, made)
    for name, value in module.state_dict().items():
        net.parameters_dict()[name].set_data(value.numpy())
    want = Net.construct(module, torch.tensor(IDS)).detach().numpy()  # type: ignore[arg-type]
    np.testing.assert_allclose(net(IDS), want, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(ash.plan(net, (IDS,), devices=4).run(IDS), want, rtol=2e-5, atol=2e-6)
    with pytest.raises(ShapeError, match="inplace=True is not offered"):
        mint.nn.Dropout(0.5, True)
    assert mint.nn.ReLU is nn.ReLU and not mint.nn.LayerNorm(8, bias=False).shifted
