"""Functions of torch, many in one exported program, and their gradients, compared with torch's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import autoshard as ash
from autoshard.frontends.torch.tensors import array_of
from autoshard.trace.evaluate import evaluate
from autoshard.transform.grad import gradient
from autoshard.transform.simplify import prune

Functions = Mapping[str, Callable]


class Many(torch.nn.Module):
    """Applies each function to the same tensors."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *tensors: torch.Tensor) -> dict[str, Any]:
        return {name: function(*tensors) for name, function in self.functions.items()}


def flat(found: Any) -> list[torch.Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]


def check(functions: Functions, *tensors: torch.Tensor, rtol: float = 2e-5, atol: float = 2e-5) -> Any:
    """Compare every function's result, shape and element type; returns the imported model."""
    model = ash.from_torch(Many(functions), tensors)
    found = model.traced(*model.arrays(*tensors))
    wanted = Many(functions)(*tensors)
    for name in functions:
        pairs = zip(torch.utils._pytree.tree_leaves(found[name]), flat(wanted[name]), strict=True)
        for got, want in pairs:
            assert str(got.dtype) == str(want.dtype).removeprefix("torch."), f"{name}: {got.dtype}, not {want.dtype}"
            got, want = (
                np.asarray(one, np.float64) if one.dtype.kind in "fV" else one for one in (got, array_of(want))
            )
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=name)
    return model


def check_gradients(functions: Functions, *tensors: torch.Tensor, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    """Compare results, and for every function the gradients of a weighted sum of its float results."""
    model = check(functions, *tensors)
    graph = model.traced.graph
    arrays = model.arrays(*tensors)
    floats = [value for value in graph.inputs if value.type.dtype.is_float]
    for name in functions:
        leaves = [leaf.index for leaf in torch.utils._pytree.tree_leaves(model.traced.results[name])]
        outputs = [graph.outputs[i] for i in leaves if graph.outputs[i].type.dtype.is_float]
        sources = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]
        sums = [one.sum() for one in flat(functions[name](*sources)) if one.requires_grad]
        if sums:
            torch.stack(sums).sum().backward()
        total: list[Any] = [0] * len(floats)
        for output in outputs:
            alone = prune(replace(graph, outputs=(output,), updates={}))
            full, grads = gradient(alone, output, floats)
            full = prune(replace(full, outputs=tuple(grads[value] for value in floats)))
            total = [one + made for one, made in zip(total, evaluate(full, arrays), strict=True)]
        wants = [one.grad for one in sources if one.is_floating_point()]
        for value, got, want in zip(floats, total, wants, strict=True):
            zero = np.zeros(value.type.shape)
            message = f"gradient of {name} for {value.name}"
            np.testing.assert_allclose(got + zero, zero if want is None else want, rtol, atol, err_msg=message)


def asserted(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Checks as models have them; here, as pytest writes the asserts of tests anew."""
    assert (x < 100).all(), "too large"
    assert not x.isnan().any() and net.w.isfinite().all()
    if x.dim() != 2 or not (x > -100).all() or x.max().item() > 100:
        text = "too small"
        raise ValueError(text)
    if (x.sum() > 100).item():
        warnings.warn("large")  # noqa: B028
    else:
        net.mean.add_(1)
    return (x @ net.w + net.mean).sum()
