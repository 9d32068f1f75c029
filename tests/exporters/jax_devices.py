"""Runs functions as plans say on eight host devices of JAX, and prints how far they are from themselves unsplit.

A script of its own, as XLA is told the number of devices before it starts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.xla_flags import with_devices

os.environ["XLA_FLAGS"] = with_devices(os.environ.get("XLA_FLAGS", ""), 8) + " --xla_cpu_multi_thread_eigen=false"

import jax
import jax.numpy as jnp
import numpy as np

import autoshard as ash
from autoshard.annotate import annotate
from autoshard.exporters.jax_sharding import JaxShardings, jax_shardings, jit, jit_model
from autoshard.frontends.jax.trees import named_leaves

SAMPLES = Path(__file__).parents[2] / "sample_code" / "08_jax_models"


def floats(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def mlp(params, x):
    hidden = jax.nn.gelu(x @ params["up"])
    return {"y": hidden @ params["down"], "mean": hidden.mean()}


def attention(weights, x):
    q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, w) for w in weights)
    scores = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) / 2.0)
    return (scores @ v).sum(-1)


def image(kernel, x):
    convolved = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME")
    return jax.nn.relu(convolved).mean((2, 3))


def repeated(kernel, x):
    """Turns that JAX writes behind its loop, and a function whose values are made again."""
    x, _ = jax.lax.scan(lambda x, bias: (jnp.tanh(x @ kernel) + bias, None), x, jnp.arange(5.0), unroll=2)
    return jax.checkpoint(lambda x: jnp.sin(x @ kernel) @ kernel)(x)


CASES = {
    "mlp": (mlp, ({"up": floats(0, 12, 16), "down": floats(1, 16, 6)}, floats(2, 24, 12))),
    "gradient": (jax.grad(lambda params, x: mlp(params, x)["y"].sum()),
                 ({"up": floats(0, 12, 16), "down": floats(1, 16, 6)}, floats(2, 24, 12))),
    "attention": (attention, (tuple(floats(i, 12, 4, 6) for i in range(3)), floats(5, 8, 10, 12))),
    "repeated": (jax.grad(lambda kernel, x: repeated(kernel, x).sum()), (floats(0, 12, 12) / 4, floats(1, 8, 12))),
    "image": (image, (floats(0, 8, 3, 3, 3), floats(1, 4, 3, 6, 10))),
}  # fmt: skip


ASKED = {
    ("mlp", "dp=2 tp=4"): {"params['up']": ("-", "tp"), "x": ("dp", "-")},
    ("mlp", "d=8"): {"params['up']": ("-", "d:(2)4"), "x": ("d:(1)2", "-")},
    ("gradient", "dp=4 tp=2"): {"params['up']": ("-", "tp"), "x": ("dp", "-")},
    ("attention", "dp=2 tp=4"): {"weights[*]": ("-", "tp", "-"), "x": ("dp", "-", "-")},
    ("repeated", "dp=4 tp=2"): {"kernel": ("-", "tp"), "x": ("dp", "-")},
    ("image", "dp=4 tp=2"): {"kernel": ("tp", "-", "-", "-"), "x": ("dp", "-", "-", "-")},
}


def of_model(name: str, mesh: str, search: str) -> dict:
    """A model of the samples: parameters put where the plan says, and run there."""
    sys.path.insert(0, str(SAMPLES))
    import samples

    model = getattr(samples, name)()
    planned = ash.plan(model, mesh=mesh, search=search)
    told = jax_shardings(planned)
    params = jax.device_put(model.params, told.tree(model.params))
    found = jax.tree.leaves(jit_model(model, planned)(params, *model.example_arrays))
    wanted = model.reference()
    lies = [one.sharding.spec == told.named[name] for name, one in named_leaves(params)]
    return told_of(planned, told, found, wanted, all(lies))


def outcome(name: str, mesh: str, search: str) -> dict:
    if name not in CASES:
        return of_model(name, mesh, search)
    function, args = CASES[name]
    module = annotate(ash.from_jax(function, *args), ASKED[name, mesh], mesh)
    planned = ash.plan(module, mesh=mesh, search=search)
    told = jax_shardings(planned)
    found = jax.tree.leaves(jit(function, planned, *args)(*args))
    wanted = jax.tree.leaves(function(*args))
    lies = [one.sharding.spec == spec for one, spec in zip(found, told.outputs, strict=True)]
    return told_of(planned, told, found, wanted, all(lies))


def told_of(planned: Any, told: JaxShardings, found: list, wanted: list, as_planned: bool) -> dict:
    return {
        "apart": max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True)),
        "size": max(float(np.abs(one).max()) for one in wanted),
        "as_planned": as_planned,
        "split": sum(layout.split > 1 for layout in planned.plan.layouts.values()),
        "axes": list(told.pieces.names),
    }


if __name__ == "__main__":
    print(json.dumps([outcome(*text.replace(",", " ").split("/")) for text in sys.argv[1:]]))
