"""StableHLO modules as targets of plan(): Shardy's own answer, run; what cannot be planned is told first."""

from __future__ import annotations

from pathlib import Path
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import autoshard as ash
from autoshard.api.propagate import propagate
from autoshard.frontends import from_stablehlo
from autoshard.frontends.planning import planning
from autoshard.layout.mesh import Mesh
from autoshard.search.problem import Problem
from autoshard.search.rules.spread_constraints import PropagatedShardings
from autoshard.search.rules.strategy_from_shardings import ANY
from autoshard.util.errors import MeshError, PlanError, ShapeError
from costmodel import preset
from tests.propagate.generate.module import random_module
from tests.search.plans import assert_runs_as_whole, kinds

pytestmark = pytest.mark.jax

MESH = 'sdy.mesh @mesh = <["x"=2, "y"=4]>\n'


def sharded(*dims: str, extra: str = "") -> str:
    """The attribute that asks for this, e.g. of dims `{"x"}` and `{?}`."""
    return f"{{sdy.sharding = #sdy.sharding<@mesh, [{', '.join(dims)}]{extra}>}}"


def module(text: str, arguments: str, results: str = "tensor<8x16xf32>", mesh: str = MESH) -> str:
    return f"{mesh}func.func public @main({arguments}) -> ({results}) {{\n{text}\n}}\n"


def planned_of(text: str, search: str | None = "factor") -> ash.Planned:
    """The plan, which runs on virtual ranks as the module runs whole."""
    planned = ash.plan(from_stablehlo(text), search=search)
    rng = np.random.default_rng(0)
    feeds = [rng.normal(size=value.type.shape).astype(value.type.dtype.numpy) for value in planned.graph.inputs]
    assert_runs_as_whole(planned, feeds)
    return planned


def layouts(planned: ash.Planned) -> dict[str, str]:
    return {value.name: str(layout) for value, layout in planned.plan.layouts.items()}


def cause(planned: ash.Planned, label: str) -> str:
    return str(planned.plan.decisions[planned.graph.node(label)].cause)


ROWS, COLUMNS = sharded('{"x"}', "{?}"), sharded("{?}", '{"y"}')
X, Y = f"%x: tensor<8x16xf32> {ROWS}", f"%y: tensor<8x16xf32> {COLUMNS}"
W = f"%w: tensor<16x12xf32> {COLUMNS}"
DOT = "%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]"
DOT += " : (tensor<8x16xf32>, tensor<16x12xf32>) -> tensor<8x12xf32>\nreturn %0 : tensor<8x12xf32>"
PRODUCT = module(DOT, f"{X}, {W}", "tensor<8x12xf32>")


@pytest.mark.parametrize("search", [None, "factor", "sharding_propagation", "batch"])
def test_every_search_takes_a_module(search):
    planned = planned_of(PRODUCT, search)
    assert planned.plan.mesh is Mesh(x=2, y=4)
    assert layouts(planned)["%arg0"] == "x, -"
    assert layouts(planned)["%arg1"] == "-, y"
    if search != "batch":
        assert str(planned.plan.outputs[0]) == "x, y"


def test_targets(tmp_path: Path):
    path = tmp_path / "model.mlir"
    path.write_text(PRODUCT)
    for target in (path, str(path), from_stablehlo(PRODUCT)):
        assert str(ash.plan(target).plan.outputs[0]) == "x, y"
    lowered = jax.jit(lambda x: jnp.tanh(x) @ x.T).lower(jnp.ones((8, 6)))
    planned = ash.plan(lowered, mesh="dp=2 tp=4")
    (found,) = planned.run(np.ones((8, 6), np.float32))
    np.testing.assert_allclose(found, np.tanh(1.0) * 6 * np.ones((8, 8)), rtol=1e-5)


def test_each_call_is_split_in_its_own_way():
    text = module(
        "%0 = func.call @double(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>\n"
        "%1 = func.call @double(%y) : (tensor<8x16xf32>) -> tensor<8x16xf32>\n"
        "return %0, %1 : tensor<8x16xf32>, tensor<8x16xf32>",
        f"{X}, {Y}",
        "tensor<8x16xf32>, tensor<8x16xf32>",
    )
    text += (
        "func.func private @double(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {\n"
        "%0 = stablehlo.tanh %a : tensor<8x16xf32>\n%1 = stablehlo.add %0, %0 : tensor<8x16xf32>\n"
        "return %1 : tensor<8x16xf32>\n}\n"
    )
    planned = planned_of(text)
    assert [str(layout) for layout in planned.plan.outputs] == ["x, -", "-, y"]
    assert [str(planned.plan.strategy(node)) for node in planned.graph.nodes if node.op.name == "Tanh"] == [
        "((2, 1))",
        "((1, 4))",
    ]
    assert kinds(planned) == []


