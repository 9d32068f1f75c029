"""Named plans of steps of JAX: optimizers that optax writes in operators of its own, and layers that are scanned."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import autoshard as ash
from autoshard.api import Planned
from autoshard.cost.blocks import local_nbytes
from autoshard.ir.graph import PARAMETER, walk
from autoshard.partition.program import Collective, ManualCollective, timed
from autoshard.search.flat import flat
from autoshard.search.named.structure import Structure
from tests.search.plans import assert_runs_as_whole

pytestmark = pytest.mark.jax
BATCH, WIDTH, WIDE, LAYERS, CLASSES = 16, 24, 40, 3, 8
PARTS = 4


def step(scanned: bool, decay: float = 0.0, count: int = LAYERS):
    """A step of Adam with layers one behind the other, or scanned with their weights in one array."""
    import jax
    import jax.numpy as jnp
    import optax

    rng = np.random.default_rng(0)

    def make(*shape: int):
        return jnp.asarray(rng.normal(size=shape).astype(np.float32) / 5)

    layers = {"up": make(count, WIDTH, WIDE), "bias": make(count, WIDE), "down": make(count, WIDE, WIDTH)}
    parameters = {"layers": layers, "head": make(WIDTH, CLASSES)}

    def layer(x, one):
        return x + jnp.tanh(x @ one["up"] + one["bias"]) @ one["down"], None

    def model(params, x):
        if scanned:
            x, _ = jax.lax.scan(layer, x, params["layers"])
        for i in range(0 if scanned else count):
            x, _ = layer(x, jax.tree.map(lambda of, i=i: of[i], params["layers"]))
        return x @ params["head"]

    def loss(logits, x):
        return jnp.square(logits - x[:, :CLASSES]).mean()

    optimizer = optax.adamw(1e-2, eps=1e-4, weight_decay=decay) if decay else optax.adam(1e-2, eps=1e-4)
    x = rng.normal(size=(BATCH, WIDTH)).astype(np.float32)
    return ash.from_jax(model, x, params=parameters, loss=loss, optimizer=optimizer, gradients="jax"), x


def sent(planned: Planned) -> float:
    """Bytes that a device sends in a step, but for the loss."""
    moves = [
        (one, times)
        for one, times in timed(planned.program.instructions)
        if isinstance(one, Collective | ManualCollective)
    ]
    return sum(times * one.nbytes_moved for one, times in moves if one.step.communicates and one.operand.whole.shape)


def parameters(planned: Planned) -> int:
    roles = zip(planned.graph.inputs, planned.graph.roles, strict=True)
    return sum(value.type.nbytes for value, role in roles if role == PARAMETER)


def held(planned: Planned, pick: Callable[[str], bool]) -> int:
    """Bytes of the inputs that a device holds between steps, besides data."""
    return sum(local_nbytes(one.type, planned.plan.layouts[one]) for one in planned.graph.inputs if pick(one.name))


@pytest.mark.parametrize("scanned", [False, True], ids=["layer by layer", "scanned"])
@pytest.mark.parametrize("mode", ["data_parallel", "zero1", "zero2", "zero3", "zero3_keep"])
def test_states_lie_as_zero_means_them(mode: str, scanned: bool) -> None:
    traced, x = step(scanned)
    planned = ash.plan(traced, mesh=f"dp={PARTS}", search=mode, hardware="h100", passes=False)
    size, split = parameters(planned), 1 if mode == "data_parallel" else PARTS
    states = held(planned, lambda name: ".mu." in name or ".nu." in name)
    assert states == pytest.approx(2 * size / split, rel=0.01)
    if mode.startswith("zero3"):
        assert held(planned, lambda name: not name.startswith(("optimizer", "x"))) < 1.2 * size / PARTS + x.nbytes
    assert_runs_as_whole(planned, [x], rtol=2e-4)


@pytest.mark.parametrize("mode", ["data_parallel", "zero1", "zero2", "zero3", "zero3_keep"])
@pytest.mark.parametrize(("count", "decay"), [(3, 0.0), (3, 0.1), (4, 0.0)], ids=["adam", "adamw", "divided"])
def test_scanned_layers_send_what_zero_says(mode: str, count: int, decay: float) -> None:
    """Gradients are summed once a layer, parameters gathered once a layer and pass, or once a step (zero3_keep): no
    turn of the loop sends all, also where the ranks divide the layers."""
    planned = ash.plan(step(True, decay, count)[0], mesh=f"dp={PARTS}", search=mode, hardware="h100", passes=False)
    passes = 3 if mode == "zero3" else 2
    assert sent(planned) == pytest.approx(passes * parameters(planned) * (PARTS - 1) / PARTS, rel=0.1)


@pytest.mark.parametrize("mode", ["zero1", "zero3", "zero3_keep", "zero3(dp) + megatron(tp)"])
def test_layers_that_ranks_divide_are_no_parts(mode: str) -> None:
    """Each turn of the loop takes its layer from all ranks, and not from the one that would have it."""
    traced, x = step(True, count=4)
    planned = ash.plan(traced, mesh="dp=2 tp=2" if "tp" in mode else f"dp={PARTS}", search=mode, hardware="h100")
    layers = [value for value in planned.graph.inputs if value.type.rank and value.type.shape[0] == 4]
    assert len(layers) == 9 and not any(planned.plan.layouts[value].dims[0] for value in layers)
    assert_runs_as_whole(planned, [x], rtol=2e-4)


@pytest.mark.parametrize("scanned", [False, True], ids=["layer by layer", "scanned"])
def test_weights_of_scanned_layers_are_split_by_columns_and_rows(scanned: bool) -> None:
    """A sum behind each layer's rows, one behind the gradient of its columns (but for the first, where it stands alone:
    data feeds it), and one of the head's."""
    traced, x = step(scanned)
    planned = ash.plan(traced, mesh="dp=2 tp=2", search="megatron", hardware="h100", passes=False)
    layers = held(planned, lambda name: name.startswith("layers."))
    assert layers == (WIDTH * WIDE * 2 + WIDE) * LAYERS * 4 / 2
    moves = [(one, times) for one, times in timed(planned.program.instructions) if isinstance(one, Collective)]
    assert sum(times for one, times in moves if one.step.communicates and str(one.step.groups) == "tp") == (
        2 * LAYERS + scanned
    )
    assert_runs_as_whole(planned, [x], rtol=2e-4)


def test_tokens_stay_split_in_loops() -> None:
    planned = ash.plan(step(True)[0], mesh=f"dp={PARTS}", search="data_parallel", hardware="h100")
    nodes = [node for node in walk(planned.graph.nodes) if node.op.name == "Tanh"]
    assert nodes and all(planned.plan.strategy(node).work_split == PARTS for node in nodes)


def test_owners_are_found_by_how_states_are_used() -> None:
    planned = ash.plan(step(True, 0.1)[0], mesh="dp=2", search="data_parallel", hardware="h100")
    structure = Structure(flat(planned.graph).graph)
    told = {state.name: owner.name for state, owner in structure.owners.items()}
    assert len(told) == 8
    assert all(state.split(".")[-1] == owner.split(".")[-1] for state, owner in told.items())
