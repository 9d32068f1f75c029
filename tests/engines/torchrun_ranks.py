"""A plan on ranks that torchrun has started, checked on each: started by `test_torchrun.py`."""

from __future__ import annotations

import numpy as np

from autoshard import nn, plan
from autoshard.trace.initializer import set_seed

if __name__ == "__main__":
    set_seed(1)
    x = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    dense = nn.Dense(5, 7)
    found = plan(dense, x, "2", search="optimal").run(x, engine="torch")
    np.testing.assert_allclose(found, x @ dense.weight.asnumpy().T + dense.bias.asnumpy(), rtol=1e-5, atol=1e-6)
    print("equal", flush=True)