def test_composites_are_written_out():
    text = module(
        '%0 = stablehlo.composite "my.twice" %x {decomposition = @twice} : (tensor<8x16xf32>) -> tensor<8x16xf32>\n'
        "return %0 : tensor<8x16xf32>",
        X,
    )
    text += (
        "func.func private @twice(%a: tensor<8x16xf32>) -> tensor<8x16xf32> {\n"
        "%0 = stablehlo.add %a, %a : tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>\n}\n"
    )
    assert [node.op.name for node in planned_of(text).graph.nodes] == ["Add"]


def test_a_constant_is_cut_for_each_use_without_communication():
    text = module(
        "%c = stablehlo.constant dense<2.0> : tensor<8x16xf32>\n"
        "%0 = stablehlo.multiply %x, %c : tensor<8x16xf32>\n%1 = stablehlo.multiply %y, %c : tensor<8x16xf32>\n"
        "return %0, %1 : tensor<8x16xf32>, tensor<8x16xf32>",
        f"{X}, {Y}",
        "tensor<8x16xf32>, tensor<8x16xf32>",
    )
    planned = planned_of(text)
    assert [str(layout) for layout in planned.plan.outputs] == ["x, -", "-, y"]
    assert kinds(planned) == []


def test_terms_of_a_sum_pass_on_where_that_is_asked():
    split = sharded("{}", '{"y"}'), sharded('{"y"}', "{}")
    asked = '{sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{}, {}], unreduced={"y"}>]>}'
    text = module(
        f"%0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] {asked}"
        " : (tensor<8x16xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>\n"
        f"%1 = stablehlo.negate %0 {asked} : tensor<8x16xf32>\n"
        "%2 = stablehlo.tanh %x : tensor<8x16xf32>\n"
        "return %1 : tensor<8x16xf32>",
        f"%x: tensor<8x16xf32> {split[0]}, %w: tensor<16x16xf32> {split[1]}",
    )
    planned = planned_of(text)
    assert layouts(planned)["%0"] == layouts(planned)["%1"] == "-, - +y"
    assert kinds(planned) == ["all_reduce"]
    assert [node.op.name for node in planned.graph.nodes] == ["DotGeneral", "Neg"]  # what nobody needs is gone


def test_an_operator_without_a_rule_runs_whole_and_is_told():
    text = module(
        "%s = stablehlo.constant dense<[8, 16]> : tensor<2xi32>\n"
        '%0 = "stablehlo.dynamic_iota"(%s) {iota_dimension = 1 : i64} : (tensor<2xi32>) -> tensor<8x16xf32>\n'
        "%1 = stablehlo.add %0, %x : tensor<8x16xf32>\nreturn %1 : tensor<8x16xf32>",
        X,
    )
    planned = planned_of(text)
    assert layouts(planned)["%0"] == "-, -"
    assert cause(planned, "%0").endswith("how DynamicIota runs on blocks is not known, every rank runs all of it")
    assert str(planned.plan.outputs[0]) == "x, -"


def test_neighbours_are_exchanged():
    pad = "%c = stablehlo.constant dense<0.0> : tensor<f32>\n%0 = stablehlo.pad %x, %c, low = [2, 0], high = [0, 0], "
    pad += "interior = [0, 0] : (tensor<8x16xf32>, tensor<f32>) -> tensor<10x16xf32>\nreturn %0 : tensor<10x16xf32>"
    planned = planned_of(module(pad, X, "tensor<10x16xf32>"))
    assert layouts(planned)["%0"] == "x, -" and "left out" not in cause(planned, "%0")
    (moved,) = planned.program.collectives
    assert moved.step.kind == "halo" and moved.nbytes_moved == 16 * 4  # one row, to the second half of the ranks


FEATURES = ("sub_axes", "priorities", "replicated", "constraints", "groups", "barriers")


