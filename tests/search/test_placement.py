"""Which mesh axes lie on which links: the device order that is found beside all that there are."""

from __future__ import annotations

import numpy as np
import pytest

from autoshard import nn
from autoshard.api import plan
from autoshard.cost.links import levels_of
from autoshard.layout.mesh import Mesh
from autoshard.search.placement import AxisTraffic, best_order, mesh_in, order_seconds, orders
from autoshard.util.errors import PlanError
from costmodel import Device, Hardware, Link, Topology, preset
from tests.search.plans import FFN, array, assert_runs_as_whole

NODE, RAIL, POD = Link("node", 2e-6, 400e9), Link("rail", 4e-6, 50e9), Link("pod", 2e-5, 10e9)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def random_traffic(mesh: Mesh, rng: np.random.Generator, count: int) -> list[AxisTraffic]:
    """Collectives along some axes each, parts of axes among them."""
    found = {}
    for _ in range(count):
        axes = rng.permutation(len(mesh.all_axes))[: rng.integers(1, 4)]
        refs = tuple(mesh.all_axes[i] for i in axes)
        if refs[0].size == 4 and rng.random() < 0.5:
            refs = (refs[0].split(2)[rng.integers(2)], *refs[1:])
        sent = [(str(rng.choice(KINDS)), float(rng.integers(1, 2**26)), float(rng.integers(1, 5))) for _ in range(2)]
        found[refs] = AxisTraffic(refs, tuple(sent))
    return list(found.values())


MESHES = ["a=2 b=4", "a=4 b=2 c=3", "a=2 b=2 c=4 d=2", "a=2 b=3 c=2 d=2 e=2", "a=4 b=2 c=2 d=2 e=1 f=2 g=2"]
TOPOLOGIES = {
    "two levels": Topology(((8, NODE), (None, RAIL))),
    "three levels": Topology(((4, NODE), (16, RAIL), (None, POD))),
    "fast outside": Topology(((4, RAIL), (None, NODE))),
}


@pytest.mark.parametrize("links", TOPOLOGIES)
def test_best_order_is_that_of_all_orders(links):
    rng, topology = np.random.default_rng(0), TOPOLOGIES[links]
    for text in MESHES:
        mesh = Mesh.parse(text)
        traffic = random_traffic(mesh, rng, 7)
        order, seconds = best_order(traffic, mesh, topology)
        assert seconds == pytest.approx(order_seconds(traffic, mesh, topology, order))
        assert seconds == pytest.approx(min(order_seconds(traffic, mesh, topology, one) for one in orders(mesh)))


def test_eight_axes():
    mesh = Mesh([(name, 2) for name in "abcdefgh"])
    topology = TOPOLOGIES["three levels"]
    traffic = random_traffic(mesh, np.random.default_rng(1), 5)
    every = [order_seconds(traffic, mesh, topology, one) for one in list(orders(mesh))[::97]]
    _, seconds = best_order(traffic, mesh, topology)
    assert seconds <= min(every) * (1 + 1e-9) and seconds < max(every)


def test_links_of_a_mesh_with_a_device_order():
    topology, mesh = TOPOLOGIES["two levels"], Mesh.parse("dp=4 tp=8")
    turned = mesh_in(mesh, ("tp", "dp"))
    assert str(turned).startswith("dp=4 tp=8 order=0.4.8.12")
    for name, other in (("tp", "dp"), ("dp", "tp")):
        size = mesh.sizes[name]
        as_if = Mesh([(other, mesh.sizes[other]), (name, size)]) if name == "dp" else Mesh([(name, size), ("dp", 4)])
        assert levels_of(turned.groups([turned.axis(name)]), topology) == levels_of(
            as_if.groups([as_if.axis(name)]), topology
        )
    # Any order at all: members of a group that lie on two nodes need the links between them.
    mixed = Mesh.parse("x=2 y=2 order=0.3.1.2")
    narrow = Topology(((2, NODE), (None, RAIL)))
    assert [link for _, link in levels_of(mixed.groups([mixed.axis("x")]), narrow)] == [NODE]
    assert [link for _, link in levels_of(mixed.groups([mixed.axis("y")]), narrow)] == [RAIL]


def lab() -> Hardware:
    device: Device = preset("h100").device
    return Hardware("lab", device, Topology(((8, NODE), (32, POD))))


@pytest.mark.parametrize("mode", ["megatron", "sharding_propagation"])
def test_a_plan_is_placed_as_in_the_best_of_all_orders(mode):
    model, inputs = FFN(sizes=(64, 256, 64)), (array(32, 64),)
    mesh = Mesh.parse("tp=8 dp=4")
    worst = plan(model, inputs, mesh, hardware=lab(), search=mode)
    every = [plan(model, inputs, mesh_in(mesh, one), hardware=lab(), search=mode) for one in orders(mesh)]
    placed = plan(model, inputs, mesh, hardware=lab(), search=mode, options={"placement": "search"})
    assert placed.cost.seconds == pytest.approx(min(one.cost.seconds for one in every))
    assert set(placed.plan.compared) == {"tp.dp", "dp.tp"} and "lie on the links as" in placed.plan.started_from
    assert_runs_as_whole(placed, inputs)
    if mode == "megatron":
        assert placed.cost.seconds < worst.cost.seconds and placed.plan.mesh.order is not None


def test_many_axes_are_improved_in_turn():
    mesh = Mesh.parse("a=2 b=2 c=2 d=2 e=2")
    model, inputs = FFN(sizes=(64, 256, 64)), (array(32, 64),)
    options = {"placement": "search"}
    first = plan(model, inputs, mesh, hardware=lab(), search="factor")
    placed = plan(model, inputs, mesh, hardware=lab(), search="factor", options=options)
    assert placed.cost.seconds <= first.cost.seconds


def test_wrong_requests_are_told():
    model, inputs = nn.Dense(16, 16), (array(16, 16),)
    with pytest.raises(PlanError, match="the option placement is 'best'; it can be 'search'"):
        plan(model, inputs, "a=2 b=2", options={"placement": "best"})
    with pytest.raises(PlanError, match="has an order; leave one out"):
        plan(model, inputs, "a=2 b=2 order=0.2.1.3", options={"placement": "search"})
