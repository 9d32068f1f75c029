"""Meshes, manual axes and what is settled at the borders of functions, against Shardy's passes."""

from __future__ import annotations

import pytest

from autoshard.layout.mesh import Mesh
from autoshard.propagate.mutable_ir import MutableModule
from autoshard.propagate.passes.boundaries import even_boundaries, full_axes_at_main
from autoshard.propagate.passes.manual_axes import clean_manual_axes
from autoshard.propagate.passes.meshes import close_shardings, lift_meshes, remove_size_one_axes
from autoshard.util.errors import GraphError, ShardingError
from tests.propagate.compare import check, load, module_text

pytestmark = pytest.mark.jax
LIFT, SIZE_ONE = "sdy-lift-inlined-meshes", "sdy-remove-size-one-axes"
MANUAL, CLOSE = "sdy-manual-axes-cleanup", "sdy-close-shardings"
EVEN, WHOLE = "sdy-update-non-divisible-input-output-shardings", "sdy-remove-sub-axes-in-input-output-shardings"

BODIES = module_text("bodies")

UNEVEN = module_text("uneven")

INLINED = module_text("inlined_meshes")


def test_inlined_meshes_are_lifted() -> None:
    check(INLINED, lift_meshes, [LIFT])


def test_lifting_merges_equal_meshes() -> None:
    module = load(INLINED)
    lift_meshes(module)
    assert list(module.meshes) == ["first", "mesh", "mesh_1", "mesh_2", "maximal_mesh_3", "empty_mesh", "mesh_3"]
    assert module.meshes["mesh_3"] == Mesh([("x", 2), ("y", 2)], [0, 2, 1, 3])


@pytest.mark.parametrize("text", [BODIES, UNEVEN], ids=["bodies", "uneven"])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (remove_size_one_axes, SIZE_ONE),
        (clean_manual_axes, MANUAL),
        (even_boundaries, EVEN),
        (full_axes_at_main, WHOLE),
        (close_shardings, CLOSE),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_each_pass_equals_shardys(text: str, ours, theirs: str) -> None:
    check(text, ours, [theirs])


@pytest.mark.parametrize("text", [BODIES, UNEVEN], ids=["bodies", "uneven"])
def test_all_of_them_equal_shardys(text: str) -> None:
    def ours(module: MutableModule) -> None:
        for one in (remove_size_one_axes, clean_manual_axes, even_boundaries, full_axes_at_main, close_shardings):
            one(module)

    check(text, ours, [SIZE_ONE, MANUAL, EVEN, WHOLE, CLOSE])


def test_main_has_to_be_known() -> None:
    module = load(UNEVEN.replace("@main", "@g"))
    with pytest.raises(GraphError, match="functions g, f: one has to be called main"):
        full_axes_at_main(module)


def test_a_manual_computation_on_two_meshes_is_an_error() -> None:
    module = load(BODIES)
    op = next(op for op in module.op.walk() if op.name == "ManualComputation")
    other = Mesh(x=2, y=2)
    op.attrs["out_shardings"] = tuple(s.replace(mesh=other, mesh_name="other") for s in op.attrs["out_shardings"])
    with pytest.raises(ShardingError, match=r"on several meshes \(mesh, other\); it needs one"):
        clean_manual_axes(module)
