"""Weights of attention that a model in training drops: one operator, with the numbers of operators taken apart."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import autoshard as ash  # noqa: E402
from autoshard import optim  # noqa: E402
from autoshard.frontends.torch import contract  # noqa: E402
from autoshard.transform import rewrites  # noqa: E402

pytestmark = pytest.mark.torch
F = torch.nn.functional
BATCH, LENGTH, HEADS, WIDTH = 4, 9, 6, 5


class Net(torch.nn.Module):
    """Attention in training; `kind` says how it is written."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.kind = kind
        self.project, self.out = torch.nn.Linear(8, 3 * HEADS * WIDTH), torch.nn.Linear(HEADS * WIDTH, 7)
        self.bias = torch.nn.Parameter(torch.randn(HEADS, LENGTH, LENGTH))

    def forward(self, x):
        q, k, v = self.project(x).reshape(-1, LENGTH, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
        if self.kind == "groups":
            k, v = (one[:, :2].repeat_interleave(3, 1) for one in (k, v))
        if self.kind == "sdpa, masks":
            seen = x[:, :, 0] > x[:, :1, 0] * 3  # a sample may see none
            found = F.scaled_dot_product_attention(q, k, v, seen[:, None, None], dropout_p=0.3)
            return self.out(found.transpose(1, 2).flatten(2))
        if self.kind == "sdpa":
            return self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=0.3).transpose(1, 2).flatten(2))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * 0.4 + (self.bias if self.kind == "bias" else 0)
        return self.out((F.dropout(scores.softmax(-1), 0.3) @ v).transpose(1, 2).flatten(2))


def steps(kind: str, mesh: str, **options) -> tuple[list[float], dict[str, np.ndarray], int]:
    """Losses of two steps, what parameters become, and how many operators Attention there are."""
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(BATCH, LENGTH, 8)).astype(np.float32))
    model = ash.from_torch(
        Net(kind), (x,), loss=lambda y, x: y.square().mean(), optimizer=lambda params: optim.SGD(params, 0.5)
    )
    planned = ash.plan(model, mesh=mesh, **options)
    losses = [float(planned.run(*model.arrays(x))) for _ in range(2)]
    names = [node.op.name for node in model.traced.graph.nodes]
    return losses, {name: np.asarray(value) for name, value in model.state().items()}, names.count("Attention")


@pytest.mark.parametrize("kind", ["plain", "groups", "bias", "sdpa", "sdpa, masks"])
def test_one_operator_drops_what_operators_apart_drop(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = [steps(kind, "2", micro_batches=2) if kind == "bias" else steps(kind, "dp=2 tp=3")]
    one += [steps(kind, "4")] if kind == "plain" else []
    one += [steps(kind, "2", micro_batches=2, statistics="micro_batch")] if "," in kind else []
    monkeypatch.setattr(rewrites, "joined_attention", lambda graph, keep=(): graph)
    monkeypatch.setattr(contract, "_is_plain", lambda *operands: False)
    losses, state, count = steps(kind, "1")
    assert count == 0 and losses[0] != losses[1]
    for ours, parameters, joined in one:
        assert joined == 1
        np.testing.assert_allclose(ours, losses, rtol=1e-5)
        for name, value in state.items():
            np.testing.assert_allclose(parameters[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
