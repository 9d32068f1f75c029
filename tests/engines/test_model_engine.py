"""`Model.train(engine=...)`: the same training by another engine."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard.mindspore import Model, nn, reset_auto_parallel_context, set_auto_parallel_context
from autoshard.trace import set_seed
from autoshard.util.errors import UnknownNameError


def _model() -> Model:
    set_seed(3)
    net = nn.SequentialCell(nn.Dense(12, 20), nn.Tanh(), nn.Dense(20, 6))
    return Model(net, nn.MSELoss(), nn.Adam(net.trainable_params(), 0.01))


def _trained(engine: str) -> list[np.ndarray]:
    model = _model()
    random = np.random.default_rng(0)
    rows = [tuple(random.normal(size=(8, n)).astype(np.float32) for n in (12, 6)) for _ in range(4)]
    model.train(2, rows, engine=engine)
    return [one.asnumpy() for one in model.network.trainable_params()]


@pytest.mark.torch
def test_torch_trains_as_numpy_does() -> None:
    pytest.importorskip("torch")
    set_auto_parallel_context(parallel_mode="auto_parallel", device_num=4, full_batch=True)
    try:
        for got, want in zip(_trained("torch"), _trained("numpy"), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    finally:
        reset_auto_parallel_context()


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(UnknownNameError, match="unknown engine 'torhc'; did you mean 'torch'"):
        _model().train(1, [], engine="torhc")
