"""Steps of training by autoshard and by torch, compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import autoshard as ash
from autoshard import nn

OPTIMIZERS: dict[str, tuple[Callable, Callable]] = {
    "sgd": (lambda p: nn.SGD(p, 0.5, weight_decay=0.1), lambda p: torch.optim.SGD(p, 0.5, weight_decay=0.1)),
    "adamw": (
        lambda p: nn.AdamW(p, 0.1, eps=1e-4, weight_decay=0.5),
        lambda p: torch.optim.AdamW(p, 0.1, eps=1e-4, weight_decay=0.5),
    ),
}


def torch_step(module: torch.nn.Module, args: Any, optimizer: str = "sgd", steps: int = 1) -> dict:
    """State and loss of a copy of the module after some steps of torch."""
    module = copy.deepcopy(module)
    chosen = OPTIMIZERS[optimizer][1]([one for one in module.parameters() if one.requires_grad])
    for _ in range(steps):
        chosen.zero_grad()
        loss = module(**args)["loss"] if isinstance(args, dict) else module(*args)["loss"]
        loss.sum().backward()
        chosen.step()
    return {**module.state_dict(), "loss": loss.detach()}


def check_step(module: torch.nn.Module, args: Any, optimizer: str = "sgd", steps: int = 1, mesh: str = "") -> Any:
    """Import, do steps of training, whole or on a mesh, and compare the loss and everything in the state.

    `args` are a tuple, or a dict of arguments by name.
    """
    wanted = torch_step(module, args, optimizer, steps)
    given = {"kwargs": args} if isinstance(args, dict) else {"args": args}
    model = ash.from_torch(module, **given, loss="loss", optimizer=OPTIMIZERS[optimizer][0])
    run = ash.plan(model, mesh=mesh, search="factor").run if mesh else model.traced
    for _ in range(steps):
        loss = run(*model.example_arrays)
    np.testing.assert_allclose(loss, wanted["loss"], rtol=1e-4, atol=1e-6)
    for name, found in model.state().items():
        assert found.shape == wanted[name].shape, name
        torch.testing.assert_close(
            found, wanted[name], rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )
    return model
