"""Constraints and sharding groups, before and after propagation, against Shardy's passes."""

from __future__ import annotations

import pytest

from autoshard.propagate.passes.constraints import apply_constraints, constraints_to_reshards
from autoshard.propagate.passes.groups import drop_groups, unify_groups
from autoshard.util.errors import ShardingError
from tests.propagate.compare import check, load, module_text

pytestmark = pytest.mark.jax
EDGES, APPLY = "sdy-add-data-flow-edges", "sdy-apply-sharding-constraints"

CHAINS = module_text("constraint_chains")

EDGED = module_text("constraint_edges")

GROUPS = module_text("groups")


@pytest.mark.parametrize("text", [CHAINS, EDGED], ids=["chains", "edged"])
@pytest.mark.parametrize("before", [[], [EDGES]], ids=["alone", "with edges"])
def test_constraints_are_applied_as_in_shardy(text: str, before: list[str]) -> None:
    check(text, apply_constraints, [APPLY], uses=True, before=before)


@pytest.mark.parametrize("text", [CHAINS, EDGED], ids=["chains", "edged"])
def test_constraints_become_reshards(text: str) -> None:
    check(text, constraints_to_reshards, ["func.func(sdy-sharding-constraint-to-reshard)"])


def test_groups_are_unified_as_in_shardy() -> None:
    check(GROUPS, unify_groups, ["sdy-sharding-group-import"])
    check(GROUPS, drop_groups, ["sdy-remove-sharding-groups"])


def test_groups_are_numbered_as_they_come_up() -> None:
    module = load(GROUPS)
    unify_groups(module)
    numbers = [op.attrs["group"] for op in module.op.walk() if op.name == "ShardingGroup"]
    assert numbers == [1, 0, 1, 2, 0]


def test_a_group_of_two_shapes_is_an_error() -> None:
    module = load(GROUPS.replace("group_id=3 ", "group_id=7 "))
    with pytest.raises(ShardingError, match=r"group 7 have the shapes \(4,\) and \(8, 4\)"):
        unify_groups(module)


def test_a_group_across_a_manual_computation_is_an_error() -> None:
    with pytest.raises(ShardingError, match="group 1 has members in different manual computations"):
        unify_groups(load(module_text("group_across")))
