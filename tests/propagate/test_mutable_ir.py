"""The working copy under edits: rare ops stay findable, places grow along a block; the collector pauses and resumes."""

from __future__ import annotations

import gc
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.core.tensortype import TensorType
from autoshard.ops.control import data_flow_edge, named_computation, sharding_group
from autoshard.ops.registry import lookup
from autoshard.propagate.mutable_ir import Block, MutableModule, Operation, find, is_rare
from autoshard.propagate.passes.edit import inside_out, named
from autoshard.util.gc_paused import gc_paused

_TYPE = TensorType.of((6, 4))
_KINDS = ("Neg", "ShardingGroup", "NamedComputation")


def _op(name: str) -> Operation:
    if name == "NamedComputation":
        op = Operation(lookup(name), (), (), {"name": "f"})
        op.add_block((_TYPE,))
        return op
    return Operation(lookup(name), (), (), {})


def _blocks(module: MutableModule) -> list[Block]:
    return [block for op in module.op.walk() for block in op.blocks]


def _edit(rng: random.Random, module: MutableModule) -> None:
    block = rng.choice(_blocks(module))
    ops = list(block)
    if ops and rng.random() < 0.3:
        rng.choice(ops).erase()
    elif ops and rng.random() < 0.2:
        one = rng.choice(ops)
        if not one.blocks:
            one.become(lookup(rng.choice(_KINDS[:2])))
    else:
        block.insert(_op(rng.choice(_KINDS)), rng.choice([None, *ops]))


@given(st.randoms(use_true_random=False))
def test_find_sees_what_a_full_walk_sees(rng: random.Random):
    module = MutableModule({})
    for _ in range(40):
        _edit(rng, module)
    rare = [op for op in inside_out(module.op) if op.operator in (sharding_group, named_computation)]
    assert find(module.op, lambda operator: operator in (sharding_group, named_computation)) == rare
    assert named(module.op, "ShardingGroup") == [op for op in rare if op.operator is sharding_group]
    for block in _blocks(module):
        places = [op.order for op in block]
        assert places == sorted(set(places))


@pytest.mark.parametrize("at", ["first", "last"])
def test_there_is_always_a_place_between_two_ops(at: str):
    block = MutableModule({}).op.blocks[0]
    first, last = block.append(_op("Neg")), block.append(_op("Neg"))
    made = [first, last]
    for _ in range(200):
        op = block.insert(_op("Neg"), made[1] if at == "first" else last)
        made.insert(1 if at == "first" else len(made) - 1, op)
    assert list(block) == made
    places = [op.order for op in block]
    assert places == sorted(set(places))


def test_a_block_without_ops_belongs_to_one_op_only():
    first, second = _op("NamedComputation"), _op("Neg")
    assert len(first.blocks) == 1
    assert not second.blocks


def test_rare_is_what_passes_look_for():
    assert all(is_rare(operator) for operator in (sharding_group, named_computation, data_flow_edge, lookup("Call")))
    assert (
        is_rare(lookup("PropagationBarrier")) and is_rare(lookup("ShardingConstraint")) and is_rare(lookup("Reshard"))
    )
    assert not any(is_rare(lookup(name)) for name in ("Add", "DotGeneral", "Constant", "BroadcastInDim"))


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_is_as_before_also_after_an_error(before: bool):
    was = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        with pytest.raises(ValueError, match="inside"), gc_paused():
            assert not gc.isenabled()
            raise ValueError("inside")
        assert gc.isenabled() is before
    finally:
        (gc.enable if was else gc.disable)()


IN_A_PAUSE = """
import gc, weakref
from autoshard.util import gc_paused as module

class Knot:
    def __init__(self):
        self.own = self

module.FEW, module.MANY = 100, 1 << 40
with module.gc_paused():
    made = [Knot() for _ in range(2000)]
assert any(one is made[0] for one in gc.get_objects(generation=2))
tied = weakref.ref(made[0])
del made
gc.collect(1)
assert tied() is not None, "old objects are left alone by small looks"
module.MANY = 1000
with module.gc_paused():
    _ = [[] for _ in range(2000)]
assert tied() is None
"""


def test_what_was_made_in_a_pause_is_old_and_looked_at_when_it_is_much():
    """In a process of its own: that of the tests has frozen what it holds."""
    subprocess.run([sys.executable, "-c", IN_A_PAUSE], check=True, timeout=60)
