"""Strategies that are listed are legal, each once; strategies and nodes as keys of memos."""

import pickle

import pytest

from autoshard.core.enumerate import listing, some_strategies
from autoshard.core.rule import bind
from autoshard.core.strategy import is_legal
from autoshard.core.tensortype import TensorType
from autoshard.layout.mesh import Mesh
from autoshard.ops.registry import lookup

RULES = {
    "product": ("m k, k n -> m n", ((24, 16), (16, 40)), {}),
    "batched": ("b m k, b k n -> b m n", ((8, 24, 6), (8, 6, 12)), {}),
    "heads": ("b s (h d) -> b s h d", ((4, 6, 48),), {"h": 8}),
    "softmax": ("b [n] -> b [n]", ((12, 20),), {}),
    "sum": ("a b c -> b", ((6, 8, 10),), {}),
}
MESHES = (Mesh.parse("dp=2 tp=4"), Mesh.parse("a=3 b=4"))


@pytest.mark.parametrize("name", RULES)
def test_every_listed_strategy_is_legal_and_listed_once(name):
    rule = bind(*RULES[name])
    for mesh in MESHES:
        listed = listing(rule, mesh)
        assert len(set(listed.strategies)) == len(listed)
        assert [one.parts for one in listed.strategies] == list(map(tuple, listed.parts.tolist()))
        assert all(is_legal(rule, one.parts) for one in listed.strategies)


def test_a_strategy_leaves_its_hash_behind_when_it_is_pickled():
    rule = bind(*RULES["product"])
    for one in some_strategies(rule, MESHES[0])[:20]:
        hash(one)
        again = pickle.loads(pickle.dumps(one))
        assert "_hash" not in again.__dict__ and again == one and hash(again) == hash(one)


def test_nodes_share_a_key_if_they_compute_the_same():
    from autoshard.trace.function import trace
    from benchmarks.models import Transformer

    tokens = TensorType.of((2, 12), "i32")
    graph = trace(Transformer(2, 16, 2, 30, 1, 1), tokens, tokens).graph
    by_key = {}
    for node in graph.nodes:
        by_key.setdefault(node.key, []).append(node)
    assert len(by_key) < len(graph.nodes)
    for nodes in by_key.values():
        assert len({(one.op.name, one.operand_types, tuple(one.attrs.items())) for one in nodes}) == 1
    told = {(one.op.name, one.operand_types, tuple(one.attrs.items()), one.given_rule) for one in graph.nodes}
    assert len(told) == len(by_key) and lookup("MatMul") in {one.op for one in graph.nodes}
