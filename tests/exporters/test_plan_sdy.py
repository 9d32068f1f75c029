"""Plans as StableHLO modules: Shardy's verifier takes them, its propagation leaves them, and they say the plan."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

import autoshard as ash
from autoshard.annotate import annotate
from autoshard.exporters.plan_sdy import plan_module
from autoshard.frontends.stablehlo.load import from_stablehlo
from autoshard.trace.evaluate import evaluate
from autoshard.transform.train import train_step

pytestmark = pytest.mark.jax
ARGS = ({"up": np.ones((12, 16), np.float32), "down": np.ones((16, 6), np.float32)}, np.ones((24, 12), np.float32))


def mlp(params, x):
    return jax.nn.relu(x @ params["up"]) @ params["down"]


def loss(params, x):
    return jnp.sum(jnp.tanh(mlp(params, x)) ** 2)


@jax.jit
def _product(x, w):
    return jnp.tanh(x @ w) @ w.T


def looped(params, x):
    """A loop that gives its weights on, and a function that is called where its values lie differently."""

    def turn(x, bias):
        return _product(x, params["up"]) + bias, None

    x, _ = jax.lax.scan(turn, x, jnp.arange(5.0), unroll=2)
    return _product(x, params["up"]), _product(x.T[:, :12], params["up"])


def asked(function):
    """The function as a module whose inputs are asked to be split, so that plans of all modes split something."""
    patterns = {"params['up']": ("-", "tp"), "x": ("dp", "-")}
    return annotate(ash.from_jax(function, *ARGS), patterns, "dp=2 tp=4")


def shardings(module) -> list[tuple[str, str, str]]:
    """The sharding attributes of functions' lists and of operations, in order."""
    found = []

    def visit(op):
        for name in ("sdy.sharding", "arg_attrs", "res_attrs"):
            if name in op.attributes and op.operation.name not in ("stablehlo.constant", "sdy.constant"):
                found.append((op.operation.name, name, str(op.attributes[name])))
        for region in op.operation.regions:
            for block in region:
                for inner in block:
                    visit(inner)

    visit(module.operation)
    return found


@pytest.mark.parametrize("search", ["factor", "sharding_propagation", "data_parallel"])
@pytest.mark.parametrize("function", [mlp, jax.grad(loss), looped], ids=["forward", "gradient", "looped"])
def test_propagation_leaves_the_module(function, search):
    planned = ash.plan(asked(function), mesh="dp=2 tp=4", search=search)
    assert any(layout.split > 1 for layout in planned.plan.layouts.values())
    text = str(plan_module(planned))
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        assert module.operation.verify()
        before = shardings(module)
        PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
        after = shardings(module)
    # The pipeline drops dead code and merges equal operations; what is left stands in the same order. Only functions
    # come in another one, and of their results that are whole it says at times that they are, at times nothing.
    whole = [one for one in after if one[1] == "res_attrs" and '"' not in one[2]] if function is looped else []
    rest = before if function is looped else iter(before)
    assert len(after) > 5 and all(one in whole or one in rest for one in after)


def test_the_module_says_the_plan():
    planned = ash.plan(asked(mlp), mesh="dp=2 tp=4", search="factor")
    read = from_stablehlo(planned.export("sdy"))
    layouts = [planned.plan.layouts[value] for value in planned.graph.inputs]
    found = [read.asked.values[value].layout() for value in read.graph.inputs]
    assert found == layouts and any(layout.split > 1 for layout in layouts)


class Steps(ash.nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.down = ash.nn.Dense(12, 16), ash.nn.Dense(16, 6)

    def construct(self, x):
        return (self.down(ash.ops.relu(self.up(x))) ** 2).mean()


def model_of_jax():
    params = {"up": ARGS[0]["up"] / 9, "down": ARGS[0]["down"] / 7}
    return ash.from_jax(loss, ARGS[1], params=params, loss="output", optimizer=optax.sgd(0.1, momentum=0.9))


def loop_of_jax():
    def turns(params, x):
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y @ params["up"] @ params["up"].T), x)

    return ash.from_jax(turns, ARGS[1], params={"up": ARGS[0]["up"] / 9})


def cell():
    net = Steps()
    return train_step(net, ash.optim.AdamW(net.trainable_params(), 1e-2), ARGS[1])


@pytest.mark.parametrize("make", [model_of_jax, loop_of_jax, cell])
def test_models_with_named_parameters(make):
    """They are traced anew: the module computes the same, is split as planned, and Shardy's pipeline takes it."""
    planned = ash.plan(make(), mesh="dp=2 tp=3", search="zero3" if make is not loop_of_jax else "factor")
    text = planned.export("sdy")
    read = from_stablehlo(text)
    assert [value.name for value in read.graph.inputs] == [value.name for value in planned.graph.inputs]
    assert [read.asked.values[one].layout() for one in read.graph.inputs] == [
        planned.plan.layouts[one] for one in planned.graph.inputs
    ]
    arrays = planned.traced.inputs(ARGS[1])
    wanted = evaluate(planned.graph, arrays)
    found = ash.plan(read).run(*arrays)
    for one, other in zip(found if isinstance(found, tuple) else (found,), wanted, strict=True):
        np.testing.assert_allclose(one, other, 1e-5, 1e-6)
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
        PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
        assert module.operation.verify()