def test_shardings_are_those_of_the_pipeline():
    """On random modules, for every value inside: what operators are to follow is Shardy's own answer."""
    compared = 0
    for seed in range(60):
        random = Random(seed)
        imported = from_stablehlo(random_module(random, frozenset(random.sample(FEATURES, 3))))
        try:
            ready = planning(imported)
        except PlanError:
            continue
        graph = ready.traced.graph
        spread = PropagatedShardings(ready.work(), Problem(graph, ready.mesh, preset("cpu"), places=ready.places))
        final = propagate(imported).shardings
        # Constants have a copy per use, inputs and outputs are cut where they enter and leave, and the pipeline ends
        # with moving the results of some operators.
        moved = {node.results[0] for node in graph.nodes if node.op.name in ("Concatenate", "DotGeneral")}
        for value in {*graph.values} - {*graph.inputs, *graph.outputs} - moved:
            if value in final and spread.sharding(value) is not ANY:
                assert axes_of(spread.sharding(value)) == axes_of(final[value]), f"seed {seed}: {value}"
                compared += 1
    assert compared > 50


def axes_of(sharding) -> list:
    found = [] if sharding is None else [dim.axes for dim in sharding.dims]
    return found if any(found) else []


# -- what cannot be planned


def test_collectives_outside_of_manual_computations_are_refused():
    gather = '%0 = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : '
    gather += "tensor<1x2xi64>} : (tensor<8x16xf32>) -> tensor<16x16xf32>\nreturn %0 : tensor<16x16xf32>"
    with pytest.raises(PlanError, match="cannot plan %0 .AllGather.*: it says itself what ranks do"):
        ash.plan(from_stablehlo(module(gather, X, "tensor<16x16xf32>")))


def test_side_effects_are_refused():
    call = (
        "%0 = stablehlo.custom_call @announce(%x) {has_side_effect = true} : (tensor<8x16xf32>) -> tensor<8x16xf32>\n"
    )
    with pytest.raises(PlanError, match="cannot plan %0 .UnruledCustomCall 'announce'.*: it has side effects"):
        ash.plan(from_stablehlo(module(call + "return %0 : tensor<8x16xf32>", X)))


def test_unknown_operations_are_named():
    text = module("%0 = arith.negf %x : tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>", X)
    with pytest.raises(ShapeError, match="no operator for arith.negf"):
        ash.plan(from_stablehlo(text))


def test_several_meshes_are_refused():
    both = MESH + 'sdy.mesh @other = <["a"=8]>\n'
    text = module(
        '%0 = stablehlo.tanh %x {sdy.sharding = #sdy.sharding_per_value<[<@other, [{"a"}, {}]>]>} : '
        "tensor<8x16xf32>\nreturn %0 : tensor<8x16xf32>",
        X,
        mesh=both,
    )
    with pytest.raises(PlanError, match=r"several meshes yet: input %arg0 .* 'x=2 y=4', %0 \(Tanh\).* 'a=8'"):
        ash.plan(from_stablehlo(text))
    unused = ash.plan(from_stablehlo(PRODUCT.replace(MESH, both)))
    assert unused.plan.mesh is Mesh(x=2, y=4)


def test_the_mesh_of_a_module():
    plain = module("return %x : tensor<8x16xf32>", "%x: tensor<8x16xf32>", mesh="")
    with pytest.raises(MeshError, match="the module with 'main' names no mesh; give one"):
        ash.plan(from_stablehlo(plain))
    assert ash.plan(from_stablehlo(plain), devices=4).plan.mesh.devices == 4
    assert ash.plan(from_stablehlo(PRODUCT), mesh="x=2 y=4", devices=8).plan.mesh is Mesh(x=2, y=4)
    with pytest.raises(PlanError, match="written for the mesh 'x=2 y=4', not for 'dp=8'; leave mesh out"):
        ash.plan(from_stablehlo(PRODUCT), mesh="dp=8")
    with pytest.raises(PlanError, match="of 8 devices, not for 4"):
        ash.plan(from_stablehlo(PRODUCT), devices=4)
    with pytest.raises(PlanError, match="the inputs are of shapes .*; leave them out"):
        ash.plan(from_stablehlo(PRODUCT), (np.ones(3),))
    with pytest.raises(PlanError, match="leave it out"):
        ash.plan(from_stablehlo(PRODUCT), dataset_strategy="data_parallel")
