"""What imported models are compared with: torch's own result, step of training and buffers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import autoshard as ash
from autoshard import nn, optim
from autoshard.util.errors import GraphError

pytestmark = pytest.mark.torch


class Net(torch.nn.Module):
    """A tied weight, batch norm, and two results of which one is the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, 11)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor, drop: bool = False) -> dict[str, torch.Tensor]:
        x = self.norm(self.embed(ids).flatten(0, 1))
        if drop:
            x = torch.nn.functional.dropout(x, 0.5)
        logits = self.head(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, ids.flatten()), "logits": logits}


def net() -> tuple[Net, torch.Tensor]:
    torch.manual_seed(0)
    return Net().train(), torch.randint(0, 11, (4, 5))


OPTIMIZERS = {
    "sgd": (lambda p: nn.SGD(p, 0.5, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.5, weight_decay=0.1)),
    "nesterov": (
        lambda p: nn.SGD(p, 0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    ),
    "momentum": (lambda p: nn.Momentum(p, 0.1, 0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "adam": (
        lambda p: optim.Adam(p, [0.02, 0.01], beta1=0.8, eps=1e-4, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, 0.02, betas=(0.8, 0.999), eps=1e-4, weight_decay=0.01),
    ),
    "adamw": (lambda p: nn.AdamW(p, lambda step: 0.03, eps=1e-4), lambda p: torch.optim.AdamW(p, 0.03, eps=1e-4)),
    "groups": (
        lambda p: nn.SGD([{"params": p[:1], "lr": 0.4}, {"params": p[1:], "weight_decay": 0.2}], 0.1),
        lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.4}, {"params": p[1:], "weight_decay": 0.2}], 0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_of_torch_is_what_a_step_is_compared_with(name: str) -> None:
    ours, theirs = OPTIMIZERS[name]
    module, ids = net()
    kept = copy.deepcopy(module.state_dict())
    model = ash.from_torch(module, kwargs={"ids": ids}, loss="output.loss", optimizer=ours)
    found = model.reference_state()
    for key, tensor in module.state_dict().items():
        assert torch.equal(tensor, kept[key]), "comparing must change nothing"
    step = theirs(list(module.parameters()))
    module(ids)["loss"].backward()
    step.step()
    wanted = module.state_dict()
    assert set(found) == set(wanted) - {"head.weight"}
    for key, array in found.items():
        np.testing.assert_array_equal(array, wanted[key], err_msg=key)
    ash.plan(model, mesh="dp=2 tp=2", search="factor").run(*model.example_arrays)
    for key, tensor in model.state().items():
        np.testing.assert_allclose(tensor, wanted[key], rtol=1e-4, atol=1e-5, err_msg=key)


def test_a_loss_that_is_a_function_leaves_its_prefix_out() -> None:
    module, ids = net()
    loss: Callable[..., Any] = lambda found, ids: found["logits"].square().mean()  # noqa: E731
    model = ash.from_torch(module, kwargs={"ids": ids}, loss=loss, optimizer=lambda p: nn.SGD(p, 0.5))
    found = model.reference_state()
    assert set(found) == {one.name for one in model.get_parameters()} and "embed.weight" in found
    assert not np.array_equal(found["embed.weight"], module.embed.weight.detach())


def test_buffers_of_a_model_that_is_not_trained_change_too() -> None:
    module, ids = net()
    model = ash.from_torch(module, kwargs={"ids": ids})
    found = model.reference_state()
    assert int(found["norm.num_batches_tracked"]) == 1 and found["norm.running_mean"].any()
    np.testing.assert_array_equal(found["embed.weight"], module.embed.weight.detach())


def test_results_of_an_earlier_run_may_lie_in_attributes() -> None:
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.Linear(6, 10)
            self.state: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state = torch.tanh(self.cell(x))
            return self.state * 2

    torch.manual_seed(0)
    module, x = Recurrent(), torch.randn(4, 6)
    module(x)
    model = ash.from_torch(module, (x,))
    np.testing.assert_allclose(model.reference()[0], module(x).detach().numpy(), rtol=1e-6)


def test_random_numbers_are_not_those_of_torch() -> None:
    module, ids = net()
    assert not ash.from_torch(module, kwargs={"ids": ids}).random
    assert ash.from_torch(module, kwargs={"ids": ids, "drop": True}).random


def test_an_optimizer_that_torch_has_not_is_refused_by_name() -> None:
    class Own(nn.SGD):
        pass

    module, ids = net()
    model = ash.from_torch(module, kwargs={"ids": ids}, loss="output.loss", optimizer=lambda p: Own(p, 0.1))
    with pytest.raises(GraphError, match="Own has no counterpart in torch.optim .*known are SGD, Momentum, Adam, Adam"):
        model.reference_state()


def test_an_annotated_model_is_a_model_still() -> None:
    module, ids = net()
    plain = ash.from_torch(module, kwargs={"ids": ids}, loss="output.loss", optimizer=lambda p: nn.SGD(p, 0.1))
    model = ash.annotate(plain, {"embed": ("tp", None)})
    assert not plain.traced.asked.values and len(model.traced.asked.values) == 1
    assert model.step.traced is model.traced and model.step.loss is plain.step.loss
    planned = ash.plan(model, mesh="dp=2 tp=2", search="factor")
    planned.run(*model.example_arrays)
    wanted = model.reference_state()
    for key, tensor in plain.state().items():
        np.testing.assert_allclose(tensor, wanted[key], rtol=1e-4, atol=1e-5, err_msg=key)
