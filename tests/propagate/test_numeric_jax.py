"""What JAX lowers, with random shardings of its inputs, runs split on 8 virtual ranks as it runs whole."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import jax
import numpy as np
import pytest

from autoshard.api import plan
from autoshard.frontends import from_jax
from autoshard.frontends.stablehlo.imported import Imported
from autoshard.ir.annotations import ShardingAnnotations
from autoshard.layout.mesh import Mesh
from autoshard.layout.sharding import DimSharding, Sharding
from autoshard.trace.evaluate import evaluate
from tests.frontends.jax_models import MODELS
from tests.propagate.numeric import assert_runs, split

pytestmark = pytest.mark.jax

# Sizes that nothing divides, or that must be whole.
NOTHING_TO_SPLIT = {"sorting", "fourier", "fori_loop"}
TOLERANCE = {"mlp_bf16": 3e-2}
MESH = Mesh(x=2, y=2, z=2)


def asking(imported: Imported, random: Random) -> Imported:
    """The module with shardings of its inputs: each dim by up to two axes that divide it, mostly open."""
    values = {}
    for value in imported.graph.inputs:
        axes = list(MESH.all_axes)
        random.shuffle(axes)
        dims = []
        for size in value.type.shape:
            refs = []
            while axes and size % 2 == 0 and random.random() < 0.5:
                refs.append(axes.pop())
                size //= 2
            dims.append(DimSharding(tuple(refs), random.random() < 0.3))
        values[value] = Sharding(MESH, dims)
    return replace(imported, asked=ShardingAnnotations({"mesh": MESH}, values))


CASES = [(name, gradient) for name in MODELS for gradient in (False, True) if (name, gradient) != ("while_loop", True)]


@pytest.mark.parametrize(("name", "gradient"), CASES)
def test_jax_models(name, gradient):
    program, args = MODELS[name]()
    program = _gradient(program, args) if gradient else program
    imported = from_jax(program, *args)
    feeds = [np.asarray(leaf) for leaf in jax.tree.leaves(args)]
    whole = evaluate(imported.graph, feeds)
    counted = []
    for seed in range(3):
        planned = plan(asking(imported, Random(f"{name} {seed}")), search="factor")
        assert_runs(planned, feeds, whole, TOLERANCE.get(name, 1e-4), f"{name}, seed {seed}")
        counted.append(split(planned))
    print(f"{name}: split operators {counted} of {len(planned.graph.nodes)}")
    assert (max(counted) == 0) == (name in NOTHING_TO_SPLIT)


def _gradient(program, args):
    """The gradient with regard to all arguments, of the sum of all floats that are returned."""

    def total(*given):
        leaves = jax.tree.leaves(program(*given))
        return sum(leaf.sum().astype("float32") for leaf in leaves if leaf.dtype.kind in "fV")

    return jax.grad(total, argnums=tuple(range(len(args))))
