"""The sample of training on JAX, checked on 8 devices of this host: started by `test_to_jax.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np

from autoshard.engines.xla_engine import need_devices
from autoshard.util.errors import RuntimeSetupError

SAMPLE = Path(__file__).parents[2] / "sample_code/09_engines/train_jax.py"


def main(folder: Path) -> None:
    """4 steps on 8 devices, 2 more on 4 of them, are what optax itself does in 6 on one."""
    need_devices(8)
    import jax
    import optax

    from tests.engines.compiled_collectives import traced_differences

    spec = importlib.util.spec_from_file_location("train_jax", SAMPLE)
    assert spec is not None and spec.loader is not None
    sample = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sample)
    saved = str(folder / "state.npz")
    step = sample.planned("dp=2 tp=4")
    found = sample.train(step, range(4), save=saved)
    found += sample.train(sample.planned("dp=4"), range(4, 6), resume=saved)

    optimizer, params, wanted = optax.adamw(1e-2), sample.first_params(), []
    states = optimizer.init(params)
    for number in range(6):
        x, y = sample.batch(number)
        value, grads = jax.value_and_grad(lambda p, x=x, y=y: sample.loss(sample.network(p, x), x, y))(params)
        updates, states = optimizer.update(grads, states, params)
        params = optax.apply_updates(params, updates)
        wanted.append(float(value))
    np.testing.assert_allclose(found, wanted, rtol=1e-4)

    program, state = step.planned.program, step.state()
    assert {name: one.sharding for name, one in state.items()} == step.shardings
    lowered = step.lower(state, *sample.batch(0))
    assert not traced_differences(lowered.compiler_ir("stablehlo"), program, step.grid)
    tree = step.tree(state, states, "optimizer")
    assert jax.tree.structure(tree) == jax.tree.structure(states)
    np.testing.assert_array_equal(step.tree(state, params)["down"], sample.first_params()["down"])
    for _ in range(300):  # without a look at what they return, steps do not take each other's threads
        loss, state = step(state, *sample.batch(0))
    assert np.isfinite(float(loss))
    other = sample.planned("dp=4")
    try:
        step(other.state(), *sample.batch(0))
    except RuntimeSetupError as error:
        assert "a state of another mesh or plan comes over by step.placed" in str(error), error
    else:
        raise AssertionError("a state of another mesh was taken")
    print("equal", len(program.collectives))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
